"""The work of `sok.init`: it chooses the communication, and makes Keras' legacy optimizers the default ones."""

from __future__ import annotations

import contextlib
from typing import Any

import tensorflow as tf

from lockstep._src.compat.sok import job
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception

_replaced = Interception(symbols.SOK)


def init(comm_tool: str, use_legacy_optimizer: bool) -> None:
    """Starts SOK; see `sparse_operation_kit.init`."""
    job.set_comm_tool(comm_tool)
    if use_legacy_optimizer:
        use_legacy_optimizers()
    if job.rank() == 0:
        print(f"[SOK INFO] Initialize finished, communication tool: {comm_tool}", flush=True)


def use_legacy_optimizers() -> None:
    """Makes `tf.keras.optimizers` and `tf.optimizers` name `tf.keras.optimizers.legacy`, only with Keras 2.

    Keras 3 has no legacy optimizers: nothing changes there. A second call changes nothing.
    """
    legacy = _legacy_optimizers()
    if legacy is None or tf.keras.optimizers is legacy:
        return
    for hook in (symbols.KERAS_OPTIMIZERS, symbols.OPTIMIZERS):
        _replaced.replace(hook, lambda _: legacy)


def use_default_optimizers() -> None:
    """Undoes `use_legacy_optimizers`."""
    _replaced.undo()


def _legacy_optimizers() -> Any:
    # `tf.keras` loads Keras on first use, which may not be installed.
    with contextlib.suppress(ImportError, AttributeError):
        legacy = tf.keras.optimizers.legacy
        # Keras 3 has classes of these names that only raise an error.
        if legacy.Optimizer.__name__ == "OptimizerV2":
            return legacy
    return None
