"""The file `chain.json`: the list of the increments that build on a full checkpoint (incremental.py).

The list and the increments are in a hidden folder, which `cp folder/*` leaves behind. So the file `increments.json`
beside the full checkpoint says that increments build on it. Without their list, a restore is an error.

    <directory>/increments.json                            {"base": "model.ckpt-1000"}: it has increments
    <directory>/.incremental_checkpoint/chain.json         {"base": "model.ckpt-1000", "increments": [...]}
"""

from __future__ import annotations

import os

import tensorflow as tf

from lockstep._src.engine import whole_files
from lockstep._src.saving import sealed

FOLDER = ".incremental_checkpoint"
_MARK = "increments.json"
_SHOWN = 5
_gfile = tf.io.gfile


class Chain:
    """The increments that build on a full checkpoint, as listed in `chain.json`. Worker 0 writes this file."""

    def __init__(self, base: str, increments: list[str]) -> None:
        self.base, self.increments = base, increments

    @staticmethod
    def _path(directory: str) -> str:
        return os.path.join(directory, FOLDER, "chain.json")

    @classmethod
    def read(cls, directory: str) -> Chain | None:
        """Reads the chain of a folder; returns None if there is none. Raises ValueError if the file is damaged."""
        path = cls._path(directory)
        if not _gfile.exists(path):
            return None
        with _gfile.GFile(path, "rb") as file:
            data = file.read()
        try:
            content = sealed.unseal(data, path)
            return cls(content["base"], list(content["increments"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged and does not list the increments: {error}") from error

    def write(self, directory: str) -> None:
        """Writes `chain.json` atomically: readers see the old list or the new one."""
        path = self._path(directory)
        mark = os.path.join(directory, _MARK)
        if len(self.increments) == 1 or (self.increments and not _gfile.exists(mark)):
            whole_files.write_text(mark, sealed.seal({"base": self.base}))
        elif not self.increments and _gfile.exists(mark):
            _gfile.remove(mark)
        _gfile.makedirs(os.path.dirname(path))
        whole_files.write_text(path, sealed.seal({"base": self.base, "increments": self.increments}))

    def next_name(self, step: int) -> str:
        """Returns a name for an increment at a step that no other increment of the chain has."""
        name = f"{self.base}-to-{step}"
        return name if name not in self.increments else f"{name}-{len(self.increments) + 1}"

    def prefixes(self, directory: str) -> list[str]:
        """Returns the prefixes of the increments, in their order."""
        return [os.path.join(directory, FOLDER, name) for name in self.increments]


def increments_on(save_path: str) -> list[str]:
    """Returns the names of the increments that build on a full checkpoint.

    Raises:
      ValueError: their list is damaged.
      tf.errors.DataLossError: there are increments, or there were, and their list is lost.
    """
    directory, base = os.path.split(save_path)
    chain = Chain.read(directory)
    if chain is not None and chain.base == base:
        return chain.increments
    check_not_lost(directory, base, chain)
    return []


def check_not_lost(directory: str, base: str, chain: Chain | None) -> None:
    """Raises DataLossError if increments on the full checkpoint `base` exist or existed, and `chain` is not their list.

    Args:
      directory: the folder of the full checkpoint.
      base: its name.
      chain: the list that the folder has; None if it has none.
    """
    folder, mark = os.path.join(directory, FOLDER), os.path.join(directory, _MARK)
    if chain is None and (lying := _increments_in(folder, base)):
        shown = ", ".join(lying[:_SHOWN]) + (", ..." if len(lying) > _SHOWN else "")
        raise tf.errors.DataLossError(
            None,
            None,
            f"{Chain._path(directory)} is missing. It lists the increments that build on "
            f"{os.path.join(directory, base)}; {folder} has {len(lying)} of them: {shown}. Training would begin with "
            f"older values. Restore the list; to begin with the full checkpoint, remove {folder} and {mark}",
        )
    if (chain is None or chain.base != base) and _marked(mark) == base:
        raise tf.errors.DataLossError(
            None,
            None,
            f"according to {mark}, increments build on {os.path.join(directory, base)}, but they are not in {folder}. "
            "Training would begin with older values. Copy the hidden folder as well (cp -r, or rsync -a); to begin "
            f"with the full checkpoint, remove {mark}",
        )


def _increments_in(folder: str, base: str) -> list[str]:
    """Returns the names of the increments on a full checkpoint that lie in a folder, whether listed or not."""
    if not _gfile.isdir(folder):
        return []
    names = [name.removesuffix(".index") for name in _gfile.listdir(folder) if name.endswith(".index")]
    return sorted(name for name in names if name.startswith(f"{base}-to-"))


def _marked(path: str) -> str | None:
    """Returns the name of the full checkpoint on which increments build, as `increments.json` says."""
    if not _gfile.exists(path):
        return None
    with _gfile.GFile(path, "rb") as file:
        return sealed.unseal(file.read(), path).get("base")


def end_chain(path: str) -> None:
    """Clears the chain of a full checkpoint that was just saved.

    Increments in an existing chain build on an older checkpoint of the same name.
    """
    directory, name = os.path.split(path)
    try:
        chain = Chain.read(directory)
    except ValueError:  # a restore reports the damaged file
        return
    if chain is not None and chain.base == name and chain.increments:
        Chain(name, []).write(directory)
