"""The library of SOK 1.x with operations for GPUs. They have no counterpart here: each raises an error.

The error is a NotImplementedError, and an AttributeError as well, and names what programs use here.
"""

import tensorflow as tf

from lockstep._src.compat.sok.raw_operations import refusing as _refusing

__all__ = ["in_tensorflow2", "using_tf2"]


def in_tensorflow2() -> bool:
    """Returns whether the program has the behavior of TensorFlow 2, and not of `--tf1`."""
    return tf.__internal__.tf2.enabled()


# The result of `in_tensorflow2` when this module was imported.
using_tf2 = in_tensorflow2()

_LAYERS = "sok.DistributedEmbedding or sok.All2AllDenseEmbedding"
_INSTEAD = {
    "test": "tf.identity",
    "get_nccl_unique_id": "sok.Init",
    "gen_random_seed": "the argument seed of sok.Init",
    "plugin_init": "sok.Init",
    "kit_ops": _LAYERS,
    "create_var": _LAYERS,
    "assign_embedding_variable": "the argument embedding_initializer of a layer",
    "create_embedding_sparse": "sok.DistributedEmbedding",
    "create_embedding_dense": "sok.All2AllDenseEmbedding",
    "plugin_sparse_fprop": "sok.DistributedEmbedding",
    "plugin_dense_fprop": "sok.All2AllDenseEmbedding",
    "plugin_bprop": "tf.GradientTape or tf.gradients",
    "dump_to_file": "sok.Saver().dump_to_file",
    "restore_from_file": "sok.Saver().restore_from_file",
    "load_embedding_values": "sok.Saver().load_embedding_values",
    "read_embedding_variable": "sok.export",
    "create_global_adam_optimizer": "sok.optimizers.Adam",
    "custom_optimizer_apply_gradients": "sok.optimizers.Adam",
    "optimizer_init": "sok.optimizers.Adam",
    "embedding_variable_assign_sub": "an optimizer in sok.OptimizerScope",
}

__getattr__ = _refusing(__name__, _INSTEAD)
