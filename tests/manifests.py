"""The manifests of deploy/, and the variables that Kubernetes and its operators set in their pods."""

import re
from pathlib import Path

import yaml

DEPLOY = Path(__file__).parents[1] / "deploy"


def documents(name: str) -> dict[str, dict]:
    """Returns the documents of a manifest, by kind."""
    with open(DEPLOY / "kubernetes" / name) as file:
        return {document["kind"]: document for document in yaml.safe_load_all(file)}


def variables_of(container: dict, secret: dict, **fields: str) -> dict[str, str]:
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


def index_of(number: int) -> dict[str, str]:
    """Returns the field of a pod of an indexed job that has its index."""
    return {"metadata.annotations['batch.kubernetes.io/job-completion-index']": str(number)}


def pods_of_train_job(documents: dict[str, dict]) -> list[dict[str, str]]:
    """Returns the variables of a TrainJob's pods, as Kubeflow Trainer 2.3 sets them for the policy `torch`."""
    runtime, job = documents["TrainingRuntime"], documents["TrainJob"]
    trainer, name = job["spec"]["trainer"], job["metadata"]["name"]
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    assert runtime["spec"]["mlPolicy"]["torch"] == {}
    # It looks for these names.
    assert replicated["name"] == container["name"] == "node"
    assert replicated["template"]["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"] == "trainer"
    return [
        variables_of(container, documents["Secret"])
        | {
            "PET_NNODES": str(trainer["numNodes"]),
            "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
            "PET_NODE_RANK": str(index),
            "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
            "PET_MASTER_PORT": "29500",
        }
        for index in range(trainer["numNodes"])
    ]
