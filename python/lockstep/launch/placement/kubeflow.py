"""Kubeflow Trainer's variables for a pod of a TrainJob: the tasks of its job, one in each pod.

A training runtime with the policy `torch` sets PET_NNODES, PET_NODE_RANK, PET_NPROC_PER_NODE, PET_MASTER_ADDR and
PET_MASTER_PORT in each pod. They say nothing of PyTorch: the pods' number, this pod's index, and the first pod's
address. The other pods' addresses follow from it, because JobSet names a job's pods by their index. Source: Kubeflow
Trainer 2.3, pkg/runtime/framework/plugins/torch.
"""

import re
from collections.abc import Mapping

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.places import check_size
from lockstep.launch.placement.tasks import Tasks

_NODES, _NODE, _ADDRESS, _PORT = "PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"
_WORKERS = "PET_NPROC_PER_NODE"
_NUMBER = re.compile("[0-9]{1,5}")
# JobSet's name of the first pod: <job set>-<replicated job>-<job's index>-0.<service>
_FIRST_POD = re.compile(r"([\w.-]+-)0(\.[\w.-]+)")


def is_asked(environment: Mapping[str, str]) -> bool:
    """Returns whether the launcher runs in a pod of a TrainJob, and no TF_CONFIG says otherwise."""
    return not environment.get("TF_CONFIG", "").strip() and all(
        environment.get(name) for name in (_NODES, _NODE, _ADDRESS, _PORT)
    )


def workers_of_pod(environment: Mapping[str, str]) -> int | None:
    """Returns the TrainJob's `numProcPerNode`; None if each GPU gets a worker ("auto")."""
    text = environment.get(_WORKERS, "")
    return int(text) if _NUMBER.fullmatch(text) else None


def tasks_of_train_job(environment: Mapping[str, str]) -> Tasks:
    """Returns the tasks of the TrainJob that this launcher's pod belongs to, one for each of its pods.

    Raises:
      LaunchError: the variables do not belong to a TrainJob.
    """
    for name in (_NODES, _NODE, _PORT):
        if not _NUMBER.fullmatch(environment[name]):
            raise LaunchError(f"Kubeflow Trainer's variable {name}: got {environment[name][:40]!r}, wanted a number")
    count, index = int(environment[_NODES]), int(environment[_NODE])
    if index >= count:
        raise LaunchError(f"Kubeflow Trainer's variables contradict each other: this is node {index} of {count}")
    if count == 1:
        return Tasks()
    check_size(count, _NODES)
    first = _FIRST_POD.fullmatch(environment[_ADDRESS])
    if first is None:
        raise LaunchError(
            f"Kubeflow Trainer's variable {_ADDRESS}: got {environment[_ADDRESS][:100]!r}, wanted the name of a "
            "TrainJob's first pod, as in train-node-0-0.train; or set TF_CONFIG"
        )
    return Tasks(tuple(f"{first[1]}{i}{first[2]}:{environment[_PORT]}" for i in range(count)), index, has_chief=False)
