"""Saving models of Keras 2: files are replaced when the new ones are complete (`drafts.py`).

On several workers, eager models of Keras 2 are refused, and models of graphs save checkpoints.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from lockstep._src.engine import whole_files
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception, around
from lockstep._src.keras.hooks import drafts


def intercept_saving(interception: Interception, keras: ModuleType) -> None:
    """Makes `model.save` and `model.save_weights` of a package of Keras 2 write drafts during the interception."""
    for hook in symbols.KERAS_2_SAVE:
        interception.replace(hook.of(keras.__name__), around(functools.partial(_save, keras)))


def _save(keras: ModuleType, save: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    call = inspect.signature(save).bind(model, *args, **kwargs)
    path = call.arguments["filepath"]
    if not isinstance(path, str | os.PathLike):
        return save(*call.args, **call.kwargs)
    path = os.fspath(path)
    if not call.arguments.get("overwrite", True) and whole_files.is_local(path) and _exists(path):
        if not sys.modules[f"{keras.__name__}.src.utils.io_utils"].ask_to_proceed_with_overwrite(path):
            return None
        call.arguments["overwrite"] = True
    # Keras 2 makes the folders above a save, except for its format and for weights in an HDF5 file.
    is_weights = "weights" in save.__name__ and path.endswith((".h5", ".hdf5"))
    with drafts.replacing(path, makes_parents=not (is_weights or path.endswith(".keras"))) as draft:
        call.arguments["filepath"] = draft
        return save(*call.args, **call.kwargs)


def _exists(path: str) -> bool:
    return os.path.exists(path) or os.path.exists(f"{path}.index")
