"""`tf.compat.v1.train.MonitoredTrainingSession` for a job: all workers initialize, restore and save together.

In TensorFlow's own session, one chief initializes and saves while the other workers wait for it. Here every worker
holds a part of the model, so every worker is the chief of its own session. Files that must exist only once (summaries,
the graph's description, the checkpoint's state file) are written by worker 0 only.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.training import monitored_session

from lockstep._src.collectives import agreement
from lockstep._src.data import ending, sharing, sync
from lockstep._src.engine.context import context
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception
from lockstep._src.saving import data_positions, incremental, latest
from lockstep._src.sessions import job_hooks, policies, stats_hook
from lockstep._src.sessions.session_config import get_session_config

_SAVER_HOOK = tf.compat.v1.train.CheckpointSaverHook
_SUMMARY_HOOK = tf.compat.v1.train.SummarySaverHook


def _period(args: dict[str, Any], name: str, default: dict[str, float]) -> dict[str, float]:
    """Returns a hook's arguments `save_steps` or `save_secs`; empty if it must never act.

    The period comes from the session's arguments `args`, with the same meaning as in TensorFlow. Both arguments are
    then set to None in `args`.
    """
    unset = monitored_session.USE_DEFAULT
    given = {f"save_{unit}": args.get(f"{name}_{unit}", unset) for unit in ("steps", "secs")}
    args.update({f"{name}_steps": None, f"{name}_secs": None})
    given = {key: value for key, value in given.items() if value is not unset}
    return {key: float(value) for key, value in (given or default).items() if value and value > 0}


def _periodic_hooks(args: dict[str, Any]) -> list[Any]:
    """Returns the hooks for summaries and checkpoints that TensorFlow's session would create from `args`.

    It changes `args` so that TensorFlow creates none itself. All workers use worker 0's directories and periods.
    """
    decided = agreement.from_chief(
        {
            "checkpoint_dir": _path_or_none(args.get("checkpoint_dir")),
            "summary_dir": _path_or_none(args.get("summary_dir")),
            "summaries": _period(args, "save_summaries", {"save_steps": 100}),
            "checkpoints": _period(args, "save_checkpoint", {"save_secs": 600}),
        },
        "session_arguments",
    )
    args["checkpoint_dir"] = checkpoint_dir = decided["checkpoint_dir"]
    # This check comes before TensorFlow reads the state file, because TensorFlow ignores a damaged one and would start
    # training from step 0.
    latest.agreed_checkpoint(checkpoint_dir, "session_latest")
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
    return hooks


def job_session_arguments(args: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments with which this worker calls TensorFlow's MonitoredTrainingSession.

    Args:
      args: the program's arguments, by name; neither the dict nor a list in it is changed.
    """
    args = dict(args)
    args["scaffold"] = args.get("scaffold") or tf.compat.v1.train.Scaffold()
    chief_only = list(args.pop("chief_only_hooks", None) or ())
    # The order is TensorFlow's.
    hooks = [*chief_only, *_periodic_hooks(args), *(args.get("hooks") or ())]
    args["hooks"] = job_hooks.adapt_hooks(hooks, chief_only, args["checkpoint_dir"])
    if context.rank != 0:
        args.update(log_step_count_steps=None)
    return args


def _path(value: Any) -> str:
    return str(tf.compat.path_to_str(value))


def _path_or_none(value: Any) -> str | None:
    return None if value is None else _path(value)


# The arguments that a session of the job takes in addition to TensorFlow's, with their defaults.
EXTRA_ARGUMENTS = {
    # Evaluates `eval_fn` after every `eval_every_n_iter` runs, as `EvaluationHook` does. Summaries go to the folder
    # 'eval' in the session's folder.
    "eval_every_n_iter": None,
    "eval_fn": None,
    "eval_steps": 100,
    # The number of checkpoints that the default saver keeps; None: the value of the option.
    "keep_checkpoint_max": None,
    "keep_checkpoint_every_n_hours": None,
    # The period of incremental checkpoints of dynamic tables (saving/incremental.py).
    "save_incremental_checkpoint_secs": None,
    "save_incremental_checkpoint_steps": None,
}


# The class `EvaluationHook`, which registers itself.
_make_evaluation_hook: Callable[..., Any] | None = None


