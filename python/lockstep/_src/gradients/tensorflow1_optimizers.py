"""Optimizers of TensorFlow 1 (`tf.compat.v1.train.Optimizer`) that exchange gradients by name, or what they changed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.collectives import named
from lockstep._src.gradients import agreed_variables
from lockstep._src.gradients.exchange import Compressor, Exchange
from lockstep._src.gradients.graphs import LocalVariables, after
from lockstep._src.gradients.reducer import Gradient
from lockstep._src.gradients.variable_sets import LocalOnes
from lockstep._src.gradients.wrapped_updates import Updates

_Optimizer = tf.compat.v1.train.Optimizer
GradientsAndVariables = Sequence[tuple[Gradient, tf.Variable]]


class _Wrapper(_Optimizer):
    """Has another optimizer do the work; slots and variables are that one's."""

    def __init__(self, optimizer: _Optimizer, name: str, use_locking: bool) -> None:
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer

    @tf.autograph.experimental.do_not_convert
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Gradients of this rank."""
        return list(self._optimizer.compute_gradients(*args, **kwargs))

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """That of the wrapped optimizer."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> list[str]:
        """Those of the wrapped optimizer."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> list[tf.Variable]:
        """Those of the wrapped optimizer."""
        return self._optimizer.variables(*args, **kwargs)


def _in_the_graph() -> Sequence[tf.Variable] | None:
    """Variables in the order in which a graph of TensorFlow 1 got them; None elsewhere."""
    return None if tf.compat.v1.executing_eagerly_outside_functions() else tf.compat.v1.trainable_variables()


def _copied(variable: tf.Variable) -> tf.Tensor:
    """The value that a variable has now: of a reference TensorFlow reads the memory itself, trained in place."""
    return tf.raw_ops.DeepCopy(x=variable.read_value())


class ExchangingOptimizer(_Wrapper):
    """Exchanges gradients where they are computed, and in `apply_gradients` those that come from elsewhere.

    Args:
      optimizer: applies them.
      exchange: how they are exchanged.
      name: begins the names of what is exchanged.
      use_locking: of `tf.compat.v1.train.Optimizer`.
    """

    def __init__(self, optimizer: _Optimizer, exchange: Exchange, name: str, use_locking: bool = False) -> None:
        super().__init__(optimizer, name, use_locking)
        self._updates = Updates(exchange, name)
        self._updates.reducer.order = _in_the_graph

    def register_local_var(self, var: tf.Variable) -> None:
        """From now on gradients of `var` stay on this rank."""
        self._updates.reducer.local.add(var)

    @tf.autograph.experimental.do_not_convert
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Gradient, tf.Variable]]:
        """Gradients to apply, and their variables; what the wrapped optimizer computes, exchanged."""
        pairs = super().compute_gradients(*args, **kwargs)
        variables = [v for _, v in pairs]
        return list(zip(self._updates.compute([g for g, _ in pairs], variables), variables, strict=True))

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(
        self, grads_and_vars: GradientsAndVariables, global_step: tf.Variable | None = None, name: str | None = None
    ) -> Any:
        """Applies gradients; those that were not exchanged are, first."""
        pairs = list(grads_and_vars)
        variables = [v for _, v in pairs]

        def apply(gradients: list[Gradient]) -> Any:
            applied = list(zip(gradients, variables, strict=True))
            return self._optimizer.apply_gradients(applied, global_step=global_step, name=name)

        def skip() -> Any:
            return None if global_step is None else global_step.assign_add(1, read_value=False)

        return self._updates.apply([g for g, _ in pairs], variables, apply, skip)


class AdasumOptimizer(_Wrapper):
    """Every rank trains by itself, and every n steps ranks combine, by Adasum, what their steps changed.

    After Maleki et al., "Scaling Distributed Training with Adaptive Summation" (MLSys 2021): of each variable the
    difference that the wrapped optimizer made is reduced, not the gradient.

    Args:
      optimizer: trains; its state is the rank's own.
      name: begins the names of what is exchanged.
      use_locking: of `tf.compat.v1.train.Optimizer`.
      compression: what differences are made into before they travel.
      steps: after how many steps ranks combine.
    """

    def __init__(
        self,
        optimizer: _Optimizer,
        name: str,
        use_locking: bool = False,
        compression: Compressor | None = None,
        steps: int = 1,
    ) -> None:
        if steps < 1:
            raise ValueError(f"{name}: got {steps} passes, wanted at least 1")
        super().__init__(optimizer, name, use_locking)
        self._compression = compression
        self._steps = steps
        self._local = LocalOnes()
        self._made = LocalVariables()
        self._counter: tf.Variable | None = None
        self._starts: dict[Any, tf.Variable] = {}

    def register_local_var(self, var: tf.Variable) -> None:
        """From now on what changes `var` stays on this rank."""
        self._local.add(var)

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(
        self, grads_and_vars: GradientsAndVariables, global_step: tf.Variable | None = None, name: str | None = None
    ) -> Any:
        """Applies this rank's gradients; after every n-th call variables are what ranks agree on.

        Returns:
          The operation; None eagerly.

        Raises:
          tf.errors.FailedPreconditionError: ranks are to combine, and have gradients of different variables; on all of
            them, in a graph when it runs.
        """
        pairs = list(grads_and_vars)
        shared = [
            pair for pair, is_local in zip(pairs, self._local.among([v for _, v in pairs]), strict=True) if not is_local
        ]
        variables = [v for g, v in shared if g is not None]
        prefix = agreed_variables.prefix_of(self._name)

        def agree() -> list[Any]:
            of_all = [v for _, v in shared]
            places = agreed_variables.places(of_all, _in_the_graph(), self._local)
            with tf.name_scope(f"{prefix}/"):
                return agreed_variables.agree([g for g, _ in shared], of_all, places, f"{prefix}/")

        def train() -> Any:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)

        def combine(starts: list[tf.Tensor]) -> tf.Tensor:
            return self._combine(variables, starts, prefix)

        if self._steps > 1:
            done = self._combine_sometimes(variables, agree, train, combine)
        else:
            starts = [_copied(v) for v in variables]
            with after([*agree(), *starts]):
                trained = train()
            with after([trained]):
                done = combine(starts)
        return None if tf.executing_eagerly() else tf.group(done)

    def _combine_sometimes(
        self,
        variables: list[tf.Variable],
        agree: Callable[[], list[Any]],
        train: Callable[[], Any],
        combine: Callable[[list[tf.Tensor]], tf.Tensor],
    ) -> Any:
        if self._counter is None:
            self._counter = self._made.make("adasum_steps", [], tf.int32)
            self._starts = {v.ref(): self._made.make("start", v.shape, v.dtype.base_dtype) for v in variables}
        if strange := [v.name for v in variables if v.ref() not in self._starts]:
            raise ValueError(
                f"{self._name}: got gradients of {', '.join(strange)}, wanted of those of the first call alone: "
                f"with backward_passes_per_step ({self._steps}) Adasum counts the steps of all of them together"
            )
        starts = [self._starts[v.ref()] for v in variables]
        with after(self._made.renewed()):
            step = self._counter.read_value()
        is_last = tf.equal(step, self._steps - 1)
        nothing = functools.partial(tf.constant, 0)

        def begin() -> tf.Tensor:
            with after([s.assign(_copied(v), read_value=False) for s, v in zip(starts, variables, strict=True)]):
                return tf.constant(0)

        def agreed() -> tf.Tensor:
            with after(agree()):
                return tf.constant(0)

        # By names of their own: what is exchanged inside is called after them, and ranks may have other conditionals.
        are_same = tf.cond(is_last, agreed, nothing, f"{self._name}_agree")
        with after([are_same, tf.cond(tf.equal(step, 0), begin, nothing)]):
            trained = train()
        with after([trained]):
            combined = tf.cond(
                is_last, lambda: combine([s.read_value() for s in starts]), nothing, f"{self._name}_combine"
            )
        with after([combined]):
            return self._counter.assign((step + 1) % self._steps, read_value=False)

    def _combine(self, variables: list[tf.Variable], starts: list[tf.Tensor], prefix: str) -> tf.Tensor:
        assigned = []
        for i, (variable, start) in enumerate(zip(variables, starts, strict=True)):
            change, context = variable.read_value() - start, None
            if self._compression is not None:
                change, context = self._compression.compress(change)
            with tf.name_scope(f"{prefix}/"):
                (change,) = named.allreduce([change], "adasum", **agreed_variables.called([f"{prefix}/change_{i}"]))
            if self._compression is not None:
                change = self._compression.decompress(change, context)
            assigned.append(variable.assign(start + change, use_locking=self._use_locking))
        with after(assigned):
            return tf.constant(0)
