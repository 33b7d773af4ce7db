"""The loop that calls an elastic program again after each change of its job."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from lockstep._src.compat.horovod.elastic.notifications import member, notification_manager
from lockstep._src.compat.horovod.elastic.states import State
from lockstep._src.compat.horovod.exceptions import HorovodInternalError, HostsUpdatedInterrupt


def run_fn(
    func: Callable[..., Any],
    reset: Callable[[], None],
    has_lost_peers: Callable[[Exception], bool] = lambda error: False,
) -> Callable[..., Any]:
    """Returns a function that calls another one with synchronized state, again after each change of the job.

    Args:
      func: its first argument is a State.
      reset: leaves the job, and joins it in its new form.
      has_lost_peers: whether an exception counts as HorovodInternalError.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        worker = member()
        notification_manager.init()
        notification_manager.register_listener(state)
        keeps_state = has_changed = False
        try:
            while True:
                try:
                    # The program's reaction to a change may lose a peer as well.
                    if has_changed:
                        state.on_reset()
                    if not keeps_state:
                        state.sync()
                    if worker is not None:
                        worker.has_state = True
                    return func(state, *args, **kwargs)
                except HostsUpdatedInterrupt as interrupt:
                    keeps_state = interrupt.skip_sync
                except Exception as error:
                    if not isinstance(error, HorovodInternalError) and not has_lost_peers(error):
                        raise
                    state.restore()
                    keeps_state = False
                if worker is not None:
                    worker.keeps_state = keeps_state
                reset()
                has_changed = True
                # All ranks decide alike whether the state is sent around.
                keeps_state = keeps_state and (worker is None or worker.place.all_keep_state)
        finally:
            notification_manager.remove_listener(state)

    return wrapper
