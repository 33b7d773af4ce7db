"""Policies: actions that training takes every few steps, with the values of a step.

A `Policy` runs on all workers, after the same steps. It may therefore run operations that need all workers, such as
saving a checkpoint or looking up rows. An `EvaluationHook` calls policies with its results
(evaluation/result_policies.py has two).

Follows HybridBackend's `Policy` (hybridbackend/tensorflow/training/hooks.py).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lockstep._src.collectives import ordered
from lockstep._src.engine import arguments
from lockstep._src.engine.context import context as _context

_tf1 = tf.compat.v1
_GLOBAL_STEP = _tf1.GraphKeys.GLOBAL_STEP


class _Timer:
    """Decides when a policy is due. All workers count steps in the same way; for seconds, worker 0's clock decides."""

    def __init__(self, policy: Policy) -> None:
        self.by_clock = policy.every_n_secs is not None
        self.last_step: int | None = None  # the step of the last call
        self._timer: Any = None
        if not policy.only_at_end:
            self._timer = _tf1.train.SecondOrStepTimer(every_secs=policy.every_n_secs, every_steps=policy.every_n_steps)

    def is_due(self, step: int) -> bool:
        return self._timer is not None and self._timer.should_trigger_for_step(step)

    def begin_at(self, step: int) -> None:
        """Starts to count steps and seconds from now."""
        if self._timer is not None:
            self._timer.update_last_triggered_step(step)

    def was_called(self, step: int) -> None:
        self.last_step = step
        self.begin_at(step)

    def wants_to_call(self) -> bool:
        """Returns, before a step, whether this worker's clock makes the policy due."""
        # The step of a run is not known before the run. Any step but the last triggered one lets the clock decide.
        return self._timer is not None and self.by_clock and self.is_due((self._timer.last_triggered_step() or 0) + 1)


class _Trigger(tf.compat.v1.train.SessionRunHook):
    """A hook that calls policies when they are due. A session in a scope creates one for the policies among its hooks.

    Args:
      policies: the policies to call.
      scaffold: the session's scaffold; it is passed to the policies.
      output_dir: the folder in which worker 0 writes the graph and policies may write summaries; None to write none.
    """

    def __init__(self, policies: Sequence[Policy], scaffold: Any = None, output_dir: str | None = None) -> None:
        self.policies = arguments.listed(
            "Policy.Trigger", "policies", policies, lambda policy: isinstance(policy, Policy), "a list of policies"
        )
        self._scaffold = scaffold or _tf1.train.Scaffold()
        self._output_dir = output_dir

    def begin(self) -> None:
        graph = _tf1.get_default_graph()
        self._step = _tf1.train.get_global_step(graph)
        if self._step is None:
            raise RuntimeError(
                "Policy: the graph has no global step; make one with tf.train.get_or_create_global_step()"
            )
        self._timers = [_Timer(policy) for policy in self.policies]
        self._metrics = [
            {tag: graph.as_graph_element(metric) for tag, metric in policy.metrics.items()} for policy in self.policies
        ]
        self._agreed = None
        if _context.world_size > 1 and any(timer.by_clock for timer in self._timers):
            self._wishes = _tf1.placeholder(tf.int32, [len(self._timers)], name="policies_wished")
            self._agreed = ordered.broadcast(self._wishes, root=0, name="policies_agreed")
        self._writer = None
        if self._output_dir and _context.is_chief:
            self._writer = _tf1.summary.FileWriterCache.get(self._output_dir)
        self._iter = 0

    def after_create_session(self, session: Any, coord: Any) -> None:
        del coord
        step = int(session.run(self._step))
        for timer in self._timers:
            timer.begin_at(step)
        if self._writer is not None:
            self._writer.add_graph(session.graph)
            self._writer.flush()

    def before_run(self, run_context: Any) -> Any:
        del run_context
        fetches, feeds = {"metrics": self._metrics}, None
        if self._agreed is not None:
            wishes = np.array([timer.wants_to_call() for timer in self._timers], np.int32)
            fetches["agreed"], feeds = self._agreed, {self._wishes: wishes}
        return _tf1.train.SessionRunArgs(fetches, feeds)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        # Read in a run of its own: within the training run, the old value might be read.
        step = int(run_context.session.run(self._step))
        agreed = run_values.results.get("agreed")
        for i, (policy, timer) in enumerate(zip(self.policies, self._timers, strict=True)):
            due = agreed[i] if agreed is not None and timer.by_clock else timer.is_due(step)
            if due:
                values = run_values.results["metrics"][i]
                self._call(policy, timer, step, values, run_context.session, run_context)
        self._iter += 1

    def end(self, session: Any) -> None:
        step = int(session.run(self._step))
        late = [i for i, p in enumerate(self.policies) if p.at_end and self._timers[i].last_step != step]
        values = session.run({i: self._metrics[i] for i in late}) if late else {}
        for i in late:
            self._call(self.policies[i], self._timers[i], step, values[i], session, None)

    def _call(self, policy: Policy, timer: _Timer, step: int, values: Any, session: Any, run_context: Any) -> None:
        values = {tag: value for tag, value in values.items() if tag != _GLOBAL_STEP}
        values.setdefault("iter", self._iter)
        policy(step, values, session, context=run_context, scaffold=self._scaffold, writer=self._writer)
        timer.was_called(step)
        if self._writer is not None:
            self._writer.flush()


