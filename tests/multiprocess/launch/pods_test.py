"""The commands of deploy/ start workers that exchange: pods of manifests, and Slurm's script, as processes on loopback.

Each process has an /etc/hosts of its own, with the names that Kubernetes or Slurm gives to pods and hosts.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.testing import fake_ssh
from tests import manifests

pytestmark = [
    pytest.mark.newest_only,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a process an /etc/hosts of its own"),
]

DEADLINE_S = 500
_MAIN = """
import tensorflow as tf
import lockstep
lockstep.init()
ranks = lockstep.allgather(tf.constant([lockstep.rank()])).numpy().tolist()
print("rank", lockstep.rank(), "gathered", ranks)
"""
# Runs a command with an /etc/hosts of its own: `unshare --mount sh -c SCRIPT sh HOSTS COMMAND...`
_WITH_HOSTS = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'


def _run(tmp_path: Path, names: list[str], processes: list[tuple[list[str], dict[str, str]]]) -> list[str]:
    """Runs processes side by side until all have ended well. Returns the output of each.

    Args:
      tmp_path: The test's folder.
      names: The names of two hosts.
      processes: The command of each, and its variables.
    """
    (tmp_path / "hosts").write_text("".join(f"127.0.0.{1 + i} {name}\n" for i, name in enumerate(names)))
    around = ["unshare", "--mount", "sh", "-c", _WITH_HOSTS, "sh", str(tmp_path / "hosts")]
    hidden = ("SLURM_", "LOCKSTEP_", "CUDA_", "NVIDIA_", "TF_CONFIG")
    base = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    base |= {"PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": ""}
    started = [
        subprocess.Popen(
            [*around, *command],
            cwd=tmp_path,
            env={**base, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command, variables in processes
    ]
    try:
        outputs = [process.communicate(timeout=DEADLINE_S)[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert [process.returncode for process in started] == [0] * len(started), outputs
    return outputs


# Promise (deploy/README.md): the commands of manifests start workers that exchange.
@pytest.mark.parametrize("manifest", ["trainjob.yaml", pytest.param("jobset.yaml", marks=pytest.mark.long)])
def test_two_pods_of_a_manifest_exchange(manifest, tmp_path):
    """Runs the containers' command in the variables of the first two pods, with one worker in each."""
    documents = manifests.documents(manifest)
    if manifest == "trainjob.yaml":
        trainer = documents["TrainJob"]["spec"]["trainer"]
        trainer |= {"numNodes": 2, "numProcPerNode": 1}
        command, pods = trainer["command"], manifests.pods_of_train_job(documents)
    else:
        (replicated,) = documents["JobSet"]["spec"]["replicatedJobs"]
        (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
        command = ["1" if word == "2" else word for word in container["command"]]
        pods = [manifests.variables_of(container, documents["Secret"], **manifests.index_of(i)) for i in range(2)]
        for variables in pods:
            config = json.loads(variables["TF_CONFIG"])
            del config["cluster"]["worker"][2:]
            variables["TF_CONFIG"] = json.dumps(config)
    (tmp_path / "main.py").write_text(_MAIN)
    command = [str(tmp_path / "main.py") if word == "/app/main.py" else word for word in command]
    secret = {"LOCKSTEP_SECRET": "b9" * 32}
    names = [f"train-node-0-{i}.train" for i in range(2)]
    outputs = _run(tmp_path, names, [(command, {**variables, **secret}) for variables in pods])
    for rank, output in enumerate(outputs):
        assert f"rank {rank} gathered [0, 1]" in output


# Promise (deploy/README.md): Slurm's script starts the workers of two hosts.
def test_slurms_script_starts_workers_on_two_hosts_which_exchange(tmp_path):
    """Runs the script as Slurm would, with a stand-in for srun, and with one task on each host."""
    (tmp_path / "main.py").write_text(_MAIN)
    (tmp_path / "network").mkdir()
    (tmp_path / "srun").write_text(fake_ssh.srun())
    (tmp_path / "srun").chmod(0o755)
    variables = {
        "FAKE_SSH": str(tmp_path / "network"),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_TASKS_PER_NODE": "1(x2)",
    }
    script = ["bash", str(manifests.DEPLOY / "slurm" / "train.sbatch")]
    (output,) = _run(tmp_path, ["n1", "n2"], [(script, variables)])
    for rank in range(2):
        assert f"[{rank}] rank {rank} gathered [0, 1]" in output
