"""Input functions for data in memory: `tf.estimator.inputs` of TensorFlow 1, with `tf.data` in place of queues.

Rows keep the array's order in every pass, and a batch may hold the end of one pass and the beginning of the next. With
`shuffle`, each row is drawn from the next `queue_capacity` rows. The graph does not hold the arrays; each run takes its
batch out of them. The iterator gives only row numbers, so that its position can be part of a checkpoint
(`save_data_position`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

_tf1 = tf.compat.v1
_log = logging.getLogger("lockstep")

Features = Any  # a tensor, or a dict of name to tensor: [B, ...]


def numpy_input_fn(
    x: np.ndarray | Mapping[str, np.ndarray],
    y: np.ndarray | Mapping[str, np.ndarray] | None = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
) -> Callable[[], Any]:
    """Returns a function without arguments that returns batches of arrays, for `Estimator.train` and similar methods.

    Args:
      x: features: an array [N, ...], or a dict of arrays.
      y: labels: the same, with the same N; None for features only.
      batch_size: rows of a batch, B. The last batch has the remaining rows; without an end, all batches are full.
      num_epochs: the number of passes over the data; None: without end.
      shuffle: whether rows come in random order. This argument is required.
      queue_capacity: the number of rows from which each row is drawn.
      num_threads: multiplies the passes: each of TensorFlow's threads made `num_epochs` passes.

    Returns:
      A function that returns `x` as tensors [B, ...], or (`x`, `y`).

    Raises:
      ValueError: `shuffle` is not given, or a number is less than 1. From the returned function: a dict is empty,
        lengths differ, or `x` and `y` have a common name.
      TypeError: from the returned function: a value is not an array.
    """
    take = _checked(batch_size, num_epochs, shuffle, queue_capacity, num_threads)

    def input_fn() -> Any:
        features = _arrays("x", x)
        labels = {} if y is None else _arrays("y", y)
        if common := sorted(set(features) & set(labels)):
            raise ValueError(f"numpy_input_fn: x and y both have {', '.join(map(repr, common))}; wanted other names")
        _check_lengths(features, labels)
        batch = take([*features.values(), *labels.values()])
        given = _like(x, features, batch[: len(features)])
        return given if y is None else (given, _like(y, labels, batch[len(features) :]))

    return input_fn


def pandas_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
    target_column: str = "target",
) -> Callable[[], Any]:
    """Returns a function without arguments that returns batches of a data frame; similar to `numpy_input_fn`.

    Args:
      x: features: a `pandas.DataFrame`. Its rows are copied immediately.
      y: labels, with the same index: a `pandas.Series`, or a frame, which gives a dict; None for features only.
      batch_size: as in `numpy_input_fn`.
      num_epochs: as in `numpy_input_fn`.
      shuffle: as in `numpy_input_fn`.
      queue_capacity: as in `numpy_input_fn`.
      num_threads: as in `numpy_input_fn`.
      target_column: a name that is not a column of `x`.

    Returns:
      A function that returns the columns as tensors [B], by name; or (columns, labels).

    Raises:
      ValueError: `shuffle` is not given, a number is less than 1, `x` has a column `target_column`, or the indices of
        `x` and `y` differ.
      TypeError: `target_column` is not a string.
    """
    take = _checked(batch_size, num_epochs, shuffle, queue_capacity, num_threads)
    if not isinstance(target_column, str):
        raise TypeError(f"pandas_input_fn: target_column is {target_column!r}, wanted a name")
    if y is not None:
        if target_column in x:
            raise ValueError(f"pandas_input_fn: x has a column {target_column!r}; wanted another target_column")
        if not np.array_equal(x.index, y.index):
            raise ValueError(f"pandas_input_fn: the indices of x and y differ: {x.index} and {y.index}")
    features = _columns(x)
    labels = None if y is None else _columns(y) if hasattr(y, "columns") else np.array(y)

    def input_fn() -> Any:
        if not isinstance(labels, dict):
            batch = take([*features.values(), *([] if labels is None else [labels])])
            given = dict(zip(features, batch, strict=False))
            return given if labels is None else (given, batch[-1])
        batch = take([*features.values(), *labels.values()])
        split = len(features)
        return dict(zip(features, batch[:split], strict=True)), dict(zip(labels, batch[split:], strict=True))

    return input_fn


def _columns(frame: Any) -> dict[Any, np.ndarray]:
    return {name: np.array(frame[name]) for name in frame.columns}


def _checked(
    batch_size: int, num_epochs: int | None, shuffle: Any, queue_capacity: int, num_threads: int
) -> Callable[[list[np.ndarray]], list[tf.Tensor]]:
    """Returns a function that takes the next rows of arrays, as tensors. Raises ValueError for a wrong argument."""
    if not isinstance(shuffle, bool):
        raise ValueError(f"shuffle is {shuffle!r}, wanted True (for training, as a rule) or False")
    numbers = {"batch_size": batch_size, "queue_capacity": queue_capacity, "num_threads": num_threads}
    for name, number in {**numbers, "num_epochs": num_epochs}.items():
        if number is not None and number < 1:
            raise ValueError(f"{name} is {number}, wanted 1 or more")
    passes = None if num_epochs is None else num_epochs * num_threads
    if passes != num_epochs:
        _log.warning("num_epochs is %d and num_threads is %d: %d passes", num_epochs, num_threads, passes)

    def take(arrays: list[np.ndarray]) -> list[tf.Tensor]:
        rows = tf.data.Dataset.range(len(arrays[0])).repeat(passes)
        if shuffle:
            rows = rows.shuffle(queue_capacity)
        rows = rows.batch(batch_size, drop_remainder=passes is None)
        iterator = _tf1.data.make_initializable_iterator(rows)
        _tf1.add_to_collection(_tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        return _picked(arrays, iterator.get_next())

    return take


def _picked(arrays: list[np.ndarray], rows: tf.Tensor) -> list[tf.Tensor]:
    """Returns the rows with these numbers from each array."""
    types = [tf.as_dtype(array.dtype) for array in arrays]

    def pick(numbers: np.ndarray) -> list[np.ndarray]:
        return [array[numbers] for array in arrays]

    picked = tf.numpy_function(pick, [rows], types)
    for tensor, array in zip(picked, arrays, strict=True):
        tensor.set_shape([*rows.shape, *array.shape[1:]])
    return list(picked)


def _arrays(what: str, given: Any) -> dict[str, np.ndarray]:
    """Returns the arrays by name, sorted by name; a single array gets a unique name."""
    by_name = given if isinstance(given, Mapping) else {("array", what): given}
    if not by_name:
        raise ValueError(
            f"numpy_input_fn: {what} is an empty dict, wanted arrays" + (" or None" if what == "y" else "")
        )
    for name, array in by_name.items():
        if not isinstance(array, np.ndarray):
            shown = what if by_name is not given else f"{what}[{name!r}]"
            raise TypeError(f"numpy_input_fn: {shown} is a {type(array).__name__}, wanted an array, or a dict of them")
    return {name: by_name[name] for name in sorted(by_name)}


def _check_lengths(features: Mapping[Any, np.ndarray], labels: Mapping[Any, np.ndarray]) -> None:
    if len({len(array) for array in (*features.values(), *labels.values())}) > 1:
        shapes = [", ".join(str(array.shape) for array in arrays.values()) for arrays in (features, labels)]
        raise ValueError(f"numpy_input_fn: wanted arrays of one length, got shapes {shapes[0]} of x, {shapes[1]} of y")


def _like(given: Any, arrays: Mapping[str, np.ndarray], batch: list[tf.Tensor]) -> Features:
    """Returns the tensors in the form of `given`: a dict or a single tensor."""
    return dict(zip(arrays, batch, strict=True)) if isinstance(given, Mapping) else batch[0]