class Policy(tf.compat.v1.train.SessionRunHook):
    """An action that training takes every few steps; override `__call__`.

    Pass it to a `MonitoredTrainingSession` in a scope, among its `hooks` or `chief_only_hooks`. It is called on every
    worker, at the same steps. For an action that must happen only once, check `context.is_chief` (or use `writer`).

    Args:
      metrics: tensors, or names of tensors, by tag. Every step computes them, and a call gets their values.
      every_n_steps: the growth of the global step between two calls.
      every_n_secs: the seconds between two calls, by worker 0's clock. At most one of the two periods may be given.
      at_end: also calls the policy at the end of training, unless it was called at that step.

    Raises:
      ValueError: both of `every_n_steps` and `every_n_secs` are given, or neither of them nor `at_end`; a period is not
        positive; or `metrics` is not a dict.
    """

    Trigger = _Trigger
    # Its methods as a hook do nothing, so it never requests a stop by itself.
    stops_alike = True

    def __init__(
        self,
        metrics: Mapping[str, Any] | None = None,
        every_n_steps: int | None = None,
        every_n_secs: float | None = None,
        at_end: bool = False,
    ) -> None:
        given = {"every_n_steps": every_n_steps, "every_n_secs": every_n_secs}
        periods = {name: value for name, value in given.items() if value is not None}
        if len(periods) > 1 or not (periods or at_end):
            raise ValueError(f"Policy: got {given} and at_end={at_end}, wanted one of the two numbers, or at_end")
        for name, value in periods.items():
            arguments.number("Policy", name, value)
            if value <= 0:
                raise ValueError(f"Policy: {name} is {value}, wanted more than 0")
        if metrics is not None and not isinstance(metrics, Mapping):
            raise ValueError(f"Policy: metrics are {metrics!r}, wanted a dict of tag to tensor")
        self._metrics = dict(metrics or {})
        self._every_n_steps = every_n_steps
        self._every_n_secs = every_n_secs
        self._at_end = at_end

    def __call__(
        self,
        global_step: int,
        metrics: dict[str, Any],
        session: Any,
        context: Any = None,
        scaffold: Any = None,
        writer: Any = None,
    ) -> None:
        """Performs the policy's action.

        Args:
          global_step: the current step of training.
          metrics: values of the metrics by tag, and 'iter', the number of runs of the session before this one.
          session: a session for further runs. They bypass the hooks, so they do not count as steps.
          context: the context of the run. Its `request_stop()` ends training on all workers after this step. None when
            training ends.
          scaffold: the session's scaffold; `scaffold.saver` saves checkpoints.
          writer: a writer of summaries on worker 0, if the session has a directory for them; else None.
        """
        raise NotImplementedError(f"{type(self).__name__} does not override __call__")

    @property
    def metrics(self) -> dict[str, Any]:
        """The tensors by tag."""
        return self._metrics

    @property
    def every_n_steps(self) -> int | None:
        """The number of steps between two calls."""
        return self._every_n_steps

    @property
    def every_n_secs(self) -> float | None:
        """The seconds between two calls."""
        return self._every_n_secs

    @property
    def at_end(self) -> bool:
        """True if the policy is also called at the end of training."""
        return self._at_end

    @property
    def only_at_end(self) -> bool:
        """True if the policy is called only at the end of training."""
        return self._at_end and self._every_n_steps is None and self._every_n_secs is None


def with_triggers(args: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a MonitoredTrainingSession, by name, with a trigger for the policies among its hooks.

    Policies in `chief_only_hooks` also run on all workers, because their operations may need all of them. Policies that
    a trigger among the hooks already calls get no second trigger. `args` is not changed.
    """
    hooks, chief_only = list(args.get("hooks") or ()), list(args.get("chief_only_hooks") or ())
    found = [hook for hook in [*chief_only, *hooks] if isinstance(hook, Policy)]
    called = {id(p) for hook in [*chief_only, *hooks] if isinstance(hook, _Trigger) for p in hook.policies}
    waiting = [policy for policy in dict.fromkeys(found) if id(policy) not in called]
    if not found:
        return args
    args = dict(args)
    args["scaffold"] = args.get("scaffold") or _tf1.train.Scaffold()
    args["chief_only_hooks"] = [hook for hook in chief_only if not isinstance(hook, (Policy, _Trigger))]
    hooks += [hook for hook in chief_only if isinstance(hook, (Policy, _Trigger))]
    if waiting:
        output_dir = args.get("summary_dir") or args.get("checkpoint_dir")
        hooks.append(_Trigger(waiting, args["scaffold"], output_dir and os.fspath(output_dir)))
    args["hooks"] = hooks
    return args
