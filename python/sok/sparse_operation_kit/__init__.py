"""The API of NVIDIA's SparseOperationKit on Lockstep: `import sparse_operation_kit as sok`.

Runs on CPUs, with TensorFlow 2.15 and later; a rank stands for what is a GPU in SOK. docs/sok.md is the manual.

Refuses to share its import name with the original distribution. The one that was installed last would have overwritten
files of the other.
"""

import sys as _sys

from lockstep._src.compat.lazy import lazy_names
from lockstep._src.compat.originals import refuse_distribution as _refuse_distribution


def _refuse_originals(search_path: list[str]) -> None:
    """Raises ImportError if the original is installed; its distribution is named merlin-sok."""
    _refuse_distribution(
        "sparse_operation_kit", "merlin[-_.]sok|sparse[-_.]operation[-_.]kit", search_path, "lockstep-sok"
    )


_refuse_originals(_sys.path)

import tensorflow as _tf  # noqa: E402

from lockstep._src.compat.sok import rows as _rows  # noqa: E402
from lockstep._src.compat.sok import starting as _starting  # noqa: E402
from sparse_operation_kit import communication  # noqa: E402
from sparse_operation_kit._version import __version__  # noqa: E402
from sparse_operation_kit.communication import set_comm_tool  # noqa: E402
from sparse_operation_kit.distributed_variable import DistributedVariable, LocalizedVariable, Variable  # noqa: E402
from sparse_operation_kit.dump_load import dump, incremental_model_dump, load  # noqa: E402
from sparse_operation_kit.dynamic_variable import DynamicVariable, assign, export  # noqa: E402
from sparse_operation_kit.lookup import all2all_dense_embedding, lookup_sparse, sparse_read_and_evict  # noqa: E402
from sparse_operation_kit.optimizer import SGD, OptimizerWrapper  # noqa: E402
from sparse_operation_kit.version_1 import (  # noqa: E402
    All2AllDenseEmbedding,
    DistributedEmbedding,
    GraphKeys,
    Init,
    OptimizerScope,
    Saver,
    TFDistributedEmbedding,
    get_embedding,
    split_embedding_variable_from_others,
)

__all__ = [
    "SGD",
    "All2AllDenseEmbedding",
    "DistributedEmbedding",
    "DistributedVariable",
    "DynamicVariable",
    "GraphKeys",
    "Init",
    "LocalizedVariable",
    "OptimizerScope",
    "OptimizerWrapper",
    "Saver",
    "TFDistributedEmbedding",
    "Variable",
    "__version__",
    "all2all_dense_embedding",
    "assign",
    "communication",
    "dump",
    "export",
    "filter_variables",
    "get_embedding",
    "incremental_model_dump",
    "init",
    "load",
    "lookup_sparse",
    "set_comm_tool",
    "sparse_read_and_evict",
    "split_embedding_variable_from_others",
    "tf_version",
]

# The version of TensorFlow, as numbers: [major, minor, patch].
tf_version = [int(number) for number in _tf.__version__.split("-")[0].split(".")[:3]]


def init(comm_tool: str = "horovod", use_legacy_optimizer: bool = True) -> None:
    """Starts SOK. All ranks call it, once, and before they make variables.

    Args:
      comm_tool: "horovod": the ranks of `hvd.init()`, which it calls if the program has not; it must have all ranks of
        the launcher. "single": this process by itself.
      use_legacy_optimizer: whether `tf.keras.optimizers` and `tf.optimizers` become those of
        `tf.keras.optimizers.legacy`. It has an effect only with Keras 2, since Keras 3 has no such optimizers.

    Raises:
      RuntimeError: a second call.
      ValueError: another tool, or a part of the ranks.
      tf.errors.OpError: the ranks could not connect; the message says which are missing.
    """
    _starting.init(comm_tool, use_legacy_optimizer)


def filter_variables(vars: list) -> tuple[list, list]:
    """Returns SOK's variables, and the others.

    Args:
      vars: variables of TensorFlow, SOK or Keras.

    Returns:
      (sok_vars, other_vars), both in the order of `vars`. The gradients of `sok_vars` are sums over the ranks already;
      gradients of `other_vars` are for `hvd.allreduce` or `hvd.DistributedOptimizer`.
    """
    return _rows.filter_variables(vars)


_LAZY = {
    name: f"sparse_operation_kit.{name}"
    for name in ("core", "embeddings", "experiment", "kit_lib", "operations", "optimizers", "raw_ops", "saver", "tf")
}
__getattr__, __dir__ = lazy_names(__name__, _LAZY)
