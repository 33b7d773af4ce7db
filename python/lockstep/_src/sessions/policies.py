"""Policies: what training does every so many steps, with values of a step.

A `Policy` runs on all workers, after the same steps, so that it may run what needs all of them: save a checkpoint, look
up rows. An `EvaluationHook` calls policies with its results (evaluation/result_policies.py has some).

After `Policy` of HybridBackend (hybridbackend/tensorflow/training/hooks.py).
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
    """When a policy is due. By steps all workers know; the clock that counts is worker 0's."""

    def __init__(self, policy: Policy) -> None:
        self.by_clock = policy.every_n_secs is not None
        self.last_step: int | None = None  # of a call
        self._timer = None
        if not policy.only_at_end:
            self._timer = _tf1.train.SecondOrStepTimer(every_secs=policy.every_n_secs, every_steps=policy.every_n_steps)

    def is_due(self, step: int) -> bool:
        return self._timer is not None and self._timer.should_trigger_for_step(step)

    def begin_at(self, step: int) -> None:
        """Counts steps and seconds from now."""
        if self._timer is not None:
            self._timer.update_last_triggered_step(step)

    def was_called(self, step: int) -> None:
        self.last_step = step
        self.begin_at(step)

    def wants_to_call(self) -> bool:
        """Whether the clock says so, before a step."""
        # Which step a run ends with is not known before it; any but the last one acted upon lets the clock decide.
        return self.by_clock and self.is_due((self._timer.last_triggered_step() or 0) + 1)


class _Trigger(_tf1.train.SessionRunHook):
    """Calls policies when they are due. A session in a scope makes one for the policies among its hooks.

    Args:
      policies: the policies to call.
      scaffold: the session's, handed on to the policies.
      output_dir: where worker 0 writes the graph, and policies may write summaries; None: nowhere.
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
            raise RuntimeError("Policy: the graph has no global step; make one by tf.train.get_or_create_global_step()")
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
        # Read after the run: within it, the step might be that from before.
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


class Policy(_tf1.train.SessionRunHook):
    """Something to do every so many steps of training; override `__call__`.

    Give it to a `MonitoredTrainingSession` in a scope, among its `hooks` or `chief_only_hooks`. It is called on every
    worker, at the same steps; what should happen once asks for `context.is_chief`, or writes to `writer`.

    Args:
      metrics: tensors, or names of tensors, by tag; their values in the step are handed on. Every step computes them.
      every_n_steps: called when the global step has grown by so many since the last call, or since training began.
      every_n_secs: called after so many seconds by worker 0's clock. One of the two at most.
      at_end: called at the end of training as well, unless that has just happened.

    Raises:
      ValueError: both or none of `every_n_steps` and `every_n_secs` (none is right with `at_end`), or a number that is
        not positive, or metrics that are no dict.

    """

    Trigger = _Trigger
    # Its own methods as a hook do nothing.
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
        """Does what the policy is for.

        Args:
          global_step: the step that training has reached.
          metrics: values of the metrics by tag, and 'iter', the number of runs of the session before this one.
          session: for further runs; below the hooks, so they count as no steps.
          context: the run's, for `request_stop()`, which ends training on all workers after this step; None when
            training ends.
          scaffold: the session's; `scaffold.saver` saves.
          writer: of summaries, on worker 0 where the session has a directory for them; else None.
        """
        raise NotImplementedError(f"{type(self).__name__} does not override __call__")

    @property
    def metrics(self) -> dict[str, Any]:
        """Tensors by tag."""
        return self._metrics

    @property
    def every_n_steps(self) -> int | None:
        """Steps between two calls."""
        return self._every_n_steps

    @property
    def every_n_secs(self) -> float | None:
        """Seconds between two calls."""
        return self._every_n_secs

    @property
    def at_end(self) -> bool:
        """Whether it is called at the end of training as well."""
        return self._at_end

    @property
    def only_at_end(self) -> bool:
        """Whether it is called at the end of training and never before."""
        return self._at_end and self._every_n_steps is None and self._every_n_secs is None


def with_triggers(args: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a MonitoredTrainingSession, by name, with a trigger for the policies among its hooks.

    Policies for the chief go to all workers: what they run may need all of them. Those that a trigger among the hooks
    calls already are left to it. `args` is not changed.
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
