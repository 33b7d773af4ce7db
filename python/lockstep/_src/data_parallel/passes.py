"""Gradients that are summed over several passes before they are exchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.data_parallel import provenance
from lockstep._src.data_parallel.graphs import after, local_variable
from lockstep._src.data_parallel.reducer import Gradient, Reducer, key


class Passes:
    """Sums gradients; every n-th time exchanges the sums, which are what is applied then.

    The sums are variables that no checkpoint holds: of a step that isn't complete, nothing is kept. In a graph of
    TensorFlow 1 they are local variables, which `local_variables_initializer` initializes.

    Attributes:
      counter: int32, passes since the last exchange; a variable, None before the first pass.
    """

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._sums: dict[int, tf.Variable] = {}
        self._held: list[Any] = []
        self.counter: tf.Variable | None = None

    def add(self, gradients: Sequence[Gradient], variables: Sequence[Any]) -> list[Gradient]:
        """Adds a pass.

        Args:
          gradients: of this rank; None stays None.
          variables: one for each, the same in all passes.

        Returns:
          After the n-th pass what is to be applied, otherwise the sums of this rank so far.

        Raises:
          ValueError: slices, where `sparse_as_dense` isn't set.
        """
        exchange = self._reducer.exchange
        there = [i for i, gradient in enumerate(gradients) if gradient is not None]
        dense = [self._dense(gradients[i]) for i in there]
        variables = [variables[i] for i in there]
        if self.counter is None:
            self.counter = local_variable("passes", [], tf.int32)
        sums = [self._sum_of(v, g) for v, g in zip(variables, dense, strict=True)]
        added = [s.assign_add(g, read_value=False) for s, g in zip(sums, dense, strict=True)]
        with after(added), after([self.counter.assign_add(1, read_value=False)]):
            count = self.counter.read_value()

        def exchanged() -> list[tf.Tensor]:
            values = [s.read_value() for s in sums]
            reduced = self._reducer.reduce(values, variables)
            if exchange.average_passes:
                reduced = [g / tf.cast(exchange.passes, g.dtype) for g in reduced]
            with after(values), after(reduced):
                cleared = [s.assign(tf.zeros_like(s), read_value=False) for s in sums]
                cleared.append(self.counter.assign(0, read_value=False))
            with after(cleared):
                return [tf.identity(g) for g in reduced]

        def so_far() -> list[tf.Tensor]:
            return [s.read_value() for s in sums]

        with after([count]):
            outputs = tf.cond(tf.equal(count, exchange.passes), exchanged, so_far) if there else []
        result: list[Gradient] = [None] * len(gradients)
        for i, output in zip(there, outputs, strict=True):
            result[i] = output
        provenance.mark(result)
        return result

    def if_complete(
        self, gradients: Sequence[Gradient], apply: Callable[[], Any], skip: Callable[[], Any]
    ) -> tf.Tensor | tf.Operation:
        """Does one of two things, after `gradients` have been added: as they were the n-th pass, or were not."""

        def run(action: Callable[[], Any]) -> Callable[[], tf.Tensor]:
            def branch() -> tf.Tensor:
                done = action()
                with after([done]):
                    return tf.constant(0)

            return branch

        with after([g for g in gradients if g is not None]):
            is_complete = tf.equal(self.counter.read_value(), 0)
            return tf.cond(is_complete, run(apply), run(skip))

    def _dense(self, gradient: Any) -> tf.Tensor:
        if not isinstance(gradient, tf.IndexedSlices):
            return tf.convert_to_tensor(gradient)
        if not self._reducer.exchange.sparse_as_dense:
            raise ValueError(
                f"{self._reducer.name}: got slices (tf.IndexedSlices), which are summed over several passes with "
                "sparse_as_dense=True alone"
            )
        return tf.convert_to_tensor(gradient)

    def _sum_of(self, variable: Any, gradient: tf.Tensor) -> tf.Variable:
        number = key(variable)
        if number not in self._sums:
            self._sums[number] = local_variable("sum", variable.shape, gradient.dtype)
            self._held.append(variable)  # so that the number stays its
        return self._sums[number]
