"""Common flags of the distributed job (train.py) and the plain one (plain.py), and the plan of a run."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from schema import Schema

MODEL_NAMES = ("dlrm", "wide_and_deep")
OPTIMIZER_NAMES = ("sgd", "momentum", "adagrad", "adam", "ftrl", "rmsprop")


def parser(description: str) -> argparse.ArgumentParser:
    """Returns a parser with the common flags; a program adds its own."""
    flags = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--data", type=Path, help="data to train on, of a kind that data.py knows (generated data)")
    flags.add_argument("--model", choices=MODEL_NAMES, default="dlrm", help="(%(default)s)")
    flags.add_argument("--embedding-dim", type=int, default=16, help="width of the embeddings (%(default)s)")
    flags.add_argument("--batch-size", type=int, help="rows of a step over all workers (recommended for the data)")
    flags.add_argument("--epochs", type=int, help="passes over the training rows (recommended for the data)")
    flags.add_argument("--steps", type=int, help="steps instead of --epochs")
    flags.add_argument("--optimizer", choices=OPTIMIZER_NAMES, default="adagrad", help="(%(default)s)")
    flags.add_argument("--learning-rate", type=float, help="(recommended for the data, with Adagrad)")
    return flags


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of a run: `total_steps` steps of `batch_size` rows, with `steps_per_epoch` steps per pass.

    The data's schema has the values of missing flags. Rows after the last whole batch of a pass are left out, so that
    every step has the same weight for every row.
    """

    batch_size: int
    steps_per_epoch: int
    total_steps: int
    learning_rate: float

    @classmethod
    def of(cls, flags: argparse.Namespace, schema: Schema) -> Plan:
        """Returns the plan that the flags ask for.

        Raises:
          ValueError: the data does not fill a single batch.
        """
        batch_size = flags.batch_size or schema.global_batch
        per_epoch = schema.train_rows // batch_size
        if not per_epoch:
            raise ValueError(f"{flags.data}: {schema.train_rows} training rows do not fill a batch of {batch_size}")
        total = flags.steps or per_epoch * (flags.epochs or schema.epochs)
        return cls(batch_size, per_epoch, total, flags.learning_rate or schema.learning_rate)
