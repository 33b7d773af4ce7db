"""Policies for the results of evaluations: they end training that no longer improves, or keep the best checkpoint.

An `EvaluationHook` calls its `policies` on all workers with worker 0's results, so all workers decide in the same way.
They take the arguments of a `Policy` (sessions/policies.py).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from lockstep._src.collectives import agreement
from lockstep._src.engine import arguments, file_errors, progress, whole_files
from lockstep._src.engine.context import context as _context
from lockstep._src.saving import latest, sealed
from lockstep._src.scope import scope

_tf1 = tf.compat.v1
_gfile = tf.io.gfile


class _Best:
    """The best value of a result so far."""

    def __init__(self, owner: str, metric: str, mode: str, min_delta: float) -> None:
        if mode not in ("max", "min"):
            raise ValueError(f"{owner}: mode is {mode!r}, wanted 'max' or 'min'")
        arguments.text(owner, "metric", metric)
        arguments.number(owner, "min_delta", min_delta)
        if not min_delta >= 0:  # NaN is refused too
            raise ValueError(f"{owner}: min_delta is {min_delta}, wanted 0 or more")
        self._owner, self.metric, self._sign, self._min_delta = owner, metric, 1 if mode == "max" else -1, min_delta
        self.value: float | None = None

    def improves(self, results: Mapping[str, Any]) -> bool:
        """Returns whether the result beats the best one by more than `min_delta`, and stores it if so. NaN never does.

        Raises:
          ValueError: the evaluation has no result of this name.
        """
        if self.metric not in results:
            raise ValueError(
                f"{self._owner}: the evaluation has no result {self.metric!r}, but {', '.join(sorted(results))}"
            )
        value = float(results[self.metric])
        if np.isnan(value) or (self.value is not None and self._sign * (value - self.value) <= self._min_delta):
            return False
        self.value = value
        return True


class EarlyStopping:
    """A policy for `EvaluationHook(policies=[...])` that ends training when a result no longer improves.

    All workers stop after the same step, because they all decide with worker 0's result.

    Args:
      metric: the result's name in the evaluation.
      patience: the number of consecutive evaluations without a better result after which training ends.
      mode: 'max' if higher is better, 'min' if lower is better.
      min_delta: a result must be better than the best one by more than this amount.

    Raises:
      TypeError: an argument is of another type.
      ValueError: `mode`, `patience` or `min_delta` is invalid; later, if an evaluation has no such result.
    """

    def __init__(self, metric: str, patience: int = 1, mode: str = "max", min_delta: float = 0.0) -> None:
        arguments.integer("EarlyStopping", "patience", patience, 1, optional=False)
        self._best = _Best("EarlyStopping", metric, mode, min_delta)
        self._patience = patience
        self._waited = 0

    def begin(self) -> None:
        """Forgets the results of an earlier session."""
        self._best.value, self._waited = None, 0

    def __call__(
        self,
        global_step: int,
        metrics: dict[str, Any],
        session: Any,
        context: Any = None,
        scaffold: Any = None,
        writer: Any = None,
    ) -> None:
        """Compares an evaluation's result, and may request a stop; see `Policy.__call__`."""
        del session, scaffold, writer
        self._waited = 0 if self._best.improves(metrics) else self._waited + 1
        if self._waited >= self._patience and context is not None:
            progress.info(
                "EarlyStopping at step %d: the best %s was %s, %d evaluations ago",
                *(global_step, self._best.metric, self._best.value, self._waited),
            )
            context.request_stop()


class BestCheckpoint:
    """A policy for `EvaluationHook(policies=[...])` that keeps the checkpoint with the best result.

    All workers save the checkpoint together. The file `best.json` in the same directory has the 'metric', its 'value',
    the 'global_step' and the name of the 'checkpoint'. A later training in the same directory compares its results with
    this value. `tf.train.latest_checkpoint(directory)` returns the best checkpoint.

    Args:
      metric: the result's name in the evaluation.
      directory: the folder for these checkpoints only; the same for all workers.
      mode: 'max' if higher is better, 'min' if lower is better.
      min_delta: a result must be better than the best one by more than this amount.
      max_to_keep: the number of best checkpoints to keep; the older ones are deleted.

    Raises:
      TypeError: an argument is of another type.
      ValueError: `mode` or `min_delta` is invalid; later, if an evaluation has no such result.
    """

    def __init__(
        self,
        metric: str,
        directory: str | os.PathLike[str],
        mode: str = "max",
        min_delta: float = 0.0,
        max_to_keep: int = 1,
    ) -> None:
        self._best = _Best("BestCheckpoint", metric, mode, min_delta)
        self._directory = os.fspath(directory)
        arguments.integer("BestCheckpoint", "max_to_keep", max_to_keep, 0)
        self._max_to_keep = max_to_keep

    def begin(self) -> None:
        """Builds the saver in the training graph, and reads the best result of an earlier training."""
        with scope():
            self._saver = _tf1.train.Saver(max_to_keep=self._max_to_keep, save_relative_paths=True)
        self._best.value = agreement.from_chief(self._read(), "best_checkpoint")
        latest.agreed_checkpoint(self._directory, "best_latest")
        saved = latest.checkpoint_state(self._directory) if _context.is_chief else None
        if saved is not None:
            self._saver.recover_last_checkpoints(saved.all_model_checkpoint_paths)  # so that old ones get deleted

    def __call__(
        self,
        global_step: int,
        metrics: dict[str, Any],
        session: Any,
        context: Any = None,
        scaffold: Any = None,
        writer: Any = None,
    ) -> None:
        """Saves a checkpoint if the result is better; see `Policy.__call__`."""
        del context, scaffold, writer
        if not self._best.improves(metrics):
            return
        path = self._saver.save(session, os.path.join(self._directory, "best"), global_step, write_meta_graph=False)
        if _context.is_chief:
            best = {
                "metric": self._best.metric,
                "value": self._best.value,
                "global_step": int(global_step),
                "checkpoint": os.path.basename(path),
            }
            # Like the checkpoint, the file is complete or absent.
            with file_errors.raised_on_all(f"{self._file} cannot be written"):
                whole_files.write_text(self._file, sealed.seal(best))

    @property
    def _file(self) -> str:
        return os.path.join(self._directory, "best.json")

    def _read(self) -> float | None:
        if not (_context.is_chief and _gfile.exists(self._file)):
            return None
        with _gfile.GFile(self._file, "rb") as file:
            best = sealed.unseal(file.read(), f"BestCheckpoint: {self._file}")
        if best["metric"] != self._best.metric:
            raise ValueError(
                f"BestCheckpoint: {self._file} is of the metric {best['metric']!r}, wanted {self._best.metric!r}; "
                "give each metric a directory of its own"
            )
        return best["value"]
