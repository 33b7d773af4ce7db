"""Trains and evaluates an estimator in turn, on all workers."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from lockstep._src.collectives import agreement
from lockstep._src.engine.context import context
from lockstep._src.estimator.specs import EvalSpec, TrainSpec
from lockstep._src.evaluation.evaluation_hook import EvaluationHook

if TYPE_CHECKING:
    from lockstep._src.estimator.estimator import Estimator

_tf1 = tf.compat.v1


def train_and_evaluate(
    estimator: Estimator,
    train_spec: Any,
    eval_spec: Any,
    eval_every_n_iter: int | None = None,
    eval_history: Any = None,
) -> tuple[dict[str, Any] | None, list[Any]]:
    """Trains and evaluates, both on all workers in parallel; follows `tf.estimator.train_and_evaluate`.

    By default, an evaluation follows each checkpoint if `throttle_secs` have passed, by worker 0's clock, since the
    previous evaluation; another one follows the end of training. If TF_CONFIG has a task 'evaluator', that process
    evaluates all checkpoints instead, outside of the job.

    Args:
      estimator: the estimator to train.
      train_spec: a `TrainSpec`.
      eval_spec: an `EvalSpec`.
      eval_every_n_iter: the number of steps between evaluations inside the training session, which need no checkpoint.
        A last evaluation follows the end of training.
      eval_history: a list to which the evaluations of `eval_every_n_iter` are appended.

    Returns:
      The values of the last evaluation (None if there was none), and a list of the results of the exporters at the end
      of training. The list is empty on workers other than worker 0.

    Raises:
      TypeError: `train_spec` or `eval_spec` is of another type.
    """
    for what, spec, cls in (("train_spec", train_spec, TrainSpec), ("eval_spec", eval_spec, EvalSpec)):
        if not all(hasattr(spec, field) for field in cls._fields):
            raise TypeError(f"train_and_evaluate: {what} is {spec!r}, wanted {cls.__name__}")
    with estimator._place():
        return _in_turn(estimator, train_spec, eval_spec, eval_every_n_iter, eval_history)


def _in_turn(
    estimator: Estimator, train_spec: Any, eval_spec: Any, eval_every_n_iter: int | None, eval_history: Any
) -> tuple[dict[str, Any] | None, list[Any]]:
    evaluation = _Evaluations(estimator, eval_spec)
    if context.task_type == "evaluator":
        evaluation.follow(train_spec.max_steps)
        return evaluation.values, evaluation.exports
    hooks = list(train_spec.hooks)
    listeners = list(train_spec.saving_listeners or ())
    has_evaluator = "evaluator" in estimator.config.cluster_spec.jobs
    if eval_every_n_iter is not None:
        hooks.append(
            EvaluationHook(
                lambda: estimator._build_metrics(eval_spec.input_fn)[0],
                steps=eval_spec.steps,
                every_n_iter=eval_every_n_iter,
                summary_dir=estimator.eval_dir(eval_spec.name),
                history=eval_history,
            )
        )
    elif not has_evaluator:
        listeners.append(evaluation)
    estimator.train(train_spec.input_fn, hooks=hooks, max_steps=train_spec.max_steps, saving_listeners=listeners)
    if not has_evaluator and (evaluation.values is not None or eval_every_n_iter is not None):
        evaluation.finish()
    return evaluation.values, evaluation.exports


class _Evaluations(_tf1.train.CheckpointSaverListener):
    """A listener that evaluates each checkpoint when it is saved, and calls the exporters."""

    def __init__(self, estimator: Estimator, spec: Any) -> None:
        self._estimator = estimator
        self._spec = spec
        self._began: float | None = None
        self._untrained = True
        self.values: dict[str, Any] | None = None
        self.exports: list[Any] = []

    def after_save(self, session: Any, global_step_value: int) -> None:
        del session
        if self._untrained:
            # This checkpoint was saved before the first step.
            self._untrained = False
            return
        is_due = self._began is None or time.monotonic() - self._began >= self._spec.throttle_secs
        if agreement.from_chief(is_due, "evaluation_is_due"):
            self._evaluate()

    def end(self, session: Any, global_step_value: int) -> None:
        del session
        self._evaluate_step(global_step_value)

    def finish(self) -> None:
        """Runs the last evaluation, unless it was already done, and the final exports."""
        self._evaluate_step(self._estimator._trained_steps())
        self._export(is_final=True)

    def follow(self, max_steps: int | None) -> None:
        """Evaluates checkpoints that other processes save, until the one of step `max_steps`."""
        time.sleep(self._spec.start_delay_secs)
        for _ in tf.train.checkpoints_iterator(self._estimator.model_dir, self._spec.throttle_secs):
            self._evaluate()
            if max_steps is not None and self.values["global_step"] >= max_steps:
                break
        self._export(is_final=True)

    def _evaluate_step(self, step: int) -> None:
        """Evaluates the latest checkpoint, which is the one of this step, unless the last evaluation was of it."""
        if self.values is None or self.values["global_step"] != step:
            self._evaluate()

    def _evaluate(self) -> None:
        self._began = time.monotonic()
        self._path = self._estimator._checkpoint(None)
        self.values = self._estimator.evaluate(
            self._spec.input_fn,
            steps=self._spec.steps,
            hooks=self._spec.hooks,
            checkpoint_path=self._path,
            name=self._spec.name,
        )
        self._export(is_final=False)

    def _export(self, is_final: bool) -> None:
        if context.rank != 0:
            return
        results = []
        for exporter in self._spec.exporters:
            directory = os.path.join(self._estimator.model_dir, "export", exporter.name)
            tf.io.gfile.makedirs(directory)
            results.append(
                exporter.export(
                    estimator=self._estimator,
                    export_path=directory,
                    checkpoint_path=self._path,
                    eval_result=self.values,
                    is_the_final_export=is_final,
                )
            )
        if is_final:
            self.exports = results
