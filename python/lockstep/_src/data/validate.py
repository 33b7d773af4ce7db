"""Checks that Parquet files have the same columns and can be read."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import tensorflow as tf

from lockstep._src.data.fields import Field, resolve
from lockstep._src.data.parquet import ParquetDataset


def _differences(file: str, fields: Sequence[Field], first: str, wanted: Sequence[Field]) -> str | None:
    """What is different, in words; None where nothing is."""
    if len(fields) != len(wanted):
        return f"{file} has {len(fields)} fields, and {first} has {len(wanted)}"
    # Files may have their columns in different orders: they are read by name.
    in_pairs = zip(*(sorted(some, key=lambda field: field.name) for some in (fields, wanted)), strict=True)
    for field, other in in_pairs:
        for attribute in ("name", "dtype", "ragged_rank", "shape"):
            mine, theirs = getattr(field, attribute), getattr(other, attribute)
            if mine != theirs:
                return f"{file} field {field.name!r}: {attribute} is {mine}, and in {first} it is {theirs}"
    return None


def validate(files: Sequence[str], fields: Sequence[str] | None, lower: bool, peek: int) -> None:
    """Raises ValueError or `tf.errors.OpError` for the first file that is not right.

    Args:
      files: names of files, patterns or folders; each is read as one dataset.
      fields: names of the columns that all must have; None for all columns of each.
      lower: finds columns whatever the case of their names.
      peek: rows that are read of each.
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
    """The command: 0 where all files are right, else 1 and what is wrong on stderr."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("input_files", nargs="+", help="Parquet files, patterns or folders")
    parser.add_argument("--fields", default="", help="names of columns, with commas; all columns if left out")
    parser.add_argument("--lower", action="store_true", help="find columns whatever the case of their names")
    parser.add_argument("--peek", type=int, default=32, help="rows to read of each file")
    args = parser.parse_args(argv)
    try:
        validate(args.input_files, args.fields.split(",") if args.fields else None, args.lower, args.peek)
    except (ValueError, tf.errors.OpError) as error:
        print(f"error: {getattr(error, 'message', None) or error}", file=sys.stderr)
        return 1
    return 0
