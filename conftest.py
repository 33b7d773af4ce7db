"""Which tests run in the reduced set, and what all of them start from.

`pytest --reduced` is for a second TensorFlow version: it runs the tests beside the sources, which cover each call that
we make into TensorFlow, and of the tests that span layers (`tests/`) those marked `oldest`. A slow test beside a source
that says nothing about TensorFlow's version is left out with the marker `newest_only`.
"""

import signal
from pathlib import Path

import pytest

_SPANNING = Path(__file__).parent / "tests"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --reduced."""
    parser.addoption("--reduced", action="store_true", help="leave out what another TensorFlow cannot change")


def pytest_configure() -> None:
    """Has processes that tests start take the signals that this one was started to ignore.

    That is hang-ups under nohup, and interrupts where a shell without job control started it in the background. What a
    process ignores, its children do; what it handles they don't inherit. There are tests of what these signals do.
    """
    for ignored in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(ignored) is signal.SIG_IGN:
            signal.signal(ignored, lambda *_: None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects what --reduced leaves out."""
    if not config.getoption("--reduced"):
        return
    kept = [item for item in items if _is_in_reduced_set(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def _is_in_reduced_set(item: pytest.Item) -> bool:
    if _SPANNING in item.path.parents:
        return item.get_closest_marker("oldest") is not None
    return item.get_closest_marker("newest_only") is None
