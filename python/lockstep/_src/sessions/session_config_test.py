"""Configurations of sessions: given settings are kept, settings are added, and the argument is not changed."""

import tensorflow as tf

from lockstep._src.sessions.session_config import get_session_config, wraps_session_config


def test_a_new_configuration_places_softly_and_takes_the_arguments_of_a_proto():
    config = get_session_config(log_device_placement=True)
    assert config.allow_soft_placement and config.log_device_placement
    assert config.gpu_options.allow_growth and config.gpu_options.force_gpu_compatible
    assert not get_session_config(allow_soft_placement=False).allow_soft_placement
    assert wraps_session_config(None, inter_op_parallelism_threads=3).inter_op_parallelism_threads == 3


# Promise (hybridbackend.md): it stays unchanged (HybridBackend: a session's configuration is changed).
def test_the_callers_configuration_keeps_its_settings_and_is_not_changed():
    given = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=2)
    before = given.SerializeToString()
    wrapped = wraps_session_config(given)
    assert wrapped.inter_op_parallelism_threads == 2 and wrapped.gpu_options.allow_growth
    assert not wrapped.allow_soft_placement
    assert given.SerializeToString() == before
