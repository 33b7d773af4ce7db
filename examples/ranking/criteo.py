"""Criteo-shaped data: 13 numeric and 26 categorical features, generated or converted from Criteo's own files.

Numeric features are counts with missing values. They are stored as log(1 + count), with 0 for missing and negative
values, as in Criteo's and DLRM's published pipelines. A categorical value becomes an id below its table's rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from tqdm import tqdm

from schema import EVAL, LABEL, TRAIN, Schema, SplitWriter, write_folder

NUMERIC = tuple(f"I{i}" for i in range(1, 14))
CATEGORICAL = tuple(f"C{i}" for i in range(1, 27))
# Distinct values of the 26 categorical features of the Kaggle display advertising challenge.
# fmt: off
KAGGLE_CARDINALITIES = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652,
    2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)
# fmt: on
POSITIVE_RATE = 0.256  # of the Kaggle data
_CHUNK_ROWS = 65536
_ROW_GROUP_ROWS = 65536
_LEARNING_RATE = 0.02
_HELD_OUT = 0.1


@dataclasses.dataclass(frozen=True)
class GeneratorOptions:
    """Settings of the generated data.

    Attributes:
      train_rows, eval_rows: rows of the two splits.
      max_table_rows: the limit of cardinalities, so that tables fit a small machine.
      zipf: exponent of the ids' distribution by rank.
      effect_stddev: standard deviation of one id's effect on the teacher's logit; larger is easier to learn.
      global_batch: recommended rows of a training step.
      files: files of the training split.
      seed: the same seed gives the same files.
    """

    train_rows: int = 1 << 20
    eval_rows: int = 1 << 16
    max_table_rows: int = 100_000
    zipf: float = 1.2
    effect_stddev: float = 0.35
    global_batch: int = 4096
    files: int = 4
    seed: int = 20240601

    def validate(self) -> None:
        """Raises ValueError for settings that cannot be used."""
        for name in ("train_rows", "eval_rows", "max_table_rows", "global_batch", "files"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


def table_rows(max_table_rows: int) -> dict[str, int]:
    """Returns the rows of the 26 embedding tables."""
    return {name: min(n, max_table_rows) for name, n in zip(CATEGORICAL, KAGGLE_CARDINALITIES, strict=True)}


class Teacher:
    """The hidden model that draws labels: an effect per id and per numeric feature, and products of pairs of features.

    A dot interaction can learn the pairs, and a linear model cannot.
    """

    _PAIRS = (("C1", "C2"), ("C7", "C11"), ("C18", "C19"), ("C5", "C8"))
    _FACTORS = 4

    def __init__(self, options: GeneratorOptions):
        rng = np.random.default_rng(options.seed)
        self._options = options
        self._rows = table_rows(options.max_table_rows)
        self._cdf, self._ids, self._effect = {}, {}, {}
        for name, rows in self._rows.items():
            cdf = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -options.zipf)
            self._cdf[name] = cdf / cdf[-1]
            # Frequent ids are spread over the id space, as by hashing.
            self._ids[name] = rng.permutation(rows)
            self._effect[name] = rng.normal(0, options.effect_stddev, rows)
        paired = sorted({name for pair in self._PAIRS for name in pair})
        self._factor = {name: rng.normal(0, 0.5, (self._rows[name], self._FACTORS)) for name in paired}
        self._weight = rng.normal(0, 0.3, len(NUMERIC))
        self._scale = rng.uniform(0.5, 1.5, len(NUMERIC))
        self._missing = rng.uniform(0, 0.3, len(NUMERIC))
        self._bias = 0.0
        self._bias = self._calibrate()

    def _calibrate(self) -> float:
        """Returns the bias that gives the published share of positive labels (bisection on a sample)."""
        logits = self._features(np.random.default_rng([self._options.seed, 2**31]), _CHUNK_ROWS)[1]
        low, high = -20.0, 20.0
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if _sigmoid(logits + middle).mean() < POSITIVE_RATE else (low, middle)
        return low

    def _features(self, rng: np.random.Generator, rows: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Draws rows. Returns their columns, and the teacher's logits [rows]."""
        columns: dict[str, np.ndarray] = {}
        logits = np.full(rows, self._bias)
        for j, name in enumerate(NUMERIC):
            normal = rng.standard_normal(rows)
            present = rng.random(rows) >= self._missing[j]
            counts = np.floor(np.exp(1.5 + self._scale[j] * normal))
            columns[name] = log_transform(np.where(present, counts, np.nan))
            logits += self._weight[j] * np.where(present, normal, 0)
        for name in CATEGORICAL:
            rank = np.searchsorted(self._cdf[name], rng.random(rows), side="right")
            ids = self._ids[name][np.minimum(rank, self._rows[name] - 1)]
            columns[name] = ids
            logits += self._effect[name][ids]
        for first, second in self._PAIRS:
            logits += (self._factor[first][columns[first]] * self._factor[second][columns[second]]).sum(1)
        return columns, logits

    def draw(self, rng: np.random.Generator, rows: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Draws rows with labels. Returns their columns, and the logits that determined the labels."""
        columns, logits = self._features(rng, rows)
        columns[LABEL] = (rng.random(rows) < _sigmoid(logits)).astype(np.float32)
        return columns, logits


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def log_transform(counts: np.ndarray) -> np.ndarray:
    """Returns log(1 + count) as float32; 0 for missing (NaN) and negative counts."""
    return np.log1p(np.maximum(np.nan_to_num(counts, nan=0.0), 0)).astype(np.float32)


def generate(out: str | Path, options: GeneratorOptions | None = None) -> Schema:
    """Generates a seeded data set of Criteo's shape in the folder `out`; shows its progress on stderr."""
    options = options or GeneratorOptions()
    options.validate()
    teacher = Teacher(options)
    origin = {"kind": "criteo-generated", **dataclasses.asdict(options)}
    schema = Schema(
        name="Criteo-shaped",
        numeric=NUMERIC,
        categorical=table_rows(options.max_table_rows),
        lists={},
        global_batch=options.global_batch,
        learning_rate=_LEARNING_RATE,
        epochs=1,
        row_group_rows=_ROW_GROUP_ROWS,
        train_rows=options.train_rows,
        eval_rows=options.eval_rows,
        origin=origin,
    )

    def fill(folder: Path) -> Schema:
        total = options.train_rows + options.eval_rows
        with tqdm(total=total, unit="rows", unit_scale=True, desc="Making data", disable=None) as bar:
            for number, (split, rows) in enumerate(((TRAIN, options.train_rows), (EVAL, options.eval_rows))):
                file_rows = -(-rows // options.files) if split == TRAIN else rows
                with SplitWriter(folder, split, schema, file_rows) as writer:
                    for chunk, start in enumerate(range(0, rows, _CHUNK_ROWS)):
                        rng = np.random.default_rng([options.seed, number, chunk])
                        n = min(_CHUNK_ROWS, rows - start)
                        writer.write(teacher.draw(rng, n)[0])
                        bar.update(n)
        return schema

    return write_folder(out, fill)


def is_criteo_text(path: Path) -> bool:
    """Returns whether the file is Criteo's text form: 40 fields, by tabs without header or by commas with one."""
    with path.open("rb") as file:
        line = file.readline(1 << 16).rstrip(b"\r\n")
    return line.count(b"\t") == 39 or (line.startswith(b"label,") and line.count(b",") == 39)


def _count_rows(path: Path) -> int:
    """Returns the number of lines with content, without the header."""
    rows, last = 0, b"\n"
    with path.open("rb") as file:
        header = b"\t" not in file.readline(1 << 16)
        file.seek(0)
        while block := file.read(1 << 24):
            rows += block.count(b"\n")
            last = block[-1:]
    return rows + (last != b"\n") - header


def _read_text(path: Path) -> Iterator[pa.RecordBatch]:
    """Streams the file's rows: label and counts as float64, categorical values as strings, null where empty."""
    names = [LABEL, *NUMERIC, *CATEGORICAL]
    with path.open("rb") as file:
        tabs = b"\t" in file.readline(1 << 16)
    types = dict.fromkeys((LABEL, *NUMERIC), pa.float64()) | dict.fromkeys(CATEGORICAL, pa.string())
    return pyarrow.csv.open_csv(
        path,
        pyarrow.csv.ReadOptions(column_names=names if tabs else None, block_size=1 << 23),
        pyarrow.csv.ParseOptions(delimiter="\t" if tabs else ",", quote_char=False),
        pyarrow.csv.ConvertOptions(column_types=types, include_columns=names, strings_can_be_null=True),
    )


def hash_ids(values: pa.Array, rows: int, column: str) -> np.ndarray:
    """Returns ids in [0, rows): 0 for a missing value, otherwise 1 + value mod (rows - 1).

    Values are hexadecimal numbers. Criteo publishes 32-bit hashes of the true values, which need no second hash.

    Raises:
      ValueError: a value is not hexadecimal.
    """
    encoded = pc.dictionary_encode(values)
    try:
        numbers = [int(value, 16) for value in encoded.dictionary.to_pylist()]
    except ValueError as error:
        raise ValueError(f"column {column}: want hexadecimal values as in Criteo's files, {error}") from None
    ids = np.array([1 + number % (rows - 1) for number in numbers] + [0], np.int64)
    return ids[pc.fill_null(encoded.indices, len(numbers)).to_numpy(zero_copy_only=False)]


def convert(source: str | Path, out: str | Path, max_table_rows: int = 100_000, global_batch: int = 4096) -> Schema:
    """Converts Criteo's text form (tabs without header, or commas with one), and holds out the last tenth of the rows.

    Rows keep their order, which is the order of time. A small file gets small tables and batches.

    Args:
      source: the text file.
      out: the folder to make.
      max_table_rows: hashing reduces larger tables to this size.
      global_batch: recommended rows of a training step.

    Raises:
      ValueError: the file is not of that form; the message names the line or the column.
    """
    source = Path(source)
    if not is_criteo_text(source):
        raise ValueError(f"{source}: want 40 fields a line, label, 13 counts and 26 categorical values")
    total = _count_rows(source)
    held_out = round(total * _HELD_OUT)
    if not held_out:
        raise ValueError(f"{source}: {total} rows are too few to hold out a tenth")
    rows = {name: max(2, n) for name, n in table_rows(min(max_table_rows, 4 * total)).items()}
    while global_batch > 4 and global_batch * 8 > total:
        global_batch //= 2
    schema = Schema(
        name=f"Criteo ({source.name})",
        numeric=NUMERIC,
        categorical=rows,
        lists={},
        global_batch=global_batch,
        learning_rate=_LEARNING_RATE,
        epochs=1,
        row_group_rows=_ROW_GROUP_ROWS,
        train_rows=total - held_out,
        eval_rows=held_out,
        origin=describe_source(source, max_table_rows),
    )

    def fill(folder: Path) -> Schema:
        with (
            SplitWriter(folder, TRAIN, schema, 1 << 22) as train,
            SplitWriter(folder, EVAL, schema, 1 << 22) as held,
            tqdm(total=total, unit="rows", unit_scale=True, desc=f"Converting {source.name}", disable=None) as bar,
        ):
            done = 0
            for batch in _read_text(source):
                columns = {LABEL: batch[LABEL].cast(pa.float32())}
                for name in NUMERIC:
                    columns[name] = log_transform(batch[name].to_numpy(zero_copy_only=False))
                for name in CATEGORICAL:
                    columns[name] = hash_ids(batch[name], rows[name], name)
                cut = min(max(schema.train_rows - done, 0), batch.num_rows)
                train.write({name: column[:cut] for name, column in columns.items()})
                held.write({name: column[cut:] for name, column in columns.items()})
                done += batch.num_rows
                bar.update(batch.num_rows)
            if done != total:
                raise ValueError(f"{source}: read {done} rows, counted {total} lines")
        return schema

    return write_folder(out, fill)


def describe_source(source: Path, max_table_rows: int) -> dict:
    """Returns the properties of a source by which a converted folder recognizes it."""
    state = source.stat()
    return {
        "kind": "criteo-text",
        "path": str(source.resolve()),
        "bytes": state.st_size,
        "modified_ns": state.st_mtime_ns,
        "max_table_rows": max_table_rows,
    }
