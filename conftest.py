"""Options that select tests, and the signals that all tests start with.

`pytest --reduced` is for a second TensorFlow version. It runs the tests beside the sources, which cover each call into
TensorFlow, and the tests in `tests/` that are marked `oldest`. The marker `newest_only` excludes slow tests that do not
depend on TensorFlow's version.

`pytest --long` also runs the tests marked `long`, which `make test` leaves to other targets.

`pytest --processes=one` runs the tests that use one core and may run side by side. `--processes=several` runs the tests
of modules that start workers. tools/test_python.sh runs both.
"""

import signal
from pathlib import Path

import pytest

_SPANNING = Path(__file__).parent / "tests"
# Folders whose modules start training jobs without the helpers that start workers.
_JOB_FOLDERS = {_SPANNING / name for name in ("hosts", "multiprocess", "parity", "scripts")}
_STARTING_WORKERS = {"call_workers", "run_module", "run_workers"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --reduced, --long and --processes."""
    parser.addoption("--reduced", action="store_true", help="leave out what another TensorFlow cannot change")
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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects tests that --reduced and --processes exclude, and long tests."""
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
    return not _JOB_FOLDERS.isdisjoint(item.path.parents) or not _STARTING_WORKERS.isdisjoint(vars(item.module))
