"""The op library: it loads the library and offers its TensorFlow ops (`ops`) and a few functions of the engine.

An op library works only with the minor version of TensorFlow for which it was built; `libraries.py` chooses it.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import tensorflow as tf

from lockstep._src.engine import libraries
from lockstep.launch.base.ports import listener_at

# The numbers of core/capi/capi.h that stand for missing values; in Python these are None.
_NO_LISTENER = -1
_NO_CONTEXT = -1
_NO_NUMBER = -1
_STILL_RUNS = -1
_NEVER_S = 0.0

# By number of StatusCode (core/base/status.h): the class that calls through the C interface raise for it. Operations
# raise InternalError for UNAVAILABLE and ABORTED instead (tf/bridge/convert.cc).
_ERRORS: tuple[type[tf.errors.OpError] | None, ...] = (
    None,
    tf.errors.CancelledError,
    tf.errors.InvalidArgumentError,
    tf.errors.DeadlineExceededError,
    tf.errors.NotFoundError,
    tf.errors.ResourceExhaustedError,
    tf.errors.FailedPreconditionError,
    tf.errors.AbortedError,
    tf.errors.OutOfRangeError,
    tf.errors.UnimplementedError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
    tf.errors.DataLossError,
)


def _set_device_library(capi: ctypes.CDLL) -> None:
    """Says where the library for GPUs lies. It comes before the registration of kernels, which depends on it.

    Without the library, kernels for GPUs have their tensors in the host's memory, as the variable 'host' asks for.
    """
    capi.lockstep_set_device_library.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    capi.lockstep_set_device_library.restype = None
    place = libraries.device_place(os.environ)
    if os.environ.get("LOCKSTEP_COMM_DEVICE", "").lower() == "host":
        place = libraries.DevicePlace(None, "LOCKSTEP_COMM_DEVICE is 'host', so the library for GPUs is not loaded")
    library = b"" if place.library is None else os.fsencode(place.library)
    capi.lockstep_set_device_library(library, place.missing.encode())


def _load(path: Path) -> tuple[ModuleType, ctypes.CDLL]:
    try:
        loaded_ops = tf.load_op_library(str(path))
    except tf.errors.NotFoundError as e:
        raise ImportError(
            f"lockstep's op library {path} cannot be loaded into TensorFlow {tf.__version__}: {e.message}. "
            "Install lockstep-tf again"
        ) from e
    capi = ctypes.CDLL(str(path))  # finds the loaded library and does not load a second one
    _set_device_library(capi)
    capi.lockstep_register_kernels_for_gpus.restype = None
    capi.lockstep_register_kernels_for_gpus()
    capi.lockstep_init.argtypes = [ctypes.POINTER(_ContextOptions)]
    capi.lockstep_open_lane.argtypes = [
        ctypes.c_int,
        ctypes.POINTER(_ContextOptions),
        ctypes.c_longlong,
        ctypes.c_double,
        ctypes.c_double,
        ctypes.c_char_p,
    ]
    capi.lockstep_shutdown.argtypes = [ctypes.c_char_p]
    capi.lockstep_context_number.restype = ctypes.c_longlong
    capi.lockstep_await_background.argtypes = [ctypes.c_longlong, ctypes.c_double]
    capi.lockstep_barrier_in_background.argtypes = [ctypes.c_longlong, ctypes.c_char_p]
    capi.lockstep_end_within.argtypes = [ctypes.c_double, ctypes.c_int]
    capi.lockstep_close_lane.argtypes = [ctypes.c_int, ctypes.c_char_p]
    capi.lockstep_cancel_join.argtypes = [ctypes.c_int, ctypes.c_char_p]
    capi.lockstep_next_number.argtypes = [ctypes.c_int, ctypes.c_char_p]
    capi.lockstep_next_number.restype = ctypes.c_longlong
    capi.lockstep_lane_is_broken.argtypes = [ctypes.c_int]
    capi.lockstep_start_timeline.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int]
    capi.lockstep_stop_timeline.argtypes = [ctypes.c_int]
    capi.lockstep_counters.restype = ctypes.c_char_p
    capi.lockstep_set_table_size.argtypes = [ctypes.c_char_p, ctypes.c_longlong, ctypes.c_longlong]
    capi.lockstep_abort.argtypes = [ctypes.c_char_p]
    capi.lockstep_last_error.restype = ctypes.c_char_p
    capi.lockstep_lost_peer.argtypes = [ctypes.c_char_p]
    capi.lockstep_lost_peer.restype = ctypes.c_char_p
    capi.lockstep_set_apart_text.argtypes = [ctypes.c_char_p]
    capi.lockstep_set_apart_text.restype = None
    capi.lockstep_warn_apart.argtypes = [ctypes.c_char_p]
    capi.lockstep_warn_apart.restype = None
    capi.lockstep_describe_parquet.argtypes = [ctypes.POINTER(ctypes.c_char_p), ctypes.c_int]
    capi.lockstep_describe_parquet.restype = ctypes.c_char_p
    capi.lockstep_set_arrow.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p), ctypes.c_int, ctypes.c_char_p]
    capi.lockstep_set_arrow.restype = None
    capi.lockstep_set_nccl.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    capi.lockstep_set_nccl.restype = None
    capi.lockstep_describe_devices.argtypes = [ctypes.c_int]
    capi.lockstep_describe_devices.restype = ctypes.c_char_p
    capi.lockstep_describe_nccl.restype = ctypes.c_char_p
    return loaded_ops, capi


class _ContextOptions(ctypes.Structure):
    # LockstepContextOptions of core/capi/capi.h.
    _fields_: ClassVar = [
        ("rank", ctypes.c_int),
        ("size", ctypes.c_int),
        ("rendezvous", ctypes.c_char_p),
        ("secret", ctypes.c_char_p),
        ("backend", ctypes.c_char_p),
        ("interface", ctypes.c_char_p),
        ("host", ctypes.c_char_p),
        ("listen", ctypes.c_char_p),
        ("timeline", ctypes.c_char_p),
        ("rendezvous_timeout_s", ctypes.c_double),
        ("stall_timeout_s", ctypes.c_double),
        ("stopped_timeout_s", ctypes.c_double),
        ("silence_timeout_s", ctypes.c_double),
        ("end_after_loss_s", ctypes.c_double),
        ("shared_bytes_per_rank", ctypes.c_longlong),
        ("listener", ctypes.c_int),
        ("device_backend", ctypes.c_char_p),
        ("device_channels", ctypes.c_int),
        ("device_native_sums", ctypes.c_int),
    ]


@dataclasses.dataclass(frozen=True)
class ConnectionOptions:
    """The place of a process in its job, or in a group of it, and the settings of its connections to the others.

    It has the fields of ContextOptions (core/comm/options.h).

    Attributes:
      stopped_timeout_s: None if a rank may be stopped for as long as it may be late.
      end_after_loss_s: None if the process never ends by itself after the loss of another rank.
      listener: On rank 0, the descriptor of a socket that listens at `rendezvous`; None if the engine opens one.
      device_backend: The backend of this rank's GPU, 'nccl' or 'staged'; "": its tensors go through the host's memory.
      device_channels: How many communicators of NCCL take turns.
      device_native_sums: Whether NCCL may choose the order of sums.
    """

    rank: int
    size: int
    rendezvous: str
    secret: str
    backend: str
    interface: str
    host: str
    rendezvous_timeout_s: float
    stall_timeout_s: float
    stopped_timeout_s: float | None
    silence_timeout_s: float
    end_after_loss_s: float | None
    shared_bytes_per_rank: int
    listener: int | None = None
    listen: str = ""
    timeline: str = ""
    device_backend: str = ""
    device_channels: int = 1
    device_native_sums: bool = False

    def _as_c(self) -> _ContextOptions:
        values = dataclasses.asdict(self)
        values["stopped_timeout_s"] = _time_as_c(self.stopped_timeout_s)
        values["end_after_loss_s"] = _time_as_c(self.end_after_loss_s)
        values["listener"] = _NO_LISTENER if self.listener is None else self.listener
        return _ContextOptions(**{k: os.fsencode(v) if isinstance(v, str) else v for k, v in values.items()})


def _time_as_c(seconds: float | None) -> float:
    return _NEVER_S if seconds is None else seconds


def _from_c(number: int) -> int | None:
    return None if number == _NO_CONTEXT else number


ops: ModuleType
ops, capi = _load(libraries.op_library(tf.__version__, Path(tf.__file__).parent))


def _set_arrow(place: libraries.ArrowPlace) -> None:
    """Says where the library for Arrow lies; it is loaded when a file is first asked for."""
    library = b"" if place.library is None else os.fsencode(place.library)
    needed = _strings(os.fsencode(path) for path in place.needed)
    capi.lockstep_set_arrow(library, needed, len(needed), place.missing.encode())


def _strings(texts: Iterable[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    listed = list(texts)
    return (ctypes.c_char_p * len(listed))(*listed)


_set_arrow(libraries.arrow_place())


def init(connection: ConnectionOptions) -> None:
    """Connects to the other ranks and creates the engine of this process, which the ops use.

    Waits for up to `rendezvous_timeout_s`.

    Raises:
      tf.errors.FailedPreconditionError: this process already has an engine.
      tf.errors.InvalidArgumentError: an option is out of its range.
      tf.errors.UnavailableError: a rank was lost during the rendezvous.
      tf.errors.OpError: the rendezvous failed; the message says which ranks are missing.
    """
    with _naming_listener(connection):
        check(capi.lockstep_init(connection._as_c()))


@contextlib.contextmanager
def _naming_listener(connection: ConnectionOptions) -> Iterator[None]:
    """Adds to the error of a busy port which process listens there."""
    try:
        yield
    except tf.errors.OpError as error:
        if connection.rank != 0 or os.strerror(errno.EADDRINUSE) not in error.message:
            raise
        port = (connection.listen or connection.rendezvous).rpartition(":")[2]
        who = listener_at(int(port)) or "a process that this user cannot see"
        text = f"{who} listens at port {port}; end it, or choose another port (lockstep doctor --port {port})"
        raise type(error)(None, None, f"{error.message}: {text}") from None


def shutdown(how: str = "") -> None:
    """Leaves the job: collectives that still run end with CancelledError. Does nothing without an engine.

    Ranks that wait for this one receive the sentence `how`, which says how it left.
    """
    check(capi.lockstep_shutdown(how.encode()))


def engine_number() -> int:
    """Returns the number of this process's engine among those that it has had, from 1 on; 0 without an engine."""
    return capi.lockstep_context_number()


