"""Finds the last checkpoint of a folder, from which training continues.

TensorFlow's state file, `checkpoint`, names it, in text without a checksum. If TensorFlow cannot read this file, it
behaves as if there were none, and training would silently start again from step 0. Here that is an error.

    model_checkpoint_path: "model.ckpt-200"
    all_model_checkpoint_paths: "model.ckpt-100"
    all_model_checkpoint_paths: "model.ckpt-200"

All savers write the last checkpoint twice: by itself, and at the end of the list of all. If the two differ, a bit has
flipped (model.ckpt-1 and model.ckpt-3 differ in one bit), the end of the file is lost, or somebody has edited the file.

A folder without a state file has no last checkpoint. A job that dies in its first save, after the checkpoint but before
the state file, leaves one checkpoint that no state file names, and the next job starts from step 0. Such a job cannot
leave two checkpoints. If there are two, there was a state file, and it is lost.
"""

from __future__ import annotations

import os
import re
from typing import Any

import tensorflow as tf

from lockstep._src.collectives import agreement
from lockstep._src.engine.context import context

_gfile = tf.io.gfile
_FILE = "checkpoint"
_INDEX = re.compile(r"(.*-([0-9]+))\.index")
# The number of attempts: another process may save between two looks at the folder.
_LOOKS = 3
_SHOWN = 8


def latest_checkpoint(directory: str | os.PathLike[str] | None) -> str | None:
    """Returns the prefix of the last checkpoint of a folder; None if `directory` is None or no state file names one.

    Raises:
      tf.errors.DataLossError: the state file is damaged, names a checkpoint that does not exist, or is lost.
    """
    state = checkpoint_state(directory)
    return None if state is None else state.model_checkpoint_path


def checkpoint_state(directory: str | os.PathLike[str] | None) -> Any:
    """Returns the content of a folder's state file, like `tf.train.get_checkpoint_state`; see `latest_checkpoint`."""
    if not directory:
        return None
    directory = os.fspath(directory)
    path = os.path.join(directory, _FILE)
    for _ in range(_LOOKS):
        before = _content(path)
        state, wrong = _look(directory, path)
        if wrong is None:
            return state
        if _content(path) == before:
            break
    there = _checkpoints(directory)
    newest = there[-1] if there else "model.ckpt-100"
    raise tf.errors.DataLossError(
        None,
        None,
        f"{path}: the state file {wrong}; refusing to start from step 0 or from another checkpoint. In its folder: "
        f"{', '.join(there[-_SHOWN:]) or 'no checkpoints'}. To continue from one of them, make this the file's only "
        f"line: model_checkpoint_path: {newest!r:.300}; to start from step 0, give another folder, or remove the file "
        "and the checkpoints",
    )


def agreed_checkpoint(directory: str | os.PathLike[str] | None, name: str) -> str | None:
    """Returns on every worker the `latest_checkpoint` that worker 0 finds. All workers call it, in the same order.

    Args:
      directory: the folder; only the value of worker 0 is used.
      name: the name of the exchange in errors.

    Raises:
      tf.errors.DataLossError: on all workers; see `latest_checkpoint`.
    """
    path = lost = None
    if context.rank == 0:
        try:
            path = latest_checkpoint(directory)
        except tf.errors.DataLossError as error:
            lost = error.message
    path, lost = agreement.from_chief((path, lost), name)
    if lost is not None:
        raise tf.errors.DataLossError(None, None, lost)
    return path


def _content(path: str) -> bytes | None:
    try:
        with _gfile.GFile(path, "rb") as file:
            return file.read()
    except tf.errors.OpError:
        return None


def _look(directory: str, path: str) -> tuple[Any, str | None]:
    """Returns the content of the state file, or None; and a text with the error, or None."""
    if not _gfile.exists(path):
        there = _checkpoints(directory)
        return None, f"is missing beside {len(there)} checkpoints" if len(there) > 1 else None
    try:
        state = tf.train.get_checkpoint_state(directory)
    except ValueError:  # the file is not text, or names no checkpoint
        state = None
    if state is None:
        return None, "is damaged or cannot be read"
    last, listed = state.model_checkpoint_path, state.all_model_checkpoint_paths
    if listed and listed[-1] != last:
        return None, f"names {last}, and {listed[-1]} as the newest of all: it is damaged or was edited"
    # A checkpoint in TensorFlow's old format is a file without ".index".
    if not _gfile.exists(f"{last}.index") and not _gfile.exists(last):
        return None, f"names {last}, which does not exist"
    return state, None


def _checkpoints(directory: str) -> list[str]:
    """Returns the names of the checkpoints in a folder that have a step number, sorted by it."""
    try:
        found = [_INDEX.fullmatch(name) for name in _gfile.listdir(directory)]
    except tf.errors.NotFoundError:
        return []
    return [match[1] for match in sorted((match for match in found if match), key=lambda match: int(match[2]))]
