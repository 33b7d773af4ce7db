"""The settings of a job: one typed struct, whose defaults are read from the environment once."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, TypeVar, get_type_hints

from lockstep._src.engine import placements

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off", "")


def _to_bool(value: Any) -> bool:
    if isinstance(value, str):
        text = value.strip().lower()
        if text in _TRUE + _FALSE:
            return text in _TRUE
        raise ValueError(f"got {value!r}, wanted one of {', '.join(_TRUE + _FALSE[:-1])}")
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):  # numpy's bool as well
        return bool(value)
    raise TypeError(f"got {value!r} of type {type(value).__name__}, wanted bool")


def _to_int(value: Any) -> int:
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            raise ValueError(f"got {value!r}, wanted an integer") from None
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"got {value!r} of type {type(value).__name__}, wanted int")
    return operator.index(value)


def _to_str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"got {value!r} of type {type(value).__name__}, wanted str")
    return value


def _to_path(value: Any) -> str:
    return _to_str(value.__fspath__() if hasattr(value, "__fspath__") else value)


def _at_least(least: int) -> Callable[[Any], int]:
    def convert(value: Any) -> int:
        number = _to_int(value)
        if number < least:
            raise ValueError(f"got {number}, wanted at least {least}")
        return number

    return convert


def _positive(unit: str) -> Callable[[Any], float]:
    def convert(value: Any) -> float:
        if isinstance(value, bool) or not (isinstance(value, str) or hasattr(value, "__float__")):
            raise TypeError(f"got {value!r} of type {type(value).__name__}, wanted a number of {unit}")
        try:
            number = float(value)
        except ValueError:
            raise ValueError(f"got {value!r}, wanted a number of {unit}") from None
        if not 0 < number < math.inf:
            raise ValueError(f"got {value!r}, wanted a positive number of {unit}")
        return number

    return convert


def _positive_or_never(unit: str) -> Callable[[Any], float]:
    positive = _positive(unit)

    def convert(value: Any) -> float:
        if isinstance(value, str) and value.strip().lower() in ("off", "never"):
            return 0.0
        if not isinstance(value, bool) and value in (0, "0"):
            return 0.0
        return positive(value)

    return convert


def _one_of(*choices: str) -> Callable[[Any], str]:
    def convert(value: Any) -> str:
        text = _to_str(value)
        if text not in choices:
            raise ValueError(f"got {text!r}, wanted one of {', '.join(map(repr, choices))}")
        return text

    return convert


def _to_backend(value: Any) -> str:
    # HybridBackend's only backend is 'NCCL', its default. Between hosts' memories it means the automatic choice.
    backend = _one_of("auto", "shm", "gloo", "nccl")(_to_str(value).lower())
    return "auto" if backend == "nccl" else backend


def _to_device_backend(value: Any) -> str:
    return _one_of("nccl", "staged", "host")(_to_str(value).lower())


def _to_batch_size(value: Any) -> int | None:
    # HybridBackend spells "not set" as -1; here it is None.
    return None if _to_int(value) == -1 else _at_least(1)(value)


def _to_wire_dtype(value: Any) -> str:
    # Takes 'float16', numpy.float16, numpy.dtype('float16') and tf.float16 without importing either library.
    name = value if isinstance(value, str) else getattr(value, "name", getattr(value, "__name__", None))
    return _one_of("float32", "float16", "bfloat16")(name)


@dataclasses.dataclass(frozen=True)
class _Spec:
    """The properties of one option: `convert` returns the value to store, or raises TypeError or ValueError."""

    convert: Callable[[Any], Any]
    env: tuple[str, ...]  # variables that set the default; the first one in the environment counts
    optional: bool  # whether None is a value
    fixed_once_connected: bool  # whether it is read only when the job connects


def _option(default: Any, convert: Callable[[Any], Any], *env: str, fixed_once_connected: bool = False) -> Any:
    spec = _Spec(convert, env, default is None, fixed_once_connected)
    return dataclasses.field(default=default, metadata={"spec": spec})


@dataclasses.dataclass
class Options:
    """Settings of a job, with HybridBackend's names where it has them.

    Every assignment is checked and converted before anything changes: an unknown name raises AttributeError, a wrong
    type TypeError, and a bad value ValueError. Not thread-safe: change options where the graph is built.

    Attributes:
      grad_nbuckets: number of buckets in which dense gradients are exchanged. Many buckets start earlier; few buckets
        have less overhead.
      grad_lazy_sync: whether gradients are exchanged in apply_gradients, after the user's clipping, instead of in
        compute_gradients.
      sharding: whether variables made in the scope are sharded over the workers.
      placement: where the rows of sharded tables are: 'rows', 'replicated', 'worker' or 'auto'; a mapping from patterns
        of table names to such values; or a plan's file (docs/sharding.md, "Where rows live").
      use_hierarchical_embedding_lookup: True: lookups collect rows inside each host first, then between hosts, if the
        hosts have several workers. False: all workers exchange directly. None: the cheaper way for the number of
        workers per host.
      embedding_gradient: how gradients of sharded tables are combined: 'mean' over workers, as for dense variables, or
        'sum', as in HybridBackend.
      group_lookups: whether lookups of sharded tables that don't depend on each other share one exchange.
      fused_lookups: whether lookups with a combiner (`tf.nn.embedding_lookup_sparse`) in sharded, dynamic and
        replicated tables are made of fused operations.
      fused_updates: whether one fused operation applies sparse gradients, if the optimizer is known.
      batch_size: rows of a batch on one worker, if known. Tables with fewer rows are replicated, which costs less.
      mode: the graph's purpose: 'train', 'eval' or 'infer'. With 'infer', nothing is sharded.
      seed: seed that a scope sets for the random numbers of Python, numpy, and the graphs inside; None: not set.
      model_dir: directory of checkpoints for sessions that have none of their own.
      keep_checkpoint_max: how many checkpoints are kept; 0: all; None: as the Saver is made.
      keep_checkpoint_every_n_hours: how often a checkpoint is kept for good; None: as the Saver is made.
      data_batch_count: batches that one step takes from the data, as micro-batches.
      data_sync_drop_remainder: what happens when the first worker runs out of data: True drops the others' remaining
        data; with False, training continues with empty batches on workers without data.
      save_data_position: whether checkpoints hold each worker's position in the data of the scope's iterators. A
        session that restores them continues from this position.
      background_saves: whether the checkpoints of a session's `CheckpointSaverHook` are written while training
        continues. With listeners of the program, training still waits.
      pipeline_dense_ga_enabled: without effect: gradients of micro-batches are always summed first.
      comm_default: backend of the communication engine between the memories of CPUs: 'shm', shared memory of one host;
        'gloo', connections between all workers; 'auto', shared memory inside each host and connections between hosts.
        'NCCL' is accepted and means 'auto'. While it is 'auto' and NCCL moves the tensors of this worker's GPU, its
        value reads as 'NCCL'.
      comm_device: backend between the memories of GPUs, for workers with one: 'nccl'; 'staged', copies through the
        hosts' memories, for several workers on one GPU; 'host', TensorFlow copies tensors to the CPU first. Without a
        GPU it has no effect.
      comm_native_sums: whether NCCL takes sums itself, in an order of its own. By default they are taken in the order
        of ranks, with the same bits as on CPUs.
      comm_pool_capacity: number of NCCL's communicators for each lane, at most 32, which take turns; without effect on
        CPUs.
      comm_pool_name: without effect: a process has one pool.
      comm_wire_dtype: type in which float32 values travel, 'float16' or 'bfloat16'; None: unchanged.
      comm_gradient_wire_dtype: the same for gradients; None: `comm_wire_dtype`.
      stall_timeout_s: seconds that a worker may be late in a collective before the job ends with an error that names
        it.
      stopped_timeout_s: seconds that a worker may be stopped (SIGSTOP, Ctrl-Z) while another worker of its host waits
        for it, before the job ends. A worker in a debugger does not count as stopped. 0 or 'never': `stall_timeout_s`.
      silence_timeout_s: seconds that a worker of another host may be silent, because it is cut off or frozen, before
        the job ends.
      end_after_loss_s: seconds that a worker may still run outside of exchanges after the loss of another worker. Then
        it writes the lost worker to stderr and exits with 1. For jobs on several hosts that are not elastic. 0 or
        'never': it is not ended. The sum with silence_timeout_s should be below the 10 s in which a job is to end.
      comm_interface: where data between hosts travels: an interface's name, an address of this machine or a network;
        '': the interface by which worker 0 is reached.
      comm_host: name that identifies a host: workers with the same name share memory. '': found automatically.
      rendezvous_timeout_s: seconds to wait at the start until all workers are there.
      timeline: folder in which each worker records its timeline (docs/timeline.md); '': none.
      shared_bytes_per_rank: bytes of address space of shared memory for each worker. Memory is taken only when it is
        used.
    """

    grad_nbuckets: int = _option(1, _at_least(1), "HB_GRAD_NBUCKETS")
    grad_lazy_sync: bool = _option(False, _to_bool, "HB_GRAD_LAZY_SYNC")
    sharding: bool = _option(False, _to_bool, "HB_SHARDING")
    placement: placements.Placements = _option("rows", placements.checked, "LOCKSTEP_PLACEMENT")
    use_hierarchical_embedding_lookup: bool | None = _option(None, _to_bool, "HB_USE_HIERARCHICAL_EMBEDDING_LOOKUP")
    embedding_gradient: str = _option("mean", _one_of("mean", "sum"))
    group_lookups: bool = _option(True, _to_bool, "LOCKSTEP_GROUP_LOOKUPS")
    fused_lookups: bool = _option(True, _to_bool, "LOCKSTEP_FUSED_LOOKUPS")
    fused_updates: bool = _option(True, _to_bool, "LOCKSTEP_FUSED_UPDATES")
    batch_size: int | None = _option(None, _to_batch_size, "HB_BATCH_SIZE")
    mode: str = _option("train", _one_of("train", "eval", "infer"), "HB_MODE")
    seed: int | None = _option(None, _at_least(0))

    model_dir: str | None = _option(None, _to_path, "HB_MODEL_DIR")
    keep_checkpoint_max: int | None = _option(None, _at_least(0), "HB_KEEP_CHECKPOINT_MAX")
    keep_checkpoint_every_n_hours: float | None = _option(None, _positive("hours"), "HB_KEEP_CHECKPOINT_EVERY_N_HOURS")

    data_batch_count: int = _option(1, _at_least(1), "HB_DATA_BATCH_COUNT")
    data_sync_drop_remainder: bool = _option(True, _to_bool, "HB_DATA_SYNC_DROP_REMAINDER")
    save_data_position: bool = _option(False, _to_bool, "LOCKSTEP_SAVE_DATA_POSITION")
    background_saves: bool = _option(True, _to_bool, "LOCKSTEP_BACKGROUND_SAVES")
    pipeline_dense_ga_enabled: bool = _option(False, _to_bool, "HB_PIPELINE_DENSE_GA_ENABLED")

    comm_default: str = _option("auto", _to_backend, "LOCKSTEP_COMM", "HB_COMM_DEFAULT", fixed_once_connected=True)
    comm_device: str = _option("nccl", _to_device_backend, "LOCKSTEP_COMM_DEVICE", fixed_once_connected=True)
    comm_native_sums: bool = _option(False, _to_bool, "LOCKSTEP_COMM_NATIVE_SUMS", fixed_once_connected=True)
    comm_pool_capacity: int = _option(1, _at_least(1), "HB_COMM_POOL_CAPACITY")
    comm_pool_name: str = _option("default", _to_str, "HB_COMM_POOL_NAME")
    comm_wire_dtype: str | None = _option(None, _to_wire_dtype, "HB_COMM_WIRE_DTYPE")
    comm_gradient_wire_dtype: str | None = _option(None, _to_wire_dtype, "HB_COMM_GRADIENT_WIRE_DTYPE")

    stall_timeout_s: float = _option(300.0, _positive("seconds"), "LOCKSTEP_STALL_TIMEOUT", fixed_once_connected=True)
    stopped_timeout_s: float = _option(
        5.0, _positive_or_never("seconds"), "LOCKSTEP_STOPPED_TIMEOUT", fixed_once_connected=True
    )
    silence_timeout_s: float = _option(8.0, _positive("seconds"), "LOCKSTEP_SILENCE_TIMEOUT", fixed_once_connected=True)
    end_after_loss_s: float = _option(
        1.5, _positive_or_never("seconds"), "LOCKSTEP_END_AFTER_LOSS", fixed_once_connected=True
    )
    comm_interface: str = _option("", _to_str, "LOCKSTEP_INTERFACE", fixed_once_connected=True)
    comm_host: str = _option("", _to_str, "LOCKSTEP_HOST", fixed_once_connected=True)
    rendezvous_timeout_s: float = _option(
        60.0, _positive("seconds"), "LOCKSTEP_RENDEZVOUS_TIMEOUT", fixed_once_connected=True
    )
    shared_bytes_per_rank: int = _option(
        1 << 30, _at_least(1 << 16), "LOCKSTEP_SHARED_BYTES_PER_RANK", fixed_once_connected=True
    )

    timeline: str = _option("", _to_path, "LOCKSTEP_TIMELINE", fixed_once_connected=True)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Options:
        """Returns the defaults, overridden by the variables of `environ`; ValueError names the wrong variable."""
        options = cls()
        for name, spec in _SPECS.items():
            variable = next((v for v in spec.env if v in environ), None)
            if variable is None:
                continue
            try:
                setattr(options, name, environ[variable])
            except (TypeError, ValueError) as error:
                raise ValueError(f"environment variable {variable}: {error}") from None
        return options

    def update(self, **values: Any) -> dict[str, Any]:
        """Sets all given options, or none if one is refused; returns their values from before."""
        converted = {name: _convert(name, value) for name, value in values.items()}
        previous = {name: self.__dict__.get(name) for name in converted}
        for name in converted:
            fixed = self.__dict__.get("_connected", False) and _SPECS[name].fixed_once_connected
            if fixed and converted[name] != previous[name]:
                raise ValueError(
                    f"option {name}: got {converted[name]!r}, but this process connected to its job with "
                    f"{previous[name]!r}; set it before the first scope or collective"
                )
        self.__dict__.update(converted)
        return previous

    def restore(self, previous: dict[str, Any]) -> None:
        """Restores the values that `update` returned; never refuses."""
        self.__dict__.update(previous)

    def set_connected(self, connected: bool) -> None:
        """Sets whether this process is connected; if it is, options that are read only at the connection stay fixed."""
        self.__dict__["_connected"] = connected

    def __setattr__(self, name: str, value: Any) -> None:
        self.update(**{name: value})


class OptionValues(TypedDict, total=False):
    """The options as arguments, for editors and type checkers: `**options: Unpack[OptionValues]`."""

    grad_nbuckets: int
    grad_lazy_sync: bool
    sharding: bool
    placement: placements.Placements
    use_hierarchical_embedding_lookup: bool | None
    embedding_gradient: str
    group_lookups: bool
    fused_lookups: bool
    fused_updates: bool
    batch_size: int | None
    mode: str
    seed: int | None
    model_dir: str | None
    keep_checkpoint_max: int | None
    keep_checkpoint_every_n_hours: float | None
    data_batch_count: int
    data_sync_drop_remainder: bool
    save_data_position: bool
    background_saves: bool
    pipeline_dense_ga_enabled: bool
    comm_default: str
    comm_device: str
    comm_native_sums: bool
    comm_pool_capacity: int
    comm_pool_name: str
    comm_wire_dtype: str | None
    comm_gradient_wire_dtype: str | None
    stall_timeout_s: float
    stopped_timeout_s: float
    silence_timeout_s: float
    end_after_loss_s: float
    comm_interface: str
    comm_host: str
    rendezvous_timeout_s: float
    shared_bytes_per_rank: int
    timeline: str


def _convert(name: str, value: Any) -> Any:
    spec = _SPECS.get(name)
    if spec is None:
        alike = difflib.get_close_matches(name, _SPECS, 1)
        known = f"did you mean {alike[0]!r}?" if alike else f"the options are {', '.join(sorted(_SPECS))}"
        raise AttributeError(f"unknown option {name!r}; {known}")
    if value is None and spec.optional:
        return None
    try:
        return spec.convert(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"option {name}: {error}") from None


_SPECS: dict[str, _Spec] = {field.name: field.metadata["spec"] for field in dataclasses.fields(Options)}


def _comm_default(options: Options) -> str:
    """Returns the value that programs see: 'NCCL' in place of 'auto', if NCCL moves the tensors of this worker."""
    from lockstep._src.engine import devices

    value = str(options.__dict__["comm_default"])
    return "NCCL" if value == "auto" and devices.connection(options, warns=False).device_backend == "nccl" else value


# A property in the class would be the field's default. Its value is set like any other.
_open_to_attributes: Any = Options
_open_to_attributes.comm_default = property(_comm_default)

VARIABLES = frozenset(variable for spec in _SPECS.values() for variable in spec.env)


class _Unchanged:
    """The default of an option that is an argument: without a value, the option does not change."""

    def __repr__(self) -> str:
        return "<unchanged>"


_UNCHANGED = _Unchanged()
_Function = TypeVar("_Function", bound=Callable[..., Any])


def takes_options(function: _Function) -> _Function:
    """Puts the options into the signature and the docstring of a function that takes them as `**options`.

    Args:
      function: a function whose other arguments are documented, and whose docstring has a line `{options}`.
    """
    signature = inspect.signature(function)
    of_its_own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_UNCHANGED, annotation=annotation)
        for name, annotation in get_type_hints(OptionValues).items()
    ]
    open_to_attributes: Any = function  # types of functions have no `__signature__`
    open_to_attributes.__signature__ = signature.replace(parameters=of_its_own + options)
    described = (inspect.getdoc(Options) or "").partition("Attributes:\n")[2]  # `python -OO` drops docstrings
    indented = described.replace("\n", "\n    ")
    function.__doc__ = (function.__doc__ or "").replace("{options}", indented.strip())
    return function
