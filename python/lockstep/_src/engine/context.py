"""The context of this process: its place in the job, the job's options, and the connection to the engine."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lockstep._src.engine import at_exit, devices, program_end
from lockstep._src.engine.arguments import listed
from lockstep._src.engine.cluster import Cluster, Task
from lockstep._src.engine.environment import warn_of_what_has_no_effect
from lockstep._src.engine.options import VARIABLES, Options, OptionValues, takes_options
from lockstep.launch.base import elastic_wire

if TYPE_CHECKING:
    from typing_extensions import Unpack


def connection_options(cluster: Cluster, options: Options) -> Any:
    """Returns the options with which the engine connects a process to its job.

    A worker of an elastic job survives the loss of others. Its next exchange reports the loss, and it continues. A time
    of 0, which means "never" in `Options`, becomes None. On each host the first worker warns of a GPU that the engine
    cannot use.
    """
    from lockstep._src.engine import library

    device = devices.connection(options, warns=cluster.local_rank == 0)
    return library.ConnectionOptions(
        rank=cluster.rank,
        size=cluster.world_size,
        rendezvous=cluster.rendezvous,
        secret=cluster.secret,
        listen=cluster.listen,
        backend="auto" if options.comm_default == "NCCL" else options.comm_default,
        interface=options.comm_interface,
        host=options.comm_host,
        rendezvous_timeout_s=options.rendezvous_timeout_s,
        stall_timeout_s=options.stall_timeout_s,
        stopped_timeout_s=options.stopped_timeout_s or None,
        silence_timeout_s=options.silence_timeout_s,
        end_after_loss_s=None if elastic_wire.ADDRESS in os.environ else options.end_after_loss_s or None,
        shared_bytes_per_rank=options.shared_bytes_per_rank,
        timeline=options.timeline,
        **device._asdict(),
    )


class Context:
    """The place of this process in its job, after HybridBackend's `Context` (docs/hybridbackend.md).

    The constructor does nothing. Environment variables are read at the first access to a member that needs them. The
    workers connect in the first `ensure_initialized()`, which scopes and collectives call. Members keep HybridBackend's
    names.

    Devices have two kinds of names. `local_devices`, `default_device` and `local_cpu_device` are names inside this
    process, for `tf.device`: every worker runs its own session. `devices` and `cpu_devices` are names inside the job,
    one per worker in the order of ranks. `rank_at` accepts both.
    """

    _instance: Context | None = None
    _instance_lock = threading.Lock()

    def __init__(self) -> None:
        # Guards _connected and the creation of _cluster and _options. It is reentrant, as connecting reads both.
        self._lock = threading.RLock()
        self._connected = False
        self._cluster: Cluster | None = None
        self._cluster_pid = 0  # the process that read _cluster
        self._options: Options | None = None
        self._detached = 0  # the number of open `detached` blocks
        # Calls the function that leaves the job. Work beside the steps replaces it, to end before (background.py).
        self._around_leaving: Callable[[Callable[[], None]], None] = lambda leave: leave()
        self._saving_listeners: dict[str, Any] = {}

    def __call__(self) -> Context:
        """Returns itself; HybridBackend's documents write `context()` for the singleton, too."""
        return self

    def __repr__(self) -> str:
        return f"Context(task={self.task_type}:{self.task_id}, rank={self.rank}, world_size={self.world_size})"

    @classmethod
    def get(cls) -> Context:
        """Returns the one context of this process."""
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
        """Changes options inside the block and restores the old values when it ends, also after an exception.

        Raises:
          AttributeError: an option is unknown.
          TypeError: a value has a wrong type.
          ValueError: a value is out of range, or the option cannot change any more. In all cases no option has changed.
        """
        context = cls.get()
        previous = context.options.update(**kwargs)
        try:
            yield context
        finally:
            context.options.restore(previous)

    @takes_options
    def update_params(self, **kwargs: Unpack[OptionValues]) -> dict[str, Any]:
        """Sets all given options, or none if one is wrong; returns their values from before. Raises like `scope`."""
        return self.options.update(**kwargs)

    # The cluster.

    @property
    def cluster(self) -> Cluster:
        """The place of this process in its job, from its environment. A fork reads its own environment.

        Raises:
          RuntimeError: this process is a fork of one that had connected to its job; a connection cannot be shared.
        """
        with self._lock:
            if self._cluster is not None and self._cluster_pid != os.getpid():
                if self._connected:
                    raise RuntimeError(
                        f"this process (pid {os.getpid()}) was forked after its parent had connected to the job (pid "
                        f"{self._cluster_pid}); fork before the first scope or collective"
                    )
                self._cluster = None
            if self._cluster is None:
                self._cluster, self._cluster_pid = Cluster.from_environment(os.environ), os.getpid()
            return self._cluster

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Makes scopes and collectives inside the block treat this process as a job of its own.

        Programs that exchange by names (`named`) use this, so that scopes do not exchange the same values a second
        time.

        Raises:
          RuntimeError: this process has connected to the other workers of its job.
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
        """Index of this worker among its host's workers, from 0."""
        return self.cluster.local_rank

    @property
    def local_world_size(self) -> int:
        """Number of workers on this host."""
        return self.cluster.local_world_size

    @property
    def is_chief(self) -> bool:
        """True on rank 0, the one worker that writes files which the job writes once."""
        return self.rank == 0 and self.task_type not in ("evaluator", "ps")

    @property
    def target(self) -> str:
        """Target for `tf.compat.v1.Session`: always '', this process. The engine needs no gRPC server."""
        return ""

    @classmethod
    def get_tf_config(cls) -> Task | None:
        """Returns TF_CONFIG as (task_type, task_id, cluster), None without one; ValueError if it is malformed."""
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
        """Writes TF_CONFIG from a list of workers, as one task sees it.

        Args:
          task_type: the type of this task; 'worker' also for the chief and the evaluator.
          task_id: the index of this task in `worker_hosts` (or `ps_hosts`).
          worker_hosts: host:port of all workers. The first is the chief; the second is the evaluator, if there is one.
          ps_hosts: host:port of parameter servers.
          has_evaluator: whether the second worker evaluates.

        Raises:
          TypeError: the hosts are not a list of strings.
          ValueError: there is no such task.
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
            raise ValueError(f"set_tf_config: task {task_type}:{task_id} is not in the cluster {cluster}")
        context = cls.get()
        with context._lock:
            if context._connected:
                raise RuntimeError(f"set_tf_config: rank {context.rank} has already connected to its job")
            os.environ["TF_CONFIG"] = json.dumps(
                {"cluster": cluster, "task": {"type": task_type, "index": int(task_id)}}
            )
            context._cluster = None

    # Devices.

    @property
    def num_gpus(self) -> int:
        """Number of GPUs that TensorFlow sees in this process, without those that `set_visible_devices` hides."""
        import tensorflow as tf

        return len(tf.config.get_visible_devices("GPU"))

    @property
    def has_gpu(self) -> bool:
        """True if TensorFlow sees a GPU in this process."""
        return self.num_gpus > 0

    @property
    def default_device(self) -> str:
        """The name of this process; TensorFlow places operations there that have no device of their own."""
        return "/job:localhost/replica:0/task:0"

    @property
    def local_cpu_device(self) -> str:
        """First CPU of this process, for `tf.device`."""
        return f"{self.default_device}/device:CPU:0"

    @property
    def local_devices(self) -> list[str]:
        """The device that this worker trains on, for `tf.device`; a list of one."""
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
        """Returns the full names of `devices`; missing parts are taken from the first CPU of this process."""
        import tensorflow as tf

        if isinstance(devices, str):
            devices = [devices]
        default = tf.DeviceSpec.from_string("/job:localhost/replica:0/task:0/device:CPU:0")
        return [default.make_merged_spec(tf.DeviceSpec.from_string(name.strip())).to_string() for name in devices]

    @classmethod
    def current_device(cls) -> str:
        """Returns the full name of the device that encloses the call (`with tf.device(...)`)."""
        import tensorflow as tf

        # Device scopes belong to the default graph. The only official way to read them is to create an operation here.
        probe = tf.no_op().device if not tf.executing_eagerly() else tf.constant(0).device
        return cls.canonicalize([probe])[0]

    def current_index(self) -> int:
        """Returns the rank of the worker whose device encloses the call; raises ValueError as `rank_at`."""
        return self.rank_at(self.current_device())

    def rank_at(self, device_or_tower_id: str | int) -> int:
        """Returns a worker's rank.

        Args:
          device_or_tower_id: the name of one of the worker's devices, or the index of a device of this worker.

        Raises:
          ValueError: no worker of the job has this device.
        """
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
        """Listeners (`tf.compat.v1.train.CheckpointSaverListener`) that sessions in a scope call for checkpoints."""
        return list(self._saving_listeners.values())

    def add_saving_listener(self, name: str, listener: Any) -> None:
        """Registers a listener under `name`. The first one of a name stays, so that a graph can be built twice."""
        self._saving_listeners.setdefault(name, listener)

    # The engine.

    @property
    def is_initialized(self) -> bool:
        """True from the connection of this process to its job until `shutdown`."""
        return self._connected

    def ensure_initialized(self) -> None:
        """Connects this process to its job when it is first called. Scopes and collectives call it.

        Raises:
          ValueError: the environment is incomplete.
          tf.errors.OpError: the engine's error, for example with the ranks that are missing.
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
                library.init(connection_options(cluster, options))
            except BaseException:
                error_messages.leave("context")
                raise
            self._connected = True
            options.set_connected(True)
            if cluster.world_size > 1:
                program_end.tell_joined()
            at_exit.register(self.leave_at_end)

    @property
    def is_detached(self) -> bool:
        """True inside of a `detached` block."""
        return self._detached > 0

    @contextlib.contextmanager
    def detached(self) -> Iterator[None]:
        """Makes `ensure_initialized` do nothing inside the block: for graphs that no worker of this job runs.

        Only one worker builds such a graph, so connecting would wait for the others forever.
        """
        with self._lock:
            self._detached += 1
        try:
            yield
        finally:
            with self._lock:
                self._detached -= 1

    def move(self) -> None:
        """Leaves the job; the next access reads this process's place from the environment again."""
        with self._lock:
            self.shutdown()
            self._cluster = None

    def shutdown(self) -> None:
        """Leaves the job: collectives that still run are cancelled. Does nothing when not connected."""
        self._leave("")

    def leave_at_end(self) -> None:
        """Leaves the job at the end of the program, and sends its reason to other workers that wait for this one."""
        with contextlib.suppress(KeyboardInterrupt):  # of the wait for a checkpoint
            self._leave(program_end.farewell())

    def _leave(self, how: str) -> None:
        """Leaves the job and sends its reason to other workers, which may wait for this one."""
        if self._connected:
            self._around_leaving(lambda: self._leave_now(how))

    def _leave_now(self, how: str) -> None:
        with self._lock:
            if not self._connected:
                return
            from lockstep._src.engine import error_messages, library

            error_messages.leave("context")
            at_exit.unregister(self.leave_at_end)
            if self.world_size > 1:
                program_end.tell_left()
            self._connected = False
            self.options.set_connected(False)
            library.shutdown(how)


context = Context.get()


def leave_through(around: Callable[[Callable[[], None]], None]) -> None:
    """Makes the context leave its job through a function, which gets the one that leaves."""
    context._around_leaving = around


def init() -> None:
    """Connects this process to its job now, rather than at the first scope or collective."""
    context.ensure_initialized()


def shutdown() -> None:
    """Leaves the job. The exit of the process does the same."""
    context.shutdown()


def rank() -> int:
    """Returns the index of this worker in the job, from 0."""
    return context.rank


def size() -> int:
    """Returns the number of workers in the job."""
    return context.world_size
