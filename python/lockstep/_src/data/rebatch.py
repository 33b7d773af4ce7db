"""Turns batches of any sizes into batches of one size, in order or shuffled."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops
from tensorflow.python.data.util import random_seed

from lockstep._src.data.fields import Field
from lockstep._src.data.frames import Transformation, Value
from lockstep._src.engine.library import ops


def is_graph_mode() -> bool:
    """Returns whether datasets have the methods of TensorFlow 1 here."""
    return not tf.compat.v1.executing_eagerly_outside_functions()


def adapt_to_mode(dataset: dataset_ops.DatasetV2) -> Any:
    """Returns the dataset with the methods of the current mode: in graph mode, of `tf.compat.v1.data.Dataset`."""
    return dataset_ops.DatasetV1Adapter(dataset) if is_graph_mode() else dataset


class _Rebatched(dataset_ops.UnaryDataset):
    """The result of the op as a dataset of flat elements."""

    def __init__(self, input_dataset: Any, variant_tensor: tf.Tensor, element_spec: Any) -> None:
        self._spec = element_spec
        super().__init__(input_dataset, variant_tensor)

    @property
    def element_spec(self) -> Any:
        return self._spec


def _is_unit(component: Any) -> bool:
    return isinstance(component, (Value, tf.RaggedTensor, tf.RaggedTensorSpec))


def _units(structure: Any) -> list[Any]:
    """Returns the columns of an element, or of its spec; a column of lists counts as one."""
    # Walks structures in the order of tf.nest, but stops at columns.
    if _is_unit(structure):
        return [structure]
    if isinstance(structure, dict):
        return [unit for name in sorted(structure) for unit in _units(structure[name])]
    if isinstance(structure, (tuple, list)):
        return [unit for item in structure for unit in _units(item)]
    return [structure]


def _tensors(unit: Any) -> list[tf.Tensor]:
    """Returns the values and int64 row splits of a column."""
    if isinstance(unit, tf.RaggedTensor):
        unit = Value(unit.flat_values, unit.nested_row_splits)
    if isinstance(unit, Value):
        return [unit.values, *(tf.cast(splits, tf.int64) for splits in unit.nested_row_splits)]
    if not isinstance(unit, tf.Tensor):
        raise TypeError(f"rebatch: {unit!r} cannot be cut into rows; rebatch before parse()")
    return [unit]


def _ragged_rank(unit: Any) -> int:
    if isinstance(unit, tf.RaggedTensorSpec):
        return unit.ragged_rank
    return len(unit.nested_row_splits) if isinstance(unit, Value) else 0


@tf.autograph.experimental.do_not_convert
def _flat(*element: Any) -> tuple[tf.Tensor, ...]:
    return tuple(tensor for unit in _units(element[0] if len(element) == 1 else element) for tensor in _tensors(unit))


def _packed(spec: Any, tensors: list[tf.Tensor]) -> Any:
    """Builds the element of `spec` from `tensors`, and removes the used tensors from the list."""
    if isinstance(spec, tf.RaggedTensorSpec):
        values, *splits = [tensors.pop(0) for _ in range(1 + spec.ragged_rank)]
        splits = [tf.cast(split, spec.row_splits_dtype) for split in splits]
        return tf.RaggedTensor.from_nested_row_splits(values, splits, validate=False)
    if isinstance(spec, Value):
        values, *splits = [tensors.pop(0) for _ in range(1 + len(spec.nested_row_splits))]
        splits = [tf.cast(split, of.dtype) for split, of in zip(splits, spec.nested_row_splits, strict=True)]
        return Value(values, splits)
    if isinstance(spec, dict):
        packed = {name: _packed(spec[name], tensors) for name in sorted(spec)}
        return {name: packed[name] for name in spec}
    if isinstance(spec, (tuple, list)):
        items = [_packed(item, tensors) for item in spec]
        return type(spec)(*items) if hasattr(spec, "_fields") else type(spec)(items)
    return tensors.pop(0)


def _any_rows(spec: tf.TensorSpec, rows: int | None) -> tf.TensorSpec:
    return tf.TensorSpec(tf.TensorShape([rows]).concatenate(spec.shape[1:]), spec.dtype)


class RebatchDataset:
    """A dataset of batches of `batch_size` rows, made from batches of any sizes.

    Elements are tensors [rows, ...], ragged tensors and `DataFrame.Value`s, in any structure.

    Args:
      input_dataset: batches.
      fields: not used; accepted for HybridBackend's programs.
      batch_size: rows of a batch; the last may have fewer.
      drop_remainder: leaves out a last batch of fewer rows.
      shuffle_buffer_size: None or 0 keeps the order. Otherwise each batch is drawn from the next `shuffle_buffer_size`
        + `batch_size` rows that were not drawn before.
      shuffle_seed: determines the draws together with the graph's seed (`tf.random.set_seed`), as in `tf.data`. If
        neither is set, the seed is random.
      reshuffle_each_iteration: whether each pass draws differently (default: True). With a seed, the n-th pass draws
        the same rows each time the program runs.

    Raises:
      ValueError: an argument is out of its range, or the elements are not batches.
      TypeError: an element holds something that cannot be cut into rows, such as a sparse tensor.
    """

    def __new__(
        cls,
        input_dataset: tf.data.Dataset,
        fields: Iterable[Field] | None,
        batch_size: Any,
        drop_remainder: bool = False,
        shuffle_buffer_size: Any = None,
        shuffle_seed: Any = None,
        reshuffle_each_iteration: bool | None = None,
    ) -> tf.data.Dataset:
        """Creates the dataset; the result is a plain `tf.data.Dataset`."""
        shuffle_buffer_size = 0 if shuffle_buffer_size is None else shuffle_buffer_size
        for name, value, least in (("batch_size", batch_size, 1), ("buffer_size", shuffle_buffer_size, 0)):
            if not tf.is_tensor(value) and value < least:
                raise ValueError(f"{name} is {value}, wanted {least} or more")
        spec = input_dataset.element_spec
        units = _units(spec)
        flat = input_dataset.map(_flat)
        for component in flat.element_spec:
            if component.shape.rank == 0:
                raise ValueError("rebatch: a component of the dataset is a scalar, wanted batches")
        seed, seed2 = random_seed.get_seed(shuffle_seed)
        ragged_ranks = [_ragged_rank(unit) for unit in units]
        rows = batch_size if drop_remainder and not tf.is_tensor(batch_size) else None
        specs, at = [], 0
        for rank in ragged_ranks:
            specs.append(_any_rows(flat.element_spec[at], None if rank else rows))
            specs += [tf.TensorSpec([None], tf.int64)] * rank
            at += 1 + rank
        variant = ops.lockstep_rebatch_dataset(
            input_dataset=flat._variant_tensor,
            batch_size=tf.cast(batch_size, tf.int64),
            buffer_size=tf.cast(shuffle_buffer_size, tf.int64),
            seed=seed,
            seed2=seed2,
            ragged_ranks=ragged_ranks,
            drop_remainder=drop_remainder,
            reshuffle_each_iteration=reshuffle_each_iteration is not False,
            passes=uuid.uuid4().hex if is_graph_mode() else "",
            output_types=[component.dtype for component in specs],
            output_shapes=[component.shape for component in specs],
        )
        rebatched = _Rebatched(flat, variant, tuple(specs))

        @tf.autograph.experimental.do_not_convert
        def packed(*tensors: tf.Tensor) -> Any:
            return _packed(spec, list(tensors))

        return adapt_to_mode(rebatched.map(packed))


def rebatch(batch_size: Any, drop_remainder: bool = False, fields: Iterable[Field] | None = None) -> Transformation:
    """Returns a transformation for `dataset.apply` to batches of `batch_size` rows, in order; see `RebatchDataset`."""
    return lambda dataset: RebatchDataset(dataset, fields, batch_size, drop_remainder)
