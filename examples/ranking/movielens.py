"""MovieLens 100K: the converter to Parquet, and generated data in the same three files.

A row is one rating. The label is 1 from 4 stars on. Features: user, item, gender, occupation, zip code and hour of day
(categorical), age (numeric, years / 100), genres (a list). The last tenth of the ratings by time is held out.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from schema import EVAL, LABEL, TRAIN, Schema, SplitWriter, write_folder

FILES = ("u.data", "u.item", "u.user")
# fmt: off
GENRES = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy",
    "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
)
# fmt: on
_COLUMNS = {
    "u.data": ("user", "item", "rating", "timestamp"),
    "u.item": ("item", "title", "releaseDate", "videoReleaseDate", "imdbURL", *GENRES),
    "u.user": ("user", "age", "gender", "occupation", "zip"),
}
_TEXT = ("title", "releaseDate", "videoReleaseDate", "imdbURL", "gender", "occupation", "zip")
_HELD_OUT = 0.1
_LEARNING_RATE = 0.05
_EPOCHS = 5
_GLOBAL_BATCH = 1024
_ROW_GROUP_ROWS = 8192
_SECONDS_PER_HOUR = 3600


def is_movielens(folder: str | Path) -> bool:
    """Returns whether the folder has the three files of MovieLens 100K."""
    return all((Path(folder) / name).is_file() for name in FILES)


def _read(folder: Path, name: str) -> dict[str, np.ndarray]:
    """Reads one of the files: fields by '|' with a header, or GroupLens' form without header (u.data by tabs)."""
    path = folder / name
    names = _COLUMNS[name]
    with path.open("rb") as file:
        first = file.readline().decode("latin-1")
    delimiter = "\t" if "\t" in first else "|"
    header = first.startswith(names[0] + delimiter)
    if first.count(delimiter) + 1 != len(names):
        raise ValueError(f"{path}: want {len(names)} fields a line ({', '.join(names)}), got {first.strip()!r}")
    table = pyarrow.csv.read_csv(
        path,
        pyarrow.csv.ReadOptions(encoding="latin-1", column_names=names, skip_rows=int(header)),
        pyarrow.csv.ParseOptions(delimiter=delimiter, quote_char=False),
        pyarrow.csv.ConvertOptions(
            column_types={column: pa.string() if column in _TEXT else pa.int64() for column in names}
        ),
    )
    return {column: table[column].to_numpy() for column in names}


def _rows_of(keys: np.ndarray, wanted: np.ndarray, name: str) -> np.ndarray:
    """Returns the row of each wanted key; keys are distinct."""
    order = np.argsort(keys, kind="stable")
    position = np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)
    rows = order[position]
    if not np.array_equal(keys[rows], wanted):
        missing = wanted[keys[rows] != wanted][0]
        raise ValueError(f"u.data rates {name} {missing}, which u.{name} lacks")
    return rows


def _genre_lists(items: dict[str, np.ndarray], rows: np.ndarray) -> pa.ListArray:
    """Returns the genres of the items at `rows`, as lists of the positions in GENRES whose flag is 1."""
    flags = np.stack([items[genre] for genre in GENRES], axis=1)[rows] == 1
    offsets = np.concatenate([[0], np.cumsum(flags.sum(1))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.nonzero(flags)[1], pa.int64()))


def read_columns(folder: str | Path) -> tuple[dict, dict[str, int]]:
    """Returns the ratings in order of time (ties as in the file), and the rows of each categorical feature's table."""
    folder = Path(folder)
    ratings, items, users = (_read(folder, name) for name in FILES)
    order = np.argsort(ratings["timestamp"], kind="stable")
    ratings = {name: column[order] for name, column in ratings.items()}
    of_user = _rows_of(users["user"], ratings["user"], "user")
    of_item = _rows_of(items["item"], ratings["item"], "item")
    columns: dict = {
        LABEL: (ratings["rating"] >= 4).astype(np.float32),
        "age": (users["age"][of_user] / 100).astype(np.float32),
        "user": ratings["user"],
        "item": ratings["item"],
        "hour": ratings["timestamp"] // _SECONDS_PER_HOUR % 24,
    }
    rows = {"user": int(users["user"].max()) + 1, "item": int(items["item"].max()) + 1, "hour": 24}
    for name in ("gender", "occupation", "zip"):
        words, ids = np.unique(users[name].astype(str), return_inverse=True)
        columns[name], rows[name] = ids[of_user].astype(np.int64), len(words)
    columns["genres"] = _genre_lists(items, of_item)
    return columns, rows


def _take(columns: dict, rows: np.ndarray) -> dict:
    return {name: c.take(pa.array(rows)) if isinstance(c, pa.Array) else c[rows] for name, c in columns.items()}


