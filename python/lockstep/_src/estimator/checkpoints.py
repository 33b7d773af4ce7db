"""The checkpoints of an estimator's folder, agreed on by all workers."""

from __future__ import annotations

import tensorflow as tf

from lockstep._src.collectives import agreement
from lockstep._src.engine.context import context
from lockstep._src.saving import latest


def trained_steps(model_dir: str) -> int:
    """Returns the global step of worker 0's latest checkpoint in a folder; 0 if there is none."""
    path, step = latest.agreed_checkpoint(model_dir, "trained_latest"), 0
    if context.rank == 0 and path is not None:
        step = int(tf.train.load_variable(path, tf.compat.v1.GraphKeys.GLOBAL_STEP))
    return agreement.from_chief(step, "trained_steps")


def found(path: str | None, model_dir: str) -> str:
    """Returns worker 0's `path`; if it is None, worker 0's latest checkpoint in the folder.

    Raises:
      ValueError: there is no checkpoint.
    """
    agreed = agreement.from_chief(path, "checkpoint") or latest.agreed_checkpoint(model_dir, "checkpoint_latest")
    if agreed is None:
        raise ValueError(f"no checkpoint in {model_dir!r}; train first")
    return agreed
