"""Communicators as objects, in a job of one worker. For two workers see tests/multiprocess/scope/training_worker.py."""

import pytest
import tensorflow as tf

from lockstep._src.compat.hybridbackend.communicators import Collective, RpcCollective
from lockstep._src.engine.context import context

tf1 = tf.compat.v1


def test_communicators_of_one_worker_return_their_values():
    with tf.Graph().as_default(), tf1.Session() as session:
        one = Collective.get()
        assert one is Collective.get()
        by_rpc = RpcCollective(context.devices, context.rank)
        assert (by_rpc.group_size, by_rpc.group_key) == (1, 1)
        values = [
            one.allreduce([1.0]),
            one.allgather([2.0]),
            one.is_initialized,
            by_rpc.broadcast(lambda: [3.0], tf.float32, [1]),
            by_rpc.allreduce([4.0], "Add", "Div"),
        ]
        session.run(one.create)
        assert [value.tolist() for value in session.run(values)] == [[1.0], [2.0], True, [3.0], [4.0]]
        with pytest.raises(NotImplementedError, match="no handle"):
            one.handle  # noqa: B018
        with pytest.raises(NotImplementedError, match="by name, not by key"):
            by_rpc.instance_scope("broadcast")
        with pytest.raises(NotImplementedError, match="a group of 2 of the job's 1 workers"):
            RpcCollective(["/gpu:0", "/gpu:1"], 0)
        with pytest.raises(ValueError, match="merge_op is 'Mul' and final_op 'Div'"):
            by_rpc.allreduce([1.0], "Mul", "Div")
