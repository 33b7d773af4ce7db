"""Saving models of Keras 3: worker 0 writes the file with whole tables; all workers take part.

Keras writes into the file of the last save, and so destroys it if the new save fails. In a scope, also of one worker,
it writes a draft, which then takes the file's place (`whole_files.py`). Weights in several files (`max_shard_size`)
get new names beside those of the last save, until the file that lists them is replaced.

This module imports Keras; a scope imports it if the program has Keras 3.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from keras.src.utils import file_utils, io_utils

from lockstep._src.collectives import agreement
from lockstep._src.engine import file_errors, whole_files
from lockstep._src.engine.context import context
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception, around, attribute_replaced
from lockstep._src.keras.hooks import called_alone, resuming
from lockstep._src.keras.hooks.table_optimizers import own_optimizer
from lockstep._src.keras.hooks.variables import local_initial_values, sharded_variables, whole_on_chief
from lockstep._src.tables.dynamic import is_dynamic, serialized
from lockstep.launch.base import notes

_ADVICE = "all ranks give their rows of tables, and rank 0 writes the file. Call {} on all ranks, with the same path"


# The error number in a text of the HDF5 library, some of whose errors have no other.
_ERRNO = re.compile(r"\berrno = (\d+)")


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
    """Saves a model in this process, and tells the launcher of the file."""
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
    with replacing(path, several=call.arguments.get("max_shard_size") is not None) as draft:
        call.arguments["filepath"] = draft
        save(*call.args, **call.kwargs)
    if context.world_size > 1:
        notes.say_saved(path)


def _export(export: Callable[..., Any], model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
    """Exports a model; the files appear together."""
    path = os.fspath(filepath)
    with replacing(path) as draft:

        def naming_path(show: Callable[..., Any]) -> Callable[..., Any]:
            return lambda text, *args, **kwargs: show(text.replace(draft, path), *args, **kwargs)

        # Keras prints where it has written to.
        with attribute_replaced(io_utils, "print_msg", naming_path):
            return export(model, draft, *args, **kwargs)


@contextlib.contextmanager
def replacing(path: str, several: bool = False) -> Iterator[str]:
    """Yields the path to write in place of `path`. At the end of the block, what was written takes the place of `path`.

    The yielded path is `path` itself if it is remote, a device or a mount point.

    Args:
      path: a file or a folder.
      several: whether the block writes several files of weights, and one that lists them.

    Raises:
      OSError: the block, or the rename, raised an error of files. `path` is as it was.
    """
    if not whole_files.is_replaceable(path) or file_utils.is_remote_path(path):
        yield path
        return
    if path.endswith((".h5", ".hdf5")) and os.path.dirname(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)  # Keras makes the folders of these files
    folder, place = "", os.path.join(os.path.dirname(path), "")
    try:
        with whole_files.draft_of(path) as draft:
            folder = os.path.dirname(draft)
            if several:
                yield _with_another_name(draft) if os.path.exists(_listing(path)) else draft
                _publish_several(folder, _listing(path))
            else:
                yield draft
                _publish(folder, draft, path)
    except (OSError, RuntimeError) as error:
        if (reason := _reason(error)) is None:
            raise
        number, text = reason
        remains = "the file of the last save is unchanged" if os.path.exists(path) else "no file was written"
        raise OSError(number, f"{path} cannot be saved: {text}; {remains}") from None
    except tf.errors.OpError as error:  # of an export
        text = file_errors.cause_of(error).replace(f"{folder}/", place)
        raise file_errors.named(error, f"{path} cannot be saved: {text}") from None
    except Exception as error:
        error.args = tuple(a.replace(f"{folder}/", place) if folder and isinstance(a, str) else a for a in error.args)
        raise


def _reason(error: Exception) -> tuple[int, str] | None:
    """Returns the number and the text of an error of files, None for another error."""
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (match := _ERRNO.search(str(error))):
        number = int(match[1])
    if number is not None:
        return number, os.strerror(number)
    return (0, " ".join(str(error).split())) if isinstance(error, OSError) else None


def _publish(folder: str, draft: str, path: str) -> None:
    """Gives a draft its place at `path`; other files that Keras has written into its folder come before it."""
    resuming.stamp(draft, path)
    for name in set(os.listdir(folder)) - {os.path.basename(draft)}:
        whole_files.publish(os.path.join(folder, name), os.path.join(os.path.dirname(path), name))
    whole_files.publish(draft, path)


def _listing(path: str) -> str:
    """Returns the path of the file that lists the files of weights, if Keras writes several for `path`."""
    return f"{os.path.splitext(path)[0]}.json"


def _with_another_name(draft: str) -> str:
    """Returns another name for a draft of several files, so that no file of the last save has it as well."""
    folder, name = os.path.split(draft)
    base, _, kind = name.rpartition("weights.")
    return os.path.join(folder, f"{base.rstrip('.')}-{uuid.uuid4().hex[:8]}.weights.{kind}")


def _publish_several(folder: str, listing: str) -> None:
    """Gives the files of weights in the folder of a draft their places, then the file that lists them its own.

    Keras opens the first file by its usual name, and reads only listed files. So the first one gets this name as well.
    """
    place = os.path.dirname(listing)
    before = _files_of(listing)
    written = sorted(os.listdir(folder), key=lambda name: name.endswith(".json"))
    for name in written[:-1]:
        whole_files.publish(os.path.join(folder, name), os.path.join(place, name))
    whole_files.publish(os.path.join(folder, written[-1]), listing)
    listed = _files_of(listing)
    first = f"{os.path.basename(listing).removesuffix('.json').replace('.weights', '')}_00000.weights.h5"
    if first not in listed:
        whole_files.link(os.path.join(place, min(listed)), os.path.join(folder, first))
        whole_files.publish(os.path.join(folder, first), os.path.join(place, first))
    for name in before - listed - {first}:
        with contextlib.suppress(OSError):
            os.remove(os.path.join(place, name))


def _files_of(listing: str) -> set[str]:
    """Returns the names of the files of weights that a file lists; none if there is no such file."""
    found: set[str] = set()
    with contextlib.suppress(OSError, ValueError, AttributeError), open(listing) as file:
        for names in json.load(file)["weight_map"].values():
            found.update([names] if isinstance(names, str) else names)
    return {name for name in found if name == os.path.basename(name)}
