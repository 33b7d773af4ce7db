"""Scores held-out rows with an exported model in stock TensorFlow: this process never imports Lockstep.

python examples/ranking/serve.py --model EXPORT_FOLDER --data PREPARED_FOLDER --rows 1000 --out scores.npy
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

import reader
from inputs import serialize_examples
from schema import EVAL, Schema

_BATCH = 4096
_FOREIGN = ("lockstep", "hybridbackend")


def scores(model: str | Path, data: str | Path, rows: int) -> np.ndarray:
    """Returns the scores [rows] of the first held-out rows, from the model's serving signature.

    Args:
      model: folder of the SavedModel.
      data: folder that data.py prepared.
      rows: the number of rows; fewer if there are no more.
    """
    schema = Schema.load(data)
    serve = tf.saved_model.load(str(model)).signatures["serving_default"]
    examples = serialize_examples(reader.head(data, EVAL, rows), schema)
    parts = [serve(examples=tf.constant(examples[i : i + _BATCH]))["score"] for i in range(0, len(examples), _BATCH)]
    return np.concatenate([part.numpy() for part in parts])


def main() -> None:
    """Scores the rows and writes a .npy file."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--model", type=Path, required=True, help="folder of the SavedModel")
    flags.add_argument("--data", type=Path, required=True, help="folder that data.py prepared")
    flags.add_argument("--rows", type=int, default=1000, help="held-out rows to score (%(default)s)")
    flags.add_argument("--out", type=Path, required=True, help="file for the scores")
    given = flags.parse_args()
    np.save(given.out, scores(given.model, given.data, given.rows))
    loaded = [name for name in _FOREIGN if name in sys.modules]
    if loaded:
        raise RuntimeError(f"serving must do without {', '.join(loaded)}, but something imported it")


if __name__ == "__main__":
    main()
