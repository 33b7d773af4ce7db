"""Checks of this installation: Python, TensorFlow, the op library. They load them in a process of its own."""

import json
import platform
import subprocess
import sys
from typing import Any

from lockstep._src.doctor.findings import Finding
from lockstep._src.engine.build import buildinfo

_TIMEOUT_S = 300
# Prints a line of JSON for each thing that was loaded. A crash in one of them leaves the lines before it.
_PROBE = """
import json, os
from pathlib import Path
import tensorflow as tf
print(json.dumps({"tensorflow": tf.__version__, "cuda": tf.test.is_built_with_cuda()}), flush=True)
try:
  from lockstep._src.engine import libraries, library
  path = libraries.op_library(tf.__version__, Path(tf.__file__).parent)
  print(json.dumps({"library": str(path)}), flush=True)
  shown = len(tf.config.list_physical_devices("GPU"))
  print(json.dumps({"shown": shown}), flush=True)
  if shown:
    print(json.dumps({"device_library": str(libraries.device_place(os.environ).library)}), flush=True)
    print(json.dumps({"devices": library.describe_devices(details=True)}), flush=True)
    print(json.dumps({"nccl": library.describe_nccl()}), flush=True)
except ImportError as error:
  print(json.dumps({"error": str(error)}), flush=True)
"""


def python() -> Finding:
    """Shows the interpreter and the system."""
    return Finding("Python", "ok", f"{platform.python_version()} ({sys.executable}), {platform.platform()}")


def probe(executable: str = sys.executable) -> dict[str, Any]:
    """Loads TensorFlow and the op library in a process of its own.

    Returns:
      "tensorflow": its version; "cuda": whether it was built for CUDA; "library": the op library's file, if it was
      loaded; "error": why not; "shown": the number of GPUs that TensorFlow shows. If there is one: "device_library",
      the file of the library for GPUs; "devices" and "nccl", as `library.describe_devices` and `describe_nccl` return
      them. After a crash "ended" says how the process ended.
    """
    try:
        loaded = subprocess.run(
            [executable, "-c", _PROBE], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return {"ended": f"it did not load within {_TIMEOUT_S} s"}
    found: dict[str, Any] = {}
    for line in loaded.stdout.splitlines():
        if line.startswith("{"):
            found.update(json.loads(line))
    if loaded.returncode:
        last = (loaded.stderr.strip().splitlines() or ["no message"])[-1]
        found["ended"] = f"exit code {loaded.returncode}: {last}"
    return found


def installation(found: dict[str, Any]) -> list[Finding]:
    """Returns the findings about what `probe` has found."""
    if "tensorflow" not in found:
        why = found.get("ended", "no answer")
        advice = "install TensorFlow 2.15 to 2.21 in this environment (pip install tensorflow-cpu), or repair it"
        return [Finding("TensorFlow", "problem", f"cannot be imported: {why}", advice)]
    kind = "with CUDA" if found["cuda"] else "for the CPU"
    findings = [Finding("TensorFlow", "ok", f"{found['tensorflow']}, {kind}")]
    if "library" in found:
        return [*findings, Finding("op library", "ok", f"{found['library']} is loaded; {buildinfo()}")]
    why = found.get("error") or found.get("ended", "no answer")
    return [*findings, Finding("op library", "problem", why, "install lockstep-tf for this TensorFlow, as it says")]
