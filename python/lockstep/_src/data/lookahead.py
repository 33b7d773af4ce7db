"""A dataset that says of each element how many follow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops

from lockstep._src.engine.library import ops


class _Lookahead(dataset_ops.UnaryDataset):
    """The op as a dataset."""

    def __init__(self, input_dataset: Any, ahead: int) -> None:
        self._spec = lookahead_spec(input_dataset.element_spec)
        variant = ops.lockstep_lookahead_dataset(input_dataset._variant_tensor, ahead=ahead, **self._flat_structure)
        super().__init__(input_dataset, variant)

    @property
    def element_spec(self) -> Any:
        return self._spec


def lookahead(dataset: Any, ahead: int) -> Any:
    """The dataset with each element beside the number of those that follow, in a `tf.compat.v1.data.Dataset`.

    What is read ahead is part of an iterator's state: saved and restored, no element is lost or comes twice. An error
    of the dataset comes `ahead` elements early.

    Args:
      dataset: of elements of any structure.
      ahead: how far to look; the number, a scalar of int64, is at most that.
    """
    return dataset_ops.DatasetV1Adapter(_Lookahead(dataset, ahead))


def lookahead_spec(spec: Any) -> tuple[Any, tf.TensorSpec]:
    """The spec of the elements of `lookahead`, for a dataset of elements of `spec`."""
    return spec, tf.TensorSpec((), tf.int64)
