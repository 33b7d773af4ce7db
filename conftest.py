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
    """Takes interrupts again: a shell without job control has what it starts in the background ignore them.

    Processes that tests start would ignore them as well, and those are about what an interrupt does.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
