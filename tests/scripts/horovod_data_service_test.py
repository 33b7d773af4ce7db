"""The command lines of Horovod's documentation for a data service, with the example's programs."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from lockstep.testing import fake_ssh

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAM = "tensorflow2_mnist_data_service.py"
TRAIN_FN = [f"tensorflow2_mnist_data_service_train_fn_{side}_side_dispatcher.py" for side in ("compute", "training")]
DEADLINE_S = 500
NONE: Mapping[str, str] = MappingProxyType({})


def words(line: str, file: Path) -> list[str]:
    """Returns a command line of the documentation, with this interpreter, and this file for its config."""
    ours = {"horovodrun": [sys.executable, "-m", "horovod.runner"], "python": [sys.executable]}
    ours["spark-submit"] = [str(Path(sys.executable).with_name("spark-submit"))]
    ours["/tmp/compute.json"] = [str(file)]
    return [word for written in line.split() for word in ours.get(written, [written])]


def environment(more: Mapping[str, str]) -> dict[str, str]:
    spark = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "HOROVOD_GLOO_IFACE": "lo"}
    return {**os.environ, **spark, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2", **more}


@contextlib.contextmanager
def started(line: str, file: Path, variables: Mapping[str, str] = NONE) -> Iterator[subprocess.Popen]:
    """Yields a compute job, and asserts at the end of the block that it has succeeded."""
    output = file.with_suffix(".out")
    with open(output, "wb") as log:
        job = subprocess.Popen(
            words(line, file), env=environment(variables), stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield job
        assert job.wait(DEADLINE_S) == 0, output.read_text(errors="replace")
        assert not file.exists()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def run(line: str, file: Path, folder: Path, variables: Mapping[str, str] = NONE) -> str:
    """Runs a training job, which must succeed. Returns its output."""
    job = subprocess.run(
        words(line, file), cwd=folder, env=environment(variables), capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert job.returncode == 0, job.stdout + job.stderr
    return job.stdout


def accuracies(output: str) -> list[float]:
    return [float(found) for found in re.findall(r"rank \d: accuracy (\S+)", output)]


@pytest.mark.parametrize(
    ("compute", "training"),
    [
        (
            "horovodrun -np 4 python -m horovod.tensorflow.data.compute_worker --dispatchers 2 /tmp/compute.json",
            "horovodrun -np 2 python tensorflow2_mnist_data_service.py /tmp/compute.json",
        ),
        pytest.param(
            "horovodrun -np 2 --hosts localhost:1,127.0.0.1:1 python -m horovod.tensorflow.data.compute_worker "
            "--dispatcher-side training /tmp/compute.json",
            "horovodrun -np 2 --hosts localhost:1,127.0.0.1:1 python tensorflow2_mnist_data_service.py "
            "/tmp/compute.json --reuse-dataset",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_training_job_learns_from_a_compute_job_and_ends_it(tmp_path, compute, training):
    file = tmp_path / "compute.json"
    with started(compute, file):
        found = accuracies(run(training, file, EXAMPLES / "tensorflow2"))
    # All workers have the same model.
    assert len(found) == 2 and found[0] == found[1] > 0.9


@pytest.mark.long
def test_the_jobs_of_different_hosts_work_together(tmp_path):
    """The documentation's lines for several nodes; a stand-in for ssh reaches this machine under their names."""
    (tmp_path / "network").mkdir()
    names = {"cpu-node-1": "me@127.0.0.2", "cpu-node-2": "me@127.0.0.3"}
    names |= {"gpu-node-1": "me@127.0.0.4", "gpu-node-2": "me@127.0.0.5"}
    for host in names.values():
        (tmp_path / "network" / f"login.{host}").write_text(f"LOCKSTEP_HOST={host}\n")
    network = {"LOCKSTEP_SSH": f"{sys.executable} {fake_ssh.__file__}", "FAKE_SSH": str(tmp_path / "network")}

    def of_the_document(line: str) -> str:
        return re.sub(r"[cg]pu-node-\d", lambda found: names[found.group()], line)

    compute = of_the_document(
        "horovodrun -np 4 --hosts cpu-node-1:2,cpu-node-2:2 python -m horovod.tensorflow.data.compute_worker "
        "/tmp/compute.json"
    )
    training = of_the_document(
        "horovodrun -np 2 --hosts gpu-node-1:1,gpu-node-2:1 python tensorflow2_mnist_data_service.py /tmp/compute.json"
    )
    file = tmp_path / "compute.json"
    with started(compute, file, network):
        found = accuracies(run(training, file, EXAMPLES / "tensorflow2", network))
    assert len(found) == 2 and found[0] == found[1] > 0.9


def test_the_programs_of_both_sides_differ_in_what_the_document_shows():
    line = f"diff -w {EXAMPLES}/tensorflow2/{TRAIN_FN[0]} {EXAMPLES}/tensorflow2/{TRAIN_FN[1]}"
    difference = subprocess.run(line.split(), capture_output=True, text=True, timeout=500).stdout
    assert ".send_to_data_service(" in difference and "with tf_data_service(" in difference
    assert "model" not in difference


# Promise (horovod.md): `horovod.spark.run` calls a function in each slot, and ends when slots are taken away.
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs java, which is not here")
@pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="pyspark is not here")
@pytest.mark.long
def test_both_jobs_run_on_spark(tmp_path):
    file = tmp_path / "compute.json"
    name = "import horovod.spark.tensorflow.compute_worker as worker; print(worker.__file__)"
    found = subprocess.run([sys.executable, "-c", name], capture_output=True, text=True, timeout=500, check=True)
    with started(f"spark-submit --master local[4] {found.stdout.strip()} --timeout 120 /tmp/compute.json", file):
        files = ",".join(TRAIN_FN)
        line = f"spark-submit --master local[2] --py-files {files} {PROGRAM} /tmp/compute.json"
        output = run(line, file, EXAMPLES / "spark" / "tensorflow2")
    assert len(accuracies(output)) == 2
    assert float(re.search(r"^accuracy (\S+)$", output, re.M).group(1)) > 0.9


@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs java, which is not here")
@pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="pyspark is not here")
@pytest.mark.long
def test_spark_submit_exits_with_2_for_wrong_arguments(tmp_path):
    worker = importlib.util.find_spec("horovod.spark").submodule_search_locations[0] + "/tensorflow/compute_worker.py"
    line = f"spark-submit --master local[3] {worker} --dispatchers 2 /tmp/compute.json"
    job = subprocess.run(
        words(line, tmp_path / "c"), env=environment(NONE), capture_output=True, text=True, timeout=500
    )
    assert job.returncode == 2, job.stdout
    # spark-submit passes a Python program's stderr on to its own stdout.
    assert "Number of processes (3) must be a multiple of number of dispatchers (2)." in job.stdout
