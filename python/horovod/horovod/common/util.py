"""Helpers that programs and Horovod's own tests import from here."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

EXTENSIONS = ["tensorflow"]


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether this installation serves a framework: 'tensorflow' alone, where it is installed."""
    available = ext_base_name in EXTENSIONS and find_spec(ext_base_name) is not None
    if verbose:
        print(f"Extension {ext_base_name} is {'' if available else 'not '}available.", file=sys.stderr)
    return available


def _cache(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, called once for the same arguments."""
    return functools.cache(function)


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether the framework sees a GPU. Loads it."""
    if not extension_available(ext_base_name, verbose):
        return False
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))


def mpi_built(verbose: bool = False) -> bool:
    """False: there is no MPI, and none is needed."""
    return False


def gloo_built(verbose: bool = False) -> bool:
    """True: processes find each other without MPI, which programs ask for under Gloo's name."""
    return True


def nccl_built(verbose: bool = False) -> bool:
    """False: this version exchanges in the memory of hosts."""
    return False


def ddl_built(verbose: bool = False) -> bool:
    """False."""
    return False


def ccl_built(verbose: bool = False) -> bool:
    """False."""
    return False


@contextlib.contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Sets environment variables inside the block; None leaves one as it is."""
    wanted = {name: value for name, value in kwargs.items() if value is not None}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[Any, bool | None], Any]:
    """A function (op, average) that says which `op` both mean; ValueError where both are given."""

    def reduction(op: Any, average: bool | None) -> Any:
        if average is None:
            return reduce_ops.Average if op is None else op
        if op is not None:
            raise ValueError("got both op and average: op replaces average, give it alone")
        warnings.warn("average=True is op=hvd.Average now, average=False op=hvd.Sum", DeprecationWarning, stacklevel=3)
        return reduce_ops.Average if average else reduce_ops.Sum

    return reduction


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether a number of ranks is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(l: Sequence[Any], n: int) -> list[Sequence[Any]]:  # noqa: E741  Horovod's name
    """The list in `n` pieces of about the same length, one behind the other."""
    # The first pieces have one more.
    share, more = divmod(len(l), n)
    ends = [i * share + min(i, more) for i in range(n + 1)]
    return [l[begin:end] for begin, end in itertools.pairwise(ends)]


def is_iterable(x: Any) -> bool:
    """Whether `iter(x)` works."""
    try:
        iter(x)
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether version `ver` is `target` ("major.minor.patch") or newer; ValueError where one is no such text."""
    from packaging import version

    if not isinstance(ver, str) or not isinstance(target, str):
        raise ValueError(f"got the versions {ver!r} and {target!r}, wanted strings")
    if target.count(".") != 2:
        raise ValueError(f"got the version {target!r}, wanted major.minor.patch")
    return version.parse(ver) >= version.parse(target)
