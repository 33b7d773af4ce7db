"""Which tests run in the reduced set, and what all of them start from.

`pytest --reduced` is for a second TensorFlow version: it runs the tests beside the sources, which cover each call that
we make into TensorFlow, and of the tests that span layers (`tests/`) those marked `oldest`. A slow test beside a source
that says nothing about TensorFlow's version is left out with the marker `newest_only`.

`pytest --long` runs the tests marked `long` as well, which other targets than `make test` run.

`pytest --processes=one` runs the tests that leave the machine's other cores alone, which may run side by side;
`--processes=several` runs those of modules that start workers. tools/test_python.sh runs both.
"""

import signal
from pathlib import Path

import pytest

_SPANNING = Path(__file__).parent / "tests"
# Folders whose modules start jobs that train by other means than the helpers that start workers.
_OF_JOBS = {_SPANNING / name for name in ("hosts", "multiprocess", "parity", "scripts")}
_STARTING_WORKERS = {"call_workers", "run_module", "run_workers"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --reduced, --long and --processes."""
    parser.addoption("--reduced", action="store_true", help="leave out what another TensorFlow cannot change")
    parser.addoption("--long", action="store_true", help="run those marked `long` too")
    parser.addoption("--processes", choices=["one", "several"], help="tests that start no workers, or those that do")


def pytest_configure() -> None:
    """Has processes that tests start take the signals that this one was started to ignore.

    That is hang-ups under nohup, and interrupts where a shell without job control started it in the background. What a
    process ignores, its children do; what it handles they don't inherit. There are tests of what these signals do.
    """
    for ignored in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(ignored) is signal.SIG_IGN:
            signal.signal(ignored, lambda *_: None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects what --reduced and --processes leave out, and what is long."""
    kept = items
    if not config.getoption("--long"):
        kept = [item for item in kept if item.get_closest_marker("long") is None]
    if config.getoption("--reduced"):
        kept = [item for item in kept if _is_in_reduced_set(item)]
    if wanted := config.getoption("--processes"):
        kept = [item for item in kept if _starts_workers(item) == (wanted == "several")]
    if len(kept) < len(items):
        staying = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in staying])
        items[:] = kept


def _is_in_reduced_set(item: pytest.Item) -> bool:
    if _SPANNING in item.path.parents:
        return item.get_closest_marker("oldest") is not None
    return item.get_closest_marker("newest_only") is None


def _starts_workers(item: pytest.Item) -> bool:
    return item.path.parent in _OF_JOBS or not _STARTING_WORKERS.isdisjoint(vars(item.module))
