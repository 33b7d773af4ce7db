"""Micro-batches: several batches in each step, with the option `data_batch_count` and the decorator `compute_pipeline`.

With `data_batch_count=k`, the iterators of a scope give `MicroBatches` in place of tensors: k batches, made of k
elements of the data. A function under `compute_pipeline` takes these. It is called once per batch on the same
variables, and its results are merged: a number such as the loss becomes its mean over all rows. Any optimizer then
steps as if it had one batch of all rows. The gradients are summed before they are exchanged, so a step has one
exchange for any k. Layers that look at the whole batch, such as batch normalization, see one micro-batch at a time.
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
    """One tensor for each batch of a step.

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
    """Returns how many batches an iterator of the current scope gives at once."""
    options = context.options
    return options.data_batch_count if options.mode == "train" else 1


def merge_elements(elements: list[Any]) -> Any:
    """Returns the elements of a step as one element: several become a structure of `MicroBatches`."""
    if len(elements) == 1:
        return elements[0]
    return tf.nest.map_structure(lambda *values: MicroBatches(list(values)), *elements)


def compute_pipeline() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator for a function that builds the model for a batch, so that it takes `MicroBatches`.

    The function makes its variables with `tf.compat.v1.get_variable` or with layers under default names. From the
    second call on, it reuses the variables of the first. If `data_batch_count` is 1, or outside of training, the
    function gets plain tensors and is called once. Follows HybridBackend's `hb.pipeline.compute_pipeline`.

    Returns:
      A decorator. The decorated function returns the structure that the function returns, with the tensors of all
      batches merged. Scalars of a floating-point type become their mean, weighted by the rows of each batch. Tensors
      with rows, also sparse and ragged ones, are concatenated along the rows. Other scalars, and values that are not
      tensors, come from the first batch. The decorated function raises ValueError if the function makes new
      variables for the second batch.
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
        picked = tf.nest.map_structure(
            lambda part, i=i: part.values[i] if isinstance(part, MicroBatches) else part, (args, kwargs)
        )
        if i > 0:
            # Layers number their default names; each batch must get the names of the first.
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


def _merge(values: list[Any]) -> Any:
    if all(isinstance(value, tf.SparseTensor) for value in values):
        # The batches' longest lists may differ in length.
        return tf.sparse.concat(0, values, expand_nonconcat_dims=True)
    if not all(isinstance(value, (tf.Tensor, tf.RaggedTensor)) for value in values):
        return values[0]
    if values[0].shape.rank != 0:
        return tf.concat(values, 0)
    if not values[0].dtype.is_floating:
        return values[0]
    weights = [row_weights.of([value]) for value in values]
    rows = [tf.cast(weight.rows, values[0].dtype) for weight in weights if weight is not None]
    if len(rows) < len(values):
        return tf.add_n(values) / len(values)
    total = tf.maximum(tf.add_n(rows), 1)
    return tf.add_n([tf.math.multiply_no_nan(value, n) for value, n in zip(values, rows, strict=True)]) / total
