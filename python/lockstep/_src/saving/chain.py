"""The file `chain.json`: the list of the increments that build on a full checkpoint (incremental.py)."""

from __future__ import annotations

import os

import tensorflow as tf

from lockstep._src.saving import sealed

FOLDER = ".incremental_checkpoint"
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
            raise ValueError(f"{path} does not say which increments there are: {error}") from error

    def write(self, directory: str) -> None:
        """Writes `chain.json` atomically: readers see the old list or the new one."""
        path = self._path(directory)
        _gfile.makedirs(os.path.dirname(path))
        text = sealed.seal({"base": self.base, "increments": self.increments})
        if "://" in path:  # remote file systems have no sync: a file is complete when it is closed
            with _gfile.GFile(f"{path}.new", "w") as file:
                file.write(text)
            _gfile.rename(f"{path}.new", path, overwrite=True)
            return
        # The syncs make sure that also after a loss of power there is the old list or the new one.
        with open(f"{path}.new", "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.new", path)
        folder = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def next_name(self, step: int) -> str:
        """Returns a name for an increment at a step that no other increment of the chain has."""
        name = f"{self.base}-to-{step}"
        return name if name not in self.increments else f"{name}-{len(self.increments) + 1}"

    def prefixes(self, directory: str) -> list[str]:
        """Returns the prefixes of the increments, in their order."""
        return [os.path.join(directory, FOLDER, name) for name in self.increments]


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
