"""A worker on another host, as its launcher sees it: what its host's agent tells of it."""

import signal
from collections.abc import Callable

from lockstep.launch.base.errors import LOST
from lockstep.launch.base.output import Console, Stream
from lockstep.launch.local.output_folder import OutputCopy
from lockstep.launch.local.worker import Worker
from lockstep.launch.remote.agent_wire import Message


class RemoteWorker(Worker):
    """A worker on another host.

    Args:
      host: What it is called.
      rank: In the job; of an elastic one its number, by which its host's agent knows it.
      say: Tells the host's agent something.
      console: Where its output goes.
      copies: Where it is kept as well.
    """

    def __init__(
        self,
        host: str,
        rank: int,
        say: Callable[[Message], None],
        console: Console,
        copies: tuple[OutputCopy, OutputCopy] | None,
    ):
        super().__init__(rank, 0)
        self._number = rank
        self._host, self._say, self._copies = host, say, copies
        self._lost = ""
        self._has_told = False
        streams = (
            Stream(console, fd, console.prefix(str(rank), fd), rank == 0, self.last_lines, is_remote=True)
            for fd in (console.stdout, console.stderr)
        )
        self.sinks = (*streams, self.notes)

    @property
    def label(self) -> str:
        """As of `Worker`, with its host."""
        return f"{self.name} (pid {self.pid} on {self._host})"

    @property
    def urgency(self) -> int:
        """As of `Worker`: before all, where it was lost."""
        return -LOST if self._lost else self.code

    def describe_end(self) -> str:
        """As of `Worker`."""
        return self._lost or super().describe_end()

    def feed(self, of: int, chunk: bytes) -> None:
        """What it wrote to stdout (1) or stderr (2), or noted (3)."""
        if self._copies is not None and of <= len(self._copies):
            self._copies[of - 1].write(chunk)
        self.sinks[of - 1].feed(chunk)

    def keep(self, text: bytes) -> None:
        """As of `Worker`."""
        if self._copies is not None:
            self._copies[1].write(text)

    def end(self, code: int, lost: str = "") -> None:
        """It has ended: with this code, or with its host."""
        if self.code is None:
            self.code, self._lost = code, lost
            for sink in self.sinks:
                sink.finish()

    def poll(self) -> bool:
        """As of `Worker`."""
        if self.code is None or self._has_told:
            return False
        self._has_told = True
        return True

    def signal(self, signum: signal.Signals) -> None:
        """As of `Worker`, through its host's agent."""
        self._say({"is": "signal", "rank": self._number, "number": int(signum)})

    def reap(self) -> None:
        """Nothing is written to its copies any more."""
        for copy in self._copies or ():
            copy.close()
