"""The manifests and scripts of deploy/ set the variables that the launcher reads."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lockstep._src.engine.options import Options
from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.output import Console
from lockstep.launch.cli.arguments import CommandLine
from lockstep.launch.placement import plan
from lockstep.testing import fake_ssh

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

DEPLOY = Path(__file__).parents[2] / "deploy"
DEADLINE_S = 500


def _documents(name: str) -> dict[str, dict]:
    """Returns the documents of a manifest, by kind."""
    with open(DEPLOY / "kubernetes" / name) as file:
        return {document["kind"]: document for document in yaml.safe_load_all(file)}


def _variables(container: dict, secret: dict, **fields: str) -> dict[str, str]:
    """Returns a container's environment, as Kubernetes sets it."""
    variables: dict[str, str] = {}
    for entry in container["env"]:
        source = entry.get("valueFrom", {})
        if "secretKeyRef" in source:
            assert source["secretKeyRef"]["name"] == secret["metadata"]["name"]
            value = secret["stringData"][source["secretKeyRef"]["key"]]
        elif "fieldRef" in source:
            value = fields[source["fieldRef"]["fieldPath"]]
        else:
            value = re.sub(r"\$\((\w+)\)", lambda name: variables[name[1]], entry["value"])
        variables[entry["name"]] = value
    return variables


def _check_pod(pod: dict) -> int:
    """Checks the requirements of a launcher's pod. Returns the number of its workers."""
    (container,) = pod["containers"]
    assert container["command"][:3] == ["python", "-m", "hybridbackend.run"]
    line = CommandLine("", "")
    line.add("-n", type=int)
    options, words = line.parse(container["command"][3:])
    assert words[0] == "python"
    memory = {volume["name"]: volume.get("emptyDir") for volume in pod["volumes"]}
    mounted = {mount["mountPath"]: memory[mount["name"]] for mount in container["volumeMounts"]}
    assert mounted["/dev/shm"]["medium"] == "Memory"
    return options.n


def _check_ranks(of_pods: list[dict[str, str]], workers: int) -> None:
    """Checks that the launchers of all pods make one job, once it has a secret."""
    for variables in of_pods:
        with pytest.raises(LaunchError, match="LOCKSTEP_SECRET is REPLACE-WITH-RANDOM-TEXT.*: openssl rand -hex 32"):
            plan.environments(workers, variables, Console())
        variables["LOCKSTEP_SECRET"] = "b9" * 32
    planned = [plan.environments(workers, variables, Console()) for variables in of_pods]
    told = [environment for pod in planned for environment in pod]
    assert [int(environment["LOCKSTEP_RANK"]) for environment in told] == list(range(len(of_pods) * workers))
    for name in ("LOCKSTEP_WORLD_SIZE", "LOCKSTEP_RENDEZVOUS", "LOCKSTEP_SECRET"):
        assert len({environment[name] for environment in told}) == 1
    assert {environment["LOCKSTEP_LOCAL_WORLD_SIZE"] for environment in told} == {str(workers)}
    assert told[0]["LOCKSTEP_SECRET"] == "b9" * 32
    # Pulling an image takes time.
    assert {Options.from_environment(environment).rendezvous_timeout_s for environment in told} == {600}


def _check_restarts(limit: int, pods: int) -> None:
    """Checks that a job may fail several times: each failure restarts all pods, and the limit is for the sum."""
    assert limit % pods == 0 and limit // pods >= 10


@pytest.fixture(name="waited")
def _waited(monkeypatch):
    """Returns how long launchers wait for a name, which is known at once."""
    waited: list[float] = []
    monkeypatch.setattr(plan, "wait_for_name", lambda name, console, seconds: waited.append(seconds))
    return waited


