"""Horovod's exceptions."""


class HorovodInternalError(RuntimeError):
    """A collective failed because the job lost a process; elastic programs recover from it."""


class HostsUpdatedInterrupt(RuntimeError):
    """The hosts of an elastic job have changed; nothing is lost.

    Args:
      skip_sync: the state need not be sent around, as processes were only taken away.
    """

    def __init__(self, skip_sync: bool):
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """Programs catch it; it is never raised here, where a missing library is an ImportError that says what to build."""
