"""The rows of a variable on this rank as arrays, and SOK's `export` and `assign` of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lockstep._src.compat.sok import job
from lockstep._src.compat.sok.dynamic_variable import DynamicVariable
from lockstep._src.compat.sok.variables import LocalizedVariable, StaticVariable

# The attribute of a variable that holds its `_Changed`. A variable is in one graph.
_CHANGED = "_changed_since"


def is_sok(variable: Any) -> bool:
    """Returns whether a variable is one of SOK's."""
    return isinstance(variable, (StaticVariable, DynamicVariable))


def is_dynamic(variable: Any) -> bool:
    """Returns whether a variable is a dynamic one; raises TypeError if it is not one of SOK's."""
    if not is_sok(variable):
        raise TypeError(f"got {variable!r}, wanted sok.Variable or sok.DynamicVariable")
    return isinstance(variable, DynamicVariable)


def filter_variables(variables: Any) -> tuple[list[Any], list[Any]]:
    """Returns SOK's variables and the others; see `sparse_operation_kit.filter_variables`."""
    listed = list(variables)
    # A variable of Keras 3 holds one of TensorFlow.
    is_own = [is_sok(getattr(variable, "_value", variable)) for variable in listed]
    return [v for v, own in zip(listed, is_own, strict=True) if own], [
        v for v, own in zip(listed, is_own, strict=True) if not own
    ]


@tf.autograph.experimental.do_not_convert
def export(var: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the keys and rows of this rank; see `sparse_operation_kit.export`."""
    if is_dynamic(var):
        found = var.export()
        return tf.cast(found.keys, var.key_type), found.values
    return tf.convert_to_tensor(_static_keys(var)), tf.identity(var.value())


@tf.autograph.experimental.do_not_convert
def assign(var: Any, indices: Any, values: Any) -> Any:
    """Sets rows of this rank; see `sparse_operation_kit.assign`."""
    indices = tf.convert_to_tensor(indices)
    if not indices.dtype.is_integer:
        raise TypeError(f"indices: got {indices.dtype.name}, wanted integers")
    values = tf.cast(values, var.dtype if is_sok(var) else tf.float32)
    if is_dynamic(var):
        changed = var.scatter_update(tf.IndexedSlices(values, tf.cast(indices, var.key_type)))
        if tf.executing_eagerly():
            var.end_step()
            return var
        with tf.control_dependencies([changed]):
            return var.end_step()
    own = _owned(var, tf.cast(indices, tf.int64))
    with tf.control_dependencies([] if tf.executing_eagerly() else [own]):
        return var.scatter_update(tf.IndexedSlices(values, var.key_map(tf.cast(own, tf.int64))))


def _owned(var: Any, ids: tf.Tensor) -> tf.Tensor:
    """Returns ids; running it raises InvalidArgumentError if this rank does not have one of them."""
    shard = var.shard
    if isinstance(var, LocalizedVariable):
        owner = tf.fill(tf.shape(ids), tf.constant(var.target_gpu, tf.int64))
    else:
        owner = ids % shard.world_size
    rows, rank = tf.constant(shard.rows, tf.int64), tf.constant(shard.rank, tf.int64)
    right = (ids >= 0) & (ids < rows) & tf.equal(owner, rank)
    message = f"variable '{var.logical_name}': rank {shard.rank} does not have the rows {{}}"
    wrong = tf.strings.format(message, [tf.boolean_mask(ids, ~right)])
    check = tf.debugging.Assert(tf.reduce_all(right), [wrong])
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(ids)


def _static_keys(var: Any) -> np.ndarray:
    shard = var.shard
    return shard.pick(np.arange(shard.rows, dtype=np.int64))


def read(variable: Any, session: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Returns this rank's keys, [L] ascending, and rows, [L, D].

    Args:
      variable: the variable.
      session: in a graph of TensorFlow 1, the session that has its values.
    """
    keys, rows = export(variable)
    return (keys.numpy(), rows.numpy()) if session is None else tuple(session.run([keys, rows]))


def write(variable: Any, keys: np.ndarray, rows: np.ndarray) -> None:
    """Sets rows that this rank has, under eager execution; slots of a dynamic variable begin again.

    Args:
      variable: the variable.
      keys: [N] distinct keys.
      rows: [N, D].
    """
    if is_dynamic(variable):
        variable.insert(tf.constant(keys, tf.int64), tf.constant(rows))
    else:
        assign(variable, keys.astype(np.int64), rows)


def owns(variable: Any, keys: np.ndarray) -> np.ndarray:
    """Returns which keys this rank has, [N] bool."""
    if variable.target_gpu >= 0:
        return np.full(len(keys), variable.target_gpu == job.rank())
    return keys % keys.dtype.type(job.num_ranks()) == job.rank()


def changed_since(variable: Any, seconds: int, session: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Returns the keys of this rank that were looked up at or after a time, and their rows.

    Args:
      variable: a dynamic variable.
      seconds: the time, in seconds since 1970 in UTC.
      session: as in `read`. The first call for a variable adds operations to the session's graph.

    Raises:
      RuntimeError: the session's graph is finalized, and does not have the operations.
    """
    if session is None:
        keys, rows = _changed(variable, tf.constant(seconds, tf.int64))
        return keys.numpy(), rows.numpy()
    changed = _changed_in(session.graph, variable)
    return tuple(session.run([changed.keys, changed.rows], {changed.since: seconds}))


class _Changed(NamedTuple):
    """Tensors of a graph: a placeholder for the time, and keys [N] and rows [N, D] of the variable since then."""

    since: tf.Tensor
    keys: tf.Tensor
    rows: tf.Tensor


def _changed_in(graph: tf.Graph, variable: Any) -> _Changed:
    """Returns the tensors of a variable, which are made once in its graph."""
    if not hasattr(variable, _CHANGED):
        if graph.finalized:
            raise RuntimeError(
                f"variable '{variable.logical_name}': got a session whose graph is finalized, wanted one with the "
                "operations of sok.incremental_model_dump. Call it for the variable once before the graph is "
                "finalized, for example with a tf.compat.v1.Session before you create the MonitoredSession"
            )
        # The operations serve later calls too, so they belong to no block in which this call is.
        with graph.as_default(), tf.control_dependencies(None):
            since = tf.compat.v1.placeholder(tf.int64, [])
            setattr(variable, _CHANGED, _Changed(since, *_changed(variable, since)))
    return getattr(variable, _CHANGED)


@tf.autograph.experimental.do_not_convert
def _changed(variable: Any, since: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    keys, rows = export(variable)
    recent = variable.get_seconds(keys) >= since
    return tf.boolean_mask(keys, recent), tf.boolean_mask(rows, recent)