def background_has_ended(engine: int, wait_s: float) -> bool:
    """Waits for the work on an engine's background lane for up to `wait_s` seconds; returns whether it has ended.

    Raises:
      tf.errors.CancelledError: this process has left the engine's job.
      tf.errors.OpError: such work has failed; raised once.
    """
    code = capi.lockstep_await_background(engine, wait_s)
    if code == _STILL_RUNS:
        return False
    check(code)
    return True


def barrier_in_background(engine: int, error: str) -> None:
    """Adds a barrier of all ranks to an engine's background work; does not wait for it.

    Args:
      engine: the engine's number.
      error: why this rank has failed; then the barrier fails on all ranks, with CancelledError and this text. "": it
        has not.

    Raises:
      tf.errors.CancelledError: this process has left the engine's job.
    """
    check(capi.lockstep_barrier_in_background(engine, error.encode()))


def end_within(seconds: float, code: int) -> None:
    """Ends the process after `seconds` with the exit code `code` (negative: a signal), unless it has ended before.

    Raises:
      tf.errors.ResourceExhaustedError: no thread can be started for it.
    """
    check(capi.lockstep_end_within(seconds, code))


def open_lane(
    group: int,
    connection: ConnectionOptions,
    *,
    fusion_bytes: int,
    named_stall_warning_s: float | None,
    named_stall_timeout_s: float | None,
    label: str,
) -> None:
    """Connects to the ranks of a group and creates its named lane, which the named ops of this group use.

    The arguments are fields of NamedLaneOptions (core/comm/named/named_lane.h); a time of None is never reached. Raises
    the errors of `init`.
    """
    times = (_time_as_c(named_stall_warning_s), _time_as_c(named_stall_timeout_s))
    named = (fusion_bytes, *times, label.encode())
    with _naming_listener(connection):
        check(capi.lockstep_open_lane(group, connection._as_c(), *named))


