"""The stand-in device (device.cc): loads it, and reads its counters. And the stand-in for NCCL between such devices.

A process cannot unload it, so each test starts processes for it: `workers.call_workers(function, ...,
environment=plugin.environment())`, and the function calls `load` first.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.framework import load_library

from lockstep._src.engine import libraries
from lockstep.testing import workers

_MINOR = ".".join(tf.__version__.split(".")[:2])
_BUILD = Path(__file__).parents[2] / "build" / f"tf-{tf.__version__}"
PLUGIN = _BUILD / "tests" / "standin" / f"liblockstep_standin_tf{_MINOR}.so"
LIBRARY = Path(os.environ.get(libraries.DEVICE_LIBRARY, _BUILD / "core" / "device" / "liblockstep_emulated.so"))
NCCL = _BUILD / "core" / "testing" / "nccl" / "liblockstep_standin_nccl.so"


class Work(NamedTuple):
    """Work of the devices since the process began.

    Attributes:
      to_device: copies from the host to a device.
      to_host: copies from a device to the host.
      on_device: copies inside of devices.
      launches: TensorFlow's kernels that computed on a device.
    """

    to_device: int
    to_host: int
    on_device: int
    launches: int

    def __sub__(self, before: Work) -> Work:
        """Returns the work since `before`."""
        return Work(*(now - then for now, then in zip(self, before, strict=True)))


def environment(devices: int = 1, delay_us: int = 0, backend: str = "nccl") -> dict[str, str]:
    """Returns the variables of a process with stand-in devices.

    Args:
      devices: the number of devices.
      delay_us: the time before each piece of work of a stream. Code that does not wait for the work reads old values.
      backend: how tensors move between devices: option `comm_device`.
    """
    return {
        "LOCKSTEP_STANDIN_LIBRARY": str(LIBRARY),
        "LOCKSTEP_STANDIN_DEVICES": str(devices),
        "LOCKSTEP_EMULATED_DEVICES": str(devices),
        "LOCKSTEP_EMULATED_DELAY_US": str(delay_us),
        libraries.DEVICE_LIBRARY: str(LIBRARY),
        libraries.NCCL: str(NCCL),
        "LOCKSTEP_COMM_DEVICE": backend,
    }


def everywhere(folder: Path, **options: Any) -> dict[str, str]:
    """Returns the variables with which all workers of `call_workers`, and all programs, have stand-in devices.

    Args:
      folder: as for `installed`.
      **options: as for `environment`.
    """
    return {**environment(**options), **installed(folder), workers.CALLED_FIRST: f"{__name__}:load"}


def installed(folder: Path) -> dict[str, str]:
    """Returns the variables with which TensorFlow finds the plug-in at its import, for programs as they are.

    Args:
      folder: an empty folder, which is used until the programs have ended.
    """
    plugins = folder / "site-packages" / "tensorflow-plugins"
    plugins.mkdir(parents=True)
    (plugins / PLUGIN.name).symlink_to(PLUGIN)
    paths = [str(plugins.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), "LOCKSTEP_STANDIN_COUNTS": str(folder / "counts")}


def work_of_programs(folder: Path) -> list[Work]:
    """Returns the work of each process that has ended, by the folder that `installed` got."""
    lines = (folder / "counts").read_text().splitlines()
    return [Work(*map(int, line.split())) for line in lines]


def load() -> None:
    """Adds the stand-in devices to this process, which has not used any device before."""
    if not tf.config.list_physical_devices("GPU"):
        load_library.load_pluggable_device_library(str(PLUGIN))
    wanted, found = int(os.environ["LOCKSTEP_STANDIN_DEVICES"]), tf.config.list_physical_devices("GPU")
    if len(found) != wanted:
        raise RuntimeError(f"TensorFlow sees {found}, wanted {wanted} stand-in devices: were devices used before?")


@functools.cache
def _counters() -> ctypes.CDLL:
    counters = ctypes.CDLL(str(PLUGIN))
    counters.lockstep_standin_count.restype = ctypes.c_longlong
    return counters


def work() -> Work:
    """Returns the work of all devices until now."""
    return Work(*(_counters().lockstep_standin_count(i, 0) for i in range(len(Work._fields))))
