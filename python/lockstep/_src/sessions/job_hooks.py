"""Adapts the hooks of a program's session to a job of several workers.

| hook | with several workers |
| --- | --- |
| `CheckpointSaverHook` | All workers save when worker 0's clock triggers. |
| `SummarySaverHook` | Worker 0 writes. All workers compute summaries that need an exchange, by worker 0's clock. |
| `LoggingTensorHook` | If its tensors need an exchange, worker 0's clock triggers it on all workers. |
| `NanTensorHook` | It ignores batches without rows. |
| `GlobalStepWaiterHook` | It is left out, because all workers take each step together. |
| any hook that requests a stop | All workers stop (`stop_together.py`). |

TensorFlow has two other hooks with a clock, `StepCounterHook` and `ProfilerHook`. They run only operations of their own
worker, so each one uses its own clock.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.training import basic_session_run_hooks

from lockstep._src.collectives import agreement, ordered
from lockstep._src.engine import background, file_errors, program_end
from lockstep._src.engine.context import context
from lockstep._src.graph import row_weights
from lockstep._src.graph.ancestry import communicates
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception
from lockstep._src.saving import data_positions
from lockstep._src.sessions import resumed, stop_together
from lockstep.launch.base import notes

_tf1 = tf.compat.v1
_log = logging.getLogger("lockstep")
_SAVER_HOOK = _tf1.train.CheckpointSaverHook
_SUMMARY_HOOK = _tf1.train.SummarySaverHook
_LOGGING_HOOK = _tf1.train.LoggingTensorHook


def adapt_hooks(hooks: Sequence[Any], chief_only: Sequence[Any] = (), restored_from: str | None = None) -> list[Any]:
    """Returns a session's hooks for this worker of the job, plus a hook that ends the session on all workers together.

    All workers call it together, in the default graph of the session.

    Args:
      hooks: the hooks that the program passed on this worker. Changes to them are undone when the session ends.
      chief_only: the hooks among them that are for worker 0. Other workers run only the hooks that need all workers.
      restored_from: the directory from which the session restores its checkpoint.

    Returns:
      The hooks, in their order.
    """
    if context.world_size == 1:
        return [_adapt_hook(hook, restored_from) for hook in hooks]
    chiefs = set(map(id, chief_only))
    shared = _logged_by_all(hooks)
    found = []
    for hook in hooks:
        mine = context.rank == 0 or id(hook) not in chiefs
        if type(hook) is _tf1.train.GlobalStepWaiterHook:
            _log.warning("GlobalStepWaiterHook has no effect: all workers take each step together")
            continue
        if id(hook) in shared:
            hook = hook if mine else _silenced(hook)
            found.append(AgreedPeriodHook(hook) if _has_period_in_seconds(hook) else hook)
            continue
        hook = _adapt_hook(hook, restored_from)
        if mine or isinstance(hook, (PeriodicJobHook, data_positions.PositionHook)):
            found.append(hook)
    return stop_together.stop_together(found)


def _adapt_hook(hook: Any, restored_from: str | None) -> Any:
    if isinstance(hook, _tf1.train.NanTensorHook):
        return _NanHookOfRows(hook)
    if not isinstance(hook, (_SAVER_HOOK, _SUMMARY_HOOK)):
        return hook
    saves_to = getattr(hook, "_checkpoint_dir", None)
    return PeriodicJobHook(hook, restored=saves_to is not None and saves_to == restored_from)


def _logged_by_all(hooks: Sequence[Any]) -> set[int]:
    """Returns the ids of the `LoggingTensorHook`s that all workers have and whose tensors need an exchange.

    A hook that only some workers have stays unchanged: perhaps each step computes its tensors anyway.
    """
    described = [(json.dumps(_exchange_key(hook)), hook) for hook in hooks if isinstance(hook, _LOGGING_HOOK)]
    everyones = agreement.gather_values(sorted(text for text, _ in described if text != "null"), "logging_hooks")
    common = collections.Counter(everyones[0])
    for others in everyones[1:]:
        common &= collections.Counter(others)
    shared = set()
    for text, hook in described:
        if common[text]:
            common[text] -= 1
            shared.add(id(hook))
    return shared


def _exchange_key(hook: Any) -> list[Any] | None:
    """Returns the period and tensors that identify a `LoggingTensorHook`; None if its tensors need no exchange."""
    graph = _tf1.get_default_graph()
    try:
        elements = [
            graph.as_graph_element(basic_session_run_hooks._as_graph_element(tensor))
            for tensor in hook._tensors.values()
        ]
    except (KeyError, TypeError, ValueError):
        return None  # the hook's begin reports the error, unless another hook creates the tensor before
    if not communicates(elements):
        return None
    timer = hook._timer
    periods = [getattr(timer, name, None) for name in ("_every_secs", "_every_steps")]
    return [*periods, hook._log_at_end, *sorted(element.name for element in elements)]


def _silenced(hook: Any) -> Any:
    """Returns a copy of a `LoggingTensorHook` that computes the same tensors but logs nothing."""
    hook = copy.copy(hook)
    hook._timer = copy.copy(hook._timer)
    hook._log_tensors = lambda values: hook._timer.update_last_triggered_step(hook._iter_count)
    return hook


def _has_period_in_seconds(hook: Any) -> bool:
    return getattr(hook._timer, "_every_secs", None) is not None


class _AgreedTimer:
    """A replacement for a timer by the clock that triggers on all workers when worker 0's timer does."""

    def __init__(self, timer: Any) -> None:
        self.timer = timer
        self.agreed = False

    def wants_to_trigger(self) -> bool:
        # The step of a run is not known before the run. Any step but the last triggered one lets the clock decide.
        return self.timer.should_trigger_for_step((self.timer.last_triggered_step() or 0) + 1)

    def should_trigger_for_step(self, step: int) -> bool:
        # The first time, the timers trigger on all workers.
        last = self.timer.last_triggered_step()
        return last is None or (self.agreed and last != step)

    def update_last_triggered_step(self, step: int) -> Any:
        self.agreed = False
        return self.timer.update_last_triggered_step(step)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.timer, name)


