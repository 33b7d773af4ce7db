"""Which checkpoint of a folder is the last: from there training goes on.

TensorFlow's state file, `checkpoint`, says it, in text without a checksum. Of one that it cannot read TensorFlow takes
that there is none, and training would begin anew without a word. Here that is an error.

    model_checkpoint_path: "model.ckpt-200"
    all_model_checkpoint_paths: "model.ckpt-100"
    all_model_checkpoint_paths: "model.ckpt-200"

Whatever saves writes the last one twice, as itself and at the end of the list of all. Where the two differ, a bit has
flipped (model.ckpt-1 and model.ckpt-3 differ in one), or the end of the file is gone, or somebody has edited it.

A folder without a state file has no last checkpoint: a job that dies in its first save, behind the checkpoint and
before the state file, leaves one checkpoint there that was never announced, and begins anew. It leaves no second one:
where there are two, there was a state file, and it is gone.
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
# Saves of another process, which may come between two looks at the folder.
_LOOKS = 3
_SHOWN = 8


def latest_checkpoint(directory: str | os.PathLike[str] | None) -> str | None:
    """The last checkpoint of a folder: its prefix. None where none was announced, or without a folder.

    Raises:
      tf.errors.DataLossError: the state file is damaged, names a checkpoint that is not there, or is gone.
    """
    state = checkpoint_state(directory)
    return None if state is None else state.model_checkpoint_path


def checkpoint_state(directory: str | os.PathLike[str] | None) -> Any:
    """What the state file of a folder says, as `tf.train.get_checkpoint_state` gives it; see `latest_checkpoint`."""
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
        f"{path}: the file that says which checkpoint is the last {wrong}. Training would begin anew, or go on from "
        f"another one. In its folder there are {', '.join(there[-_SHOWN:]) or 'no checkpoints'}. To go on from one of "
        f"them, make this the file's only line: model_checkpoint_path: {newest!r:.300}; to begin anew, give another "
        "folder, or remove the file and the checkpoints",
    )


def of_the_job(directory: str | os.PathLike[str] | None, name: str) -> str | None:
    """`latest_checkpoint`, as worker 0 finds it, on every worker. All workers call it, in the same order.

    Args:
      directory: where worker 0 looks; only its own counts.
      name: of the exchange, for errors.

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
    """What the state file says, if there is one; and what is wrong."""
    if not _gfile.exists(path):
        there = _checkpoints(directory)
        return None, f"is not there, beside {len(there)} checkpoints" if len(there) > 1 else None
    try:
        state = tf.train.get_checkpoint_state(directory)
    except ValueError:  # no text, or nothing that is named
        state = None
    if state is None:
        return None, "is damaged, or cannot be read"
    last, listed = state.model_checkpoint_path, state.all_model_checkpoint_paths
    if listed and listed[-1] != last:
        return None, f"names {last}, and {listed[-1]} as the newest of all: it is damaged, or was edited"
    # The other one is that of TensorFlow's old format.
    if not _gfile.exists(f"{last}.index") and not _gfile.exists(last):
        return None, f"names {last}, which is not there"
    return state, None


def _checkpoints(directory: str) -> list[str]:
    """Names of those in a folder that have numbers, by these."""
    try:
        found = [_INDEX.fullmatch(name) for name in _gfile.listdir(directory)]
    except tf.errors.NotFoundError:
        return []
    return [match[1] for match in sorted((match for match in found if match), key=lambda match: int(match[2]))]
