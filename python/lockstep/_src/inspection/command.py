"""The command line of `lockstep inspect`. TensorFlow and pyarrow are imported when a file needs them."""

import argparse
import contextlib
import importlib
import json
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from lockstep._src.inspection.description import Description, InspectError, lines_of
from lockstep.launch.base.known_lines import StartUpLines, holds_start_up_lines
from lockstep.launch.base.printing import print_error, print_text

_MAGIC_BYTES = 8
_EXPORT = re.compile("[0-9]+")  # the name of an export
# The first bytes of Keras' files; `keras_files` is imported when it is needed.
_ZIP, _HDF5 = b"PK\3\4", b"\x89HDF\r\n\x1a\n"


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the options."""
    line = argparse.ArgumentParser(
        prog="lockstep inspect",
        description="Describes a checkpoint (its prefix, its .index file, or its folder), an export, a file of Keras "
        "(.keras, .weights.h5), or Parquet and ORC files (or a folder of them): tables, rows, widths, slots, layers, "
        "weights, sizes, who wrote it, schema, row groups.",
    )
    line.add_argument("path", help="the file or folder")
    line.add_argument("--checksums", action="store_true", help="also compute the SHA-256 of Parquet and ORC files")
    line.add_argument("--quiet", action="store_true", help="only check whether the file can be read")
    line.add_argument("--json", action="store_true", help="print one JSON object; sizes are in bytes")
    return line


def main(arguments: Sequence[str]) -> int:
    """Prints the description; returns 1 if the file is damaged, foreign or missing, else 0."""
    options = parser().parse_args(arguments)
    try:
        described = describe(options.path, options.checksums)
    except InspectError as error:
        print_error("lockstep inspect", error)
        return 1
    except OSError as error:
        print_error("lockstep inspect", f"{error.filename or options.path}: {error.strerror or error}")
        return 1
    if options.json:
        print_text(json.dumps(described))
    elif not options.quiet:
        print_text("\n".join(lines_of(described)))
    return 0


def describe(path: str, checksums: bool = False) -> Description:
    """Describes a file or folder, by its content and not by its name.

    Args:
      path: The file, the folder, or the prefix of a checkpoint.
      checksums: Whether to compute the checksums of Parquet and ORC files.

    Raises:
      InspectError: it is damaged, missing, or none of the known kinds.
    """
    if os.path.isdir(path):
        # A pipe would make its reader wait.
        names = [name for name in os.listdir(path) if not _is_special(os.path.join(path, name))]
        if "saved_model.pb" in names:
            return _module("exports").describe(path)
        if "checkpoint" in names or any(name.endswith(".index") for name in names):
            return _module("checkpoints").describe_folder(path)
        exports = [
            name
            for name in names
            if _EXPORT.fullmatch(name) and os.path.isfile(os.path.join(path, name, "saved_model.pb"))
        ]
        if exports:  # made by hb.train.export: the last one counts, as for TensorFlow's servers
            return _module("exports").describe(os.path.join(path, max(exports, key=int)))
        files = sorted(
            os.path.join(at, name)
            for at, _, found in os.walk(path)
            for name in found
            if name.endswith((".parquet", ".orc")) and os.path.isfile(os.path.join(at, name))
        )
        if files:
            return _module("columnar_files").describe(files, checksums)
        raise InspectError(f"{path}: this folder has no checkpoint, no export, and no Parquet or ORC file")
    if os.path.basename(path) == "saved_model.pb" and not _is_special(path):
        return _module("exports").describe(os.path.dirname(path) or ".")
    prefix = path.removesuffix(".index")
    if os.path.isfile(f"{prefix}.index"):
        return _module("checkpoints").describe(prefix)
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InspectError(f"{path}: is not a regular file")
            begin = file.read(_MAGIC_BYTES)
    except OSError as error:
        raise InspectError(f"{path}: {error.strerror}") from None
    if begin.startswith((b"PAR1", b"ORC")) or path.endswith((".parquet", ".orc")):
        return _module("columnar_files").describe([path], checksums)
    if begin.startswith((_ZIP, _HDF5)):
        return _module("keras_files").describe(path)
    raise InspectError(
        f"{path}: got first bytes {begin!r}, wanted a checkpoint's index or a file of Keras, Parquet or ORC"
    )


def _is_special(path: str) -> bool:
    """Returns whether the path names a pipe, a device or a socket."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _module(name: str) -> Any:
    with _calm():
        return importlib.import_module(f"lockstep._src.inspection.{name}")


@contextlib.contextmanager
def _calm() -> Iterator[None]:
    """Holds back TensorFlow's start-up lines on stderr inside the block; all lines are shown if it fails."""
    if not holds_start_up_lines(os.environ):
        yield
        return
    sys.stderr.flush()
    stderr, start_up = os.dup(2), StartUpLines()
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        failed = True
        try:
            yield
            failed = False
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            for line in held.read().splitlines():
                if failed or not start_up.holds(line):
                    os.write(2, line + b"\n")
