"""The example of Ray Train, on two local workers: one fails, then one is killed, and Ray resumes; compared with Keras.

Ray is pinned in requirements/ray.txt. Its cluster is started by the job's program, and ends with it.
"""

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest

import lockstep
from lockstep.testing.launching import wait_for

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not here: tools/setup.sh ray"),
    pytest.mark.long,
]

_EXAMPLE = Path(__file__).parents[3] / "examples" / "ray" / "train.py"
_EPOCHS = 4
_DEADLINE_S = 400

# Three starts of the workers: rank 1 raises an error before its training, is killed in its fourth epoch, and completes.
_PROGRAM = f"""
import os, signal, sys
from pathlib import Path
import ray
import lockstep
import train as example
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.tensorflow import TensorflowTrainer
from lockstep.ray import LockstepConfig

folder = Path(sys.argv[1])

def first_time(name):
    return lockstep.rank() == 1 and not (folder / name).exists() and not (folder / name).touch()

class Report(example.Report):
    def on_epoch_begin(self, epoch, logs=None):
        (folder / "first_epoch").write_text(str(self.first_epoch))
        if epoch == {_EPOCHS - 1} and first_time("killed"):
            os.kill(os.getpid(), signal.SIGKILL)

def train(config):
    lockstep.init()
    if first_time("failed"):
        raise ValueError("the second worker's own error")
    example.Report = Report
    example.train(config)

ray.init(num_cpus=2, include_dashboard=False, _temp_dir=sys.argv[2])
result = TensorflowTrainer(
    train,
    train_loop_config={{"epochs": {_EPOCHS}}},
    tensorflow_config=LockstepConfig(),
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=str(folder / "results"), failure_config=FailureConfig(max_failures=2)),
).fit()
print("RESULT", result.metrics["loss"], result.metrics["mae"], result.checkpoint.path, flush=True)
"""


def _processes_at(home: Path) -> set[int]:
    """Returns the processes with this home folder, and their descendants: the program, and all processes of its Ray.

    Ray's workers and agents overwrite their environment with their names; they are children of another one.
    """
    children: dict[int, list[int]] = {}
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        pid = int(path.name)
        with contextlib.suppress(OSError):
            state, parent = (path / "stat").read_text().rpartition(")")[2].split()[:2]
            if state in "ZX":
                continue
            children.setdefault(int(parent), []).append(pid)
            if f"HOME={home}".encode() in (path / "environ").read_bytes().split(b"\0"):
                found.append(pid)
    for pid in found:  # grows meanwhile
        found += children.pop(pid, [])
    return set(found)


@contextlib.contextmanager
def _ended(process: subprocess.Popen, home: Path, rays_folder: str) -> Iterator[None]:
    """Ends a program at the end of the block, and all processes of its Ray, and removes Ray's folder."""
    try:
        yield
    finally:
        # The daemon of Ray ends with the program, and leaves its agents without a parent.
        left = _processes_at(home)
        process.kill()
        process.wait()
        for pid in left | _processes_at(home):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(rays_folder, ignore_errors=True)


@pytest.fixture(name="example")
def _example(monkeypatch):
    monkeypatch.syspath_prepend(str(_EXAMPLE.parent))
    spec = importlib.util.spec_from_file_location("example_of_ray", _EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _of_stock_keras(example) -> dict[str, np.ndarray]:
    """Returns loss, metric and weights of stock Keras on all rows, from the same initial weights."""
    rows, ratings = example.data()
    keys, items = np.unique(rows["item"], return_inverse=True)
    with lockstep.scope():
        by_name = {layer.name: layer for layer in example.build_model().layers}
        initial = {
            "user": by_name["users"].get_weights()[0],
            "item": by_name["items"](keys, training=True).numpy(),
            "dense": by_name["rating"].get_weights(),
        }
    # A product with one-hot rows reads a table. Its gradient is dense, so that rows of several slices are summed.
    inputs = [keras.Input([len(initial[name])]) for name in ("user", "item")]
    tables = [keras.layers.Dense(8, use_bias=False) for _ in inputs]
    dense = keras.layers.Dense(1)
    read = keras.layers.Concatenate()([table(one_hot) for table, one_hot in zip(tables, inputs, strict=True)])
    model = keras.Model(inputs, dense(read))
    for table, name in zip(tables, ("user", "item"), strict=True):
        table.set_weights([initial[name]])
    dense.set_weights(initial["dense"])
    model.compile(keras.optimizers.Adagrad(0.1), "mse", metrics=["mae"])
    how = {"batch_size": example.BATCH_ROWS, "epochs": _EPOCHS, "shuffle": False, "verbose": 0}
    one_hots = [
        np.eye(len(initial[name]), dtype=np.float32)[ids] for name, ids in (("user", rows["user"]), ("item", items))
    ]
    history = model.fit(one_hots, ratings, **how).history
    return {
        "loss": history["loss"][-1],
        "mae": history["mae"][-1],
        "users": tables[0].get_weights()[0],
        "kernel": dense.get_weights()[0],
    }


# Promise (ray.md): the example of Ray Train resumes after an error and a killed worker, and trains what stock Keras
# trains.
def test_workers_of_ray_resume_after_a_failure_and_a_kill_and_train_what_stock_keras_trains(tmp_path, example):
    # Ray's sockets lie in its folder, and their paths may not be long. Its token for clients lies in the home folder.
    rays_folder = f"/tmp/ray-{os.getpid()}"
    (tmp_path / "program.py").write_text(_PROGRAM)
    hidden = ("TF_CONFIG", "LOCKSTEP_", "RAY_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    environment |= {"HOME": str(tmp_path), "PYTHONPATH": str(_EXAMPLE.parent), "RAY_USAGE_STATS_ENABLED": "0"}
    process = subprocess.Popen(
        [sys.executable, "program.py", str(tmp_path), rays_folder],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with _ended(process, tmp_path, rays_folder):
        output, _ = process.communicate(timeout=_DEADLINE_S)
        assert process.returncode == 0, output
        wait_for(lambda: not _processes_at(tmp_path), "Ray's processes to end")
    # The driver shows both failures, with the rank and the worker's own error.
    assert "[Rank 1 Error Snippet]" in output
    assert "ValueError: the second worker's own error" in output
    assert "The actor died unexpectedly" in output
    assert int((tmp_path / "first_epoch").read_text()) in (_EPOCHS - 2, _EPOCHS - 1)
    wanted = _of_stock_keras(example)
    loss, mae, folder = output.rpartition("RESULT ")[2].split()[:3]
    assert float(loss) == pytest.approx(wanted["loss"], rel=1e-5)
    assert float(mae) == pytest.approx(wanted["mae"], rel=1e-5)
    with h5py.File(Path(folder, "model.weights.h5")) as file:
        saved = {
            name: file[f"layers/{layer}/vars/0"][()] for name, layer in (("users", "embedding"), ("kernel", "dense"))
        }
    np.testing.assert_allclose(saved["users"], wanted["users"], atol=1e-5)
    np.testing.assert_allclose(saved["kernel"], wanted["kernel"], atol=1e-5)
