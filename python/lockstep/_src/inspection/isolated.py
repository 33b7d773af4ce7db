"""Reads files of others in a process of its own, with limits of memory and time.

Libraries of file formats may crash, loop or take any memory when a file is damaged, and a limit of this process would
hit TensorFlow as well. A valid file may reach a limit, too, so a limit is never reported as damage.
"""

from __future__ import annotations

import json
import math
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from lockstep._src.inspection.description import InspectError

_MEMORY_BYTES = 4 << 30
# Texts in errors of libraries that get no memory.
_NO_MEMORY = ("MemoryError", "bad_alloc", "memory allocation failed")

# In the program: the seconds of `call`.
_seconds = 0


def call(module: str, request: Any, seconds: int, path: str, what: str) -> Any:
    """Runs `module` as a program, and returns the answer that its `serve` gives to a request.

    Args:
      module: The module; its end calls `serve`.
      request: The request, as JSON can write it.
      seconds: The limit of the time of the processor; each `progress` restarts it.
      path: The file that is read, for messages; `progress` in the program replaces it.
      what: What has failed if the program does not answer, for messages.

    Raises:
      InspectError: the program raised one, or did not end well.
    """
    ended = subprocess.run(
        [sys.executable, "-m", module, str(seconds)], input=json.dumps(request), capture_output=True, text=True
    )
    said: dict[str, Any] = {"file": path, "seconds": seconds}
    for line in ended.stdout.splitlines():
        said |= json.loads(line)
    if "error" in said:
        raise InspectError(said["error"])
    if "answer" not in said:
        if limit := _limit(ended, said["seconds"]):
            raise InspectError(f"{said['file']}: {what}: {limit}")
        lines = ended.stderr.strip().splitlines()
        why = lines[-1].strip() if lines else f"the process ended with {_name(ended.returncode)}"
        raise InspectError(f"{said['file']} is damaged: {what} ({why})")
    return said["answer"]


def _limit(ended: subprocess.CompletedProcess[str], seconds: int) -> str:
    """Returns which limit has ended a program, "" if none has."""
    if ended.returncode == -signal.SIGXCPU:
        return f"it exceeds the limit of {seconds} s of CPU time"
    if ended.returncode == -signal.SIGKILL:
        return "its process was killed; the machine may be out of memory"
    if any(text in ended.stderr for text in _NO_MEMORY):
        return f"it exceeds the limit of {_MEMORY_BYTES >> 30} GiB of memory"
    return ""


def _name(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def progress(path: str, more_seconds: int = 0) -> None:
    """Reports in the program which file is read next, and restarts the limit of time.

    Args:
      path: The file.
      more_seconds: What this file may take beyond the seconds of `call`.
    """
    _allow(_seconds + more_seconds)
    print(json.dumps({"file": path, "seconds": _seconds + more_seconds}), flush=True)


def check_memory(error: Exception) -> None:
    """Raises MemoryError in the program if an error of a library says that it got no memory."""
    if isinstance(error, MemoryError) or any(text in str(error) for text in _NO_MEMORY):
        raise MemoryError(str(error)) from error


def serve(answer: Callable[[Any], Any]) -> None:
    """Answers the request of `call` in the program.

    Args:
      answer: Returns the answer; an InspectError is passed on.
    """
    global _seconds
    _seconds = int(sys.argv[1])
    _allow(_seconds)
    _set_limit(resource.RLIMIT_DATA, _MEMORY_BYTES)
    _set_limit(resource.RLIMIT_CORE, 0)
    try:
        print(json.dumps({"answer": answer(json.load(sys.stdin))}))
    except InspectError as error:
        print(json.dumps({"error": str(error)}))


def _allow(seconds: int) -> None:
    _set_limit(resource.RLIMIT_CPU, math.ceil(time.process_time()) + seconds)


def _set_limit(kind: int, limit: int) -> None:
    """Sets a soft limit, which can be raised later; the hard one may be lower and stays."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
