"""Prepares the data of the ranking example as Parquet and prints the folder.

    python examples/ranking/data.py                              # generates Criteo-shaped data
    python examples/ranking/data.py --make movielens             # generates MovieLens-shaped data
    python examples/ranking/data.py --source path/to/ml-100k     # converts MovieLens 100K
    python examples/ranking/data.py --source path/to/train.txt   # converts Criteo's text files

A folder that was prepared from the same source with the same settings is used again.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import hashlib
import json
from pathlib import Path

import criteo
import movielens
from schema import Schema, is_prepared

DEFAULT_OUT = Path("data") / "ranking"


def is_from(folder: Path, origin: dict) -> bool:
    """Returns whether the folder was already prepared from this origin (compared as JSON)."""
    return is_prepared(folder) and Schema.load(folder).origin == json.loads(json.dumps(origin))


def _folder_for(out: Path, kind: str, source: Path) -> Path:
    return out / f"{kind}-{hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:8]}"


def prepare_criteo(out: Path, options: criteo.GeneratorOptions) -> Path:
    """Generates Criteo-shaped data under `out`, unless it exists there. Returns its folder."""
    folder = out / "criteo-generated"
    if not is_from(folder, {"kind": "criteo-generated", **dataclasses.asdict(options)}):
        criteo.generate(folder, options)
    return folder


def prepare_movielens(out: Path, options: movielens.GeneratorOptions) -> Path:
    """Generates MovieLens-shaped text under `out` and converts it. Returns the converted folder."""
    text = out / f"movielens-text-{options.ratings}-{options.users}-{options.items}-{options.seed}"
    if not movielens.is_movielens(text):
        movielens.generate(text, options)
    return prepare(text, out)


def prepare(source: Path, out: Path, max_table_rows: int = 100_000) -> Path:
    """Recognises the content of `source` and converts it to a folder under `out`; returns a prepared folder unchanged.

    Args:
      source: a prepared folder, MovieLens 100K's folder, a text file of Criteo's, or a folder with one such file.
      out: the parent of converted folders.
      max_table_rows: limit on the tables of Criteo's features.

    Raises:
      ValueError: the source has no known content.
    """
    if is_prepared(source):
        return source
    if source.is_dir() and movielens.is_movielens(source):
        folder = _folder_for(out, "movielens", source)
        if not is_from(folder, movielens.describe_source(source)):
            movielens.convert(source, folder)
        return folder
    candidates = [source] if source.is_file() else sorted(source.glob("*.txt")) + sorted(source.glob("*.[ct]sv"))
    texts = [path for path in candidates if criteo.is_criteo_text(path)]
    if len(texts) != 1:
        raise ValueError(
            f"{source}: want a folder with {', '.join(movielens.FILES)} (MovieLens 100K), one text file of "
            f"Criteo's form, or a folder that data.py prepared; found {len(texts)} files of Criteo's form"
        )
    folder = _folder_for(out, "criteo", texts[0])
    if not is_from(folder, criteo.describe_source(texts[0], max_table_rows)):
        criteo.convert(texts[0], folder, max_table_rows)
    return folder


def prepare_once(source: Path | None, out: Path) -> Path:
    """Calls `prepare`, or `prepare_criteo` without a source, in the first of several calling processes.

    The others wait for it, and find its folder. If it dies, the next one takes over.
    """
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return prepare(source, out) if source else prepare_criteo(out, criteo.GeneratorOptions())


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line of the file's head."""
    defaults = criteo.GeneratorOptions()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default="", help="data to convert; empty: generate data")
    parser.add_argument(
        "--make", choices=("criteo", "movielens"), default="criteo", help="kind of data to generate without --source"
    )
    parser.add_argument(
        "--out", type=Path, default=DEFAULT_OUT, help="parent of prepared folders (default: %(default)s)"
    )
    parser.add_argument("--rows", type=int, default=defaults.train_rows, help="generated training rows (%(default)s)")
    parser.add_argument(
        "--eval-rows", type=int, default=defaults.eval_rows, help="generated held-out rows (%(default)s)"
    )
    parser.add_argument(
        "--max-table-rows", type=int, default=defaults.max_table_rows, help="limit on Criteo's tables (%(default)s)"
    )
    parser.add_argument("--zipf", type=float, default=defaults.zipf, help="exponent of the ids' ranks (%(default)s)")
    parser.add_argument(
        "--seed", type=int, default=defaults.seed, help="seed of the generated Criteo data (%(default)s)"
    )
    flags = parser.parse_args(arguments)
    try:
        if flags.source:
            folder = prepare(Path(flags.source), flags.out, flags.max_table_rows)
        elif flags.make == "movielens":
            folder = prepare_movielens(flags.out, movielens.GeneratorOptions())
        else:
            options = criteo.GeneratorOptions(
                train_rows=flags.rows,
                eval_rows=flags.eval_rows,
                max_table_rows=flags.max_table_rows,
                zipf=flags.zipf,
                seed=flags.seed,
            )
            folder = prepare_criteo(flags.out, options)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(folder)


if __name__ == "__main__":
    main()