class AgreedPeriodHook(tf.compat.v1.train.SessionRunHook):
    """A wrapper around a periodic hook that makes it act after the same steps on all workers.

    A hook with a period in steps stays unchanged. For a period in seconds, worker 0's clock decides; each step carries
    its decision to all workers. All workers must have the hook.

    Args:
      hook: a TensorFlow hook with a `SecondOrStepTimer`.
    """

    def __init__(self, hook: Any) -> None:
        self._hook = hook
        self.stops_alike = not stop_together.may_stop_alone(hook)

    def begin(self) -> None:
        self._hook.begin()
        self._ask_clock()

    def _ask_clock(self) -> None:
        """Adds the exchange of worker 0's decision, if the hook has a period in seconds."""
        self._by_clock: _AgreedTimer | None = None
        timer = self._hook._timer
        if isinstance(timer, _AgreedTimer):  # left by a session that failed
            self._hook._timer = timer = timer.timer
        if context.world_size > 1 and _has_period_in_seconds(self._hook):
            self._by_clock = _AgreedTimer(timer)
            self._wish = _tf1.placeholder(tf.int32, (), name="act_wish")
            self._agreed = ordered.broadcast(self._wish, root=0, name="act_agreed")

    def _acts_on_all(self) -> bool:
        """Returns whether the hook acts on all workers, or on worker 0 only; called after the session is created."""
        return True

    def after_create_session(self, session: Any, coord: Any) -> None:
        together = self._acts_on_all()
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
        args = args or _tf1.train.SessionRunArgs(None)
        feeds = {**(args.feed_dict or {}), self._wish: int(self._by_clock.wants_to_trigger())}
        fetches = {"agreed": self._agreed}
        if args.fetches is not None:
            fetches["hook"] = args.fetches
        return _tf1.train.SessionRunArgs(fetches, feeds, args.options)

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


