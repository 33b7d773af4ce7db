"""The program of the README runs on two workers, as it is written and with the command beside it.

The programs of HybridBackend's and DeepRec's pages also run by the commands beside them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from tests.scripts.documents import run_launcher

ROOT = Path(__file__).resolve().parents[2]
# Programs, each with the commands below it.
_BLOCKS = re.compile(r"```python\n(.*?)```\n\n```bash\n(.*?)```", re.S)
(TRAIN, COMMAND), (CLICKS, _) = _BLOCKS.findall((ROOT / "README.md").read_text())

# The README is one page.
MOST_LINES = 130


def run(program: str, text: str, folder: Path) -> list[str]:
    """Runs a program by the command below it. Returns the output of each worker."""
    command = re.sub(r"\s+#.*", "", text.strip()).split()
    if "clicks.parquet" in program:
        subprocess.run([sys.executable, "-c", CLICKS], cwd=folder, check=True, timeout=100)
    (folder / command[-1]).write_text(program)
    tools = {"python": [sys.executable], "lockstep": [sys.executable, "-m", "lockstep"]}
    words = [part for word in command for part in tools.get(word, [word])]
    return run_launcher(words, folder, 2, {"CUDA_VISIBLE_DEVICES": ""}, timeout_s=300)


@pytest.mark.skipif(getattr(tf.keras, "__version__", "2") < "3", reason="TensorFlow before 2.16 has no Keras 3")
def test_the_program_of_keras_trains_exports_and_serves(tmp_path):
    first, second = run(TRAIN, COMMAND, tmp_path)
    assert "[[" in first and first[first.index("tf.Tensor") :] == second[second.index("tf.Tensor") :]
    aucs = [float(value) for value in re.findall(r"auc: (\S+)", first)]
    assert aucs == [float(value) for value in re.findall(r"auc: (\S+)", second)]
    assert len(aucs) == 3 and aucs[-1] > 0.9
    model = tf.saved_model.load(str(tmp_path / "served"))
    columns = {"user": tf.range(1000, dtype=tf.int64), "query": tf.fill([1000], "unknown words")}
    served = model.serve(columns).numpy()[:, 0]
    assert served[1::2].mean() > served[::2].mean() + 0.3  # users with odd numbers click


@pytest.mark.parametrize(("name", "program"), [("train", TRAIN), ("clicks", CLICKS)])
def test_the_program_of_keras_and_its_data_are_the_example(name, program):
    assert (ROOT / f"examples/keras/{name}.py").read_text().endswith('"""\n\n' + program)


def test_the_readme_is_one_page():
    assert len((ROOT / "README.md").read_text().splitlines()) <= MOST_LINES


def test_the_program_of_hybridbackend_trains_by_its_own_launcher(tmp_path):
    program, command = _BLOCKS.findall((ROOT / "docs/hybridbackend.md").read_text())[0]
    run(program, command.splitlines()[1], tmp_path)
    checkpoint = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(tmp_path / "checkpoints")))
    assert checkpoint.get_tensor("global_step") == 8192 // 64 // 2
    assert checkpoint.get_variable_to_shape_map()["model/user"] == [1000, 16]


def test_the_program_of_deeprec_trains_by_its_own_launcher(tmp_path):
    program, command = _BLOCKS.findall((ROOT / "docs/deeprec.md").read_text())[0]
    command = command.partition("COLLECTIVE_STRATEGY=hb ")[2].replace("launch python", "launch -n 2 python")
    assert len(run(program, command, tmp_path)) == 2
