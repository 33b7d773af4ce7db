"""The launcher's view of a worker on another host, as that host's agent reports it."""

import signal
from collections.abc import Callable

from lockstep.launch.base.errors import LOST
from lockstep.launch.base.output import Console, streams_of
from lockstep.launch.local.output_folder import OutputCopy
from lockstep.launch.local.worker import Worker
from lockstep.launch.remote.agent_wire import Message


class RemoteWorker(Worker):
    """A worker on another host.

    Args:
      host: The host's name.
      rank: In the job. For an elastic job its number, by which the host's agent knows it.
      say: Sends a message to the host's agent.
      console: Shows its output.
      copies: The files that also get its output.

    Attributes:
      number: The `rank` above, by which the host's agent knows it; `rank` changes with the rounds of an elastic job.
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
        self.number = rank
        self._host, self._say, self._copies = host, say, copies
        self.console = console
        self._lost = ""
        self._has_told = False
        self.sinks = (*streams_of(rank, console, self.last_lines, is_remote=True, start_up=self.start_up), self.notes)

    @property
    def label(self) -> str:
        """Its rank, process number and host, for messages."""
        return f"{self.name} (pid {self.pid} on {self._host})"

    @property
    def urgency(self) -> int:
        """Orders workers as `Worker.urgency`; a lost worker comes before all others."""
        return -LOST if self._lost else self.final_code

    def describe_end(self) -> str:
        """Implements `Worker.describe_end`."""
        return self._lost or super().describe_end()

    def feed(self, of: int, chunk: bytes) -> None:
        """Takes a part of its stdout (1), its stderr (2) or its notes (3)."""
        if self._copies is not None and of <= len(self._copies):
            self._copies[of - 1].write(chunk)
        self.sinks[of - 1].feed(chunk)

    def keep(self, text: bytes) -> None:
        """Implements `Worker.keep`."""
        if self._copies is not None:
            self._copies[1].write(text)

    def end(self, code: int, lost: str = "") -> None:
        """Records that it has ended: with this exit code, or lost together with its host."""
        if self.code is None:
            self.code, self._lost = code, lost
            for sink in self.sinks:
                sink.finish()

    def poll(self) -> bool:
        """Implements `Worker.poll`."""
        if self.code is None or self._has_told:
            return False
        self._has_told = True
        return True

    def signal(self, signum: signal.Signals) -> None:
        """Implements `Worker.signal`, through the host's agent."""
        self._say({"is": "signal", "rank": self.number, "number": int(signum)})

    def reap(self) -> None:
        """Closes the files with its output."""
        for copy in self._copies or ():
            copy.close()
