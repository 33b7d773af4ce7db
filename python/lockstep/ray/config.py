"""The places, the rendezvous and the secret of the workers that Ray Train starts.

`TensorflowTrainer(..., tensorflow_config=LockstepConfig())` starts the workers as Ray's actors. Ray calls the training
function in a thread of each. Before that, `LockstepConfig` gives each worker its place in the job, the address of the
rendezvous, and a secret that is new for each start of the workers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

try:
    import ray
    from ray.train.backend import Backend
    from ray.train.tensorflow import TensorflowConfig
except ImportError as error:
    raise ImportError(f"lockstep.ray needs Ray Train ({error}): pip install 'ray[train]'") from error

from lockstep.launch.base import interfaces, ports
from lockstep.launch.base.places import places
from lockstep.launch.placement.worker_environment import Rendezvous, threads_per_worker

# Ray asks its workers every two seconds whether they have failed. A worker that fails because of another one waits for
# longer, so that Ray hears of the cause first.
_CAUSE_FIRST_S = 5.0


@dataclasses.dataclass
class LockstepConfig(TensorflowConfig):
    """Configuration of a `TensorflowTrainer` whose workers train together in `lockstep.scope()`.

    It takes the place of Ray's `TensorflowConfig`, which prepares the workers for `tf.distribute`: that one sets
    TF_USE_LEGACY_KERAS, so that `tf.keras` means Keras 2, and no secret.

    In each worker it sets the variables of Lockstep's launcher (docs/launching.md), with these values:

    - `LOCKSTEP_SECRET`: 32 random bytes in hex.
    - `LOCKSTEP_RENDEZVOUS`: Ray's address of the first worker's node, or the address of its `LOCKSTEP_INTERFACE`.
    - `TF_NUM_INTRAOP_THREADS`, `TF_NUM_INTEROP_THREADS`: the CPUs that Ray has given to the worker, unless set.
    - `CUDA_VISIBLE_DEVICES`: empty if Ray has given no GPU to the worker.

    When the training function ends, the worker leaves the job. If it ends with an error, the collectives of other
    workers end with an error that names this worker and its error. Ray's `TrainingFailedError` has the errors by rank.
    """

    @property
    def backend_cls(self) -> type[Backend]:
        """The class that prepares the workers."""
        return _LockstepBackend

    @property
    def train_func_context(self) -> Callable[[], contextlib.AbstractContextManager[None]]:
        """The context in which a worker runs the training function."""
        return _leaving_at_end


class _LockstepBackend(Backend):
    """Gives workers their places in the job. Ray calls it each time it has started a group of workers."""

    def on_start(self, worker_group: Any, backend_config: LockstepConfig) -> None:
        """Sets the variables of each worker."""
        del backend_config
        workers = worker_group.execute(_describe)
        told = [
            worker_group.execute_single_async(rank, _set, variables)
            for rank, variables in enumerate(_variables(workers))
        ]
        ray.get(told)


@dataclasses.dataclass(frozen=True)
class _Worker:
    """A worker as Ray has started it.

    Attributes:
      node: The id of its node.
      host: The node's address, at which other workers reach it.
      port: A free TCP port there.
      cpus: The number of CPUs that Ray has given to it; 0 for none.
      has_gpu: Whether Ray has given a GPU to it.
    """

    node: str
    host: str
    port: int
    cpus: float
    has_gpu: bool


def _describe() -> _Worker:
    """Describes the worker in which it runs."""
    context = ray.get_runtime_context()
    host = ray.util.get_node_ip_address()
    if choice := os.environ.get(interfaces.VARIABLE):
        host = interfaces.address_of(choice)
    (port,) = ports.free_ports(1, host)
    cpus = context.get_assigned_resources().get("CPU", 0)
    return _Worker(context.get_node_id(), host, port, cpus, bool(context.get_accelerator_ids().get("GPU")))


def _variables(workers: Sequence[_Worker]) -> Iterator[dict[str, str]]:
    """Yields the variables of each worker, in the order of their ranks.

    Raises:
      RuntimeError: Ray has given workers of a node ranks that are not consecutive.
    """
    nodes = [(node, len(list(of_node))) for node, of_node in itertools.groupby(worker.node for worker in workers)]
    if len({node for node, _ in nodes}) < len(nodes):
        raise RuntimeError(
            f"Ray has numbered the workers of its nodes as {nodes}; wanted consecutive ranks for the workers of a node"
        )
    addresses = [interfaces.with_port(worker.host, worker.port) for worker in workers]
    rendezvous = Rendezvous(addresses[0], secrets.token_hex(32), addresses)
    for worker, place in zip(workers, places(nodes), strict=True):
        variables = {**place.variables(), **rendezvous.variables()}
        if place.size > 1:
            variables["TF_CONFIG"] = rendezvous.tf_config(place.rank)
            if not worker.has_gpu:
                variables["CUDA_VISIBLE_DEVICES"] = ""
        threads = threads_per_worker(int(worker.cpus), 1) if worker.cpus else {}
        yield {**{name: value for name, value in threads.items() if name.startswith("TF_")}, **variables}


def _set(variables: Mapping[str, str]) -> None:
    """Sets variables of the worker in which it runs; numbers of threads that the user has set stay."""
    for name, value in variables.items():
        if not (name.endswith("_THREADS") and name in os.environ):
            os.environ[name] = value


@contextlib.contextmanager
def _leaving_at_end() -> Iterator[None]:
    """Leaves the job at the end of the training function, which runs in a thread of its own."""
    from lockstep._src.engine import failure_report, program_end
    from lockstep._src.engine.context import context

    try:
        yield
    except BaseException as error:
        program_end.ends_with(error)
        context.leave_at_end()
        if failure_report.is_of_a_peer(error):
            time.sleep(_CAUSE_FIRST_S)
        raise
    context.leave_at_end()
