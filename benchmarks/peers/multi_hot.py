"""Generates the data of the multi-hot workload as Parquet and prints its folder: features with several ids each.

A feature of an example has 1 to 2 * ids - 1 ids. The label follows the numeric features and the mean of an effect of
each id, so a model can learn it. A folder that was made with the same settings is used again.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa

import criteo
from data import is_from
from schema import EVAL, LABEL, TRAIN, Schema, SplitWriter, write_folder

CHUNK_ROWS = 4096
SEED = 20240601


@dataclasses.dataclass(frozen=True)
class Options:
    """Settings of the data: rows, mean number of ids of a feature, limit of the tables' rows, exponent of the ids."""

    rows: int
    eval_rows: int
    ids: int
    max_table_rows: int
    zipf: float


class Feature:
    """A feature with several ids."""

    def __init__(self, rows: int, zipf: float, random: np.random.Generator) -> None:
        weights = np.cumsum(np.arange(1, rows + 1) ** -zipf)
        self._cumulative = weights / weights[-1]
        # Frequent ids are spread over the id space, as by hashing.
        self._ids = random.permutation(rows)
        self._effect = random.normal(0, 1, rows)

    def draw(self, lengths: np.ndarray, random: np.random.Generator) -> tuple[pa.ListArray, np.ndarray]:
        """Returns a column of lists of these lengths, all at least 1, and the mean effect of the ids of each."""
        splits = np.concatenate([[0], np.cumsum(lengths)])
        ranks = np.searchsorted(self._cumulative, random.random(splits[-1]))
        ids = self._ids[np.minimum(ranks, len(self._ids) - 1)]
        column = pa.ListArray.from_arrays(pa.array(splits.astype(np.int32)), pa.array(ids))
        return column, np.add.reduceat(self._effect[ids], splits[:-1]) / lengths


def generate(folder: Path, options: Options) -> None:
    """Generates the data in the folder."""
    random = np.random.default_rng(SEED)
    tables = criteo.table_rows(options.max_table_rows)
    features = {name: Feature(rows, options.zipf, random) for name, rows in tables.items()}
    weights = random.normal(0, 0.3, len(criteo.NUMERIC))
    schema = Schema(
        name="multi-hot",
        numeric=criteo.NUMERIC,
        categorical={},
        lists=tables,
        global_batch=CHUNK_ROWS,
        learning_rate=0.01,
        epochs=1,
        row_group_rows=CHUNK_ROWS,
        train_rows=options.rows,
        eval_rows=options.eval_rows,
        origin=_origin(options),
    )

    def draw(rows: int) -> dict:
        numbers = random.standard_normal([len(weights), rows]).astype(np.float32)
        columns: dict = dict(zip(criteo.NUMERIC, numbers, strict=True))
        logits = weights @ numbers - 1
        for name, feature in features.items():
            columns[name], effects = feature.draw(random.integers(1, 2 * options.ids, rows), random)
            logits += effects
        columns[LABEL] = (random.random(rows) < 1 / (1 + np.exp(-logits))).astype(np.float32)
        return columns

    def fill(made: Path) -> Schema:
        for split, rows in ((TRAIN, options.rows), (EVAL, options.eval_rows)):
            with SplitWriter(made, split, schema, rows) as writer:
                for start in range(0, rows, CHUNK_ROWS):
                    writer.write(draw(min(CHUNK_ROWS, rows - start)))
        return schema

    write_folder(folder, fill)


def _origin(options: Options) -> dict:
    return {"kind": "multi-hot", "seed": SEED, **dataclasses.asdict(options)}


def prepared(out: Path, options: Options) -> Path:
    """Returns the folder of the data below `out`, which is generated if it does not exist."""
    folder = out / f"multi-hot-{options.ids}-{options.max_table_rows}"
    if not is_from(folder, _origin(options)):
        generate(folder, options)
    return folder


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--out", type=Path, required=True, help="parent of prepared folders")
    flags.add_argument("--rows", type=int, required=True, help="training rows")
    flags.add_argument("--eval-rows", type=int, required=True, help="held-out rows")
    flags.add_argument("--ids", type=int, required=True, help="mean number of ids of a feature")
    flags.add_argument("--max-table-rows", type=int, required=True, help="limit on the tables' rows")
    flags.add_argument("--zipf", type=float, required=True, help="exponent of the ids' ranks")
    options = vars(flags.parse_args())
    print(prepared(options.pop("out"), Options(**options)))


if __name__ == "__main__":
    main()
