"""Functions and classes with which HybridBackend's programs create iterators in graph mode."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lockstep._src.data import sync


def make_one_shot_iterator(ds: tf.data.Dataset) -> Any:
    """Creates an iterator that needs no initialization; in a scope it ends on all workers together.

    Args:
      ds: a dataset. It must not capture tables or variables.
    """
    with tf.device("/cpu:0"):
        return tf.compat.v1.data.make_one_shot_iterator(ds)


def make_initializable_iterator(ds: tf.data.Dataset) -> Any:
    """Creates an iterator whose `initializer` must be run first; in a scope it ends on all workers together."""
    with tf.device("/cpu:0"):
        return tf.compat.v1.data.make_initializable_iterator(ds)


def make_iterator(ds: tf.data.Dataset) -> Any:
    """Creates a one-shot iterator for training that ends on all workers together, inside and outside of a scope."""
    with tf.device("/cpu:0"):
        return sync.over_dataset(tf.compat.v1.data.make_one_shot_iterator, ds)


class Iterator:
    """A replacement for HybridBackend's `hb.data.Iterator`: `get_next()` of an iterator, or of tensors.

    HybridBackend's class is a buffer that a thread fills. This class takes an element only in the run that uses it.
    Therefore no element is lost, and all workers agree on each one. `tf.data` reads ahead by itself; see
    `Dataset.prefetch`.

    Args:
      inputs: an iterator, or tensors in any structure.
      capacity, num_runners, num_takers: settings of HybridBackend's buffer; they must be at least 1 and have no effect.
      closed_exception_types, ignored_exception_types: must be None. The data ends with `OutOfRangeError`;
        `Dataset.ignore_errors` skips elements with errors.

    Raises:
      ValueError: a number is less than 1, or exception types are given.
    """

    def __init__(
        self,
        inputs: Any,
        capacity: int = 1,
        num_runners: int = 1,
        num_takers: int = 1,
        closed_exception_types: Any = None,
        ignored_exception_types: Any = None,
    ) -> None:
        for name, value in (("capacity", capacity), ("num_runners", num_runners), ("num_takers", num_takers)):
            if value < 1:
                raise ValueError(f"{name} is {value}, wanted 1 or more")
        for name, types in (("closed", closed_exception_types), ("ignored", ignored_exception_types)):
            if types:
                raise ValueError(
                    f"{name}_exception_types is {types!r}, wanted None: data ends with OutOfRangeError, and a "
                    "dataset's ignore_errors() skips elements with errors"
                )
        self._inputs = inputs

    def get_next(self, name: str | None = None) -> Any:
        """Returns the next element of the iterator, or the tensors themselves."""
        return self._inputs.get_next(name) if hasattr(self._inputs, "get_next") else self._inputs


class SyncReplicasDataset:
    """A dataset that never ends but marks its last element: HybridBackend's `hb.data.SyncReplicasDataset`.

    Each element is a pair of an int32 scalar and an element of the input. The scalar is 1 from the last element on,
    else 0. After the last element, the dataset gives elements of zero rows without end. The program itself reduces the
    scalar over the workers: with the maximum, all workers end with the first one; with the minimum, with the last one.
    In a scope, iterators do all this without this dataset.

    Args:
      input_dataset: batches, in any structure of tensors, ragged and sparse tensors and `DataFrame.Value`s.
      world, rank: given by programs that leave the reduction to HybridBackend. Then the result is `input_dataset`
        itself, and its iterators must be made in a scope.

    Raises:
      ValueError: only one of `world` and `rank` is given.
    """

    def __new__(cls, input_dataset: tf.data.Dataset, world: Any = None, rank: Any = None) -> tf.data.Dataset:
        """Creates the dataset; the result is a plain `tf.data.Dataset`."""
        if (world is None) != (rank is None):
            raise ValueError(f"world is {world} and rank is {rank}, wanted both or none")
        if world is not None:
            return input_dataset
        spec = input_dataset.element_spec

        def flat(element: Any) -> tuple[tf.Tensor, ...]:
            return tuple(tf.nest.flatten(element, expand_composites=True))

        @tf.autograph.experimental.do_not_convert
        def not_last(*element: Any) -> Any:
            return tf.constant(0), flat(element)

        @tf.autograph.experimental.do_not_convert
        def ended(_: tf.Tensor) -> Any:
            return tf.constant(1), flat(sync.empty(spec))

        @tf.autograph.experimental.do_not_convert
        def shifted(before: Any, now: Any) -> Any:
            return now, (now[0], before[1])

        @tf.autograph.experimental.do_not_convert
        def packed(stop: tf.Tensor, components: Any) -> Any:
            return stop, tf.nest.pack_sequence_as(spec, components, expand_composites=True)

        # Each element gets the mark of its successor: the last element precedes an empty one and is thus marked with 1.
        marked = input_dataset.map(not_last).concatenate(tf.data.Dataset.from_tensors(0).repeat().map(ended))
        return marked.scan((tf.constant(0), flat(sync.empty(spec))), shifted).skip(1).map(packed)
