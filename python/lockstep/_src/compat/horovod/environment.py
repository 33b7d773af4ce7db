"""Settings of a job in Horovod's environment variables."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

from lockstep._src.engine import elastic
from lockstep.launch.base import elastic_wire

if TYPE_CHECKING:
    from lockstep._src.collectives import named

DYNAMIC_PROCESS_SETS = "HOROVOD_DYNAMIC_PROCESS_SETS"
# One of these is set by this project's launchers, the others by Horovod's and by MPI's.
_OWN_LAUNCHER = ("LOCKSTEP_WORLD_SIZE", "LOCKSTEP_RANK", elastic_wire.ADDRESS, "TF_CONFIG")
_OTHER_LAUNCHERS = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_NO = ("", "0", "false", "no", "off")
_YES = ("1", "true", "yes", "on")


def allows_dynamic_process_sets() -> bool:
    """Returns whether the program may add process sets while the job runs; any text but a "no" allows it."""
    return os.environ.get(DYNAMIC_PROCESS_SETS, "").lower() not in _NO


def is_set(name: str) -> bool:
    """Returns a variable as a boolean; raises ValueError if it is neither yes nor no."""
    text = os.environ.get(name, "").lower()
    if text in _NO:
        return False
    if text in _YES:
        return True
    raise ValueError(f"{name} is {os.environ[name]!r}, wanted 0 or 1")


def check_launcher() -> None:
    """Raises ValueError if another launcher started this process as one of several: each would train by itself."""
    if any(os.environ.get(name) for name in _OWN_LAUNCHER):
        return
    for name in _OTHER_LAUNCHERS:
        size = os.environ.get(name, "")
        if size not in ("", "1"):
            raise ValueError(
                f"{name} is {size}, but {_OWN_LAUNCHER[0]} is not set: another launcher started this process, which "
                f"would train by itself; start the job with this installation's horovodrun -np {size}"
            )


def stall_settings() -> named.LaneSettings:
    """Returns the seconds after which a tensor that only some ranks request causes a warning, and an error."""
    if is_set("HOROVOD_STALL_CHECK_DISABLE"):
        return {"stall_warning_s": 0, "stall_timeout_s": 0}
    warning = _number("HOROVOD_STALL_CHECK_TIME_SECONDS", float, 60)
    timeout = _number("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", float, 0)
    # Horovod never ends a job before it has warned.
    return {"stall_warning_s": warning, "stall_timeout_s": timeout if timeout > warning else 0}


def fusion_settings() -> named.LaneSettings:
    """Returns the number of bytes up to which small tensors travel together; nothing if the variable is not set."""
    threshold = _number("HOROVOD_FUSION_THRESHOLD", int, None)
    return {} if threshold is None else {"fusion_bytes": threshold}


def timeline_path() -> str:
    """Returns the path of this job's timeline; "" if there is none to begin with."""
    path = os.environ.get("HOROVOD_TIMELINE", "")
    if path.upper() == "DYNAMIC":
        return ""
    worker = elastic.member()
    place = None if worker is None else worker.place
    if path and place is not None and place.round > 1:
        # Each round has its own file, because rank 0 may be another process.
        root, extension = os.path.splitext(path)
        return f"{root}.{place.round}{extension}"
    return path


def _number(name: str, kind: type, default: Any) -> Any:
    """Returns a variable as a number of at least 0; raises ValueError for any other text."""
    text = os.environ.get(name, "")
    if not text:
        return default
    wanted = "seconds, 0 or more" if kind is float else "a whole number, 0 or more"
    try:
        value = kind(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}, wanted {wanted}") from None
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} is {text!r}, wanted {wanted}")
    return value
