"""Variables and objects on two workers."""

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from lockstep.testing import call_workers

pytestmark = pytest.mark.workers


def _variables():
    rank = hvd.rank()
    variables = [tf.Variable([1.0 + rank, 2.0]), tf.Variable(10 * rank)]
    assert hvd.broadcast_variables(variables, root_rank=1) is None
    np.testing.assert_array_equal(variables[0], [2.0, 2.0])
    assert int(variables[1]) == 10
    with pytest.raises(ValueError, match="wanted variables"):
        hvd.broadcast_variables([3.0], root_rank=0)
    with pytest.raises(RuntimeError, match="no global variables"):
        hvd.broadcast_global_variables(0)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("v", initializer=tf.constant([5 + rank]), use_resource=True)
        hook = hvd.BroadcastGlobalVariablesHook(1)
        hook.begin()
        session.run(tf.compat.v1.global_variables_initializer())
        hook.after_create_session(session, None)
        np.testing.assert_array_equal(session.run(variable), [6])


def _objects():
    rank = hvd.rank()
    assert hvd.broadcast_object({"rank": rank}, root_rank=1) == {"rank": 1}
    assert hvd.broadcast_object_fn(root_rank=0, name="by a function")([rank]) == [0]
    assert hvd.allgather_object(("of", rank)) == [("of", 0), ("of", 1)]
    with tf.Graph().as_default():
        assert hvd.allgather_object(rank, name="in a graph") == [0, 1]


def _all_cases():
    hvd.init()
    _variables()
    _objects()
    hvd.shutdown()


def test_variables_and_objects_on_two_workers():
    call_workers(_all_cases, 2, timeout_s=60)
