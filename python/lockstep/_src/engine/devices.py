"""The GPU of this worker: whether tensors move between the GPUs of the workers, and how (docs/gpu.md).

A worker has a GPU if TensorFlow shows one, and if the library for GPUs can use it. Looking uses no device, so a program
may choose its GPU afterwards, as Horovod's programs do.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception

# The lowest version of NVIDIA's driver for CUDA 13, and the version of CUDA as drivers report it.
LEAST_DRIVER, LEAST_CUDA = 580, 13000
# The lowest compute capability for which the library for GPUs has code.
LEAST_CAPABILITY = (8, 0)
# Each channel takes memory of the GPU.
_MOST_CHANNELS = 32


class Settings(Protocol):
    """The options about devices (options.py)."""

    comm_device: str
    comm_native_sums: bool
    comm_pool_capacity: int


class Connection(NamedTuple):
    """The fields of `ConnectionOptions` about this worker's GPU."""

    device_backend: str = ""
    device_channels: int = 1
    device_native_sums: bool = False


def connection(options: Settings, *, warns: bool) -> Connection:
    """Returns how this worker's GPU takes part in the job.

    Args:
      options: the job's settings.
      warns: whether a GPU that cannot take part is a warning, once in the life of the process.

    Raises:
      RuntimeError: the library for GPUs is loaded, but has no code for a GPU that TensorFlow shows.
    """
    from lockstep._src.engine import host_memory

    if not host_memory.has_gpu():
        return Connection()
    # The option 'host' comes after the registration of kernels, which then copy as 'staged' does.
    is_host = options.comm_device == "host"
    if (why := problem("staged" if is_host else options.comm_device)) or is_host:
        if warns and not is_host:
            _warn(why)
        return Connection()
    return Connection(options.comm_device, min(options.comm_pool_capacity, _MOST_CHANNELS), options.comm_native_sums)


def problem(backend: str) -> str:
    """Returns why GPUs cannot use a backend here, and what to do; "" if they can.

    Raises:
      RuntimeError: the library for GPUs is loaded, but has no code for a GPU that TensorFlow shows.
    """
    from lockstep._src.engine import library

    found = library.describe_devices(details=False)
    if "error" in found:
        return str(found["error"])
    if not found["count"]:
        text = f"{found['runtime']}: {found['why']}"
        if found["driver"] < LEAST_CUDA:
            text += f"; install NVIDIA's driver {LEAST_DRIVER} or later"
        return text
    _check_capabilities()
    return str(library.describe_nccl().get("error", "")) if backend == "nccl" else ""


def _check_capabilities() -> None:
    # Kernels that need the library's code are registered by now, so they cannot go through the host's memory instead.
    from lockstep._src.engine import host_memory

    for name, capability in host_memory.compute_capabilities().items():
        if capability < LEAST_CAPABILITY:
            raise RuntimeError(
                f"{name} has compute capability {capability[0]}.{capability[1]}, but the library for GPUs has code for "
                f"{LEAST_CAPABILITY[0]}.{LEAST_CAPABILITY[1]} and later: set LOCKSTEP_COMM_DEVICE=host, and "
                "its tensors go through the host's memory to other workers"
            )


def nccl_version(options: Settings) -> int:
    """Returns the version of the NCCL that moves this worker's tensors, such as 22809; 0 if none does."""
    from lockstep._src.engine import library

    if connection(options, warns=False).device_backend != "nccl":
        return 0
    return int(library.describe_nccl()["version"])


def intercept_questions(interception: Interception) -> None:
    """Makes TensorFlow's questions about custom devices use no device, as long as the program has used none.

    A session may still choose its GPU then (`visible_device_list`), and a device can be custom only after its program
    has used devices.
    """
    interception.replace(symbols.IS_CUSTOM_DEVICE, _wrap_is_custom_device)


def _wrap_is_custom_device(is_custom_device: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(is_custom_device)
    def wrapped(self: Any, device_name: str) -> bool:
        return self._context_handle is not None and is_custom_device(self, device_name)

    return wrapped


@functools.cache
def _warn(why: str) -> None:
    logging.getLogger("lockstep").warning(
        "TensorFlow shows a GPU, but its tensors go through the host's memory to other workers: %s. Or choose it "
        "without this warning: option comm_device='host' (LOCKSTEP_COMM_DEVICE=host)",
        why,
    )
