"""Iterators that end on all workers together.

Workers rarely have the same number of batches. Before each step they tell each other whether they have one:

- `data_sync_drop_remainder=True` (default): as soon as one has none, the data ends on all.
- `False`: the data ends when the last worker's does; one that has run out gets empty batches, of zero rows, until then.

An evaluation always goes on until the last worker's data ends, so that what it finds doesn't depend on how the data is
spread over workers. The question is one exchange of a byte in the run that takes the batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops

from lockstep._src import pipeline, row_weights
from lockstep._src.context import context
from lockstep._src.data.frames import Value
from lockstep._src.interception import Interception
from lockstep._src.library import ops

# Where TensorFlow holds the functions that make iterators of a graph.
ITERATOR_MAKERS = (tf.compat.v1.data, dataset_ops, dataset_ops.DatasetV1)
ITERATOR = tf.compat.v1.data.Iterator


class SyncIterator:
    """A `tf.compat.v1.data.Iterator` whose elements come on all workers or on none.

    What it does not define is the wrapped iterator's: `initializer`, `output_types`, `string_handle`, ...

    Args:
      iterator: this worker's iterator.
      drop_remainder: see the module's text.
    """

    def __init__(self, iterator: Any, drop_remainder: bool) -> None:
        self._iterator = iterator
        self._drop_remainder = drop_remainder

    def get_next(self, name: str | None = None) -> Any:
        """The next element.

        Raises:
          tf.errors.OutOfRangeError: in the run, on all workers, where the data ends.
        """
        with tf.name_scope(name or "synchronized_get_next"):
            return pipeline.take(self._get_next)

    def _get_next(self) -> Any:
        mine = self._iterator.get_next_as_optional()
        has_value = mine.has_value()
        go_on = ops.lockstep_agree_on_next(has_value, drop_remainder=self._drop_remainder, name="agree_on_next")
        if self._drop_remainder:
            with tf.control_dependencies([go_on]):
                element = mine.get_value()
        else:
            with tf.control_dependencies([go_on]):
                has_value = tf.identity(has_value)
            spec = self._iterator.element_spec
            element = tf.cond(has_value, mine.get_value, lambda: _empty(spec))
        if context.options.mode == "train":
            row_weights.note(element, mine._variant_tensor)
        return element

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)


def _empty(spec: Any) -> Any:
    """An element of `spec` with no rows, whatever its structure."""
    if isinstance(spec, Value):
        return Value(_empty(spec.values), [tf.zeros([1], splits.dtype) for splits in spec.nested_row_splits])
    if isinstance(spec, dict):
        return type(spec)((name, _empty(item)) for name, item in spec.items())
    if isinstance(spec, tuple):
        items = [_empty(item) for item in spec]
        return type(spec)(*items) if hasattr(spec, "_fields") else tuple(items)
    if isinstance(spec, tf.RaggedTensorSpec):
        row_splits = [tf.zeros([1], spec.row_splits_dtype) for _ in range(spec.ragged_rank)]
        inner = spec.shape[spec.ragged_rank + 1 :]
        return tf.RaggedTensor.from_nested_row_splits(tf.zeros([0, *_known(inner)], spec.dtype), row_splits)
    if isinstance(spec, tf.SparseTensorSpec):
        rank = spec.shape.rank
        shape = [0, *_known(spec.shape[1:])]
        return tf.SparseTensor(tf.zeros([0, rank], tf.int64), tf.zeros([0], spec.dtype), tf.constant(shape, tf.int64))
    if isinstance(spec, tf.TensorSpec) and spec.shape.rank is None:
        raise ValueError(
            "an iterator that goes on with empty batches until all workers' data has ended needs elements of known "
            f"rank, got {spec}; give Iterator.from_structure or from_string_handle their output_shapes"
        )
    if not isinstance(spec, tf.TensorSpec):
        raise TypeError(f"data_sync_drop_remainder=False: no empty batch is known for an element of {spec}")
    if spec.shape.rank == 0:
        raise ValueError(
            "data_sync_drop_remainder=False needs batched elements: a scalar has no empty form; batch the dataset or "
            "use data_sync_drop_remainder=True"
        )
    return tf.zeros([0, *_known(spec.shape[1:])], spec.dtype)


def _known(shape: tf.TensorShape) -> list[int]:
    return [dim or 0 for dim in shape.as_list()]


def synchronize(iterator: Any) -> Any:
    """The iterator for the present scope: synchronized for training and evaluation by several workers."""
    ctx = context
    if ctx.options.mode == "infer" or isinstance(iterator, SyncIterator):
        return iterator
    if ctx.world_size == 1 and (ctx.options.data_batch_count == 1 or ctx.options.mode == "eval"):
        return iterator
    if ctx.options.mode == "eval":
        # What is not batched has no empty form to go on with.
        scalars = any(getattr(spec, "shape", None) == () for spec in tf.nest.flatten(iterator.element_spec))
        return SyncIterator(iterator, drop_remainder=scalars)
    return SyncIterator(iterator, ctx.options.data_sync_drop_remainder)


def intercept_iterators(interception: Interception) -> None:
    """Makes graph-mode iterators synchronized ones while the interception lasts."""

    def replace(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return synchronize(original(*args, **kwargs))

        return wrapped

    for owner in ITERATOR_MAKERS:
        for name in ("make_one_shot_iterator", "make_initializable_iterator"):
            interception.replace(owner, name, replace)
    for name in ("from_structure", "from_string_handle"):
        interception.replace(ITERATOR, name, lambda original: staticmethod(replace(original)))


def warn_of_unsynchronized_iterators(graph: tf.Graph) -> None:
    """Logs one warning, on worker 0, with the names of what takes data without asking the other workers."""
    if context.rank != 0 or context.options.mode == "infer":
        return
    names = [op.name for op in graph.get_operations() if _takes_alone(op)]
    if names:
        tf.compat.v1.logging.warning(
            "The iterators behind %s%s were made outside of scope(), so workers take their data without asking each "
            "other: if it ends on one worker before the others, the job ends with an error. Make "
            "the iterators inside of scope(), or give all workers as many batches.",
            ", ".join(names[:5]),
            ", ..." if len(names) > 5 else "",
        )


def _takes_alone(op: tf.Operation) -> bool:
    """Whether `op` takes an iterator's next element on this worker, whatever the others have."""
    if op.type != "IteratorGetNextAsOptional":
        return op.type in ("IteratorGetNext", "IteratorGetNextSync")
    users = [user for reader in op.outputs[0].consumers() for result in reader.outputs for user in result.consumers()]
    return all(user.type != "LockstepAgreeOnNext" for user in users)
