"""Training and evaluation in turn, on all workers, through the public methods of an estimator."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf

from lockstep._src.collectives import agreement
from lockstep._src.engine.context import context
from lockstep._src.estimator import checkpoints
from lockstep._src.estimator.specs import EvalSpec, TrainSpec
from lockstep._src.evaluation.evaluation_hook import EvaluationHook

_tf1 = tf.compat.v1


class Trained(Protocol):
    """The methods of an estimator that this module calls."""

    @property
    def model_dir(self) -> str:
        """The directory of checkpoints and summaries."""

    @property
    def config(self) -> Any:
        """The configuration, a `RunConfig`."""

    def eval_dir(self, name: str | None = None) -> str:
        """Returns the directory of the summaries of evaluations."""

    def train(self, input_fn: Any, *, hooks: Any, max_steps: Any, saving_listeners: Any) -> Any:
        """Trains the model."""

    def evaluate(self, input_fn: Any, *, steps: Any, hooks: Any, checkpoint_path: Any, name: Any) -> dict[str, Any]:
        """Evaluates a checkpoint, and returns values by name."""


def check_specs(train_spec: Any, eval_spec: Any) -> None:
    """Raises TypeError if a specification lacks the fields of `TrainSpec` or `EvalSpec`."""
    for what, spec, cls in (("train_spec", train_spec, TrainSpec), ("eval_spec", eval_spec, EvalSpec)):
        if not all(hasattr(spec, field) for field in cls._fields):
            raise TypeError(f"train_and_evaluate: {what} is {spec!r}, wanted {cls.__name__}")


def in_turn(
    estimator: Trained,
    metrics: Callable[[], dict[str, Any]],
    train_spec: Any,
    eval_spec: Any,
    eval_every_n_iter: int | None,
    eval_history: Any,
) -> tuple[dict[str, Any] | None, list[Any]]:
    """Trains and evaluates; see `estimator.train_and_evaluate`.

    Args:
      estimator: the estimator.
      metrics: builds the model for evaluation in the current graph, and returns its metrics.
      train_spec: a `TrainSpec`.
      eval_spec: an `EvalSpec`.
      eval_every_n_iter: the number of steps between evaluations inside the training session; None: there are none.
      eval_history: a list to which these evaluations are appended.
    """
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
                metrics,
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


class _Evaluations(tf.compat.v1.train.CheckpointSaverListener):
    """A listener that evaluates each checkpoint when it is saved, and calls the exporters."""

    def __init__(self, estimator: Trained, spec: Any) -> None:
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
        self._evaluate_step(checkpoints.trained_steps(self._estimator.model_dir))
        self._export(is_final=True)

    def follow(self, max_steps: int | None) -> None:
        """Evaluates checkpoints that other processes save, until the one of step `max_steps`."""
        time.sleep(self._spec.start_delay_secs)
        for _ in tf.train.checkpoints_iterator(self._estimator.model_dir, self._spec.throttle_secs):
            step = self._evaluate()
            if max_steps is not None and step >= max_steps:
                break
        self._export(is_final=True)

    def _evaluate_step(self, step: int) -> None:
        """Evaluates the latest checkpoint, which is the one of this step, unless the last evaluation was of it."""
        if self.values is None or self.values["global_step"] != step:
            self._evaluate()

    def _evaluate(self) -> int:
        """Evaluates the latest checkpoint, and returns its global step."""
        self._began = time.monotonic()
        self._path = checkpoints.found(None, self._estimator.model_dir)
        self.values = values = self._estimator.evaluate(
            self._spec.input_fn,
            steps=self._spec.steps,
            hooks=self._spec.hooks,
            checkpoint_path=self._path,
            name=self._spec.name,
        )
        self._export(is_final=False)
        return int(values["global_step"])

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
