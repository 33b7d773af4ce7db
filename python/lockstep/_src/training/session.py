"""`tf.compat.v1.train.MonitoredTrainingSession` for a job: every worker initializes, restores and saves, in step.

TensorFlow's own session has one chief that initializes and saves while the others wait for it. Here every worker holds
a share of the model, so every worker is a chief of its own session; what may exist once (summaries, the graph's
description, the checkpoint's state file) is written by worker 0 alone.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.training import basic_session_run_hooks, monitored_session

from lockstep._src import agreement, collectives
from lockstep._src.ancestry import communicates
from lockstep._src.context import context
from lockstep._src.data import ending, positions, sync
from lockstep._src.interception import Interception
from lockstep._src.training import policies, row_weights, stopping
from lockstep._src.training.session_config import get_session_config

_SAVER_HOOK = tf.compat.v1.train.CheckpointSaverHook
_SUMMARY_HOOK = tf.compat.v1.train.SummarySaverHook


class _AgreedTimer:
    """Stands in for a timer by the clock, which differs between workers: triggers where worker 0's would."""

    def __init__(self, timer: Any) -> None:
        self.timer = timer
        self.agreed = False

    def wants_to_trigger(self) -> bool:
        # Which step a run ends with is not known before it; any but the last one acted upon lets the clock decide.
        return self.timer.should_trigger_for_step((self.timer.last_triggered_step() or 0) + 1)

    def should_trigger_for_step(self, step: int) -> bool:
        return self.agreed and self.timer.last_triggered_step() != step

    def update_last_triggered_step(self, step: int) -> Any:
        self.agreed = False
        return self.timer.update_last_triggered_step(step)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.timer, name)


class _NoWriter:
    """A summary writer that writes nothing: workers other than 0 have no summaries of their own."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


class PeriodicJobHook(tf.compat.v1.train.SessionRunHook):
    """Runs a hook that acts every so many steps or seconds for the job, rather than for each worker.

    Checkpoints are saved by all workers together, at the same steps. So are summaries that stem from a collective, such
    as those of a sharded table or of a batch that all workers take together; others are computed by worker 0 alone. In
    either case worker 0 alone writes them.

    A hook that acts by steps triggers alike everywhere as it is. One that acts by seconds asks worker 0's clock, whose
    answer travels with each step.

    Args:
      hook: a `CheckpointSaverHook` or `SummarySaverHook`.
    """

    stops_alike = True

    def __init__(self, hook: Any) -> None:
        self._hook = hook

    def begin(self) -> None:
        if context.rank == 0:
            self._hook.begin()
        else:
            # Its begin would open an event file of this worker.
            with _replaced(basic_session_run_hooks.SummaryWriterCache, "get", staticmethod(lambda _: _NoWriter())):
                self._hook.begin()
            if self._hook._summary_writer is not None:  # the caller's own
                self._hook._summary_writer = _NoWriter()
            self._hook._save_graph_def = False
        self._by_clock: _AgreedTimer | None = None
        timer = self._hook._timer
        if context.world_size > 1 and getattr(timer, "_every_secs", None) is not None:
            self._by_clock = _AgreedTimer(timer)
            self._wish = tf.compat.v1.placeholder(tf.int32, (), name="act_wish")
            self._agreed = collectives.broadcast(self._wish, root=0, name="act_agreed")

    def after_create_session(self, session: Any, coord: Any) -> None:
        # Only now is the scaffold's summary known.
        together = isinstance(self._hook, _SAVER_HOOK) or communicates(self._hook._get_summary_op() or ())
        self._takes_part = together or context.rank == 0
        if not together:
            self._by_clock = None
        if self._by_clock is not None:
            self._hook._timer = self._by_clock
        if self._takes_part:
            self._hook.after_create_session(session, coord)

    def before_run(self, run_context: Any) -> Any:
        if not self._takes_part:
            return None
        args = self._hook.before_run(run_context)
        if self._by_clock is None:
            return args
        args = args or tf.compat.v1.train.SessionRunArgs(None)
        feeds = {**(args.feed_dict or {}), self._wish: int(self._by_clock.wants_to_trigger())}
        fetches = {"agreed": self._agreed}
        if args.fetches is not None:
            fetches["hook"] = args.fetches
        return tf.compat.v1.train.SessionRunArgs(fetches, feeds, args.options)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if not self._takes_part:
            return
        if self._by_clock is not None:
            self._by_clock.agreed = bool(run_values.results["agreed"])
            run_values = run_values._replace(results=run_values.results.get("hook"))
        self._hook.after_run(run_context, run_values)

    def end(self, session: Any) -> None:
        if self._takes_part:
            self._hook.end(session)
        if self._by_clock is not None:
            self._hook._timer = self._by_clock.timer


class _replaced:  # noqa: N801
    """An attribute replaced within a `with` block."""

    def __init__(self, owner: Any, name: str, value: Any) -> None:
        self._interception = Interception()
        self._args = (owner, name, lambda _: value)

    def __enter__(self) -> None:
        self._interception.replace(*self._args)

    def __exit__(self, *exc_info: object) -> None:
        self._interception.undo()


def _for_the_job(hook: Any) -> Any:
    """A caller's hook, as a worker of the job runs it."""
    if isinstance(hook, tf.compat.v1.train.NanTensorHook):
        return _NanHookOfRows(hook)
    return PeriodicJobHook(hook) if isinstance(hook, (_SAVER_HOOK, _SUMMARY_HOOK)) else hook