def close_lane(group: int, how: str = "") -> None:
    """Leaves a group: operations of this rank that wait in it end with CancelledError. Does nothing without a lane."""
    check(capi.lockstep_close_lane(group, how.encode()))


def cancel_join(group: int, why: str) -> None:
    """Cancels the join in which this rank waits; it ends with CancelledError. Does nothing if no join waits."""
    check(capi.lockstep_cancel_join(group, why.encode()))


def next_number(group: int, text: str) -> int:
    """Returns how often this was called with `text` since the lane was opened or all its ranks have joined.

    Raises:
      tf.errors.FailedPreconditionError: the group has no lane.
    """
    number = capi.lockstep_next_number(group, text.encode())
    if number == _NO_NUMBER:
        check(_ERRORS.index(tf.errors.FailedPreconditionError))
    return number


def lane_is_broken(group: int) -> bool:
    """Returns whether the lane of a group is unusable because a rank died or left."""
    return bool(capi.lockstep_lane_is_broken(group))


def lost_peer(text: str) -> str:
    """Returns the part of an error's text that says how another rank died, left or aborted the job; "" if none does."""
    return capi.lockstep_lost_peer(text.encode(errors="replace")).decode(errors="replace")


def start_timeline(group: int, path: str, mark_cycles: bool) -> None:
    """Makes rank 0 of a group record the work of the group's lane in a file; does nothing on other ranks.

    Raises:
      tf.errors.FailedPreconditionError: the group has no lane.
      tf.errors.InvalidArgumentError: the file cannot be written.
    """
    check(capi.lockstep_start_timeline(group, os.fsencode(path), int(mark_cycles)))


