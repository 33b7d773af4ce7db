"""The context: who this process is in its job, the job's options, and the connection to the engine."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lockstep._src.engine import at_exit, program_end
from lockstep._src.engine.arguments import listed
from lockstep._src.engine.cluster import Cluster, Task
from lockstep._src.engine.environment import warn_of_what_has_no_effect
from lockstep._src.engine.options import VARIABLES, Options, OptionValues, takes_options
from lockstep.launch.base import elastic_wire

if TYPE_CHECKING:
    from typing_extensions import Unpack


def meeting_of(cluster: Cluster, options: Options) -> Any:
    """What the engine is told of a process's place in its job: a `library.Meeting`.

    The worker of an elastic job outlives others: it hears of their loss when it next exchanges something, and goes on.
    """
    from lockstep._src.engine import library

    return library.Meeting(
        rank=cluster.rank,
        size=cluster.world_size,
        rendezvous=cluster.rendezvous,
        secret=cluster.secret,
        listen=cluster.listen,
        backend=options.comm_default,
        interface=options.comm_interface,
        host=options.comm_host,
        rendezvous_timeout_s=options.rendezvous_timeout_s,
        stall_timeout_s=options.stall_timeout_s,
        stopped_timeout_s=options.stopped_timeout_s,
        silence_timeout_s=options.silence_timeout_s,
        end_after_loss_s=0.0 if elastic_wire.ADDRESS in os.environ else options.end_after_loss_s,
        shared_bytes_per_rank=options.shared_bytes_per_rank,
    )


class Context:
    """The place of this process in its job, after HybridBackend's `Context` (docs/hybridbackend.md).

    Nothing happens when it is made: environment variables are read when they are first asked for, and the workers meet
    at the first `ensure_initialized()`, which scopes and collectives call. Members keep HybridBackend's names.

    Devices have two spellings. `local_devices`, `default_device` and `local_cpu_device` are names inside this process,
    fit for `tf.device`: every worker runs its own session. `devices` and `cpu_devices` are names inside the job, one a
    worker in the order of ranks. `rank_at` takes both.
    """

    _instance: Context | None = None
    _instance_lock = threading.Lock()

    def __init__(self) -> None:
        # Guards _connected and the making of _cluster and _options. Reentrant: connecting reads both.
        self._lock = threading.RLock()
        self._connected = False
        self._cluster: Cluster | None = None
        self._cluster_pid = 0  # of the process that read it
        self._options: Options | None = None
        self._detached = 0  # how many `detached` blocks are open
        self._saving_listeners: dict[str, Any] = {}

    def __call__(self) -> Context:
        """Itself: the documents spell the singleton `context()` as well."""
        return self

    def __repr__(self) -> str:
        return f"Context(task={self.task_type}:{self.task_id}, rank={self.rank}, world_size={self.world_size})"

    @classmethod
    def get(cls) -> Context:
        """The one context of this process."""
        with cls._instance_lock:
            if cls._instance is None:
                cls._instance = cls()
            return cls._instance

    # Options.

    @property
    def options(self) -> Options:
        """The job's settings; assign to its attributes to change them."""
        with self._lock:
            if self._options is None:
                self._options = Options.from_environment(os.environ)
            return self._options

    @classmethod
    @takes_options
    @contextlib.contextmanager
    def scope(cls, **kwargs: Unpack[OptionValues]) -> Iterator[Context]:
        """Changes options inside the block and puts the old values back at its end, also after an exception.

        Raises AttributeError for an unknown option, TypeError or ValueError for a bad value; nothing has changed then.
        """
        context = cls.get()
        previous = context.options.update(**kwargs)
        try:
            yield context
        finally:
            context.options.restore(previous)

    @takes_options
    def update_params(self, **kwargs: Unpack[OptionValues]) -> dict[str, Any]:
        """Sets several options, all or none; returns the values they had before."""
        return self.options.update(**kwargs)

    # The cluster.

    @property
    def cluster(self) -> Cluster:
        """What the environment says about this process's place in its job; of a fork, its own environment.

        Raises RuntimeError in a fork of a process that had connected to its job, which cannot be shared.
        """
        with self._lock:
            if self._cluster is not None and self._cluster_pid != os.getpid():
                if self._connected:
                    raise RuntimeError(
                        f"this process (pid {os.getpid()}) was forked from one that had connected to its job (pid "
                        f"{self._cluster_pid}); fork before the first scope or collective"
                    )
                self._cluster = None
            if self._cluster is None:
                self._cluster, self._cluster_pid = Cluster.from_environment(os.environ), os.getpid()
            return self._cluster

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Makes this process a job of its own inside, for scopes and collectives.

        For what exchanges by names (`named`) that which scopes would exchange once more.

        Raises RuntimeError where this process has connected to the other workers of its job.
        """
        with self._lock:
            whole = self.cluster
            if whole.world_size > 1:
                if self._connected:
                    raise RuntimeError(f"rank {whole.rank} has connected to the {whole.world_size} workers of its job")
                self._cluster = whole.alone()
        try:
            yield
        finally:
            with self._lock:
                if whole.world_size > 1:
                    self.shutdown()
                    self._cluster = whole

    @property
    def cluster_spec(self) -> Any:
        """The cluster of TF_CONFIG as `tf.train.ClusterSpec`; None without one."""
        if self.cluster.spec is None:
            return None
        import tensorflow as tf

        return tf.train.ClusterSpec(self.cluster.spec)

    @property
    def task_type(self) -> str:
        """Job name of this process in TF_CONFIG; 'localhost' without one."""
        return self.cluster.task_type

    @property
    def task_id(self) -> int:
        """Index of this process among the tasks of its type; 0 without TF_CONFIG."""
        return self.cluster.task_id

    @property
    def rank(self) -> int:
        """Index of this worker in the job, from 0."""
        return self.cluster.rank

    @property
    def world_size(self) -> int:
        """Number of workers in the job."""
        return self.cluster.world_size

    @property
    def local_rank(self) -> int:
        """Index of this worker among those of its host, from 0."""
        return self.cluster.local_rank

    @property
    def local_world_size(self) -> int:
        """Number of workers on this host."""
        return self.cluster.local_world_size

    @property
    def is_chief(self) -> bool:
        """True on the one worker that writes what the job writes once: rank 0."""
        return self.rank == 0 and self.task_type not in ("evaluator", "ps")

    @property
    def target(self) -> str:
        """Target for `tf.compat.v1.Session`: always '', this process. The engine needs no gRPC server."""
        return ""

    @classmethod
    def get_tf_config(cls) -> Task | None:
        """TF_CONFIG as (task_type, task_id, cluster), or None without one; ValueError when it is malformed."""
        return Task.from_environment(os.environ)

    @classmethod
    def set_tf_config(
        cls,
        task_type: str,
        task_id: int,
        worker_hosts: Sequence[str],
        ps_hosts: Sequence[str] | None = None,
        has_evaluator: bool = False,
    ) -> None:
        """Writes TF_CONFIG, from a list of workers as the task sees it.

        Args:
          task_type: name of the current job. 'worker' for the chief and the evaluator, too.
          task_id: index of this task in `worker_hosts` (or `ps_hosts`).
          worker_hosts: host:port of all workers. The first is the chief; the second the evaluator where there is one.
          ps_hosts: host:port of parameter servers.
          has_evaluator: whether the second worker evaluates.

        Raises:
          TypeError: hosts are no list of strings.
          ValueError: no such task.
          RuntimeError: this process has already connected to its job.

        """
        worker_hosts, ps_hosts = (
            listed("set_tf_config", name, hosts, lambda host: isinstance(host, str), "a list of host:port")
            for name, hosts in (("worker_hosts", worker_hosts), ("ps_hosts", ps_hosts))
        )
        roles = ["chief", "evaluator"][: 2 if has_evaluator else 1]
        cluster = {role: [host] for role, host in zip(roles, worker_hosts, strict=False)}
        if worker_hosts[len(roles) :]:
            cluster["worker"] = worker_hosts[len(roles) :]
        if ps_hosts:
            cluster["ps"] = ps_hosts
        if task_type == "worker":
            if task_id < len(roles):
                task_type, task_id = roles[task_id], 0
            else:
                task_id -= len(roles)
        if not 0 <= task_id < len(cluster.get(task_type, ())):
            raise ValueError(f"task {task_type}:{task_id} is not in the cluster {cluster}")
        context = cls.get()
        with context._lock:
            if context._connected:
                raise RuntimeError(f"set_tf_config: rank {context.rank} has already connected to its job")
            os.environ["TF_CONFIG"] = json.dumps(
                {"cluster": cluster, "task": {"type": task_type, "index": int(task_id)}}
            )
            context._cluster = None

    # Devices.

    @functools.cached_property
    def num_gpus(self) -> int:
        """Number of GPUs that TensorFlow sees in this process."""
        import tensorflow as tf

        return len(tf.config.list_physical_devices("GPU"))

    @property
    def has_gpu(self) -> bool:
        """True where TensorFlow sees a GPU in this process."""
        return self.num_gpus > 0

    @property
    def default_device(self) -> str:
        """The name of this process, under which TensorFlow places what has no device of its own."""
        return "/job:localhost/replica:0/task:0"

    @property
    def local_cpu_device(self) -> str:
        """First CPU of this process, for `tf.device`."""
        return f"{self.default_device}/device:CPU:0"

    @property
    def local_devices(self) -> list[str]:
        """The device that this worker trains on, for `tf.device`: a worker has one."""
        return [f"{self.default_device}/device:{self._device_type}:0"]

    @property
    def cpu_devices(self) -> list[str]:
        """First CPUs of all workers, in the order of their ranks."""
        return self._devices_of_job("CPU")

    @property
    def devices(self) -> list[str]:
        """Devices of all workers, in the order of their ranks."""
        return self._devices_of_job(self._device_type)

    @property
    def _device_type(self) -> str:
        return "GPU" if self.has_gpu else "CPU"

    def _devices_of_job(self, device_type: str) -> list[str]:
        return [f"/job:{kind}/replica:0/task:{index}/device:{device_type}:0" for kind, index in self.cluster.trainers]

    @classmethod
    def canonicalize(cls, devices: Sequence[str]) -> list[str]:
        """Full names of `devices`; what a name leaves out is filled in from the first CPU of this process."""
        import tensorflow as tf

        if isinstance(devices, str):
            devices = [devices]
        default = tf.DeviceSpec.from_string("/job:localhost/replica:0/task:0/device:CPU:0")
        return [default.make_merged_spec(tf.DeviceSpec.from_string(name.strip())).to_string() for name in devices]

    @classmethod
    def current_device(cls) -> str:
        """Full name of the device that encloses the call (`with tf.device(...)`)."""
        import tensorflow as tf

        # The only official way to ask is an operation made here: device scopes belong to the default graph.
        probe = tf.no_op().device if not tf.executing_eagerly() else tf.constant(0).device
        return cls.canonicalize([probe])[0]

    def current_index(self) -> int:
        """Rank of the worker whose device encloses the call."""
        return self.rank_at(self.current_device())

    def rank_at(self, device_or_tower_id: str | int) -> int:
        """Rank of a worker, given one of its devices, or the index of a device of this one; ValueError if unknown."""
        if not isinstance(device_or_tower_id, str):
            tower = int(device_or_tower_id)
            if tower != 0:
                raise ValueError(f"tower {tower} does not exist: rank {self.rank} trains on one device")
            return self.rank
        name = self.canonicalize([device_or_tower_id])[0]
        for known in (self.devices, self.cpu_devices):
            if name in known:
                return known.index(name)
        if name in (*self.local_devices, self.local_cpu_device):
            return self.rank
        raise ValueError(f"device {name} belongs to no worker of the job; the devices are {', '.join(self.devices)}")

    # Listeners of checkpoints.

    @property
    def saving_listeners(self) -> list[Any]:
        """Listeners (`tf.compat.v1.train.CheckpointSaverListener`) that sessions in a scope tell about checkpoints."""
        return list(self._saving_listeners.values())

    def add_saving_listener(self, name: str, listener: Any) -> None:
        """Registers a listener under `name`; the first of a name stays, so that a graph can be built twice."""
        self._saving_listeners.setdefault(name, listener)

    # The engine.

    @property
    def is_initialized(self) -> bool:
        """True between the meeting of the workers and `shutdown`."""
        return self._connected

    def ensure_initialized(self) -> None:
        """Connects this process to its job, the first time it is called. Scopes and collectives call it.

        Raises ValueError for an incomplete environment, and tf.errors.OpError with what the engine reports, such as the
        ranks that are missing.
        """
        with self._lock:
            if self._connected or self._detached:
                return
            from lockstep._src.engine import error_messages, library

            program_end.watch()
            cluster, options = self.cluster, self.options
            cluster.check_can_connect()
            if cluster.rank == 0:
                warn_of_what_has_no_effect(os.environ, VARIABLES)
            error_messages.put_first("context")
            try:
                library.init(meeting_of(cluster, options))
            except BaseException:
                error_messages.leave("context")
                raise
            self._connected = True
            options.set_connected(True)
            at_exit.register(self._leave_at_exit)

    @contextlib.contextmanager
    def detached(self) -> Iterator[None]:
        """Inside, `ensure_initialized` does nothing: for graphs that no worker of this job will run.

        A worker builds one alone, and would wait for the others in vain.
        """
        with self._lock:
            self._detached += 1
        try:
            yield
        finally:
            with self._lock:
                self._detached -= 1

    def move(self) -> None:
        """Reads this process's place from the environment anew when it is next asked for; leaves the job before."""
        with self._lock:
            self.shutdown()
            self._cluster = None

    def shutdown(self) -> None:
        """Leaves the job: collectives that still run are cancelled. Does nothing when not connected."""
        self._leave("")

    def _leave_at_exit(self) -> None:
        self._leave(program_end.farewell())

    def _leave(self, how: str) -> None:
        """Leaves the job; others that wait for this worker hear how."""
        with self._lock:
            if not self._connected:
                return
            from lockstep._src.engine import error_messages, library

            error_messages.leave("context")
            at_exit.unregister(self._leave_at_exit)
            self._connected = False
            self.options.set_connected(False)
            library.shutdown(how)


context = Context.get()


def init() -> None:
    """Connects this process to its job now, rather than at the first scope or collective."""
    context.ensure_initialized()


def shutdown() -> None:
    """Leaves the job. The exit of the process does the same."""
    context.shutdown()


def rank() -> int:
    """Index of this worker in the job, from 0."""
    return context.rank


def size() -> int:
    """Number of workers in the job."""
    return context.world_size
