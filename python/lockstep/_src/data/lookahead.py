"""A dataset that gives each element together with the number of elements that follow it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops

from lockstep._src.engine.library import ops


class _Lookahead(dataset_ops.UnaryDataset):
    """The result of the op `lockstep_lookahead_dataset` as a dataset."""

    def __init__(self, input_dataset: Any, ahead: int) -> None:
        self._spec = lookahead_spec(input_dataset.element_spec)
        variant = ops.lockstep_lookahead_dataset(input_dataset._variant_tensor, ahead=ahead, **self._flat_structure)
        super().__init__(input_dataset, variant)

    @property
    def element_spec(self) -> Any:
        return self._spec


def lookahead(dataset: Any, ahead: int) -> Any:
    """Returns a `tf.compat.v1.data.Dataset` of pairs: an element, and the number of elements that follow it.

    Elements that were read ahead are part of an iterator's state. When an iterator is saved and restored, no element is
    lost and none comes twice. An error of the dataset is raised `ahead` elements early.

    Args:
      dataset: elements of any structure.
      ahead: how far to look ahead, in elements. The number in each pair is an int64 scalar of at most `ahead`.
    """
    return dataset_ops.DatasetV1Adapter(_Lookahead(dataset, ahead))


def lookahead_spec(spec: Any) -> tuple[Any, tf.TensorSpec]:
    """Returns the spec of the elements of `lookahead` for a dataset of elements of `spec`."""
    return spec, tf.TensorSpec((), tf.int64)
