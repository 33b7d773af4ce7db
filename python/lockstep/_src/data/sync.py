"""Iterators that end on all workers at the same step.

Workers rarely have the same number of batches. Before each step they exchange whether they have another one:

- `data_sync_drop_remainder=True` (default): as soon as one worker has no batch, the data ends on all workers.
- `False`: the data ends when the last worker has no batch. Until then, workers without data get batches of zero rows.

Loops in eager mode (`for batch in dataset`) end in the same way if the dataset is a worker's share (`sharing.py`), or
is made from one by transformations. Loops inside a `tf.function` do not.

An evaluation always continues until the last worker's data ends, so that its result does not depend on how the data is
divided among the workers. The agreement costs one exchange of two bytes in the run that takes the batch.

Iterators for training look one batch ahead (with `data_batch_count`, as many batches as a step takes). The same
exchange then shows whether this step is the last one, and sessions of the job stop with it (`ending.py`), on one worker
as on several. A later run ends with `OutOfRangeError` on all workers.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops

from lockstep._src.data import ending, lookahead, micro_batches, sharing
from lockstep._src.data.frames import Value
from lockstep._src.engine.context import context
from lockstep._src.engine.library import ops
from lockstep._src.graph import row_weights
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception
from lockstep._src.saving import data_positions

# The collection of the operations that take an element in agreement with the other workers. All operations that take
# elements are of the types in `_TAKING`.
_TOGETHER = ("lockstep", "taken_together")
_TAKING = ("IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional")
# The part that `lookahead` adds to an element's output_types, output_shapes and output_classes.
_FOLLOWING = {"output_types": tf.int64, "output_shapes": tf.TensorShape(()), "output_classes": tf.Tensor}

# Errors call the exchange before an eager element by this name.
_EAGER_NAME = "next batch of a dataset (all ranks inside scope(), one rank outside or with mode='infer')"


class SyncIterator(tf.compat.v1.data.Iterator):
    """An iterator of a graph that ends on all workers at the same step.

    A program uses it in place of the iterator that it created; its elements have the same structure.

    Args:
      iterator: this worker's iterator. If `ahead` is not 0, it has the elements of `lookahead`.
      drop_remainder: see the module's text.
      ahead: how many elements `iterator` looks ahead.
      is_share: whether its data is known to be a worker's share.
    """

    def __init__(self, iterator: Any, drop_remainder: bool, ahead: int = 0, is_share: bool = False) -> None:
        # TensorFlow's own __init__ is not called: it would add another iterator to the graph.
        self.__dict__.update(vars(iterator))
        if ahead:
            self._element_spec = iterator.element_spec[0]
        self._iterator = iterator
        self._drop_remainder = drop_remainder
        self._ahead = ahead
        self.is_share = is_share

    def get_next(self, name: str | None = None) -> Any:
        """Returns the next element, or the elements of a step (`micro_batches.py`).

        Raises:
          tf.errors.OutOfRangeError: in the run, on all workers, when the data has ended.
        """
        with tf.name_scope(name or "synchronized_get_next"):
            count = micro_batches.batches_per_step()
            if count == 1 and context.world_size == 1:
                return self._own_next()
            return micro_batches.merge_elements(self._next_of_all(count))

    def get_next_as_optional(self) -> Any:
        """Returns this worker's next element in a `tf.experimental.Optional`, without asking the other workers."""
        mine = self._iterator.get_next_as_optional()
        if not self._ahead:
            return mine
        optional = tf.experimental.Optional
        return tf.cond(
            mine.has_value(),
            lambda: optional.from_value(mine.get_value()[0]),
            lambda: optional.empty(self.element_spec),
        )

    def make_initializer(self, dataset: Any, name: str | None = None) -> tf.Operation:
        """Returns an operation that starts a reinitializable iterator over `dataset`."""
        self.is_share = self.is_share or sharing.is_share(dataset)
        if self._ahead:
            dataset = lookahead.lookahead(dataset, self._ahead)
        return self._iterator.make_initializer(dataset, name)

    def _own_next(self) -> Any:
        element = self._iterator.get_next()
        if not self._ahead:
            return element
        element, following = element
        self._note_end(following.op, tf.equal(following, 0))
        return element

    def _next_of_all(self, count: int) -> list[Any]:
        """Returns `count` elements; an element that this worker lacks, but others have, is empty."""
        mine: list[Any] = []
        for _ in range(count):
            # The elements are taken one after the other, so that the first one is the first in the data.
            with tf.control_dependencies([optional._variant_tensor.op for optional in mine[-1:]]):
                mine.append(self._iterator.get_next_as_optional())
            tf.compat.v1.add_to_collection(_TOGETHER, mine[-1]._variant_tensor.op)
        has_value = [optional.has_value() for optional in mine]
        enough = has_value[-1] if self._drop_remainder else has_value[0]
        proceed, last = ops.lockstep_agree_on_next(
            enough,
            self._has_next(mine[-1], has_value[-1], count) if self._ahead else enough,
            drop_remainder=self._drop_remainder,
            name="agree_on_next",
        )
        if self._ahead:
            self._note_end(mine[0]._variant_tensor.op, last)
        with tf.control_dependencies([proceed]):
            elements = [self._value(optional, has) for optional, has in zip(mine, has_value, strict=True)]
        if context.options.mode == "train":
            sharing.note(self, mine[0]._variant_tensor.op, elements[0])
        return elements

    def _has_next(self, mine: Any, has_value: tf.Tensor, count: int) -> tf.Tensor:
        """Returns whether this worker has enough elements for the next step; `mine` is the last one of this step."""
        needed = min(count, self._ahead) if self._drop_remainder else 1
        following = tf.cond(has_value, lambda: mine.get_value()[1], lambda: tf.constant(0, tf.int64))
        return following >= needed

    def _value(self, mine: Any, has_value: tf.Tensor) -> Any:
        def value() -> Any:
            return mine.get_value()[0] if self._ahead else mine.get_value()

        if self._drop_remainder:
            element = value()
        else:
            # The identity is built here so that the caller's control dependencies apply to it.
            element = tf.cond(tf.identity(has_value), value, lambda: empty(self.element_spec))
        if context.options.mode == "train":
            row_weights.note(element, mine._variant_tensor)
        return element

    def _note_end(self, taken_by: tf.Operation, last: tf.Tensor) -> None:
        if not tf.executing_eagerly():
            ending.note(self._iterator._iterator_resource, taken_by, last)


