"""Sections 1 and 4 of HybridBackend's third generation, run as their users run them, against numpy."""

from __future__ import annotations

import contextlib
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.scripts.documents import Training, printed, run_program, write_rows

pytestmark = pytest.mark.oldest

HERE = Path(__file__).parent
# In batches of 50: 4 batches; 7 batches, of which the last has 20 rows.
ROWS = (200, 320)


def test_the_context_says_where_it_is_and_takes_options(tmp_path):
    program = [str(HERE / "hybridbackend_generation_3_context.py")]
    for rank, output in enumerate(run_program(program, tmp_path, variables={"HB_GRAD_NBUCKETS": "2"})):
        assert f"{rank}-of-2" in output.splitlines()
        assert printed(output, "1.3", "environment") == [2]
        assert printed(output, "1.3", "batch_size") == [16]


def test_the_cluster_of_tf_config_is_the_job(tmp_path):
    cluster = {"cluster": {"chief": ["127.0.0.1:8860"]}, "task": {"type": "chief", "index": 0}}
    program = [str(HERE / "hybridbackend_generation_3_context.py")]
    outputs = run_program(program, tmp_path, variables={"TF_CONFIG": json.dumps(cluster)})
    assert [f"{rank}-of-2" in output.splitlines() for rank, output in enumerate(outputs)] == [True, True]


def run_tasks(command: list[str], folder: Path) -> list[str]:
    """Runs a launcher for the chief and one for the worker, as in section 1.5, with only their TF_CONFIG."""
    with contextlib.ExitStack() as held:  # Free ports. The engine uses the first one's address.
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        chief, worker = ([f"127.0.0.1:{listener.getsockname()[1]}"] for listener in sockets)
    cluster = {"chief": chief, "worker": worker}
    configs = [json.dumps({"cluster": cluster, "task": {"type": role, "index": 0}}) for role in cluster]
    with ThreadPoolExecutor(len(configs)) as pool:
        launchers = [
            pool.submit(run_program, command, folder, None, {"TF_CONFIG": config, "XDG_STATE_HOME": str(folder)})
            for config in configs
        ]
        return [output for launcher in launchers for output in launcher.result()]


@pytest.fixture(scope="module")
def unbalanced(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbalanced")
    shares = [write_rows(folder / f"{rank}.parquet", rank, rows) for rank, rows in enumerate(ROWS)]
    return folder, shares, run_tasks([str(HERE / "hybridbackend_generation_3_unbalanced.py"), str(folder)], folder)


# Promise (hybridbackend.md): means are weighted by rows (HybridBackend, a wrong result: an empty batch's mean puts NaN
# into all workers' weights).
@pytest.mark.parametrize(("name", "steps"), [("dropped", 4), ("kept", 7)])
def test_unbalanced_data_trains_as_one_process_on_the_same_rows(unbalanced, name, steps):
    folder, shares, outputs = unbalanced
    trained = Training(shares, steps)
    losses = np.transpose([printed(output, name) for output in outputs])
    np.testing.assert_allclose(losses, trained.losses, rtol=1e-4)
    checkpoint = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(folder / name)))
    assert checkpoint.get_tensor("global_step") == steps
    np.testing.assert_allclose(checkpoint.get_tensor("emb_weights")[:, 0], trained.table, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(checkpoint.get_tensor("slope"), trained.slope, rtol=1e-4, atol=1e-6)