def _chief_only(hooks: Sequence[Any] | None) -> list[Any]:
    """Those of the caller's hooks for the chief that run on this worker.

    Other workers than 0 run those that save checkpoints or summaries, in which they may have to take part.
    """
    mine = map(_for_the_job, hooks or ())
    return [hook for hook in mine if context.rank == 0 or isinstance(hook, (PeriodicJobHook, positions.PositionHook))]


def _period(args: dict[str, Any], name: str, default: dict[str, float]) -> dict[str, float]:
    """How often to act, for a hook's arguments `save_steps` and `save_secs`; empty for never.

    Taken out of the session's arguments `args`, where both are then None, with the meaning that TensorFlow gives them.
    """
    unset = monitored_session.USE_DEFAULT
    given = {f"save_{unit}": args.get(f"{name}_{unit}", unset) for unit in ("steps", "secs")}
    args.update({f"{name}_steps": None, f"{name}_secs": None})
    given = {key: value for key, value in given.items() if value is not unset}
    return {key: float(value) for key, value in (given or default).items() if value and value > 0}


def _periodic_hooks(args: dict[str, Any]) -> list[Any]:
    """The hooks for summaries and checkpoints that TensorFlow's session would make of `args`, which makes none then.

    Worker 0's directories and periods count for all workers.
    """
    decided = agreement.from_chief(
        {
            "checkpoint_dir": _path(args.get("checkpoint_dir")),
            "summary_dir": _path(args.get("summary_dir")),
            "summaries": _period(args, "save_summaries", {"save_steps": 100}),
            "checkpoints": _period(args, "save_checkpoint", {"save_secs": 600}),
        },
        "session_arguments",
    )
    args["checkpoint_dir"] = checkpoint_dir = decided["checkpoint_dir"]
    summary_dir = decided["summary_dir"] or checkpoint_dir
    hooks = []
    if summary_dir and decided["summaries"]:
        hooks.append(_SUMMARY_HOOK(scaffold=args["scaffold"], output_dir=summary_dir, **decided["summaries"]))
    if checkpoint_dir and decided["checkpoints"]:
        hooks.append(
            _SAVER_HOOK(
                checkpoint_dir,
                scaffold=args["scaffold"],
                listeners=context.saving_listeners,
                save_graph_def=args.get("save_graph_def", True),
                **decided["checkpoints"],
            )
        )
    return [PeriodicJobHook(hook) for hook in hooks]


def job_session_arguments(args: dict[str, Any]) -> dict[str, Any]:
    """The arguments with which this worker of the job calls TensorFlow's MonitoredTrainingSession.

    Args:
      args: the caller's, by name; neither it nor a list in it is changed.
    """
    args = dict(args)
    args["scaffold"] = args.get("scaffold") or tf.compat.v1.train.Scaffold()
    chief_only = _chief_only(args.pop("chief_only_hooks", None))
    # In TensorFlow's order.
    hooks = [*chief_only, *_periodic_hooks(args), *map(_for_the_job, args.get("hooks") or ())]
    args["hooks"] = stopping.stop_together(hooks)
    args["is_chief"] = True
    if context.rank != 0:
        args.update(log_step_count_steps=None)
    return args


def _path(value: Any) -> str | None:
    return None if value is None else tf.compat.path_to_str(value)


