"""The ids by which checkpoints and increments name the one they build on."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

# The tensor int64 [2] of a checkpoint: its own id; the id of the checkpoint it builds on, or 0.
TENSOR = "lockstep-link"


def ids_of(prefix: str) -> tuple[int, int] | None:
    """Returns the id of a checkpoint or increment, and of the one it builds on (0: a full checkpoint).

    Returns None for a checkpoint without an id. Raises an error of `tf.errors` if the checkpoint cannot be read.
    """
    return read_ids(tf.train.load_checkpoint(prefix))


def read_ids(reader: Any) -> tuple[int, int] | None:
    """Does `ids_of` with a reader of TensorFlow's for the checkpoint."""
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    names = [TENSOR] if TENSOR in shapes else [name for name in shapes if name.endswith("-link")]
    # A variable of a model may have such a name as well.
    names = [name for name in names if (list(shapes[name]), dtypes[name]) == ([2], tf.int64)]
    tensors = [reader.get_tensor(name) for name in names]
    found = {(int(own), int(previous)) for own, previous in tensors}
    return found.pop() if len(found) == 1 else None
