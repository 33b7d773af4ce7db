"""Elastic states and their loop, for any way to send objects around (docs/horovod_elastic.md)."""

# From the module that its pickles name: cloudpickle copies a class whose module is not loaded into every pickle.
from horovod.runner.elastic.worker import HostUpdateResult
from lockstep._src.compat.horovod.elastic.loop import run_fn
from lockstep._src.compat.horovod.elastic.notifications import notification_manager
from lockstep._src.compat.horovod.elastic.states import ObjectState, State

__all__ = ["HostUpdateResult", "ObjectState", "State", "notification_manager", "run_fn"]