# Arguments that a session of the job takes beside those of TensorFlow's, with what they are where they are not given.
EXTRA_ARGUMENTS = {
    # Evaluates `eval_fn` every so many runs, as an `EvaluationHook` does; summaries go to 'eval' below the session's.
    "eval_every_n_iter": None,
    "eval_fn": None,
    "eval_steps": 100,
    # How many checkpoints the default saver keeps; None: as the options say.
    "keep_checkpoint_max": None,
    "keep_checkpoint_every_n_hours": None,
}


def _evaluation_hooks(args: dict[str, Any], extra: dict[str, Any]) -> list[Any]:
    every, fn = extra["eval_every_n_iter"], extra["eval_fn"]
    if (every is None) != (fn is None):
        missing = "eval_fn" if fn is None else "eval_every_n_iter"
        raise ValueError(f"MonitoredTrainingSession: {missing} is not given, wanted both it and its fellow or neither")
    if fn is None:
        return []
    from lockstep._src.evaluation.hook import EvaluationHook  # of a layer above

    summary_dir = args.get("summary_dir") or args.get("checkpoint_dir")
    summary_dir = None if summary_dir is None else os.path.join(_path(summary_dir), "eval")
    return [EvaluationHook(fn, steps=extra["eval_steps"], every_n_iter=every, summary_dir=summary_dir)]


class _NanHookOfRows(tf.compat.v1.train.SessionRunHook):
    """A `NanTensorHook` that says nothing of a batch without rows, whose mean is no number.

    Args:
      hook: the caller's.
    """

    def __init__(self, hook: Any) -> None:
        self._hook = hook

    def begin(self) -> None:
        self._hook.begin()
        weight = row_weights.of([self._hook._loss_tensor])
        self._rows = tf.constant(1) if weight is None else weight.rows

    def before_run(self, run_context: Any) -> Any:
        args = self._hook.before_run(run_context)
        return args._replace(fetches={"hook": args.fetches, "rows": self._rows})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.results["rows"]:
            self._hook.after_run(run_context, run_values._replace(results=run_values.results["hook"]))


def of_the_job(original: Callable[..., Any]) -> Callable[..., Any]:
    """A maker of sessions with the arguments of TensorFlow's MonitoredTrainingSession, whose sessions are the job's.

    It takes `EXTRA_ARGUMENTS` as well. None of its arguments, nor a list among them, is changed.
    """
    if getattr(original, "_lockstep", False):
        return original
    signature = inspect.signature(original)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        extra = {name: kwargs.pop(name, default) for name, default in EXTRA_ARGUMENTS.items()}
        given = dict(signature.bind(*args, **kwargs).arguments)
        # Some spell the keyword arguments of theirs as **kwargs.
        for name, parameter in signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                given.update(given.pop(name, {}))
        if given.get("checkpoint_dir") is None and context.options.model_dir is not None:
            given["checkpoint_dir"] = context.options.model_dir
        given["hooks"] = [*(given.get("hooks") or ()), *_evaluation_hooks(given, extra), ending.EndOfDataHook()]
        if given.get("checkpoint_dir") is not None:
            # Before the hook that saves a checkpoint as soon as there is a session.
            position = positions.PositionHook(_path(given["checkpoint_dir"]))
            given["chief_only_hooks"] = [position, *(given.get("chief_only_hooks") or ())]
        # One worker alone would wait for a chief as well.
        given["is_chief"] = True
        given = policies.with_triggers(given)
        if given.get("config") is None:
            given["config"] = get_session_config()
        if context.world_size > 1:
            sync.warn_of_unsynchronized_iterators(tf.compat.v1.get_default_graph())
        # One worker alone has to have its listeners told as well.
        if context.world_size > 1 or context.saving_listeners:
            given = job_session_arguments(given)
        keep = ("keep_checkpoint_max", "keep_checkpoint_every_n_hours")
        with context.scope(**{name: extra[name] for name in keep if extra[name] is not None}):
            return original(**given)

    wrapped._lockstep = True  # type: ignore[attr-defined]
    return wrapped


def monitored_training_session(*args: Any, **kwargs: Any) -> Any:
    """TensorFlow's present MonitoredTrainingSession: in a scope, the job's."""
    return tf.compat.v1.train.MonitoredTrainingSession(*args, **kwargs)


def intercept_sessions(interception: Interception) -> None:
    """Makes `tf.compat.v1.train.MonitoredTrainingSession` the job's while the interception lasts."""
    for owner in (tf.compat.v1.train, monitored_session):
        interception.replace(owner, "MonitoredTrainingSession", of_the_job)
