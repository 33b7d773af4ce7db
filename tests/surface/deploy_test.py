"""The manifests and scripts of deploy/ set the variables that the launcher reads."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from lockstep._src.engine.options import Options
from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.output import Console
from lockstep.launch.cli.arguments import CommandLine
from lockstep.launch.placement import plan
from lockstep.testing import fake_ssh
from lockstep.testing.launching import without_reminder
from tests import manifests

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

DEADLINE_S = 500


def _check_pod(pod: dict, command: list[str] | None = None) -> int | None:
    """Checks the requirements of a launcher's pod. Returns the number of its workers, if the command has it.

    Args:
      pod: The pod's specification.
      command: The container's command, if the pod's specification leaves it open.
    """
    (container,) = pod["containers"]
    program, *arguments = container.get("command", command)
    assert (program, arguments[0]) == ("lockstep", "run")
    line = CommandLine("", "")
    line.add("-n", type=int)
    options, words = line.parse(arguments[1:])
    assert words[0] == "python"
    memory = {volume["name"]: volume.get("emptyDir") for volume in pod["volumes"]}
    mounted = {mount["mountPath"]: memory[mount["name"]] for mount in container["volumeMounts"]}
    assert mounted["/dev/shm"]["medium"] == "Memory"
    return options.n


def _check_ranks(of_pods: list[dict[str, str]], workers: int, told: int | None) -> None:
    """Checks that the launchers of all pods make one job, once it has a secret.

    Args:
      of_pods: The variables of each pod.
      workers: The number of workers of each.
      told: The value of the launcher's -n, if it is given.
    """
    for variables in of_pods:
        with pytest.raises(LaunchError, match="LOCKSTEP_SECRET is REPLACE-WITH-RANDOM-TEXT.*: openssl rand -hex 32"):
            plan.environments(told, variables, Console())
        variables["LOCKSTEP_SECRET"] = "b9" * 32
    planned = [plan.environments(told, variables, Console()) for variables in of_pods]
    ranks = [environment for pod in planned for environment in pod]
    assert [int(environment["LOCKSTEP_RANK"]) for environment in ranks] == list(range(len(of_pods) * workers))
    for name in ("LOCKSTEP_WORLD_SIZE", "LOCKSTEP_RENDEZVOUS", "LOCKSTEP_SECRET"):
        assert len({environment[name] for environment in ranks}) == 1
    assert {environment["LOCKSTEP_LOCAL_WORLD_SIZE"] for environment in ranks} == {str(workers)}
    assert ranks[0]["LOCKSTEP_SECRET"] == "b9" * 32
    # Pulling an image takes time.
    assert {Options.from_environment(environment).rendezvous_timeout_s for environment in ranks} == {600}


def _check_restarts(limit: int, pods: int) -> None:
    """Checks that a job may fail several times: each failure restarts all pods, and the limit is for the sum."""
    assert limit % pods == 0 and limit // pods >= 10


@pytest.fixture(name="waited")
def _waited(monkeypatch):
    """Returns how long launchers wait for a name, which is known at once."""
    waited: list[float] = []
    monkeypatch.setattr(plan, "wait_for_name", lambda name, console, seconds: waited.append(seconds))
    return waited


# Promise (deploy/README.md): the launchers of a manifest's pods make one job.
def test_a_job_of_the_training_operator(waited):
    documents = manifests.documents("tfjob.yaml")
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
            variables = manifests.variables_of(pod["containers"][0], documents["Secret"])
            pods.append({**variables, "TF_CONFIG": json.dumps(config)})
    (count,) = workers
    _check_ranks(pods, count, count)
    assert waited == [600] * len(pods)
    assert {replica["restartPolicy"] for replica in replicas.values()} == {"OnFailure"}
    _check_restarts(job["spec"]["runPolicy"]["backoffLimit"], len(pods))


# Promise (deploy/README.md): the launchers of a manifest's pods make one job.
def test_a_job_without_an_operator(waited):
    documents = manifests.documents("job.yaml")
    spec, name = documents["Job"]["spec"], documents["Job"]["metadata"]["name"]
    pod = spec["template"]["spec"]
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"]
    # The names of its pods.
    service = documents["Service"]
    assert service["metadata"]["name"] == pod["subdomain"] and service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": name}
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    pods = [
        manifests.variables_of(pod["containers"][0], documents["Secret"], **{index: str(i)})
        for i in range(spec["completions"])
    ]
    addresses = json.loads(pods[0]["TF_CONFIG"])["cluster"]["worker"]
    assert [address.partition(":")[0] for address in addresses] == [
        f"{name}-{i}.{pod['subdomain']}" for i in range(spec["completions"])
    ]
    workers = _check_pod(pod)
    _check_ranks(pods, workers, workers)
    assert waited == [600] * len(pods)
    assert pod["restartPolicy"] == "OnFailure"
    _check_restarts(spec["backoffLimit"], len(pods))


def _check_restarts_of_jobset(spec: dict) -> dict:
    """Checks that each failure of a pod restarts the job set, several times. Returns the only job's specification."""
    assert spec["failurePolicy"]["maxRestarts"] >= 10
    (replicated,) = spec["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert job["backoffLimit"] == 0 and job["template"]["spec"]["restartPolicy"] == "Never"
    return job


# Promise (deploy/README.md): the launchers of a manifest's pods make one job.
def test_a_job_set(waited):
    documents = manifests.documents("jobset.yaml")
    spec, name = documents["JobSet"]["spec"], documents["JobSet"]["metadata"]["name"]
    job, (replicated,) = _check_restarts_of_jobset(spec), spec["replicatedJobs"]
    assert job["completionMode"] == "Indexed" and job["completions"] == job["parallelism"]
    assert replicated["replicas"] == 1 and spec["network"]["enableDNSHostnames"]
    (container,) = job["template"]["spec"]["containers"]
    pods = [
        manifests.variables_of(container, documents["Secret"], **manifests.index_of(i))
        for i in range(job["completions"])
    ]
    # The names of its pods: <job set>-<replicated job>-<job>-<pod>.<job set>
    hosts = [address.partition(":")[0] for address in json.loads(pods[0]["TF_CONFIG"])["cluster"]["worker"]]
    assert hosts == [f"{name}-{replicated['name']}-0-{i}.{name}" for i in range(job["completions"])]
    workers = _check_pod(job["template"]["spec"])
    _check_ranks(pods, workers, workers)
    assert waited == [600] * len(pods)


# Promise (deploy/README.md): the launchers of a manifest's pods make one job.
def test_a_job_of_kubeflow_trainer(waited):
    documents = manifests.documents("trainjob.yaml")
    runtime, job = documents["TrainingRuntime"], documents["TrainJob"]
    assert job["spec"]["runtimeRef"] == {
        "apiGroup": "trainer.kubeflow.org",
        "kind": runtime["kind"],
        "name": runtime["metadata"]["name"],
    }
    pods = manifests.pods_of_train_job(documents)
    pod = _check_restarts_of_jobset(runtime["spec"]["template"]["spec"])["template"]["spec"]
    assert _check_pod(pod, job["spec"]["trainer"]["command"]) is None
    _check_ranks(pods, job["spec"]["trainer"]["numProcPerNode"], None)
    assert waited == [600] * len(pods)


# Promise (deploy/README.md): Slurm's script starts the workers of two hosts.
def test_a_script_for_slurm(tmp_path):
    """Runs it as Slurm would, with a stand-in for srun: two hosts with four tasks each."""
    script = (manifests.DEPLOY / "slurm" / "train.sbatch").read_text()
    asked = dict(re.findall(r"#SBATCH --([\w-]+)=(\S+)", script))
    (tmp_path / "network").mkdir()
    (tmp_path / "main.py").write_text(
        "import os\nprint(os.environ['LOCKSTEP_RANK'], os.environ['LOCKSTEP_LOCAL_RANK'])\n"
    )
    for name, words in (("python", ""), ("lockstep", "-m lockstep ")):
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n')
        (tmp_path / name).chmod(0o755)
    (tmp_path / "srun").write_text(fake_ssh.srun())
    (tmp_path / "srun").chmod(0o755)
    tasks = asked["ntasks-per-node"]
    hidden = ("SLURM_", "LOCKSTEP_", "CUDA_", "NVIDIA_", "TF_CONFIG")
    ended = subprocess.run(
        [shutil.which("bash"), manifests.DEPLOY / "slurm" / "train.sbatch"],
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
    assert (ended.returncode, without_reminder(ended.stderr.splitlines())) == (0, [])
    assert sorted(line.partition("] ")[2] for line in ended.stdout.splitlines()) == [
        f"{rank} {rank % int(tasks)}" for rank in range(int(tasks) * int(asked["nodes"]))
    ]
