"""SOK's own operations for GPUs. They have no counterpart here: each raises an error that names what programs use.

The error is a NotImplementedError, and an AttributeError as well.
"""

from lockstep._src.compat.sok.raw_operations import refusing as _refusing

__all__: list[str] = []

_LOOKUP, _DYNAMIC = "sok.lookup_sparse", "sok.DynamicVariable"
_INSTEAD = {
    "dist_select": "sok.all2all_dense_embedding",
    "reorder": "sok.all2all_dense_embedding",
    "gather_ex": "sok.all2all_dense_embedding",
    "group_lookup": _LOOKUP,
    "preprocessing_forward": _LOOKUP,
    "preprocessing_forward_with_weight": _LOOKUP,
    "hotness_calculate": _LOOKUP,
    "lookup_forward": _LOOKUP,
    "lookup_forward_variable": _LOOKUP,
    "lookup_forward_dynamic": _LOOKUP,
    "lookup_forward_embedding_var_gpu": _LOOKUP,
    "lookup_backward": "tf.GradientTape or tf.gradients",
    "postprocessing_forward": _LOOKUP,
    "postprocessing_backward": "tf.GradientTape or tf.gradients",
    "dummy_var_handle": _DYNAMIC,
    "dummy_var_initialize": _DYNAMIC,
    "dummy_var_shape": "the property size of a sok.DynamicVariable",
    "dummy_var_sparse_read": "the method sparse_read of a sok.DynamicVariable",
    "dummy_var_sparse_read_evict": "sok.sparse_read_and_evict",
    "dummy_var_assign": "sok.assign",
    "dummy_var_export": "sok.export",
    "dummy_var_export_if": "sok.incremental_model_dump",
    "dummy_var_scatter_add": "the method scatter_add of a sok.DynamicVariable",
    "dummy_var_scatter_update": "the method scatter_update of a sok.DynamicVariable",
}

__getattr__ = _refusing(__name__, _INSTEAD)
