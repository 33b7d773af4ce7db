"""Horovod's exceptions."""

_PUBLIC_MODULE = "horovod.common.exceptions"


class HorovodInternalError(RuntimeError):
    """A collective failed because the job lost a process; elastic programs recover from it."""

    __module__ = _PUBLIC_MODULE


class HostsUpdatedInterrupt(RuntimeError):
    """The hosts of an elastic job have changed; nothing is lost.

    Args:
      skip_sync: the state need not be sent around, because processes were only taken away.
    """

    __module__ = _PUBLIC_MODULE

    def __init__(self, skip_sync: bool):
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """An error that programs catch and this project never raises.

    A missing library is an ImportError here, which names what to build.
    """

    __module__ = _PUBLIC_MODULE
