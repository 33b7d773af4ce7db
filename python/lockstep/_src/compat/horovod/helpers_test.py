import threading
from types import SimpleNamespace

import pytest

from lockstep._src.compat.horovod import helpers

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


def test_op_replaces_average():
    reduction_of = helpers.get_average_backwards_compatibility_fun(SimpleNamespace(Average=0, Sum=1))
    assert (reduction_of(None, None), reduction_of(1, None)) == (0, 1)
    with pytest.warns(DeprecationWarning, match="op=hvd.Average"):
        assert (reduction_of(None, True), reduction_of(None, False)) == (0, 1)
    with pytest.raises(ValueError, match="both op and average"):
        reduction_of(1, True)


def test_small_questions():
    assert [n for n in range(-1, 9) if helpers.num_rank_is_power_2(n)] == [1, 2, 4, 8]
    assert helpers.is_iterable("ab") and not helpers.is_iterable(3)
    assert not helpers.extension_available("torch", verbose=True) and not helpers.gpu_available("torch")


def test_a_thread_takes_a_tuple_of_arguments():
    done = threading.Event()
    helpers.in_thread(done.set).join()
    assert done.is_set()
    with pytest.raises(ValueError, match="wanted a tuple"):
        helpers.in_thread(print, args=[1])


def test_place_and_yaml(monkeypatch):
    monkeypatch.delenv("HOROVOD_RANK", raising=False)
    monkeypatch.delenv("HOROVOD_SIZE", raising=False)
    assert helpers.rank_and_size() == (0, 1)
    monkeypatch.setenv("HOROVOD_RANK", "2")
    monkeypatch.setenv("HOROVOD_SIZE", "3")
    assert helpers.rank_and_size() == (2, 3)
    assert helpers.parse_yaml("a: [1, 2]") == {"a": [1, 2]}
    with pytest.raises(ValueError, match="while parsing a flow sequence"):
        helpers.parse_yaml("a: [1\nb: {")
