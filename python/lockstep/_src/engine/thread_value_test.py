"""Tests that a block's value holds in its thread, and only inside the block."""

import threading

import pytest

from lockstep._src.engine.thread_value import ThreadValue

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


def test_blocks_may_be_nested_and_end_with_an_error():
    value = ThreadValue("outside")
    with value.holding("outer"):
        with pytest.raises(KeyError), value.holding("inner"):
            assert value.value == "inner"
            raise KeyError
        assert value.value == "outer"
    assert value.value == "outside"


def test_another_thread_has_its_own_value():
    value, seen = ThreadValue("outside"), []

    def look():
        seen.append(value.value)
        with value.holding("there"):
            inside.set()
            done.wait(60)
            seen.append(value.value)

    inside, done = threading.Event(), threading.Event()
    with value.holding("here"):
        thread = threading.Thread(target=look)
        thread.start()
        assert inside.wait(60)
        assert value.value == "here"
        done.set()
        thread.join(60)
    assert seen == ["outside", "there"]
