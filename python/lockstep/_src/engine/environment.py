"""HybridBackend's environment variables that have no effect here, and why (docs/hybridbackend.md).

Variables that set an option are listed with the options (`options.py`). The Parquet reader reads `ARROW_NUM_THREADS`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

_PREFIX = "HB_"
_ORDER = "collectives always run in one order, and small ones are sent together"
_PARTITION = "separate operations always partition the ids"
_TRANSFER = "TensorFlow copies to devices"
_MEMORY = "TensorFlow and Arrow manage memory"
_GRAPH = "no graph is written; use tf.compat.v1.summary.FileWriter to write a program's graph for TensorBoard"
_NCCL = "the engine watches its exchanges itself; use option stall_timeout_s"

# Variable -> the reason why it has no effect. None of them would change a result.
WITHOUT_EFFECT: Mapping[str, str] = {
    "HB_OP_OPTIMIZATION_DISABLED": _ORDER,
    "HB_OP_RELOCATION_ENABLED": "operations run where TensorFlow places them",
    "HB_OP_PACKING_DISABLED": _ORDER,
    "HB_OP_PACKING_NBUCKETS": "use option grad_nbuckets, the number of exchanges for gradients",
    "HB_COLLECTIVE_PACKING_DISABLED": _ORDER,
    "HB_COLLECTIVE_PACKING_ALGORITHM": _ORDER,
    "HB_OP_PARTITION_BY_MODULO_OPTIMIZATION_DISABLED": _PARTITION,
    "HB_OP_PARTITION_BY_MODULO_PACKING_DISABLED": _PARTITION,
    "HB_OP_PARTITION_BY_DUAL_MODULO_OPTIMIZATION_DISABLED": _PARTITION,
    "HB_OP_PARTITION_BY_DUAL_MODULO_PACKING_DISABLED": _PARTITION,
    "HB_OP_FLOORMOD_SHUFFLE_OPTIMIZATION_DISABLED": _PARTITION,
    "HB_OP_FLOORMOD_SHUFFLE_PACKING_DISABLED": _PARTITION,
    "HB_OP_PREFETCH_PACKING_DISABLED": _TRANSFER,
    "HB_TRANSFER_OPTIMIZATION_DISABLED": _TRANSFER,
    "HB_TRANSFER_PACKING_BUCKETS": _TRANSFER,
    "HB_FORCE_GPU_COMPATIBLE": "sessions of the job always use pinned memory",
    "HB_MEMORY_DECAY_MILLIS": _MEMORY,
    "HB_MEMORY_LOGGING_ENABLED": _MEMORY,
    "HB_ZERO_COPY_STRING_FOR_REBATCH_DISABLED": "strings are copied once in any case",
    "HB_DATA_REBATCH_FASTPATH_DISABLED": "complete batches are passed on without a copy in any case",
    "HB_OPTIMIZED_GRAPH_PATH": _GRAPH,
    "HB_UNOPTIMIZED_GRAPH_PATH": _GRAPH,
    "HB_MIN_LOG_LEVEL": "use TF_CPP_MIN_LOG_LEVEL and Python's logging",
    "HB_RUN_BASE_PORT": "the launcher looks for free ports",
    "HB_TEST_LOGDIR": "only HybridBackend's own tests read it",
    "ARROW_FILE_BUFFER_SIZE": "the reader reads row groups",
    "NCCL_ASYNC_ERROR_HANDLING": _NCCL,
    "NCCL_ASYNC_ERROR_CHECKING_INTERVAL_SECS": _NCCL,
}


def warn_of_what_has_no_effect(environ: Mapping[str, str], known: frozenset[str]) -> None:
    """Logs a warning for the variables in the environment that have no effect, and one for those that are unknown.

    Args:
      environ: the environment.
      known: variables with an effect.
    """
    in_vain = [f"{name} ({WITHOUT_EFFECT[name]})" for name in sorted(environ) if name in WITHOUT_EFFECT]
    meant = {*known, *WITHOUT_EFFECT}
    unknown = [name for name in sorted(environ) if name.startswith(_PREFIX) and name not in meant]
    if in_vain:
        logging.getLogger("lockstep").warning("environment variables without effect: %s", "; ".join(in_vain))
    if unknown:
        logging.getLogger("lockstep").warning(
            "unknown environment variables: %s; known ones are %s", ", ".join(unknown), ", ".join(sorted(known))
        )
