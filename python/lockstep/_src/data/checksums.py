"""Checksums of files, given by the program or by a manifest as `sha256sum` writes it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

import tensorflow as tf

Checksums = Mapping[str, str] | str | os.PathLike

_DIGEST = re.compile(r"(?:sha256:)?([0-9a-fA-F]{64})")
# A digest, a space, then a space or a star, and a file name.
_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](.+)")


def words(checksums: Checksums | None) -> list[str]:
    """Returns a flat list for the reader op: each file's name, followed by its SHA-256 as 64 hexadecimal digits.

    Args:
      checksums: a dict from file name to 'sha256:' and 64 digits (the prefix is optional), or the name of a manifest.

    Raises:
      ValueError: a digest is not a SHA-256, or the dict or manifest is empty.
      TypeError: `checksums` is neither a dict nor a file name.
      tf.errors.OpError: the manifest cannot be read.
    """
    if checksums is None:
        return []
    if isinstance(checksums, (str, os.PathLike)):
        given = _read_manifest(os.fspath(checksums))
    elif isinstance(checksums, Mapping):
        given = {os.fspath(name): digest for name, digest in checksums.items()}
    else:
        raise TypeError(f"checksums is {checksums!r}, wanted a dict of file to SHA-256, or the name of a manifest")
    if not given:
        raise ValueError("checksums is empty, wanted one for each file, or None")
    result = []
    for name, digest in given.items():
        match = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
        if match is None:
            raise ValueError(f"checksums: file {name!r} has {digest!r}, wanted 'sha256:' and 64 hexadecimal digits")
        result += [name, match[1].lower()]
    return result


def _read_manifest(path: str) -> dict[str, str]:
    """Reads the checksums of a manifest. The names in a manifest are relative to its folder."""
    with tf.io.gfile.GFile(path) as file:
        lines = file.read().splitlines()
    given = {}
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"checksums: {path} line {number} is {line[:100]!r}, wanted a line of sha256sum's")
        given[os.path.join(os.path.dirname(path), match[2])] = match[1]
    return given
