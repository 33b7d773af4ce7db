"""The output of a job as Horovod's launcher shows it: `[0]<stdout>:` before each line of rank 0's."""

import time

from lockstep.launch.base.output import Console


class HorovodConsole(Console):
    """The launcher's stdout and stderr, with Horovod's prefixes.

    It writes the prefixes of Horovod's launcher without MPI: `[rank]<stdout>:` or `[rank]<stderr>:`. Timestamps stand
    before them, in the format of C's `asctime`: `Mon Nov 23 06:37:17 2026[0]<stdout>:`.
    """

    def prefix(self, name: str, fd: int) -> bytes:
        """Implements `Console.prefix`."""
        return f"[{name}]<{'stdout' if fd == self.stdout else 'stderr'}>:".encode()

    def _stamp(self) -> bytes:
        return time.asctime().encode() if self.timestamps else b""
