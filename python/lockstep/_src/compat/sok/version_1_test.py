"""Tests of the start of programs of SOK 1.x, and of names that belong to no layer."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.compat.sok import job, older_lookup, raw_operations, variables, version_1
from lockstep._src.compat.sok.dynamic_variable import DynamicVariable


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(job, "_tool", None)
    monkeypatch.setattr(version_1, "_program", None)
    monkeypatch.delitem(sys.modules, "horovod.tensorflow", raising=False)


def test_init_starts_a_process_by_itself():
    assert version_1.init(global_batch_size=6).numpy() == b"OK"
    assert (job.rank(), job.num_ranks(), version_1.replica_batch_size(), version_1.seed()) == (0, 1, 6, None)
    with pytest.raises(RuntimeError, match=r"sok\.Init: got a second call"):
        version_1.init(global_batch_size=6)


def test_init_keeps_a_seed_of_0_and_names_what_has_no_effect():
    with pytest.warns(UserWarning, match=r"sok\.Init: unknown options have no effect: other"):
        version_1.init(global_batch_size=np.int64(6), seed=0, other=1)
    assert version_1.seed() == 0


@pytest.mark.parametrize("batch", [0, -1, 2.5, True])
def test_init_checks_the_batch(batch):
    with pytest.raises(ValueError, match=f"global_batch_size is {batch}, wanted a number of at least 1"):
        version_1.init(global_batch_size=batch)


def test_init_wants_a_batch():
    with pytest.raises(KeyError, match="global_batch_size"):
        version_1.init(seed=1)


def test_init_after_the_init_of_2(monkeypatch):
    job.set_comm_tool("single")
    version_1.init(global_batch_size=6)


def test_a_strategy_goes_before_horovod(monkeypatch):
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", sys)
    assert version_1._tool() == "horovod"
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        assert version_1._tool() == "single"
    other = tf.distribute.experimental.CentralStorageStrategy(["/cpu:0"])
    with other.scope(), pytest.raises(RuntimeError, match="This strategy type is not supported yet: got Central"):
        version_1._tool()


def test_a_strategy_has_one_replica_in_each_process(monkeypatch):
    monkeypatch.setattr(tf.distribute.MirroredStrategy, "num_replicas_in_sync", 2)
    message = "the strategy has 2 replicas and the job 1 ranks"
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope(), pytest.raises(RuntimeError, match=message):
        version_1._tool()


def test_split_keeps_the_order_of_any_tables():
    job.set_comm_tool("single")
    static, dynamic = variables.make(np.zeros([3, 2])), DynamicVariable(2, var_type="hbm")
    others = [tf.Variable(1.0), tf.Variable(2.0)]
    ours, theirs = version_1.split((others[0], dynamic, others[1], static))
    assert [ours[0] is dynamic, ours[1] is static, theirs[0] is others[0], theirs[1] is others[1]] == [True] * 4
    assert isinstance(ours, list)
    with pytest.raises(ValueError, match="Variables must be list or tuple. But got <class 'dict_values'>"):
        version_1.split({}.values())


def test_named_layers_belong_to_the_program_also_in_functions():
    made = version_1.get_embedding("a name", dict, {"x": 1})
    assert made == {"x": 1}
    assert tf.function(lambda: [version_1.get_embedding("a name", None, {}) is made])()[0]
    with pytest.raises(ValueError, match=r"'another' does not exist .* the layers here are \['a name'\]"):
        version_1.get_embedding("another", None, {})


@pytest.mark.parametrize(
    ("third", "combiners", "wanted"),
    [
        (None, ["sum"], (None, ["sum"])),
        (7, ["sum"], (None, ["sum"])),
        ([np.int64(7), 3], ["sum", "mean"], (None, ["sum", "mean"])),
        ("sum", None, (None, "sum")),
        (["sum", b"mean"], None, (None, ["sum", b"mean"])),
    ],
)
def test_third_argument_of_older_lookups(third, combiners, wanted):
    assert older_lookup.arguments(third, combiners) == wanted


def test_weights_stay_the_third_argument():
    weights = tf.RaggedTensor.from_row_lengths([1.0], [1])
    for third in (weights, [weights], [], [None, weights]):
        assert older_lookup.arguments(third, None) == (third, None)
    with pytest.raises(TypeError, match="got combiners twice"):
        older_lookup.arguments("sum", "mean")


def test_operations_for_gpus_are_named_in_errors():
    get = raw_operations.refusing("some.module", {"forward": "sok.lookup_sparse"})
    with pytest.raises(NotImplementedError, match=r"some\.module\.forward: .* have no counterpart here; use sok\.look"):
        get("forward")
    with pytest.raises(AttributeError, match="module 'some.module' has no attribute 'other'"):
        get("other")
    assert issubclass(raw_operations.NoCounterpartError, AttributeError)