class _NoWriter:
    """A summary writer that writes nothing, for the workers other than worker 0."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


class _LauncherListener(tf.compat.v1.train.CheckpointSaverListener):
    """A listener that reports each checkpoint of a `CheckpointSaverHook` to the launcher, for its last message."""

    def __init__(self, hook: Any) -> None:
        self._hook = hook

    def after_save(self, session: Any, global_step_value: int) -> None:
        step = int(global_step_value)
        path = getattr(self._hook, "saved_path", f"{self._hook._save_path}-{step}")  # an increment's path
        resumes = data_positions.resumes(session.graph)
        background.when_done(lambda: notes.say_saved(path, suffix=".index", step=step, resumes=True, data=resumes))


class LastStepHook(tf.compat.v1.train.SessionRunHook):
    """A hook that records the global step at which a session ends; other workers that still run report it."""

    stops_alike = True

    def begin(self) -> None:
        """Finds the global step, if the graph has one."""
        self._step = _tf1.train.get_global_step()

    def end(self, session: Any) -> None:
        """Reads and records the global step."""
        if self._step is not None:
            program_end.ended_with(int(session.run(self._step)))


class PeriodicJobHook(AgreedPeriodHook):
    """A hook that saves checkpoints or writes summaries for the whole job, not for each worker.

    All workers save checkpoints together, at the same steps. If summaries need a collective, all workers compute them
    together; examples are summaries of a sharded table, or of a batch that all workers take together. Only worker 0
    computes all other summaries. Only worker 0 writes summaries.

    Args:
      hook: a `CheckpointSaverHook` or `SummarySaverHook`.
      restored: true if the session restores the latest checkpoint of the directory to which the hook saves, if any.
    """

    def __init__(self, hook: Any, restored: bool = False) -> None:
        super().__init__(hook)
        self.stops_alike = True
        self._restored = restored
        self._listeners: list[Any] | None = None  # the program's listeners
        self._name = f"{type(hook).__name__} of {getattr(hook, '_checkpoint_dir', None) or hook._output_dir}"
        if context.rank == 0 and isinstance(hook, _SAVER_HOOK):
            # A session that failed has left its listener.
            self._listeners = [one for one in hook._listeners if not isinstance(one, _LauncherListener)]
            hook._listeners = [*self._listeners, _LauncherListener(hook)]

    def begin(self) -> None:
        if context.rank == 0:
            with file_errors.raised_on_all(self._name):
                self._hook.begin()
        else:
            # The hook's begin would open an event file for this worker.
            with Interception(symbols.BEGIN) as interception:
                interception.replace(symbols.SUMMARY_WRITER, lambda _: staticmethod(lambda logdir: _NoWriter()))
                self._hook.begin()
            if self._hook._summary_writer is not None:  # a writer that the program passed
                self._hook._summary_writer = _NoWriter()
            self._hook._save_graph_def = False
        self._ask_clock()

    def after_create_session(self, session: Any, coord: Any) -> None:
        keeping = resumed.keep_restored(self._hook) if self._restored else contextlib.nullcontext()
        self._in_background = isinstance(self._hook, _SAVER_HOOK) and not agreement.any_worker(
            not self._may_save_in_background(), "saves_wait"
        )
        # The first checkpoint waits. It is saved in the same way as the later ones, to allocate their memory.
        with file_errors.raised_on_all(self._name):
            with keeping, background.allowed.holding(self._in_background):
                super().after_create_session(session, coord)
            background.finish()

    def _may_save_in_background(self) -> bool:
        """Returns whether nobody expects the checkpoint to be complete when the hook's call ends."""
        hook = self._hook
        return (
            context.options.background_saves
            and (type(hook)._save is _SAVER_HOOK._save or getattr(hook, "saves_beside_training", False))
            and all(isinstance(listener, _LauncherListener) for listener in hook._listeners)
        )

    def after_run(self, run_context: Any, run_values: Any) -> None:
        with file_errors.raised_on_all(self._name):
            background.check()
            with background.allowed.holding(self._in_background):
                super().after_run(run_context, run_values)

    def end(self, session: Any) -> None:
        with file_errors.raised_on_all(self._name):
            super().end(session)
            background.finish()
            if self._hook._summary_writer is not None:
                self._hook._summary_writer.flush()  # TensorFlow does not flush it for a CheckpointSaverHook
        if self._listeners is not None:
            self._hook._listeners = self._listeners

    def _acts_on_all(self) -> bool:
        # The scaffold's summary operation is known only after the session is created.
        return isinstance(self._hook, _SAVER_HOOK) or communicates(self._hook._get_summary_op() or ())


class _NanHookOfRows(tf.compat.v1.train.SessionRunHook):
    """A `NanTensorHook` that ignores batches without rows, whose mean loss is NaN.

    Args:
      hook: the `NanTensorHook` that the program passed.
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

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._hook.after_create_session(session, coord)

    def end(self, session: Any) -> None:
        self._hook.end(session)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.results["rows"]:
            self._hook.after_run(run_context, run_values._replace(results=run_values.results["hook"]))