def stop_timeline(group: int) -> None:
    """Ends the recording; does nothing if none runs. Raises ResourceExhaustedError if a part was not written."""
    check(capi.lockstep_stop_timeline(group))


def counters() -> dict[str, Any]:
    """Returns the counters of this process, as `Telemetry::Json` writes them (core/telemetry/telemetry.h)."""
    return json.loads(capi.lockstep_counters().decode("utf-8", "surrogateescape"))


def end_step() -> None:
    """Counts a training step that has ended, and records it in the timeline."""
    check(capi.lockstep_end_step())


def set_table_size(table: str, rows: int, size_bytes: int) -> None:
    """Sets the size of this rank's part of a table, for the counters."""
    check(capi.lockstep_set_table_size(table.encode(), rows, size_bytes))


def set_apart_text(text: str) -> None:
    """Sets the warning that is shown when a worker's share of data is read before this process joins other workers."""
    capi.lockstep_set_apart_text(text.encode())


def warn_apart(text: str) -> None:
    """Shows a warning on stderr, unless this process has begun to join other workers, or has shown such a one."""
    capi.lockstep_warn_apart(text.encode())


def abort(reason: str) -> None:
    """Ends all current and later collectives of all ranks with CancelledError and the text `reason`."""
    check(capi.lockstep_abort(reason.encode()))


def is_initialized() -> bool:
    """Returns whether this process has an engine."""
    return bool(capi.lockstep_is_initialized())


def rank() -> int | None:
    """Returns the rank of this process in its engine, None without one."""
    return _from_c(capi.lockstep_rank())


def size() -> int | None:
    """Returns the number of ranks of this process's engine, None without one."""
    return _from_c(capi.lockstep_size())


def num_hosts() -> int | None:
    """Returns the number of hosts of the ranks of this process's engine, None without one."""
    return _from_c(capi.lockstep_num_hosts())


def describe_parquet(filenames: Sequence[str]) -> dict[str, Any]:
    """Returns a description of the first Parquet file: 'file', and a list 'columns' (core/capi/describe_parquet.h).

    Raises:
      tf.errors.OpError: there is no such file, or it cannot be read.
    """
    names = _strings(os.fsencode(name) for name in filenames)
    text = capi.lockstep_describe_parquet(names, len(filenames))
    described = json.loads(text.decode("utf-8", "surrogateescape"))
    if "error" in described:
        errors = tf.compat.v1.errors
        code = getattr(errors, described["code"])
        raise errors.exception_type_from_error_code(code)(None, None, described["error"])
    return described


def describe_devices(*, details: bool) -> dict[str, Any]:
    """Loads the library for GPUs, and returns what it counts (core/capi/describe_devices.h).

    Args:
      details: whether each device is described; this takes some of its memory.

    Returns:
      "runtime", "driver", "count", "why" and "devices"; or only "error", the reason why the library cannot be loaded.
    """
    return json.loads(capi.lockstep_describe_devices(int(details)).decode("utf-8", "surrogateescape"))


def describe_nccl() -> dict[str, Any]:
    """Loads NCCL, and returns its "version", such as 22809, and "place"; or only "error", the reason why it cannot."""
    place = libraries.nccl_place(os.environ)
    capi.lockstep_set_nccl(os.fsencode(place.file), b"" if place.folder is None else os.fsencode(place.folder))
    return json.loads(capi.lockstep_describe_nccl().decode("utf-8", "surrogateescape"))


def check(code: int) -> None:
    """Raises the error of a call of the C interface; `code` is its result."""
    if code == 0:
        return
    message = capi.lockstep_last_error().decode(errors="replace")
    error: Any = _ERRORS[code] if 0 < code < len(_ERRORS) else tf.errors.UnknownError
    raise error(None, None, message)
