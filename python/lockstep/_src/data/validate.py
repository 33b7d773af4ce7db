"""Checks that Parquet files have the same columns and can be read."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import tensorflow as tf

from lockstep._src.data.fields import Field, resolve
from lockstep._src.data.parquet import ParquetDataset


def _differences(file: str, fields: Sequence[Field], first: str, wanted: Sequence[Field]) -> str | None:
    """Describes the first difference between the fields of two files; returns None if there is none."""
    if len(fields) != len(wanted):
        return f"{file} has {len(fields)} fields, but {first} has {len(wanted)}"
    # The order of the columns may differ between files, because columns are read by name.
    in_pairs = zip(*(sorted(some, key=lambda field: field.name) for some in (fields, wanted)), strict=True)
    for field, other in in_pairs:
        for attribute in ("name", "dtype", "ragged_rank", "shape"):
            mine, theirs = getattr(field, attribute), getattr(other, attribute)
            if mine != theirs:
                return f"{file} field {field.name!r}: {attribute} is {mine}, but in {first} it is {theirs}"
    return None


def validate(files: Sequence[str], fields: Sequence[str] | None, lower: bool, peek: int) -> None:
    """Checks that all files have the same fields, and reads one batch of each.

    Args:
      files: names of files, patterns or folders; each is read as one dataset.
      fields: names of the columns that all files must have; None for all columns of each file.
      lower: ignores the case of the columns' names.
      peek: number of rows to read from each file.

    Raises:
      ValueError: a file's fields differ from the first file's.
      tf.errors.OpError: a file cannot be read.
    """
    complete = [resolve(fields, [file], ignore_case=lower) for file in files]
    for file, mine in zip(files, complete, strict=True):
        difference = _differences(file, mine, files[0], complete[0])
        if difference:
            raise ValueError(difference)
    print(f"{len(files)} files have the same {len(complete[0])} fields", file=sys.stderr)
    for file in files:
        dataset = ParquetDataset(file, peek, complete[0], partition_count=1, partition_index=0)
        rows = 0
        for batch in dataset.take(1):
            rows = int(tf.nest.flatten(batch)[0].shape[0])
        print(f"{file}: {rows} rows read", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command: returns 0 if all files are right, else prints the error to stderr and returns 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("input_files", nargs="+", help="Parquet files, patterns or folders")
    parser.add_argument("--fields", default="", help="names of columns, with commas; all columns if left out")
    parser.add_argument("--lower", action="store_true", help="ignore the case of columns' names")
    parser.add_argument("--peek", type=int, default=32, help="rows to read from each file")
    args = parser.parse_args(argv)
    try:
        validate(args.input_files, args.fields.split(",") if args.fields else None, args.lower, args.peek)
    except (ValueError, tf.errors.OpError) as error:
        print(f"error: {getattr(error, 'message', None) or error}", file=sys.stderr)
        return 1
    return 0
