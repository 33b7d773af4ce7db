"""The output of a job as Horovod's launcher shows it: `[0]<stdout>:` before each line of rank 0's."""

import time

from lockstep.launch.base.output import Console


class HorovodConsole(Console):
    """The launcher's stdout and stderr, with Horovod's prefixes.

    They are those of its launcher without MPI: `[rank]<stdout>:` or `[rank]<stderr>:`. With timestamps, date and time
    stand in front of them, as C's `asctime` writes them: `Mon Nov 23 06:37:17 2026[0]<stdout>:`.
    """

    def prefix(self, name: str, fd: int) -> bytes:
        """As of `Console`."""
        return f"[{name}]<{'stdout' if fd == self.stdout else 'stderr'}>:".encode()

    def _stamp(self) -> bytes:
        return time.asctime().encode() if self.timestamps else b""
