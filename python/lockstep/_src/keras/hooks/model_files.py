"""Saving models of Keras 3: worker 0 writes the file with whole tables; all workers take part.

This module imports Keras; a scope imports it if the program has Keras 3.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from lockstep._src.collectives import agreement
from lockstep._src.engine.context import context
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception, around
from lockstep._src.keras.hooks import called_alone
from lockstep._src.keras.hooks.table_optimizers import own_optimizer
from lockstep._src.keras.hooks.variables import local_initial_values, sharded_variables, whole_on_chief
from lockstep._src.tables.dynamic import is_dynamic, serialized
from lockstep.launch.base import notes

_ADVICE = "all ranks give their rows of tables, and rank 0 writes the file. Call {} on all ranks, with the same path"


def intercept_saving(interception: Interception) -> None:
    """Makes `model.save` and `model.save_weights` save for the whole job during the interception."""
    if context.world_size > 1:
        for hook in symbols.SAVE_MODEL:
            interception.replace(hook, around(_save))


def _save(save: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    optimizers = [getattr(model, "optimizer", None), *map(own_optimizer, model.variables)]
    slots = [slot for optimizer in optimizers if optimizer is not None for slot in optimizer.variables]
    tables = sharded_variables([*model.variables, *slots])
    values = {id(v): getattr(v, "_value", None) for v in model.variables}
    dynamic = [table for table in values.values() if is_dynamic(table)]

    def save_alone() -> None:
        # Keras creates an optimizer to compare with, on this worker only.
        with local_initial_values():
            save(model, *args, **kwargs)
        path = args[0] if args else kwargs.get("filepath")
        if isinstance(path, str | os.PathLike):
            notes.say_saved(path)

    call = f"{'save_weights' if 'weights' in save.__name__ else 'save'}()"
    with called_alone.refused(call, _ADVICE.format(call)), whole_on_chief(tables), serialized.gathered(dynamic):
        agreement.on_chief(save_alone, save.__name__, "model_saved")
