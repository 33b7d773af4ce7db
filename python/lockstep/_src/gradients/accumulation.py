"""Gradients that are summed over several passes before they are exchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.gradients import provenance
from lockstep._src.gradients.agreed_variables import Gradient
from lockstep._src.gradients.exchange import GradientExchange
from lockstep._src.gradients.graphs import LocalVariables, Track, after, branch
from lockstep._src.gradients.variable_sets import key


class Passes:
    """Sums gradients; every n-th pass exchanges the sums, which are applied then.

    Passes over other variables are counted separately: one optimizer may train two parts of a model in turn.

    The sums are variables that no checkpoint contains. Sums of an incomplete step are also dropped when this process
    joins a job, so that all its ranks complete their steps together.

    Args:
      exchange: exchanges the sums.
      track: as in `LocalVariables`.

    Attributes:
      counter: int32, the number of passes since the last exchange, for the variables of the last pass; a variable, None
        before the first pass.
    """

    def __init__(self, exchange: GradientExchange, track: Track | None = None) -> None:
        self._exchange = exchange
        self._made = LocalVariables(track)
        # Key of the variables -> part; the part of the last pass is the last one.
        self._parts: dict[tuple[int, ...], _Part] = {}
        self.counter: tf.Variable | None = None

    def _part(self, variables: Sequence[Any]) -> _Part:
        keys = tuple(key(v) for v in variables)
        known = self._parts.pop(keys, None)
        self._parts[keys] = known or _Part(variables, self._made)
        self.counter = self._parts[keys].counter
        return self._parts[keys]

    def exchange(
        self, gradients: Sequence[Gradient], variables: Sequence[Any], which: Sequence[int] | None = None
    ) -> list[Gradient]:
        """Adds a pass, and exchanges the sums after the n-th pass.

        Args:
          gradients: the gradients of this rank. None adds nothing, and stays None if no pass had a gradient.
          variables: one for each gradient.
          which: [] if these gradients have been added already.

        Returns:
          After the n-th pass the gradients to apply, otherwise the sums of this rank so far.

        Raises:
          ValueError: a gradient consists of slices, and `sparse_as_dense` isn't set.
          NotImplementedError: a variable is a dynamic table.
        """
        if which is not None and not which:
            return list(gradients)
        how = self._exchange.how
        part = self._part(variables)
        if table := next((v.name for v in variables if getattr(v, "is_dynamic", False)), None):
            raise NotImplementedError(
                f"{self._exchange.name}: gradients of the dynamic table '{table}' cannot be summed over several "
                "passes; apply them with an optimizer of their own"
            )
        dense = {i: self._dense(gradient) for i, gradient in enumerate(gradients) if gradient is not None}
        for i, gradient in dense.items():
            part.make_sum(i, gradient.dtype)
        there = sorted(part.sums)
        sums = [part.sums[i] for i in there]
        with after(self._made.renewed()):
            added = [part.sums[i].assign_add(gradient, read_value=False) for i, gradient in dense.items()]
            with after(added), after([part.counter.assign_add(1, read_value=False)]):
                count = part.counter.read_value()

        def exchanged() -> list[tf.Tensor]:
            values = [s.read_value() for s in sums]
            full: list[Gradient] = [None] * len(gradients)
            for i, value in zip(there, values, strict=True):
                full[i] = value
            all_reduced = self._exchange.exchange(full, variables)
            reduced: list[Any] = [all_reduced[i] for i in there]
            if how.average_passes:
                reduced = [g / tf.cast(how.passes, g.dtype) for g in reduced]
            with after(values), after(reduced):
                cleared = [s.assign(tf.zeros_like(s), read_value=False) for s in sums]
                cleared.append(part.counter.assign(0, read_value=False))
            with after(cleared):
                return [tf.identity(count), *(tf.identity(g) for g in reduced)]

        def so_far() -> list[tf.Tensor]:
            return [tf.identity(count), *(s.read_value() for s in sums)]

        with after([count]):
            # A separate name: exchanges inside are named after it, and ranks may have other conditionals.
            outputs = tf.cond(tf.equal(count, how.passes), exchanged, so_far, f"{self._exchange.name}_passes")
        result: list[Gradient] = [None] * len(gradients)
        for i, output in zip(there, outputs[1:], strict=True):
            result[i] = output
        provenance.mark(result)
        return result

    def if_complete(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Any],
        apply: Callable[[], Any],
        skip: Callable[[], Any],
    ) -> tf.Tensor | tf.Operation:
        """Calls `apply` if the last pass over `variables` completed a step, and `skip` otherwise.

        Args:
          gradients: the result of `exchange`, or values computed from it.
          variables: one for each gradient; some of the pass's variables may be missing.
          apply: called after the n-th pass.
          skip: called after another pass.
        """
        keys = {key(v) for v in variables}
        counter = next(part.counter for keys_of, part in reversed(self._parts.items()) if keys <= {*keys_of})
        with after([g for g in gradients if g is not None]):
            is_complete = tf.equal(counter.read_value(), 0)
            return tf.cond(is_complete, branch(lambda: [apply()]), branch(lambda: [skip()]))

    def _dense(self, gradient: Any) -> tf.Tensor:
        if isinstance(gradient, tf.IndexedSlices) and not self._exchange.how.sparse_as_dense:
            raise ValueError(
                f"{self._exchange.name}: got slices (tf.IndexedSlices), which are summed over several passes only with "
                "sparse_as_dense=True"
            )
        return tf.convert_to_tensor(gradient)


class _Part:
    """The sums of some variables, and the number of summed passes.

    Attributes:
      counter: int32, the number of passes.
      sums: place of a variable -> sum.
    """

    def __init__(self, variables: Sequence[Any], made: LocalVariables) -> None:
        # References to the variables, so that no others get their keys.
        self._variables, self._made = list(variables), made
        self.counter = made.make("passes", [], tf.int32)
        self.sums: dict[int, tf.Variable] = {}

    def make_sum(self, i: int, dtype: tf.DType) -> None:
        """Creates the sum of a variable if there is none yet."""
        if i not in self.sums:
            self.sums[i] = self._made.make("sum", self._variables[i].shape, dtype)
