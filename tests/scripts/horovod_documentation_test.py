"""The programs of Horovod's documentation for TensorFlow, run as their users run them, against numpy."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.scripts.documents import printed, run_launcher

pytestmark = pytest.mark.oldest

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
KERAS = ["2", "3"] if tf.__version__ >= "2.16" else ["2"]
HOROVODRUN = [sys.executable, "-m", "horovod.runner"]

sys.path.insert(0, str(EXAMPLES))
sys.path.insert(0, str(HERE))
from horovod_documentation_data import BATCH, FEATURES, STEPS, share  # noqa: E402


def horovodrun(line: str, program: Path, changes: dict[str, str], folder: Path, keras: str = "") -> list[str]:
    """Runs `horovodrun LINE` on two workers with a changed copy of the program. Returns each worker's output."""
    text = program.read_text()
    for what, by in changes.items():
        assert text.count(what) == 1, what
        text = text.replace(what, by)
    (folder / program.name).write_text(text)
    for name in (HERE / "horovod_documentation_data.py", EXAMPLES / "mnist_data.py"):
        shutil.copy(name, folder)
    words = [sys.executable if word == "python" else word for word in line.split()]
    # If TensorFlow has Keras 3, Keras 2 is a separate package.
    variables = {"TF_USE_LEGACY_KERAS": "1"} if keras == "2" and KERAS == ["2", "3"] else {}
    return run_launcher([*HOROVODRUN, *words], folder, 2, variables)


class Softmax:
    """Softmax regression by numpy on the shares of two workers; the gradient is the mean of theirs."""

    def __init__(self) -> None:
        self.shares = [share(rank) for rank in range(2)]
        # Only rank 0's weights are zeros.
        self.weights = [np.full([FEATURES, 10], float(rank)) for rank in range(2)]

    def step(self, index: int) -> tuple[list[float], np.ndarray]:
        """Returns each worker's loss, and the gradient."""
        rows = slice(index * BATCH, (index + 1) * BATCH)
        losses, gradients = [], []
        for (features, labels), weights in zip(self.shares, self.weights, strict=True):
            logits = features[rows] @ weights
            p = np.exp(logits - logits.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            right = np.arange(10) == labels[rows, np.newaxis]
            losses.append(-np.mean(np.log(p[right])))
            gradients.append(features[rows].T @ (p - right) / BATCH)
        return losses, np.mean(gradients, axis=0)

    def all_take(self, weights: np.ndarray) -> None:
        self.weights = [weights, weights]


def trained_by_adagrad() -> tuple[list[list[float]], np.ndarray]:
    """Returns losses [steps][workers] and weights; all workers begin with rank 0's weights."""
    model, losses = Softmax(), []
    model.all_take(model.weights[0])
    squares = np.full([FEATURES, 10], 0.1)
    for index in range(STEPS):
        loss, gradient = model.step(index)
        losses.append(loss)
        squares += gradient**2
        model.all_take(model.weights[0] - 0.02 * gradient / np.sqrt(squares))
    return losses, model.weights[0]


def trained_by_adam() -> tuple[list[float], np.ndarray]:
    """Returns losses of rank 0, and weights; all workers take rank 0's weights after the first step."""
    model, losses = Softmax(), []
    m = v = np.zeros([FEATURES, 10])
    for index in range(STEPS):
        loss, gradient = model.step(index)
        losses.append(loss[0])
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        rate = 0.002 * np.sqrt(1 - 0.999 ** (index + 1)) / (1 - 0.9 ** (index + 1))
        model.all_take(model.weights[0] - rate * m / (np.sqrt(v) + 1e-7))
    return losses, model.weights[0]


def saved(path: str, name: str) -> np.ndarray:
    reader = tf.train.load_checkpoint(path)
    (key,) = (key for key in reader.get_variable_to_shape_map() if re.search(name, key))
    return reader.get_tensor(key)


# Promise (horovod.md): the documentation's programs of TensorFlow 1 and 2 train what numpy computes.
def test_the_tensorflow_1_program(tmp_path):
    folder = str(tmp_path / "train_logs")
    outputs = horovodrun(
        "-np 2 --tf1 python horovod_documentation_tf1.py",
        HERE / "horovod_documentation_tf1.py",
        {"/tmp/train_logs": folder},
        tmp_path,
    )
    losses, weights = trained_by_adagrad()
    np.testing.assert_allclose(np.transpose([printed(output, "tf1") for output in outputs]), losses, rtol=1e-4)
    checkpoint = tf.train.latest_checkpoint(folder)
    np.testing.assert_allclose(saved(checkpoint, "^weights$"), weights, rtol=1e-4, atol=1e-6)


# Promise (horovod.md): the documentation's programs of TensorFlow 1 and 2 train what numpy computes.
@pytest.mark.parametrize("keras", KERAS)
def test_the_tensorflow_2_program(tmp_path, keras):
    outputs = horovodrun(
        "-np 2 python horovod_documentation_tf2.py", HERE / "horovod_documentation_tf2.py", {}, tmp_path, keras
    )
    losses, weights = trained_by_adam()
    shown = re.findall(r"^Step #(\d+)\tLoss: (\S+)$", outputs[0], re.M)
    assert [int(step) for step, _ in shown] == [0, 10, 20]
    np.testing.assert_allclose([float(loss) for _, loss in shown], losses[::10], atol=1e-5)
    assert not re.findall("^Step", outputs[1], re.M)
    (file,) = tmp_path.glob("checkpoints-*.index")
    # Keras 2 saves the model first, Keras 3 the optimizer.
    kernel = saved(str(file.with_suffix("")), r"^model/.*kernel/\.ATTR|^optimizer/_trainable_variables/0/")
    np.testing.assert_allclose(kernel, weights, atol=1e-5)