class EagerIterator(iterator_ops.OwnedIterator):
    """An iterator in eager mode that ends on all workers at the same step.

    Inside a `tf.function`, and with `get_next_as_optional`, it takes elements without asking the other workers.

    Args:
      dataset: the dataset to iterate over.
      drop_remainder: see the module's text.
    """

    def __init__(self, dataset: tf.data.Dataset, drop_remainder: bool) -> None:
        super().__init__(dataset)
        self._drop_remainder = drop_remainder

    def _next_internal(self) -> Any:
        """Returns the element for `next` and `get_next`; raises OutOfRangeError when the data has ended."""
        if not tf.executing_eagerly():
            return super()._next_internal()
        mine = self.get_next_as_optional()
        has_value = mine.has_value()
        ops.lockstep_agree_on_next(has_value, has_value, drop_remainder=self._drop_remainder, lockstep_name=_EAGER_NAME)
        return mine.get_value() if has_value else empty(self.element_spec)


def empty(spec: Any) -> Any:
    """Returns an element of `spec` with zero rows, for any structure.

    Raises:
      ValueError: a tensor's rank is unknown, or is 0.
      TypeError: the spec is of another kind, which has no empty batch.
    """
    if isinstance(spec, Value):
        return Value(empty(spec.values), [tf.zeros([1], splits.dtype) for splits in spec.nested_row_splits])
    if isinstance(spec, dict):
        return type(spec)((name, empty(item)) for name, item in spec.items())
    if isinstance(spec, tuple):
        items = [empty(item) for item in spec]
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
            "an iterator that gives empty batches until all workers' data has ended needs elements of known "
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


def _how_far_ahead() -> int:
    """Returns how many elements an iterator of the current scope looks ahead."""
    options = context.options
    if options.mode != "train" or tf.executing_eagerly():
        return 0
    # A step takes all its elements or none, so it must know whether all elements of the next step exist.
    return options.data_batch_count if options.data_sync_drop_remainder else 1


