"""Saving models of Keras 3: worker 0 writes the file with whole tables; all workers take part.

Keras writes into the file of the last save, and so destroys it if the new save fails. In a scope, also of one worker,
it writes a draft, which then takes the file's place (`drafts.py`).

This module imports Keras; a scope imports it if the program has Keras 3.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any

from keras.src.utils import io_utils

from lockstep._src.collectives import agreement
from lockstep._src.engine import whole_files
from lockstep._src.engine.context import context
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception, around, attribute_replaced
from lockstep._src.keras.hooks import called_alone, drafts, resuming
from lockstep._src.keras.hooks.table_optimizers import own_optimizer
from lockstep._src.keras.hooks.variables import local_initial_values, sharded_variables, whole_on_chief
from lockstep._src.tables.dynamic import is_dynamic, serialized
from lockstep.launch.base import notes

_ADVICE = "all ranks send their rows of tables, and rank 0 writes the file. Call {} on all ranks, with the same path"


def intercept_saving(interception: Interception) -> None:
    """Makes `model.save` and `model.save_weights` save for the whole job during the interception."""
    for hook in symbols.SAVE_MODEL:
        interception.replace(hook, around(_save if context.world_size > 1 else _save_alone))
    interception.replace(symbols.EXPORT_MODEL, around(_export))


def _save(save: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    optimizers = [getattr(model, "optimizer", None), *map(own_optimizer, model.variables)]
    slots = [slot for optimizer in optimizers if optimizer is not None for slot in optimizer.variables]
    tables = sharded_variables([*model.variables, *slots])
    values = {id(v): getattr(v, "_value", None) for v in model.variables}
    dynamic = [table for table in values.values() if is_dynamic(table)]

    def save_alone() -> None:
        # Keras creates an optimizer to compare with, on this worker only.
        with local_initial_values():
            _save_alone(save, model, *args, **kwargs)

    call = f"{'save_weights' if 'weights' in save.__name__ else 'save'}()"
    with called_alone.refused(call, _ADVICE.format(call)), whole_on_chief(tables), serialized.gathered(dynamic):
        agreement.on_chief(save_alone, save.__name__, "model_saved")


def _save_alone(save: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> None:
    """Saves a model in this process, and notifies the launcher of the file."""
    call = inspect.signature(save).bind(model, *args, **kwargs)
    path = call.arguments["filepath"]
    if not isinstance(path, str | os.PathLike):
        save(*call.args, **call.kwargs)
        return
    path = os.fspath(path)
    if not call.arguments.get("overwrite", True) and whole_files.is_local(path) and os.path.exists(path):
        if not io_utils.ask_to_proceed_with_overwrite(path):
            return
        call.arguments["overwrite"] = True
    several = call.arguments.get("max_shard_size") is not None
    # Keras makes the folders above a folder, and above a whole model in the older format.
    is_older = "weights" not in save.__name__ and path.endswith((".h5", ".hdf5"))
    makes_parents = call.arguments.get("zipped") is False or is_older
    with drafts.replacing(path, several, lambda draft: resuming.stamp(draft, path), makes_parents) as draft:
        call.arguments["filepath"] = draft
        save(*call.args, **call.kwargs)
    if context.world_size > 1:
        notes.say_saved(path)


def _export(export: Callable[..., Any], model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
    """Exports a model; the files appear together."""
    with export_draft(filepath) as draft:
        return export(model, draft, *args, **kwargs)


@contextlib.contextmanager
def export_draft(filepath: str | os.PathLike[str]) -> Iterator[str]:
    """Yields the folder to export a model to; at the end of the block, it takes the place of `filepath`."""
    path = os.fspath(filepath)
    with drafts.replacing(path, makes_parents=True) as draft:

        def naming_path(show: Callable[..., Any]) -> Callable[..., Any]:
            return lambda text, *args, **kwargs: show(text.replace(draft, path), *args, **kwargs)

        # Keras prints where it has written to.
        with attribute_replaced(io_utils, "print_msg", naming_path):
            yield draft
