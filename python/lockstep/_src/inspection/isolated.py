"""Reads files of others in a process of its own, with limits of memory and time.

Libraries of file formats may crash, loop or take any memory when a file is damaged, and a limit of this process would
hit TensorFlow as well.
"""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from lockstep._src.inspection.description import InspectError

_MEMORY_BYTES = 4 << 30


def call(module: str, request: Any, seconds: int, path: str, what: str) -> Any:
    """Runs `module` as a program, and returns the answer that its `serve` gives to a request.

    Args:
      module: The module; its end calls `serve`.
      request: The request, as JSON can write it.
      seconds: The limit of the time of the processor.
      path: The file that is read, for messages; `progress` in the program replaces it.
      what: What has failed if the program does not answer, for messages.

    Raises:
      InspectError: the program raised one, or did not end well.
    """
    ended = subprocess.run(
        [sys.executable, "-m", module, str(seconds)], input=json.dumps(request), capture_output=True, text=True
    )
    said: dict[str, Any] = {}
    for line in ended.stdout.splitlines():
        said |= json.loads(line)
    if "error" in said:
        raise InspectError(said["error"])
    if "answer" not in said:
        lines = ended.stderr.strip().splitlines()
        why = lines[-1].strip() if lines else f"the process ended with {_name(ended.returncode)}"
        if ended.returncode == -signal.SIGXCPU:
            why = f"it takes more than {seconds} s"
        raise InspectError(f"{said.get('file', path)} is damaged: {what} ({why})")
    return said["answer"]


def _name(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def progress(path: str) -> None:
    """Reports in the program which file is read next."""
    print(json.dumps({"file": path}), flush=True)


def serve(answer: Callable[[Any], Any]) -> None:
    """Answers the request of `call` in the program.

    Args:
      answer: Returns the answer; an InspectError is passed on.
    """
    seconds = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        print(json.dumps({"answer": answer(json.load(sys.stdin))}))
    except InspectError as error:
        print(json.dumps({"error": str(error)}))
