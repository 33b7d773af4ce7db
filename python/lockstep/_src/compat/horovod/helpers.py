"""Small functions that programs and Horovod's own tests import from `horovod.common.util` and from its runner."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

EXTENSIONS = ["tensorflow"]


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Returns whether this installation serves a framework: only 'tensorflow', if it is installed."""
    available = ext_base_name in EXTENSIONS and find_spec(ext_base_name) is not None
    if verbose:
        print(f"Extension {ext_base_name} is {'' if available else 'not '}available.", file=sys.stderr)
    return available


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Returns whether the framework, which this loads, sees a GPU."""
    if not extension_available(ext_base_name, verbose):
        return False
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))


def nccl_version() -> int:
    """Returns the version of the NCCL that exchanges this worker's tensors, such as 22809; 0 if none does."""
    from lockstep._src.engine import devices
    from lockstep._src.engine.context import context

    return devices.nccl_version(context.options)


def exchanges_on_gpus() -> bool:
    """Returns whether tensors on this worker's GPU are exchanged by device code."""
    from lockstep._src.engine import devices
    from lockstep._src.engine.context import context

    return bool(devices.connection(context.options, warns=False).device_backend)


def cache(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `function`, called once for the same arguments."""
    return functools.cache(function)


@contextlib.contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Sets environment variables inside the block; None leaves one unchanged."""
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
    """Returns a function of `op` and `average` that returns the `op` that both mean.

    That function raises ValueError if both are given.
    """

    def reduction(op: Any, average: bool | None) -> Any:
        if average is None:
            return reduce_ops.Average if op is None else op
        if op is not None:
            raise ValueError("got both op and average, wanted only op, which replaces average")
        warnings.warn(
            "average is deprecated; use op=hvd.Average for average=True, and op=hvd.Sum for average=False",
            DeprecationWarning,
            stacklevel=3,
        )
        return reduce_ops.Average if average else reduce_ops.Sum

    return reduction


def num_rank_is_power_2(num_rank: int) -> bool:
    """Returns whether a number of ranks is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(l: Sequence[Any], n: int) -> list[Sequence[Any]]:  # noqa: E741  Horovod's name
    """Splits the list into `n` consecutive pieces of about the same length."""
    # The first pieces have one more.
    share, more = divmod(len(l), n)
    ends = [i * share + min(i, more) for i in range(n + 1)]
    return [l[begin:end] for begin, end in itertools.pairwise(ends)]


def is_iterable(x: Any) -> bool:
    """Returns whether `iter(x)` works."""
    try:
        iter(x)
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Returns whether version `ver` is `target` ("major.minor.patch") or newer; ValueError if one is no such text."""
    from packaging import version

    if not isinstance(ver, str) or not isinstance(target, str):
        raise ValueError(f"got the versions {ver!r} and {target!r}, wanted strings")
    if target.count(".") != 2:
        raise ValueError(f"got the version {target!r}, wanted major.minor.patch")
    return version.parse(ver) >= version.parse(target)


def in_thread(
    target: Callable[..., Any], args: tuple[Any, ...] = (), name: str | None = None, daemon: bool = True
) -> threading.Thread:
    """Calls `target(*args)` in a new thread, which is returned; raises ValueError if `args` is not a tuple."""
    if not isinstance(args, tuple):
        raise ValueError(f"args is {type(args).__name__}, wanted a tuple; a single argument is (argument,)")
    thread = threading.Thread(target=target, args=args, name=name, daemon=daemon)
    thread.start()
    return thread


def rank_and_size() -> tuple[int, int]:
    """Returns rank and number of processes from the launcher's variables; (0, 1) without a launcher."""
    return int(os.environ.get("HOROVOD_RANK", 0)), int(os.environ.get("HOROVOD_SIZE", 1))


def parse_yaml(text: str) -> Any:
    """Returns what a text of YAML holds; raises ValueError for invalid YAML."""
    import yaml  # Only a configuration file pays for it.

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