def test_a_job_of_the_training_operator(waited):
    documents = _documents("tfjob.yaml")
    job = documents["TFJob"]
    replicas = job["spec"]["tfReplicaSpecs"]
    assert {role: replica["replicas"] for role, replica in replicas.items()} == {"Chief": 1, "Worker": 3}
    # The operator's result: https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/tensorflow/
    cluster = {
        role.lower(): [f"{job['metadata']['name']}-{role.lower()}-{i}.ns.svc:2222" for i in range(replica["replicas"])]
        for role, replica in replicas.items()
    }
    pods, workers = [], set()
    for role, replica in replicas.items():
        pod = replica["template"]["spec"]
        workers.add(_check_pod(pod))
        assert pod["containers"][0]["name"] == "tensorflow"
        for index in range(replica["replicas"]):
            task = {"type": role.lower(), "index": index}
            config = {"cluster": cluster, "task": task, "environment": "cloud"}
            variables = _variables(pod["containers"][0], documents["Secret"])
            pods.append({**variables, "TF_CONFIG": json.dumps(config)})
    (count,) = workers
    _check_ranks(pods, count)
    assert waited == [600] * len(pods)
    assert {replica["restartPolicy"] for replica in replicas.values()} == {"OnFailure"}
    _check_restarts(job["spec"]["runPolicy"]["backoffLimit"], len(pods))


def test_a_job_without_an_operator(waited):
    documents = _documents("job.yaml")
    spec, name = documents["Job"]["spec"], documents["Job"]["metadata"]["name"]
    pod = spec["template"]["spec"]
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"]
    # The names of its pods.
    service = documents["Service"]
    assert service["metadata"]["name"] == pod["subdomain"] and service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": name}
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    pods = [
        _variables(pod["containers"][0], documents["Secret"], **{index: str(i)}) for i in range(spec["completions"])
    ]
    addresses = json.loads(pods[0]["TF_CONFIG"])["cluster"]["worker"]
    assert [address.partition(":")[0] for address in addresses] == [
        f"{name}-{i}.{pod['subdomain']}" for i in range(spec["completions"])
    ]
    _check_ranks(pods, _check_pod(pod))
    assert waited == [600] * len(pods)
    assert pod["restartPolicy"] == "OnFailure"
    _check_restarts(spec["backoffLimit"], len(pods))


def test_a_script_for_slurm(tmp_path):
    """Runs it as Slurm would, with a stand-in for srun: two hosts with four tasks each."""
    script = (DEPLOY / "slurm" / "train.sbatch").read_text()
    asked = dict(re.findall(r"#SBATCH --([\w-]+)=(\S+)", script))
    (tmp_path / "network").mkdir()
    (tmp_path / "main.py").write_text(
        "import os\nprint(os.environ['LOCKSTEP_RANK'], os.environ['LOCKSTEP_LOCAL_RANK'])\n"
    )
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "srun").write_text(
        f"#!/bin/bash\nwhile [[ $1 == --* ]]; do [[ $1 == --nodelist=* ]] && host=${{1#*=}}; shift; done\n"
        f'exec {sys.executable} {fake_ssh.__file__} "$host" "$*"\n'
    )
    (tmp_path / "srun").chmod(0o755)
    tasks = asked["ntasks-per-node"]
    hidden = ("SLURM_", "LOCKSTEP_", "CUDA_", "NVIDIA_", "TF_CONFIG")
    ended = subprocess.run(
        [shutil.which("bash"), DEPLOY / "slurm" / "train.sbatch"],
        cwd=tmp_path,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith(hidden)},
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "FAKE_SSH": str(tmp_path / "network"),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": f"n[1-{asked['nodes']}]",
            "SLURM_NTASKS_PER_NODE": tasks,
            "SLURM_TASKS_PER_NODE": f"{tasks}(x{asked['nodes']})",
        },
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sorted(line.partition("] ")[2] for line in ended.stdout.splitlines()) == [
        f"{rank} {rank % int(tasks)}" for rank in range(int(tasks) * int(asked["nodes"]))
    ]
