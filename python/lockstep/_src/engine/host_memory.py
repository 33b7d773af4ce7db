"""The host's memory, in which tables live, on machines with GPUs as well."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf
from tensorflow.python.eager import context as eager_context
from tensorflow.python.framework import ops
from tensorflow.python.ops import resource_variable_ops

Make = TypeVar("Make", bound=Callable[..., Any])


def has_gpu() -> bool:
    """Returns whether TensorFlow may place operations on a GPU in this process."""
    return bool(tf.config.get_visible_devices("GPU"))


def compute_capabilities() -> dict[str, tuple[int, int]]:
    """Returns the compute capability of each GPU that TensorFlow shows, by name, as far as TensorFlow knows it."""
    details = {gpu.name: tf.config.experimental.get_device_details(gpu) for gpu in tf.config.get_visible_devices("GPU")}
    return {name: found["compute_capability"] for name, found in details.items() if "compute_capability" in found}


def is_on_host(device: str | None) -> bool:
    """Returns whether what is on a device is in the host's memory.

    Args:
      device: a device's name. Without one, TensorFlow chooses, and prefers a GPU.
    """
    kind = tf.DeviceSpec.from_string(device or "").device_type
    return not has_gpu() if kind is None else kind.upper() == "CPU"


def has_host_memory(variable: Any) -> bool:
    """Returns whether a resource variable is in the host's memory, where this library's operations need it."""
    return is_on_host(variable.handle.device)


def on_host() -> contextlib.AbstractContextManager[Any]:
    """Places operations and variables inside the block on a CPU, if they would otherwise be on a GPU.

    Tables have no room in a GPU's memory yet, and the operations on them none of its code. The CPU that `tf.device`
    names around the block is kept.
    """
    if not has_gpu():
        return contextlib.nullcontext()
    spec = tf.DeviceSpec.from_string(_enclosing_device())
    if (spec.device_type or "GPU").upper() == "CPU":
        return contextlib.nullcontext()
    return tf.device(spec.replace(device_type="CPU", device_index=0).to_string())


def made_on_host(make: Make) -> Make:
    """Returns a function whose operations `on_host` places."""

    @functools.wraps(make)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with on_host():
            return make(*args, **kwargs)

    return cast(Make, wrapped)


def _enclosing_device() -> str:
    """Returns the device of a variable that would be created here; "": TensorFlow chooses."""
    if tf.executing_eagerly():
        return eager_context.context().device_name or ""
    # The device may depend on the operation, by a function. So it is asked in a graph that is thrown away.
    probe = tf.Graph()
    probe._device_function_stack = ops.get_default_graph()._device_function_stack.copy()
    with probe.as_default():
        return resource_variable_ops.var_handle_op(dtype=tf.float32, shape=[]).device
