"""Several batches a step, as micro-batches: options `data_batch_count`, and `compute_pipeline` that builds the model.

With `data_batch_count=k` the iterators of a scope give `MicroBatches` where they would give tensors: k batches, of k
elements of the data. A function under `compute_pipeline` takes them, is called once for each on the same variables, and
its results become one: the mean over rows of its numbers, such as the loss. So any optimizer steps as if with one batch
of all rows, by gradients that are summed before they are exchanged: one exchange a step, whatever k is. Layers that
look at the whole batch (batch normalization) see a micro-batch at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import variable_scope

from lockstep._src.engine.context import context
from lockstep._src.graph import row_weights


class MicroBatches:
    """A tensor of each of a step's batches.

    Args:
      values: tensors, in the order of the batches.
    """

    def __init__(self, values: list[Any]) -> None:
        self.values = tuple(values)

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __repr__(self) -> str:
        return f"MicroBatches({list(self.values)})"


def batches_per_step() -> int:
    """How many batches an iterator of the present scope gives at once."""
    options = context.options
    return options.data_batch_count if options.mode == "train" else 1


def of_a_step(elements: list[Any]) -> Any:
    """The elements that a step takes, as one: of several, `MicroBatches` of each of their tensors."""
    if len(elements) == 1:
        return elements[0]
    return tf.nest.map_structure(lambda *values: MicroBatches(list(values)), *elements)


def compute_pipeline() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a function that builds the model for a batch, so that it takes `MicroBatches`.

    The function makes its variables with `tf.compat.v1.get_variable` or layers under default names: from the second
    call on they are those of the first. With `data_batch_count` at 1, or outside of training, it is called as it is.
    After HybridBackend's `hb.pipeline.compute_pipeline`.

    Returns:
      A decorator. The decorated function returns what the function does, with tensors of several batches made one:
      the mean of scalars of a floating-point type, each weighed by its batch's rows; others concatenated by rows. It
      raises ValueError if the function makes other variables for the second batch.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            flat = tf.nest.flatten((args, kwargs))
            counts = {len(part) for part in flat if isinstance(part, MicroBatches)}
            if not counts:
                return function(*args, **kwargs)
            if len(counts) > 1:
                raise ValueError(f"compute_pipeline: {function.__name__} is given micro-batches of {sorted(counts)}")
            return _build(function, args, kwargs, counts.pop())

        return wrapped

    return decorate


def _build(function: Callable[..., Any], args: Any, kwargs: Any, count: int) -> Any:
    results = []
    store = variable_scope.get_variable_scope_store()
    names_before = dict(store.variable_scopes_count)
    for i in range(count):
        picked = tf.nest.map_structure(lambda part, i=i: part.values[i] if _is_several(part) else part, (args, kwargs))
        if i > 0:
            # Layers count default names; each batch's have to be those of the first.
            store.variable_scopes_count = dict(names_before)
        with tf.compat.v1.variable_scope(
            tf.compat.v1.get_variable_scope(),
            reuse=tf.compat.v1.AUTO_REUSE if i > 0 else None,
            auxiliary_name_scope=False,
        ):
            results.append(function(*picked[0], **picked[1]))
        if i == 0:
            made = set(tf.compat.v1.global_variables())
        again = [v.op.name for v in tf.compat.v1.global_variables() if v not in made]
        if again:
            raise ValueError(
                f"compute_pipeline: {function.__name__} made variables {', '.join(again)} again for the second batch; "
                "make its layers outside of it, or its variables with tf.compat.v1.get_variable"
            )
    return tf.nest.map_structure(lambda *values: _merge(list(values)), *results)


def _is_several(part: Any) -> bool:
    return isinstance(part, MicroBatches)


def _merge(values: list[Any]) -> Any:
    if not all(isinstance(value, tf.Tensor) for value in values):
        return values[0]
    if values[0].shape.rank != 0:
        return tf.concat(values, 0)
    if not values[0].dtype.is_floating:
        return values[0]
    weights = [row_weights.of([value]) for value in values]
    if None in weights:
        return tf.add_n(values) / len(values)
    rows = [tf.cast(weight.rows, values[0].dtype) for weight in weights]
    total = tf.maximum(tf.add_n(rows), 1)
    return tf.add_n([tf.math.multiply_no_nan(value, n) for value, n in zip(values, rows, strict=True)]) / total
