"""Each program of the README runs on two workers, as it is written and with the commands beside it.

HybridBackend's program gets a smaller table.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from tests.scripts.documents import run_launcher
from tests.scripts.page_blocks import blocks

ROOT = Path(__file__).resolve().parents[2]
# The README's programs, each with the commands below it.
BLOCKS = re.findall(r"```python\n(.*?)```\n\n```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.S)

CLICKS = BLOCKS[1][0]


def _first_program(page: str) -> str:
    return next(block.code for block in blocks(ROOT / f"docs/{page}.md") if block.language == "python")


def run(library: str, folder: Path, edit=lambda program: program) -> list[str]:
    """Runs the program that imports a library by the commands below it. Returns the output of each worker."""
    imports = re.compile(rf"^(import|from) {re.escape(library)}\b", re.M)
    ((program, text),) = [block for block in BLOCKS if imports.search(block[0])]
    command = re.sub(r"\s+#.*", "", text.strip()).split()
    if "clicks.parquet" in program:
        subprocess.run([sys.executable, "-c", CLICKS], cwd=folder, check=True, timeout=100)
    (folder / command[-1]).write_text(edit(program))
    tools = {"python": [sys.executable], "lockstep": [sys.executable, "-m", "lockstep"]}
    words = [part for word in command for part in tools.get(word, [word])]
    return run_launcher(words, folder, 2, {"CUDA_VISIBLE_DEVICES": ""}, timeout_s=300)


@pytest.mark.skipif(getattr(tf.keras, "__version__", "2") < "3", reason="TensorFlow before 2.16 has no Keras 3")
def test_the_program_of_keras_trains_exports_and_serves(tmp_path):
    first, second = run("lockstep", tmp_path)
    assert "[[" in first and first[first.index("tf.Tensor") :] == second[second.index("tf.Tensor") :]
    aucs = [float(value) for value in re.findall(r"auc: (\S+)", first)]
    assert aucs == [float(value) for value in re.findall(r"auc: (\S+)", second)]
    assert len(aucs) == 3 and aucs[-1] > 0.9
    model = tf.saved_model.load(str(tmp_path / "served"))
    columns = {"user": tf.range(1000, dtype=tf.int64), "query": tf.fill([1000], "unknown words")}
    served = model.serve(columns).numpy()[:, 0]
    assert served[1::2].mean() > served[::2].mean() + 0.3  # users with odd numbers click


@pytest.mark.parametrize(("name", "program"), [("train", BLOCKS[0][0]), ("clicks", CLICKS)])
def test_the_program_of_keras_and_its_data_are_the_example(name, program):
    assert (ROOT / f"examples/keras/{name}.py").read_text().endswith('"""\n\n' + program)


def test_the_program_of_hybridbackend_trains(tmp_path):
    run("hybridbackend.tensorflow", tmp_path, lambda program: program.replace("1_000_000", "1_000"))
    checkpoint = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(tmp_path / "ckpt")))
    assert checkpoint.get_tensor("global_step") == 8192 // 1024 // 2
    assert checkpoint.get_variable_to_shape_map()["user"] == [1000, 16]


def test_the_program_of_horovod_is_that_of_its_page_which_another_test_runs():
    assert BLOCKS[3] == (_first_program("horovod"), "horovodrun -np 2 python train.py\n")


def test_the_program_of_deeprec_trains(tmp_path):
    assert len(run("tensorflow.python.distribute.group_embedding_collective_strategy", tmp_path)) == 2
