"""Options that select tests, and the signals that all tests start with.

`pytest --reduced` is for a second TensorFlow version. It runs the tests beside the sources, which cover each call into
TensorFlow, and the tests in `tests/` that are marked `oldest`. The marker `newest_only` excludes slow tests that do not
depend on TensorFlow's version.

`pytest --every N` runs every N-th case of a test with several cases. `--turn K` begins with case K, from 0 on, so that
N runs with the turns 0 to N - 1 run all cases. (A test with fewer cases than N is in each run.) With `--turns-of file`
all tests of a file count as one, with its tests as cases. So it is always in `tests/scripts`, whose tests run programs
of documents.

`pytest --long` also runs the tests marked `long`, which `make test` leaves to `make test-long` and `make test-hosts`.

`pytest --processes=one` runs the tests that use one core and may run side by side. `--processes=several` runs the tests
that are marked `workers`, because they start some. tools/test_python.sh runs both. All tests of a folder that is named
below have this mark. A test without it that starts workers fails.

The marker `pairwise` is for a test with three parameters or more. `make test` then runs combinations of their values in
which each two values of different parameters occur together; the other combinations count as `long`. Most faults need
one value or two (Kuhn, Wallace, Gallo, "Software Fault Interactions and Implications for Software Testing", 2004).

When a test has joined a job in the process of the tests, it leaves the job before the next test.
"""

import collections
import functools
import importlib.metadata
import math
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from allpairspy import AllPairs

_SPANNING = Path(__file__).parent / "tests"
_SCRIPTS = _SPANNING / "scripts"
# Folders whose tests all start jobs.
_JOB_FOLDERS = {_SPANNING / name for name in ("hosts", "multiprocess", "parity", "scripts")}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --reduced, --every, --turns-of, --turn, --long and --processes."""
    parser.addoption("--reduced", action="store_true", help="leave out what another TensorFlow cannot change")
    parser.addoption("--every", type=int, default=1, help="of the cases of a test, run every N-th")
    parser.addoption("--turns-of", choices=["test", "file"], default="test", help="what has cases, with --every")
    parser.addoption("--turn", type=int, default=0, help="the number of the first case, with --every")
    parser.addoption("--long", action="store_true", help="run those marked `long` too")
    parser.addoption("--processes", choices=["one", "several"], help="tests that start no workers, or those that do")


def pytest_configure() -> None:
    """Lets processes of tests receive the signals that this process was started to ignore.

    These are hang-ups under nohup, and interrupts of a background process of a shell without job control. Children
    inherit ignored signals, but not handlers. Some tests check the effect of these signals.
    """
    for ignored in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(ignored) is signal.SIG_IGN:
            signal.signal(ignored, lambda *_: None)
    # Kernels for GPUs are registered when the op library is loaded, which the fork server of workers does once for all
    # tests. So all tests have the emulated library; without a stand-in device (tests/standin) nothing uses it.
    libraries = Path(__file__).parent.glob(f"build/tf-{_tensorflow_version()}/core/device/liblockstep_emulated.so")
    for library in libraries:
        os.environ.setdefault("LOCKSTEP_DEVICE_LIBRARY", str(library))


def _tensorflow_version() -> str:
    (distribution,) = importlib.metadata.packages_distributions()["tensorflow"][:1]
    return importlib.metadata.version(distribution)


@pytest.fixture(autouse=True)
def _own_job() -> Iterator[None]:
    """Leaves the job that a test has joined, so that the next test of the process starts without one."""
    yield
    if named_job := sys.modules.get("lockstep._src.collectives.named_job"):
        named_job.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Lets only tests that are marked `workers` start workers: others run side by side, as many as there are cores."""
    module: Any = sys.modules.get("lockstep.testing.workers")
    if module is None or item.get_closest_marker("workers") is not None:
        return (yield)

    def refused(*_: Any) -> None:
        raise RuntimeError(f"{item.nodeid} starts workers; mark it: @pytest.mark.workers")

    allowed, module.worker_variables = module.worker_variables, refused
    try:
        return (yield)
    finally:
        module.worker_variables = allowed


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects tests that --reduced, --every and --processes exclude, and long tests."""
    kept = items
    for item in items:
        if not _JOB_FOLDERS.isdisjoint(item.path.parents):
            item.add_marker("workers")
    _mark_pairwise(items)
    if not config.getoption("--long"):
        kept = [item for item in kept if item.get_closest_marker("long") is None]
    if config.getoption("--reduced"):
        kept = [item for item in kept if _is_in_reduced_set(item)]
    if (every := config.getoption("--every")) > 1:
        cases = collections.defaultdict[tuple[Path, str], list[pytest.Item]](list)
        for item in kept:
            whole_file = config.getoption("--turns-of") == "file" or _SCRIPTS in item.path.parents
            cases[item.path, "" if whole_file else item.nodeid.partition("[")[0]].append(item)
        turn = config.getoption("--turn")
        in_turn = {item for of_test in cases.values() for item in of_test[turn % min(every, len(of_test)) :: every]}
        kept = [item for item in kept if item in in_turn]
    if wanted := config.getoption("--processes"):
        kept = [item for item in kept if (item.get_closest_marker("workers") is not None) == (wanted == "several")]
        # The files of tests/ take longest: they come first, so that no process is left with one at the end. (Without
        # workers, where this does not matter, xdist orders the files itself.)
        kept.sort(key=lambda item: _SPANNING not in item.path.parents)
    if len(kept) < len(items):
        staying = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in staying])
        items[:] = kept


def _mark_pairwise(items: list[pytest.Item]) -> None:
    """Marks the combinations as `long` that a test marked `pairwise` does not need for its pairs of values."""
    for item in items:
        if item.get_closest_marker("pairwise") is not None and isinstance(item, pytest.Function):
            sizes = tuple(len(mark.args[1]) for mark in item.iter_markers("parametrize"))
            # pytest numbers the combinations; the last decorator's values change fastest.
            (number,) = set(item.callspec.indices.values())
            if number not in _pairs(sizes):
                item.add_marker("long")


@functools.cache
def _pairs(sizes: tuple[int, ...]) -> set[int]:
    """Returns the numbers of the combinations to run, of parameters with so many values."""
    pairs = AllPairs([range(size) for size in sizes])
    factors = [math.prod(sizes[place + 1 :]) for place in range(len(sizes))]
    return {sum(value * factor for value, factor in zip(pair, factors, strict=True)) for pair in pairs}


def _is_in_reduced_set(item: pytest.Item) -> bool:
    if _SPANNING in item.path.parents:
        return item.get_closest_marker("oldest") is not None
    return item.get_closest_marker("newest_only") is None