def evaluate_with(make_hook: Callable[..., Any]) -> None:
    """Registers the class, of a layer above, of the hook that evaluates during training."""
    global _make_evaluation_hook
    _make_evaluation_hook = make_hook


def _evaluation_hooks(args: dict[str, Any], extra: dict[str, Any]) -> list[Any]:
    every, fn = extra["eval_every_n_iter"], extra["eval_fn"]
    if (every is None) != (fn is None):
        missing = "eval_fn" if fn is None else "eval_every_n_iter"
        raise ValueError(
            f"MonitoredTrainingSession: {missing} is not given, wanted both eval_every_n_iter and eval_fn, or neither"
        )
    if fn is None:
        return []
    if _make_evaluation_hook is None:
        raise RuntimeError("MonitoredTrainingSession: got eval_fn, but lockstep._assembly has not been imported")
    summary_dir = args.get("summary_dir") or args.get("checkpoint_dir")
    summary_dir = None if summary_dir is None else os.path.join(_path(summary_dir), "eval")
    return [_make_evaluation_hook(fn, steps=extra["eval_steps"], every_n_iter=every, summary_dir=summary_dir)]


def _incremental_hooks(args: dict[str, Any], extra: dict[str, Any]) -> list[Any]:
    periods = {unit: extra[f"save_incremental_checkpoint_{unit}"] for unit in ("secs", "steps")}
    given = {f"save_{unit}": period for unit, period in periods.items() if period}
    if not given:
        return []
    if len(given) > 1:
        raise ValueError("MonitoredTrainingSession: save_incremental_checkpoint_secs and _steps are given, wanted one")
    return [incremental.IncrementalCheckpointHook(_path(args["checkpoint_dir"]), args["scaffold"], **given)]


def wrap_monitored_session(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps TensorFlow's MonitoredTrainingSession so that it creates sessions for the job.

    The wrapper also takes `EXTRA_ARGUMENTS`. It does not change its arguments, or lists among them.
    """
    if getattr(original, "_lockstep", False):
        return original
    signature = inspect.signature(original)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        extra = {name: kwargs.pop(name, default) for name, default in EXTRA_ARGUMENTS.items()}
        given = dict(signature.bind(*args, **kwargs).arguments)
        # Some replacements of the function have a **kwargs parameter.
        for name, parameter in signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                given.update(given.pop(name, {}))
        if given.get("checkpoint_dir") is None and context.options.model_dir is not None:
            given["checkpoint_dir"] = context.options.model_dir
        given["hooks"] = [*(given.get("hooks") or ()), *_evaluation_hooks(given, extra), ending.EndOfDataHook()]
        if given.get("checkpoint_dir") is not None:
            # These hooks come before the hook that saves a checkpoint as soon as there is a session.
            given["scaffold"] = given.get("scaffold") or tf.compat.v1.train.Scaffold()
            increments = _incremental_hooks(given, extra)
            newest = increments[0].newest if increments else None
            first = [data_positions.PositionHook(_path(given["checkpoint_dir"]), newest), *increments]
            given["chief_only_hooks"] = [*first, *(given.get("chief_only_hooks") or ())]
        # Otherwise the session would wait for a chief, also with one worker.
        given["is_chief"] = True
        given = policies.with_triggers(given)
        if given.get("config") is None:
            given["config"] = get_session_config()
        given["hooks"] += [stats_hook.StepMarks()]
        if context.world_size > 1:
            given["hooks"] += [sharing.FirstBatchHook(), job_hooks.LastStepHook()]
            sync.warn_of_unsynchronized_iterators(tf.compat.v1.get_default_graph())
        # A single worker also needs these arguments, to call its listeners and to keep its last checkpoint.
        if context.world_size > 1 or context.saving_listeners or given.get("checkpoint_dir") is not None:
            given = job_session_arguments(given)
        keep = ("keep_checkpoint_max", "keep_checkpoint_every_n_hours")
        with context.scope(**{name: extra[name] for name in keep if extra[name] is not None}):
            return original(**given)

    wrapped._lockstep = True  # type: ignore[attr-defined]
    return wrapped


def intercept_sessions(interception: Interception) -> None:
    """Makes `tf.compat.v1.train.MonitoredTrainingSession` the job's while the interception lasts."""
    interception.replace(symbols.MONITORED_SESSION, wrap_monitored_session)
