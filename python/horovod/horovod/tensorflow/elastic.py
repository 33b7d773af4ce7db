"""Elastic programs: state that survives the loss of processes, and the loop that continues with others.

`import horovod.tensorflow as hvd`, then `hvd.elastic.run` and a state; docs/horovod_elastic.md is the manual.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from horovod.common.elastic import State
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from lockstep._src.compat.horovod.elastic import tensorflow_states
from lockstep._src.compat.horovod.elastic.tensorflow_states import ObjectState, TensorFlowKerasState, TensorFlowState

__all__ = [
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "run",
]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates the function that trains, whose first argument is a `State`.

    Before each call of the function, all ranks have rank 0's state.

    A process may die while the function runs; any collective notices it. The state then becomes the one that was
    committed last. The remaining processes, and processes that wait to join, get new ranks, and the function is called
    again. When the hosts have changed, the same happens at the next `commit` or `check_host_updates`, without a step
    back.

    Call no collective between `init` and this function: processes that join later would call it by themselves.

    Raises:
      RuntimeError: from the returned function: the job has failed, because too few processes are left.
      SystemExit: likewise, with 0: the job has no place for this process any more.
    """
    return tensorflow_states.run(func)
