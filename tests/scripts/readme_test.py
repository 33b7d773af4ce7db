"""The README's program, with a model for `my_model` and a smaller table."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

ROOT = Path(__file__).resolve().parents[2]

MODEL = """
import tensorflow as tf

def my_model(user, features):
  return tf.losses.sigmoid_cross_entropy(features['label'], tf.reduce_sum(user, axis=1))

"""


def test_the_program_trains_on_two_workers_with_the_command_beside_it(tmp_path):
    text = (ROOT / "README.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.S)
    (command,) = re.findall(r"^python (-m hybridbackend.run .*? main.py)", text, re.M)
    rng = np.random.default_rng(0)
    user = rng.integers(0, 1000, 8192)
    pq.write_table(pa.table({"user": user, "label": (user % 2).astype(np.float32)}), tmp_path / "day_0.parquet")
    (tmp_path / "main.py").write_text(MODEL + program.replace("1_000_000", "1_000"))
    words = [sys.executable if word == "python" else word for word in ["python", *command.split()]]
    run = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert run.returncode == 0, run.stderr
    checkpoint = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(tmp_path / "ckpt")))
    assert checkpoint.get_tensor("global_step") == 8192 // 1024 // 2
    assert checkpoint.get_variable_to_shape_map()["user"] == [1000, 16]
