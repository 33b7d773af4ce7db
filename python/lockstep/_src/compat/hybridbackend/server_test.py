"""HybridBackend's servers and sessions on one worker."""

import inspect

import pytest
import tensorflow as tf

from lockstep._src.compat.hybridbackend import server
from lockstep._src.compat.hybridbackend.server import Server
from lockstep._src.engine.context import context

tf1 = tf.compat.v1


def test_the_server_is_one_and_needs_no_cluster():
    assert Server.get() is Server.get()
    made = Server({"worker": ["nowhere:1"]}, job_name="worker", task_index=0, protocol="grpc")
    made.start()
    made.join()
    assert made.target == server.target() == context.target
    assert made.cluster_spec is context.cluster_spec or made.cluster_spec == context.cluster_spec


class Own(Server):
    """A subclass of the server."""


@pytest.mark.parametrize(
    ("given", "wrapped"), [(Own, Own), (Server, Server), (tf.distribute.Server, Server), ("no class", Server)], ids=str
)
def test_a_class_of_servers_is_this_one_unless_it_derives_from_it(given, wrapped):
    assert server.wraps_server(given) is wrapped


def test_operations_are_placed_on_the_workers_device_unless_they_have_one():
    with tf.Graph().as_default():
        with tf1.device(server.device_setter()):
            free = tf.constant(1)
            with tf.device("/cpu:3"):
                bound = tf.constant(2)
        (device,) = context.local_devices
        same = [tf1.DeviceSpec.from_string(name).to_string() for name in (free.device, device)]
    assert same[0] == same[1] and bound.device.lower().endswith("cpu:3")


SESSIONS = {
    "monitored_training_session": lambda: server.monitored_training_session,
    "monitored_session": lambda: server.monitored_session,
    "of a server": lambda: Server().monitored_session,
    "wrapped": lambda: server.wraps_monitored_training_session(tf1.train.MonitoredTrainingSession),
    "wrapped twice": lambda: server.wraps_monitored_training_session(
        server.wraps_monitored_training_session(tf1.train.MonitoredTrainingSession)
    ),
}


@pytest.mark.parametrize("kind", SESSIONS)
def test_a_session_is_the_jobs_in_a_scope_or_not(kind, tmp_path):
    before = tf1.train.MonitoredTrainingSession
    with tf.Graph().as_default():
        step = tf1.train.get_or_create_global_step()
        train_op = step.assign_add(1)
        with SESSIONS[kind]()(checkpoint_dir=str(tmp_path), keep_checkpoint_max=1, save_checkpoint_steps=1) as session:
            for _ in range(3):
                session.run(train_op)
    assert [path.stem for path in tmp_path.glob("*.index")] == ["model.ckpt-3"]  # as the job's argument says
    assert tf1.train.MonitoredTrainingSession is before


def test_a_wrapped_function_keeps_its_name_and_arguments():
    wrapped = server.wraps_monitored_training_session(tf1.train.MonitoredTrainingSession)
    assert wrapped.__name__ == "MonitoredTrainingSession"
    assert inspect.signature(wrapped) == inspect.signature(tf1.train.MonitoredTrainingSession)
