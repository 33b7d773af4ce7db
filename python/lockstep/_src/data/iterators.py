"""Graph-mode iterators by functions, as HybridBackend's programs make them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lockstep._src.data import sync


def make_one_shot_iterator(ds: tf.data.Dataset) -> Any:
    """An iterator that needs no initialization; in a scope it ends on all workers together.

    Args:
      ds: a dataset; it may hold no tables or variables.
    """
    with tf.device("/cpu:0"):
        return tf.compat.v1.data.make_one_shot_iterator(ds)


def make_initializable_iterator(ds: tf.data.Dataset) -> Any:
    """An iterator whose `initializer` must be run first; in a scope it ends on all workers together."""
    with tf.device("/cpu:0"):
        return tf.compat.v1.data.make_initializable_iterator(ds)


def make_iterator(ds: tf.data.Dataset) -> Any:
    """A one-shot iterator for training, which ends on all workers together, in a scope or not."""
    with tf.device("/cpu:0"):
        return sync.over_dataset(tf.compat.v1.data.make_one_shot_iterator, ds)


class Iterator:
    """What HybridBackend's `hb.data.Iterator` is to a program: `get_next()` of an iterator, or of tensors.

    It was a buffer that a thread filled. Here nothing is taken outside of the run that uses it, which is how no element
    is lost and all workers agree on each (`sync.py`); `tf.data` reads ahead by itself, see `Dataset.prefetch`.

    Args:
      inputs: an iterator, or tensors in any structure.
      capacity, num_runners, num_takers: of the buffer; at least 1, without effect.
      closed_exception_types, ignored_exception_types: only None: the data ends in `OutOfRangeError`, and an error is
        left out by `Dataset.ignore_errors`.
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
                    f"{name}_exception_types is {types!r}, wanted None: data ends in OutOfRangeError, and a dataset's "
                    "ignore_errors() leaves errors out"
                )
        self._inputs = inputs

    def get_next(self, name: str | None = None) -> Any:
        """The next element; of tensors, these themselves."""
        return self._inputs.get_next(name) if hasattr(self._inputs, "get_next") else self._inputs


class SyncReplicasDataset:
    """A dataset that never ends and says when it should have: HybridBackend's `hb.data.SyncReplicasDataset`.

    Elements are pairs of an int32 scalar, 1 with the last element and ever after, and the element; after the last one
    come elements of zero rows. A program reduces the number over the workers by itself, by its maximum (all end with
    the first) or its minimum (with the last). In a scope iterators do all that without this dataset.

    Args:
      input_dataset: of batches, in any structure of tensors, ragged and sparse tensors and `DataFrame.Value`s.
      world, rank: of a program that leaves the reduction to HybridBackend: what is returned is `input_dataset`, whose
        iterators must be made in a scope.
    """

    def __new__(cls, input_dataset: tf.data.Dataset, world: Any = None, rank: Any = None) -> tf.data.Dataset:
        """Makes the dataset, which is a plain `tf.data.Dataset`."""
        if (world is None) != (rank is None):
            raise ValueError(f"world is {world} and rank is {rank}, wanted both or none")
        if world is not None:
            return input_dataset
        spec = input_dataset.element_spec

        def flat(element: Any) -> tuple[tf.Tensor, ...]:
            return tuple(tf.nest.flatten(element, expand_composites=True))

        @tf.autograph.experimental.do_not_convert
        def going_on(*element: Any) -> Any:
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

        # Each element with the mark of the one behind it.
        marked = input_dataset.map(going_on).concatenate(tf.data.Dataset.from_tensors(0).repeat().map(ended))
        return marked.scan((tf.constant(0), flat(sync.empty(spec))), shifted).skip(1).map(packed)
