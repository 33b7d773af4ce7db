"""An optimizer of TensorFlow 1 whose ranks train separately, and combine the changes of their variables by Adasum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lockstep._src.collectives.lanes import AllRanks, NamedLane
from lockstep._src.gradients.agreed_variables import described
from lockstep._src.gradients.graphs import LocalVariables, after, branch
from lockstep._src.gradients.settings import Compressor
from lockstep._src.gradients.tensorflow1_optimizers import (
    GradientsAndVariables,
    OptimizerWrapper,
    variables_of_graph,
)
from lockstep._src.gradients.variable_sets import LocalVariableSet


def _copied(variable: tf.Variable) -> tf.Tensor:
    """Returns a copy of a variable's current value; a plain read may refer to memory that training changes."""
    return tf.raw_ops.DeepCopy(x=variable.read_value())


class AdasumOptimizer(OptimizerWrapper):
    """Trains each rank separately; every n steps the ranks combine, by Adasum, the changes of their variables.

    After Maleki et al., "Scaling Distributed Training with Adaptive Summation" (MLSys 2021): for each variable, the
    change that the wrapped optimizer made is reduced, not the gradient.

    Args:
      optimizer: the optimizer that trains; its state belongs to the rank.
      name: the names of exchanges begin with it.
      use_locking: as in `tf.compat.v1.train.Optimizer`.
      compression: compresses the changes before they are sent.
      steps: the number of steps after which ranks combine.
    """

    def __init__(
        self,
        optimizer: tf.compat.v1.train.Optimizer,
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
        self._local = LocalVariableSet()
        self._lane = NamedLane(AllRanks())
        self._made = LocalVariables()
        self._counter: tf.Variable | None = None
        self._starts: dict[Any, tf.Variable] = {}

    def register_local_var(self, var: tf.Variable) -> None:
        """Keeps the changes of `var` on this rank from now on."""
        self._local.add(var)

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(
        self, grads_and_vars: GradientsAndVariables, global_step: tf.Variable | None = None, name: str | None = None
    ) -> Any:
        """Applies this rank's gradients; after every n-th call all ranks have the same variables.

        Returns:
          The operation; None eagerly.

        Raises:
          tf.errors.FailedPreconditionError: the ranks would combine now, and have gradients of different variables. All
            ranks raise this error; in a graph when it runs.
        """
        pairs = list(grads_and_vars)
        are_local = self._local.among([v for _, v in pairs])
        variables = [v for (g, v), is_local in zip(pairs, are_local, strict=True) if g is not None and not is_local]
        scope = self._lane.scope_of(self._name)

        def agree() -> list[Any]:
            with tf.name_scope(scope):
                gradients, of = [g for g, _ in pairs], [v for _, v in pairs]
                return self._lane.agree(lambda: described(gradients, of, variables_of_graph(), self._local), scope)

        def train() -> Any:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)

        def combine(starts: list[tf.Tensor]) -> tf.Tensor:
            return self._combine(variables, starts, scope)

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
                f"{self._name}: got gradients of {', '.join(strange)}, wanted only variables of the first call: "
                f"with backward_passes_per_step ({self._steps}) Adasum counts the steps of all variables together"
            )
        starts = [self._starts[v.ref()] for v in variables]
        with after(self._made.renewed()):
            step = self._counter.read_value()
        is_last = tf.equal(step, self._steps - 1)

        def begin() -> list[Any]:
            return [s.assign(_copied(v), read_value=False) for s, v in zip(starts, variables, strict=True)]

        # Separate names: exchanges inside are named after them, and ranks may have other conditionals.
        are_same = tf.cond(is_last, branch(agree), branch(list), f"{self._name}_agree")
        with after([are_same, tf.cond(tf.equal(step, 0), branch(begin), branch(list))]):
            trained = train()
        with after([trained]):
            combine_all = branch(lambda: [combine([s.read_value() for s in starts])])
            combined = tf.cond(is_last, combine_all, branch(list), f"{self._name}_combine")
        with after([combined]):
            return self._counter.assign((step + 1) % self._steps, read_value=False)

    def _combine(self, variables: list[tf.Variable], starts: list[tf.Tensor], scope: str) -> tf.Tensor:
        assigned = []
        for i, (variable, start) in enumerate(zip(variables, starts, strict=True)):
            change, context = variable.read_value() - start, None
            if self._compression is not None:
                change, context = self._compression.compress(change)
            with tf.name_scope(scope):
                (change,) = self._lane.allreduce([change], [f"{scope}change_{i}"], "adasum", i, 1.0)
            if self._compression is not None:
                change = self._compression.decompress(change, context)
            assigned.append(variable.assign(start + change, use_locking=self._use_locking))
        with after(assigned):
            return tf.constant(0)
