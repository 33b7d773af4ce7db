"""HybridBackend's `SyncReplicasOptimizer`, without parameter servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.gradients import tensorflow1_optimizers


class _NoTokens(tf.compat.v1.train.SessionRunHook):
    """A hook that does nothing, because the workers wait for each other in the exchange."""

    stops_alike = True


class SyncReplicasOptimizer(tf.compat.v1.train.Optimizer):
    """An optimizer that applies the mean of all workers' gradients, in a scope or not.

    The classes of TensorFlow and HybridBackend gather gradients on parameter servers, which give the workers a token
    for each step. Here workers exchange gradients with each other, without accumulators, tokens and queue
    runners.

    Args:
      opt: the optimizer that applies the gradients.
      replicas_to_aggregate: the number of workers whose gradients make a step; must be the number of all workers.
      total_num_replicas: the number of workers; None: `replicas_to_aggregate`.
      variable_averages: a `tf.train.ExponentialMovingAverage`, applied after each step to `variables_to_average`.
      variables_to_average: the variables for `variable_averages`; both are given, or neither.
      use_locking: no effect; the setting of `opt` is used.
      name: the name of the operations.

    Raises:
      NotImplementedError: a number differs from the number of the job's workers.
      ValueError: only one of `variable_averages` and `variables_to_average` is given.
    """

    def __init__(
        self,
        opt: tf.compat.v1.train.Optimizer,
        replicas_to_aggregate: int,
        total_num_replicas: int | None = None,
        variable_averages: Any = None,
        variables_to_average: Sequence[tf.Variable] | None = None,
        use_locking: bool = False,
        name: str = "sync_replicas",
    ) -> None:
        super().__init__(use_locking, name)
        workers = context.world_size
        if {replicas_to_aggregate, total_num_replicas or replicas_to_aggregate} != {workers}:
            raise NotImplementedError(
                f"SyncReplicasOptimizer: got replicas_to_aggregate {replicas_to_aggregate} and total_num_replicas "
                f"{total_num_replicas}, wanted {workers}, the number of workers, because all of them take part in each "
                "step. Spare workers need parameter servers; for several batches per step use option data_batch_count"
            )
        if (variable_averages is None) != (variables_to_average is None):
            raise ValueError(
                "SyncReplicasOptimizer: got one of variable_averages and variables_to_average, wanted both or neither"
            )
        self._opt = opt
        self._averages = variable_averages
        self._averaged = variables_to_average

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the gradients of `opt` and their variables; see its `compute_gradients`."""
        return self._opt.compute_gradients(*args, **kwargs)

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Applies the gradients with `opt`, and then updates the moving averages.

        Raises:
          ValueError: there is no `global_step`.
        """
        if global_step is None:
            raise ValueError("SyncReplicasOptimizer: global_step is None, wanted the step to count in")
        applied = self._opt.apply_gradients(grads_and_vars, global_step, name or self.get_name())
        if self._averages is None:
            return applied
        with tf.control_dependencies([applied]):
            return self._averages.apply(self._averaged)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Returns a slot of `opt`."""
        return self._opt.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> list[str]:
        """Returns the names of the slots of `opt`."""
        return self._opt.get_slot_names(*args, **kwargs)

    def variables(self) -> list[tf.Variable]:
        """Returns the variables of `opt`."""
        return self._opt.variables()

    def make_session_run_hook(self, is_chief: bool, num_tokens: int = -1) -> tf.compat.v1.train.SessionRunHook:
        """Returns a hook that does nothing."""
        del is_chief, num_tokens
        return _NoTokens()

    def sync_at_end(self, session: Any, is_chief: bool) -> None:
        """Returns immediately, because workers end together."""
        del session, is_chief

    def get_init_tokens_op(self, num_tokens: int = -1) -> NoReturn:
        """Raises NotImplementedError: this job has no tokens."""
        del num_tokens
        raise NotImplementedError(
            "SyncReplicasOptimizer.get_init_tokens_op: tokens come from parameter servers, which this job lacks. "
            "Workers wait for each other without tokens; leave this call out"
        )

    def get_chief_queue_runner(self) -> NoReturn:
        """Raises NotImplementedError: this job has no queue."""
        raise NotImplementedError(
            "SyncReplicasOptimizer.get_chief_queue_runner: the queue belongs to parameter servers, which this job "
            "lacks. Each worker applies the gradients itself; leave this call out"
        )


tensorflow1_optimizers.exchange_in(SyncReplicasOptimizer)