def convert(source: str | Path, out: str | Path, global_batch: int = _GLOBAL_BATCH, seed: int = 1) -> Schema:
    """Converts the three files; training rows are shuffled (seeded), held-out rows stay in the order of time.

    Args:
      source: folder with u.data, u.item and u.user.
      out: the folder to make.
      global_batch: recommended rows of a training step.
      seed: the shuffle's seed.

    Raises:
      ValueError: a file has other fields, or a rating names an unknown user or item.
    """
    columns, rows = read_columns(source)
    total = len(columns[LABEL])
    held_out = round(total * _HELD_OUT)
    if not held_out:
        raise ValueError(f"{source}: {total} ratings are too few to hold out a tenth")
    schema = Schema(
        name="MovieLens",
        numeric=("age",),
        categorical=rows,
        lists={"genres": len(GENRES)},
        global_batch=global_batch,
        learning_rate=_LEARNING_RATE,
        epochs=_EPOCHS,
        row_group_rows=_ROW_GROUP_ROWS,
        train_rows=total - held_out,
        eval_rows=held_out,
        origin=describe_source(Path(source), seed),
    )
    shuffled = np.random.default_rng(seed).permutation(schema.train_rows)

    def fill(folder: Path) -> Schema:
        for split, picked in ((TRAIN, shuffled), (EVAL, np.arange(schema.train_rows, total))):
            with SplitWriter(folder, split, schema, file_rows=-(-schema.train_rows // 2)) as writer:
                writer.write(_take(columns, picked))
        return schema

    return write_folder(out, fill)


def describe_source(source: Path, seed: int = 1) -> dict:
    """Returns the properties of a source by which a converted folder recognizes it."""
    states = [(source / name).stat() for name in FILES]
    return {
        "kind": "movielens",
        "path": str(source.resolve()),
        "bytes": [state.st_size for state in states],
        "modified_ns": [state.st_mtime_ns for state in states],
        "seed": seed,
    }


@dataclasses.dataclass(frozen=True)
class GeneratorOptions:
    """Size and seed of generated ratings; the defaults match MovieLens 100K."""

    ratings: int = 100_000
    users: int = 943
    items: int = 1682
    seed: int = 7


def _write_text(path: Path, columns: list) -> None:
    lines = ("|".join(map(str, row)) for row in zip(*columns, strict=True))
    path.write_text("\n".join(["|".join(_COLUMNS[path.name]), *lines]) + "\n")


def generate(folder: str | Path, options: GeneratorOptions | None = None) -> None:
    """Writes u.data, u.item and u.user with ratings of a hidden model: biases, taste by genre, and latent factors."""
    options = options or GeneratorOptions()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(options.seed)
    n_users, n_items, n = options.users, options.items, options.ratings
    flags = rng.random((n_items, len(GENRES))) < 0.09
    flags[np.arange(n_items), rng.integers(1, len(GENRES), n_items)] = True
    blank = np.full(n_items, "")
    numbers = np.arange(1, n_items + 1)
    titles = [f"Film {i}" for i in numbers]
    _write_text(folder / "u.item", [numbers, titles, blank, blank, blank, *flags.T.astype(int)])

    jobs = np.array(["artist", "doctor", "educator", "engineer", "librarian", "other", "programmer", "student"])
    sex, job = rng.integers(0, 2, n_users), rng.integers(0, len(jobs), n_users)
    zips = [f"{z:05d}" for z in rng.integers(0, 800, n_users) * 120]
    ages = rng.integers(10, 70, n_users)
    _write_text(folder / "u.user", [np.arange(1, n_users + 1), ages, np.array(["F", "M"])[sex], jobs[job], zips])

    # Popularity decreases with rank. A pair may be rated twice, which the converter accepts.
    user = rng.choice(n_users, n, p=_popularity(n_users, 0.6, rng))
    item = rng.choice(n_items, n, p=_popularity(n_items, 0.8, rng))
    taste = rng.normal(0, 0.35, (len(jobs), len(GENRES)))
    shown = flags / flags.sum(1, keepdims=True)
    score = (
        rng.normal(0, 0.45, n_users)[user]
        + rng.normal(0, 0.6, n_items)[item]
        + 2 * (taste[job[user]] * shown[item]).sum(1)
        + (rng.normal(0, 0.6, (n_users, 4))[user] * rng.normal(0, 0.6, (n_items, 4))[item]).sum(1)
        + rng.normal(0, 0.8, n)
    )
    stars = np.clip(np.round(3.6 + 1.05 * score), 1, 5).astype(int)
    seconds = 874_724_710 + rng.integers(0, 18_500_000, n)
    _write_text(folder / "u.data", [user + 1, item + 1, stars, seconds])


def _popularity(n: int, exponent: float, rng: np.random.Generator) -> np.ndarray:
    weights = rng.permutation(np.arange(1, n + 1) ** -exponent)
    return weights / weights.sum()
