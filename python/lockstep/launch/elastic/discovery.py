"""Runs the host discovery script of an elastic job, while the job trains."""

import os
import selectors
import signal
import subprocess
import time
from typing import IO

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.output import Console
from lockstep.launch.elastic.host_pool import SCRIPT_TIMEOUT_S, HostPool, parse_discovered, start_script
from lockstep.launch.local.started import kill_group
from lockstep.launch.local.worker import end_in_words

# From the end of one run of the host discovery script to the start of the next.
_DISCOVER_EVERY_S = 1.0
# More than any list of hosts has: a script that prints more is in error.
_MOST_PRINTED_BYTES = 1 << 20


class Discovery:
    """A runner of the host discovery script, which runs it again and again, one at a time, without blocking.

    Args:
      script: The script.
      slots: The slots of hosts for which it prints no number.
      hosts: Takes the lists.
      selector: Calls the functions that are registered with it.
      console: Shows a message when the script fails, once for each kind of failure.

    Attributes:
      has_list: Whether the first list has come. Until then a failure is a LaunchError of `tick` or of the selector's
        call.
    """

    def __init__(
        self, script: str, slots: int | None, hosts: HostPool, selector: selectors.BaseSelector, console: Console
    ):
        self._script, self._slots, self._hosts = script, slots, hosts
        self._selector, self._console = selector, console
        self._process: subprocess.Popen | None = None
        self._printed = b""
        self._at = 0.0  # when it was started, or will be
        self._complaint = ""
        self.has_list = False

    def wake_at(self) -> float:
        """Returns when `tick` has to be called if no event comes before."""
        return self._at + (SCRIPT_TIMEOUT_S if self._process is not None else 0)

    def tick(self) -> None:
        """Starts the script if it is time for it; ends it if it takes too long."""
        if time.monotonic() < self.wake_at():
            return
        if self._process is not None:
            self._close(f"host discovery script {self._script!r}: still running after {SCRIPT_TIMEOUT_S} s")
            return
        try:
            self._process, self._printed, self._at = start_script(self._script), b"", time.monotonic()
        except LaunchError as error:
            self._close(str(error))
            return
        self._selector.register(_output(self._process), selectors.EVENT_READ, self._read)

    def _read(self, events: int) -> None:
        del events
        assert self._process is not None  # Its pipe is registered only while it runs.
        chunk = os.read(_output(self._process).fileno(), 1 << 16)
        self._printed += chunk
        if len(self._printed) > _MOST_PRINTED_BYTES:
            self._close(f"host discovery script {self._script!r} printed more than {_MOST_PRINTED_BYTES >> 20} MiB")
            return
        if chunk:
            return
        complaint = ""
        try:
            self._take(self._process.wait(), self._printed)
        except LaunchError as error:
            complaint = str(error)
        self._close(complaint)

    def _take(self, code: int, printed: bytes) -> None:
        if code:
            raise LaunchError(f"host discovery script {self._script!r} {end_in_words(code)}")
        self._hosts.found(parse_discovered(printed.decode(errors="replace"), self._slots, self._script))
        self.has_list = True

    def _close(self, complaint: str) -> None:
        self._at = time.monotonic() + _DISCOVER_EVERY_S
        if self._process is not None:
            self._selector.unregister(_output(self._process))
            _end_script(self._process)
            self._process = None
        if complaint and not self.has_list:
            raise LaunchError(complaint)
        if complaint and complaint != self._complaint:
            self._console.message(f"{complaint}; keeping the current hosts")
        self._complaint = complaint

    def __enter__(self) -> "Discovery":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None:
            self._close("")


def _output(process: subprocess.Popen[bytes]) -> IO[bytes]:
    """Returns the reading end of a script's stdout."""
    assert process.stdout is not None  # `start_script` makes a pipe.
    return process.stdout


def _end_script(process: subprocess.Popen) -> None:
    kill_group(process.pid, signal.SIGKILL)
    process.wait()
    _output(process).close()
