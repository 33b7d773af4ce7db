"""The settings of a job: one struct, typed, read from the environment once, changed only as a whole."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

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
    # HybridBackend's default is 'NCCL', its only one: programs and jobs that spell it out get what this build has.
    backend = _one_of("auto", "shm", "gloo", "nccl")(_to_str(value).lower())
    return "auto" if backend == "nccl" else backend


def _to_batch_size(value: Any) -> int | None:
    # HybridBackend spells "not set" as -1; here it is None.
    return None if _to_int(value) == -1 else _at_least(1)(value)


def _to_wire_dtype(value: Any) -> str:
    # Takes 'float16', numpy.float16, numpy.dtype('float16') and tf.float16 without importing either library.
    name = value if isinstance(value, str) else getattr(value, "name", getattr(value, "__name__", None))
    return _one_of("float32", "float16", "bfloat16")(name)


@dataclasses.dataclass(frozen=True)
class _Spec:
    """How the value of one option is made: `convert` gives the value to store, or raises TypeError or ValueError."""

    convert: Callable[[Any], Any]
    env: tuple[str, ...]  # variables that set the default, the first that is set wins
    optional: bool  # None is a value
    fixed_once_connected: bool  # read only when the job connects


def _option(default: Any, convert: Callable[[Any], Any], *env: str, fixed_once_connected: bool = False) -> Any:
    spec = _Spec(convert, env, default is None, fixed_once_connected)
    return dataclasses.field(default=default, metadata={"spec": spec})


@dataclasses.dataclass
class Options:
    """Settings of a job, with HybridBackend's names where it has them.

    Every assignment is checked and converted: an unknown name raises AttributeError, a wrong type TypeError, a bad
    value ValueError, each before anything has changed. Not thread-safe: change options where the graph is built.
    """

    # Number of buckets in which dense gradients are exchanged: more buckets start earlier, fewer cost less each.
    grad_nbuckets: int = _option(1, _at_least(1), "HB_GRAD_NBUCKETS")
    # True: aggregate gradients in apply_gradients; False: already in compute_gradients, before the user's clipping.
    grad_lazy_sync: bool = _option(False, _to_bool, "HB_GRAD_LAZY_SYNC")
    # True: variables made in the scope are sharded over the workers.
    sharding: bool = _option(False, _to_bool, "HB_SHARDING")
    # True: look rows up inside of a host first, then between hosts, where these have several workers; False: at once;
    # None: as costs less for that many workers on a host (`sharding/steps.py`).
    use_hierarchical_embedding_lookup: bool | None = _option(None, _to_bool, "HB_USE_HIERARCHICAL_EMBEDDING_LOOKUP")
    # Gradients of sharded tables: 'mean' over workers, as those of dense variables, or 'sum', as HybridBackend's.
    embedding_gradient: str = _option("mean", _one_of("mean", "sum"))
    # True: lookups of sharded tables that don't depend on each other are one exchange; False: each is one of its own.
    group_lookups: bool = _option(True, _to_bool, "LOCKSTEP_GROUP_LOOKUPS")
    # True: sparse gradients are applied by one fused operation where the optimizer is known; False: as TensorFlow does.
    fused_updates: bool = _option(True, _to_bool, "LOCKSTEP_FUSED_UPDATES")
    # Rows of a batch on one worker, if known: tables with fewer rows are cheaper replicated than sharded.
    batch_size: int | None = _option(None, _to_batch_size, "HB_BATCH_SIZE")
    # What the graph is built for: 'train', 'eval' or 'infer'. Nothing is sharded for 'infer'.
    mode: str = _option("train", _one_of("train", "eval", "infer"), "HB_MODE")
    # Seed of random numbers: a scope sets it for Python, numpy, and the graphs inside; None: not set.
    seed: int | None = _option(None, _at_least(0))

    # Directory of checkpoints of sessions that are given none.
    model_dir: str | None = _option(None, _to_path, "HB_MODEL_DIR")
    # How many checkpoints are kept (0: all), and how often one is kept for good; None: as the Saver is made.
    keep_checkpoint_max: int | None = _option(None, _at_least(0), "HB_KEEP_CHECKPOINT_MAX")
    keep_checkpoint_every_n_hours: float | None = _option(None, _positive("hours"), "HB_KEEP_CHECKPOINT_EVERY_N_HOURS")

    # Batches that one step takes from the data, as micro-batches (`pipeline.py`).
    data_batch_count: int = _option(1, _at_least(1), "HB_DATA_BATCH_COUNT")
    # When the first worker has run out of data: True drops the others' remainder, False goes on with empty batches.
    data_sync_drop_remainder: bool = _option(True, _to_bool, "HB_DATA_SYNC_DROP_REMAINDER")
    # True: checkpoints hold each worker's position in the data of the scope's iterators, and a session goes on from it.
    save_data_position: bool = _option(False, _to_bool, "LOCKSTEP_SAVE_DATA_POSITION")
    # HybridBackend's: accumulate dense gradients over micro-batches. Of no effect: they always are.
    pipeline_dense_ga_enabled: bool = _option(False, _to_bool, "HB_PIPELINE_DENSE_GA_ENABLED")

    # Backend of the communication engine: 'shm', shared memory of one host; 'gloo', connections between all workers;
    # 'auto', shared memory inside of each host and connections between hosts. 'NCCL' is taken and means 'auto'.
    comm_default: str = _option("auto", _to_backend, "LOCKSTEP_COMM", "HB_COMM_DEFAULT", fixed_once_connected=True)
    # HybridBackend's pool of communicators. One communicator with one ordered lane serves a whole process here.
    comm_pool_capacity: int = _option(1, _at_least(1), "HB_COMM_POOL_CAPACITY")
    comm_pool_name: str = _option("default", _to_str, "HB_COMM_POOL_NAME")
    # Type in which float32 values travel; None: as they are. Of gradients: None is comm_wire_dtype (`wire.py`).
    comm_wire_dtype: str | None = _option(None, _to_wire_dtype, "HB_COMM_WIRE_DTYPE")
    comm_gradient_wire_dtype: str | None = _option(None, _to_wire_dtype, "HB_COMM_GRADIENT_WIRE_DTYPE")

    # How long a worker may be late in a collective before the job ends with an error that names it.
    stall_timeout_s: float = _option(300.0, _positive("seconds"), "LOCKSTEP_STALL_TIMEOUT", fixed_once_connected=True)
    # How long a worker that is waited for by one of its host may be stopped (SIGSTOP, Ctrl-Z) before the job ends. What a
    # debugger holds is not stopped. 0, or 'never': as long as it may be late.
    stopped_timeout_s: float = _option(
        5.0, _positive_or_never("seconds"), "LOCKSTEP_STOPPED_TIMEOUT", fixed_once_connected=True
    )
    # How long a worker of another host may be silent, cut off or frozen, before the job ends.
    silence_timeout_s: float = _option(8.0, _positive("seconds"), "LOCKSTEP_SILENCE_TIMEOUT", fixed_once_connected=True)
    # How long another worker goes on outside of an exchange after the loss of one: a process whose program no exchange
    # has told of it by then writes who was lost to stderr, and exits with 1. Of jobs on several hosts alone, where no
    # launcher may be there to end it, and not of elastic ones, whose workers go on. 0, or 'never': it is not ended.
    # With the silence before it, it should stay below the 10 s in which a job is to end.
    end_after_loss_s: float = _option(
        1.5, _positive_or_never("seconds"), "LOCKSTEP_END_AFTER_LOSS", fixed_once_connected=True
    )
    # Data between hosts: an interface's name, an address of this machine or a network; '': as worker 0 is reached.
    comm_interface: str = _option("", _to_str, "LOCKSTEP_INTERFACE", fixed_once_connected=True)
    # Tells hosts apart: workers with the same one share memory. '': found out.
    comm_host: str = _option("", _to_str, "LOCKSTEP_HOST", fixed_once_connected=True)
    # How long to wait at the start until all workers are there.
    rendezvous_timeout_s: float = _option(
        60.0, _positive("seconds"), "LOCKSTEP_RENDEZVOUS_TIMEOUT", fixed_once_connected=True
    )
    # Address space of shared memory for each worker; memory is taken only when it is used.
    shared_bytes_per_rank: int = _option(
        1 << 30, _at_least(1 << 16), "LOCKSTEP_SHARED_BYTES_PER_RANK", fixed_once_connected=True
    )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Options:
        """Defaults, and over them the variables of `environ`; ValueError names the variable that is wrong."""
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
        """Sets several options, all or (when one is refused) none; returns the values they had before."""
        converted = {name: _convert(name, value) for name, value in values.items()}
        previous = {name: getattr(self, name) for name in converted}
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
        """Puts back what `update` returned; never refuses."""
        self.__dict__.update(previous)

    def set_connected(self, connected: bool) -> None:
        """From now on (or no longer) refuses changes of what was read when the job connected."""
        self.__dict__["_connected"] = connected

    def __setattr__(self, name: str, value: Any) -> None:
        self.update(**{name: value})


def _convert(name: str, value: Any) -> Any:
    spec = _SPECS.get(name)
    if spec is None:
        raise AttributeError(f"unknown option {name!r}; the options are {', '.join(sorted(_SPECS))}")
    if value is None and spec.optional:
        return None
    try:
        return spec.convert(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"option {name}: {error}") from None


_SPECS: dict[str, _Spec] = {field.name: field.metadata["spec"] for field in dataclasses.fields(Options)}

VARIABLES = frozenset(variable for spec in _SPECS.values() for variable in spec.env)