def _synchronized(iterator: Any, ahead: int, is_share: bool = False) -> Any:
    """Returns the iterator for the current scope: synchronized for training and evaluation by several workers."""
    options = context.options
    if options.mode == "infer" or isinstance(iterator, SyncIterator):
        return iterator
    if context.world_size == 1 and not ahead and (options.data_batch_count == 1 or options.mode == "eval"):
        return iterator
    ahead = 0 if options.mode == "eval" else ahead
    return SyncIterator(iterator, _drops_remainder(iterator.element_spec), ahead, is_share)


def _drops_remainder(spec: Any) -> bool:
    """Returns whether data of this spec ends, in the current scope, when the first worker's data ends."""
    if context.options.mode != "eval":
        return context.options.data_sync_drop_remainder
    # An empty batch of scalars does not exist, so such data cannot continue on a worker that has no more.
    return any(getattr(one, "shape", None) == () for one in tf.nest.flatten(spec))


def over_dataset(make: Callable[..., Any], dataset: Any, *args: Any, **kwargs: Any) -> Any:
    """Returns the iterator that `make` creates for a dataset, synchronized for the current scope."""
    if getattr(make, "_synchronizes", False):
        return make(dataset, *args, **kwargs)
    ahead, is_share = _how_far_ahead(), sharing.is_share(dataset)
    if ahead:
        dataset = lookahead.lookahead(dataset, ahead)
    iterator = make(dataset, *args, **kwargs)
    if context.options.save_data_position and context.options.mode == "train" and not tf.executing_eagerly():
        data_positions.note(iterator)
    return _synchronized(iterator, ahead, is_share)


def _wrap_from_structure(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function that creates an iterator from output_types, output_shapes and output_classes."""
    signature = inspect.signature(make)

    @functools.wraps(make)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        ahead = _how_far_ahead()
        if ahead:
            for name, added in _FOLLOWING.items():
                if given.get(name) is not None:
                    given[name] = (given[name], added)
        return _synchronized(make(**given), ahead)

    return wrapped


def _ends_together(dataset: Any) -> bool:
    """Returns whether eager loops over a dataset end on all workers together."""
    if context.world_size == 1 or context.options.mode == "infer" or not tf.executing_eagerly():
        return False
    return sharing.is_share(dataset)


def _wrap_iter(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns the replacement for the datasets' `__iter__`."""

    @functools.wraps(make)
    def wrapped(dataset: Any) -> Any:
        if not _ends_together(dataset):
            return make(dataset)
        return EagerIterator(dataset, _drops_remainder(dataset.element_spec))

    return wrapped


def intercept_iterators(interception: Interception) -> None:
    """Makes all iterators of graphs, and eager iterators of shares, synchronized while the interception lasts."""
    for hook in symbols.ITERATIONS:
        interception.replace(hook, _wrap_iter)

    def replace(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapped(dataset: Any, *args: Any, **kwargs: Any) -> Any:
            return over_dataset(original, dataset, *args, **kwargs)

        wrapped._synchronizes = True  # type: ignore[attr-defined]
        return wrapped

    for hook in (*symbols.ONE_SHOT_ITERATORS, *symbols.INITIALIZABLE_ITERATORS):
        interception.replace(hook, replace)
    for hook in symbols.STRUCTURED_ITERATORS:
        interception.replace(hook, lambda original: staticmethod(_wrap_from_structure(original)))


def warn_of_unsynchronized_iterators(graph: tf.Graph) -> None:
    """Logs one warning, on worker 0, that names operations that take data without asking the other workers."""
    if context.rank != 0 or context.options.mode == "infer":
        return
    together = set(graph.get_collection(_TOGETHER))
    names = [op.name for op in graph.get_operations() if op.type in _TAKING and op not in together]
    if names:
        tf.compat.v1.logging.warning(
            "The iterators behind %s%s were made outside of scope(), so workers take their data independently of each "
            "other: if it ends on one worker before the others, the job ends with an error. Make "
            "the iterators inside of scope(), or give all workers the same number of batches.",
            ", ".join(names[:5]),
            ", ..." if len(names) > 5 else "",
        )
