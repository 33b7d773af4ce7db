"""`tf.compat.v1.train.MonitoredTrainingSession` for a job: every worker initializes, restores and saves, in step.

TensorFlow's own session has one chief that initializes and saves while the others wait for it. Here every worker holds
a share of the model, so every worker is a chief of its own session; what may exist once (summaries, the graph's
description, the checkpoint's state file) is written by worker 0 alone.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.training import basic_session_run_hooks, monitored_session

from lockstep._src import agreement, collectives
from lockstep._src.context import context
from lockstep._src.interception import Interception

_SAVER_HOOK = tf.compat.v1.train.CheckpointSaverHook


class _AgreedTimer:
    """Stands in for a timer by the clock, which differs between workers: triggers where worker 0's would."""

    def __init__(self, timer: Any) -> None:
        self._timer = timer
        self.agreed = False

    def wants_to_trigger(self, step: int) -> bool:
        return self._timer.should_trigger_for_step(step)

    def should_trigger_for_step(self, step: int) -> bool:
        return self.agreed and self._timer.last_triggered_step() != step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._timer, name)


class _NoWriter:
    """A summary writer that writes nothing: workers other than 0 have no summaries of their own."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


class JobCheckpointHook(tf.compat.v1.train.SessionRunHook):
    """Runs a `CheckpointSaverHook` on every worker of the job, at the same steps.

    A hook that saves by steps triggers alike everywhere as it is. One that saves by seconds asks worker 0's clock,
    whose answer travels with each step.
    """

    def __init__(self, hook: Any) -> None:
        self._hook = hook
        self._timer: _AgreedTimer | None = None
        timer = getattr(hook, "_timer", None)
        if getattr(timer, "_every_secs", None) is not None:
            self._timer = _AgreedTimer(timer)
            hook._timer = self._timer

    def begin(self) -> None:
        if context.rank == 0:
            self._hook.begin()
        else:
            # Its begin would open an event file of this worker.
            with _replaced(basic_session_run_hooks.SummaryWriterCache, "get", staticmethod(lambda _: _NoWriter())):
                self._hook.begin()
            self._hook._save_graph_def = False
        if self._timer is not None:
            self._wish = tf.compat.v1.placeholder(tf.int32, (), name="save_wish")
            self._agreed = collectives.broadcast(self._wish, root=0, name="save_agreed")
            self._next_step = 0

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._hook.after_create_session(session, coord)

    def before_run(self, run_context: Any) -> Any:
        args = self._hook.before_run(run_context)
        if self._timer is None:
            return args
        # The step that this run ends with is not known yet; any step but the last saved one lets the clock decide.
        wish = self._timer.wants_to_trigger((self._timer.last_triggered_step() or 0) + 1)
        args = args or tf.compat.v1.train.SessionRunArgs(None)
        feeds = {**(args.feed_dict or {}), self._wish: int(wish)}
        fetches = {"agreed": self._agreed}
        if args.fetches is not None:
            fetches["hook"] = args.fetches
        return tf.compat.v1.train.SessionRunArgs(fetches, feeds, args.options)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if self._timer is not None:
            self._timer.agreed = bool(run_values.results["agreed"])
            run_values = run_values._replace(results=run_values.results.get("hook"))
        self._hook.after_run(run_context, run_values)

    def end(self, session: Any) -> None:
        self._hook.end(session)


class _replaced:  # noqa: N801
    """An attribute replaced within a `with` block."""

    def __init__(self, owner: Any, name: str, value: Any) -> None:
        self._interception = Interception()
        self._args = (owner, name, lambda _: value)

    def __enter__(self) -> None:
        self._interception.replace(*self._args)

    def __exit__(self, *exc_info: object) -> None:
        self._interception.undo()


def _hooks_of_this_worker(hooks: Sequence[Any] | None, chief_only_hooks: Sequence[Any] | None) -> list[Any]:
    """The caller's hooks as this worker runs them, in a list of its own.

    Chief-only hooks run on worker 0, but for those that save checkpoints, in which all take part.
    """
    mine = []
    for hook in chief_only_hooks or ():
        if isinstance(hook, _SAVER_HOOK):
            mine.append(JobCheckpointHook(hook))
        elif context.rank == 0:
            mine.append(hook)
    mine.extend(JobCheckpointHook(hook) if isinstance(hook, _SAVER_HOOK) else hook for hook in hooks or ())
    return mine


def _checkpoint_hook(args: dict[str, Any], scaffold: Any) -> list[Any]:
    """The checkpoint hook that TensorFlow's session would make of these arguments, which are taken out of `args`."""
    default = monitored_session.USE_DEFAULT
    steps = args.pop("save_checkpoint_steps", default)
    seconds = args.pop("save_checkpoint_secs", default)
    if steps == default and seconds == default:
        steps, seconds = None, 600
    steps = None if steps == default else steps
    seconds = None if seconds == default else seconds
    args.update(save_checkpoint_steps=None, save_checkpoint_secs=None)
    if not args.get("checkpoint_dir") or not ((steps and steps > 0) or (seconds and seconds > 0)):
        return []
    hook = _SAVER_HOOK(
        args["checkpoint_dir"],
        save_secs=seconds,
        save_steps=steps,
        scaffold=scaffold,
        save_graph_def=args.get("save_graph_def", True),
    )
    return [JobCheckpointHook(hook)]


def job_session_arguments(args: dict[str, Any]) -> dict[str, Any]:
    """The arguments with which this worker of the job calls TensorFlow's MonitoredTrainingSession.

    Args:
      args: the caller's, by name; neither it nor a list in it is changed.
    """
    args = dict(args)
    ctx = context
    args["checkpoint_dir"] = agreement.from_chief(_path(args.get("checkpoint_dir")), "checkpoint_dir")
    args["scaffold"] = args.get("scaffold") or tf.compat.v1.train.Scaffold()
    hooks = _hooks_of_this_worker(args.get("hooks"), args.pop("chief_only_hooks", None))
    args["hooks"] = _checkpoint_hook(args, args["scaffold"]) + hooks
    args["is_chief"] = True
    if ctx.rank != 0:
        args.update(save_summaries_steps=None, save_summaries_secs=None, log_step_count_steps=None)
    return args


def _path(value: Any) -> str | None:
    return None if value is None else tf.compat.path_to_str(value)


def intercept_sessions(interception: Interception) -> None:
    """Makes `tf.compat.v1.train.MonitoredTrainingSession` the job's while the interception lasts."""

    def replace(original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            if context.world_size > 1:
                given = job_session_arguments(given)
            return original(**given)

        return wrapped

    for owner in (tf.compat.v1.train, monitored_session):
        interception.replace(owner, "MonitoredTrainingSession", replace)
