"""Which increments build on a full checkpoint: the file `chain.json` (incremental.py)."""

from __future__ import annotations

import os

import tensorflow as tf

from lockstep._src.saving import sealed

FOLDER = ".incremental_checkpoint"
_gfile = tf.io.gfile


class Chain:
    """The increments that build on a full checkpoint, as `chain.json` has them. Worker 0 writes it."""

    def __init__(self, base: str, increments: list[str]) -> None:
        self.base, self.increments = base, increments

    @staticmethod
    def _path(directory: str) -> str:
        return os.path.join(directory, FOLDER, "chain.json")

    @classmethod
    def of(cls, directory: str) -> Chain | None:
        """That of a folder; None where there is none. ValueError for a file that is none."""
        path = cls._path(directory)
        if not _gfile.exists(path):
            return None
        with _gfile.GFile(path, "rb") as file:
            data = file.read()
        try:
            read = sealed.unseal(data, path)
            return cls(read["base"], list(read["increments"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} does not say which increments there are: {error}") from error

    def write(self, directory: str) -> None:
        """Puts it in its place at once."""
        path = self._path(directory)
        _gfile.makedirs(os.path.dirname(path))
        text = sealed.seal({"base": self.base, "increments": self.increments})
        if "://" in path:  # has no sync: a file is complete when it is closed
            with _gfile.GFile(f"{path}.new", "w") as file:
                file.write(text)
            _gfile.rename(f"{path}.new", path, overwrite=True)
            return
        # A machine that loses its power leaves the old list or the new one.
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
        """That of an increment of a step, which no other of the chain has."""
        name = f"{self.base}-to-{step}"
        return name if name not in self.increments else f"{name}-{len(self.increments) + 1}"

    def prefixes(self, directory: str) -> list[str]:
        """Of the increments, in their order."""
        return [os.path.join(directory, FOLDER, name) for name in self.increments]


def end_chain(path: str) -> None:
    """Has nothing build on a full checkpoint that was just saved: what did builds on another one of its name."""
    directory, name = os.path.split(path)
    try:
        chain = Chain.of(directory)
    except ValueError:  # which a restore says
        return
    if chain is not None and chain.base == name and chain.increments:
        Chain(name, []).write(directory)
