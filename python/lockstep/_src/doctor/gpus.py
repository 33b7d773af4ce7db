"""Checks of this machine's GPUs, of their driver, and of what workers need to exchange tensors between them.

It imports no TensorFlow: `installation.probe` has asked TensorFlow and the library for GPUs.
"""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep._src.doctor.findings import Finding
from lockstep._src.engine.devices import LEAST_CAPABILITY, LEAST_CUDA, LEAST_DRIVER
from lockstep.launch.base.sizes import size_of

_BACKEND = "LOCKSTEP_COMM_DEVICE"
_UPDATE = (
    f"install driver {LEAST_DRIVER} or later; with an older one, tensors go through the host's memory between workers"
)


def gpus(
    found: Mapping[str, Any], environ: Mapping[str, str] = os.environ, proc: Path = Path("/proc")
) -> list[Finding]:
    """Returns the findings about GPUs: one line on a machine without any.

    Args:
      found: what `installation.probe` has found.
      environ: the environment of the job.
      proc: the folder of the kernel's files.
    """
    if not (shown := found.get("shown")):
        return [_without_tensorflow(found.get("cuda"), shown)]
    names = "; ".join(_listed().stdout.splitlines())
    findings = [Finding("GPUs", "ok", f"TensorFlow shows {shown}" + (f" ({names})" if names else ""))]
    if environ.get(_BACKEND, "").lower() == "host":
        seen = f"{_BACKEND}=host: tensors go through the host's memory between workers"
        return [*findings, Finding("library for GPUs", "ok", f"not used: {seen}")]
    described = found.get("devices")
    findings.append(_driver(proc, described or {}))
    if described is None:
        why = f"TensorFlow's process ended while it was loaded: {found.get('ended', 'no answer')}"
        return [*findings, Finding("library for GPUs", "problem", why, f"set {_BACKEND}=host, and report this")]
    findings.append(_library(str(found.get("device_library", "")), described))
    if not described.get("count"):
        return findings
    findings += [_device(number, device) for number, device in enumerate(described["devices"])]
    if len(described["devices"]) > 1:
        findings.append(_peers(described["devices"]))
    return [*findings, _nccl(found.get("nccl") or {"error": "no answer"}, environ.get(_BACKEND, "nccl").lower())]


def _listed() -> subprocess.CompletedProcess[str]:
    """Lists the GPUs that the driver has; the exit code is 127 without nvidia-smi."""
    words = ["nvidia-smi", "-L"]
    try:
        return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        return subprocess.CompletedProcess(words, 127, "", "")
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(words, 126, "", f"it does not answer: {error}")


def _without_tensorflow(has_cuda: bool | None, shown: int | None) -> Finding:
    """Returns the finding on a machine where TensorFlow shows no GPU, or could not be asked (`shown` is None)."""
    name, listed = "GPUs", _listed()
    if listed.returncode == 127:
        return Finding(name, "ok", "none (no nvidia-smi): workers train on the CPU")
    if listed.returncode == 126:
        return Finding(name, "problem", f"nvidia-smi: {listed.stderr}", "restart the driver, or the machine")
    names = [line for line in listed.stdout.splitlines() if line.startswith("GPU ")]
    if listed.returncode or not names:
        said = " ".join((listed.stderr or listed.stdout).split()) or f"exit code {listed.returncode}"
        advice = "install or load the driver (modprobe nvidia)"
        return Finding(name, "warning", f"nvidia-smi lists none: {said}", advice)
    seen = f"{len(names)}: " + "; ".join(names)
    if has_cuda is False:
        return Finding(name, "warning", seen, "this TensorFlow is for the CPU only: install tensorflow[and-cuda]")
    if has_cuda and shown == 0:
        advice = (
            "read what TensorFlow prints at import, look at CUDA_VISIBLE_DEVICES, and install tensorflow[and-cuda], "
            "which has the libraries that TensorFlow needs"
        )
        return Finding(name, "warning", f"{seen}; TensorFlow shows none of them", advice)
    return Finding(name, "ok", seen)


def _driver(proc: Path, described: Mapping[str, Any]) -> Finding:
    """Compares the driver's version with the lowest one of CUDA 13."""
    name, cuda = "GPU driver", described.get("driver")
    try:
        text = (proc / "driver" / "nvidia" / "version").read_text()
    except OSError:
        text = ""
    known = re.search(r"\s(\d{3,4})(\.\d[\d.]*)\s", text)
    parts = [f"NVIDIA {known[1]}{known[2]}"] if known else []
    if cuda:
        parts.append(f"supports CUDA {cuda // 1000}.{cuda % 1000 // 10}")
    seen = ", ".join(parts) or "version unknown"
    is_old = int(known[1]) < LEAST_DRIVER if known else cuda is not None and cuda < LEAST_CUDA
    return Finding(name, "warning", seen, _UPDATE) if is_old else Finding(name, "ok", seen)


def _library(path: str, described: Mapping[str, Any]) -> Finding:
    """Tells whether the library for GPUs is loaded, and counts a device."""
    name = "library for GPUs"
    if "error" in described:
        advice = "do what it says; until then, tensors go through the host's memory between workers"
        return Finding(name, "warning", str(described["error"]), advice)
    seen = f"{path} is loaded ({described['runtime']})"
    if not described["count"]:
        advice = _UPDATE if described["driver"] < LEAST_CUDA else "look at nvidia-smi, and at CUDA_VISIBLE_DEVICES"
        return Finding(name, "warning", f"{seen}, and counts no device: {described['why']}", advice)
    return Finding(name, "ok", f"{seen}, and counts {described['count']}")


def _device(number: int, device: Mapping[str, Any]) -> Finding:
    """Describes one device."""
    name = f"GPU {number}"
    if "error" in device:
        advice = "look for programs that use it, and for errors of the driver (nvidia-smi, dmesg)"
        return Finding(name, "problem", str(device["error"]), advice)
    capability = device["major"], device["minor"]
    free, whole = size_of(device["free_bytes"]), size_of(device["memory_bytes"])
    seen = f"{device['name']}, compute capability {capability[0]}.{capability[1]}, {free} free of {whole}"
    if capability < LEAST_CAPABILITY:
        least = ".".join(map(str, LEAST_CAPABILITY))
        advice = f"the library for GPUs has code for {least} and later: set {_BACKEND}=host"
        return Finding(name, "problem", seen, advice)
    return Finding(name, "ok", seen)


def _peers(devices: Sequence[Mapping[str, Any]]) -> Finding:
    """Tells which devices cannot read each other's memory."""
    name = "peer access"
    apart = [
        f"{one} and {other}"
        for one, device in enumerate(devices)
        for other in range(one + 1, len(devices))
        if "error" not in device and other not in device["peers"]
    ]
    if not apart:
        return Finding(name, "ok", f"between all {len(devices)} GPUs")
    advice = (
        "NCCL copies between them through the host's memory: compare nvidia-smi topo -m, and switch PCI access control "
        "(ACS) off"
    )
    return Finding(name, "warning", f"none between GPUs {', '.join(apart)}", advice)


def _nccl(described: Mapping[str, Any], backend: str) -> Finding:
    """Tells which NCCL workers would use."""
    if "error" not in described:
        version = described["version"]
        text = f"{version // 10000}.{version // 100 % 100}.{version % 100}"
        return Finding("NCCL", "ok", f"{text}, from {described['place']}")
    if backend == "staged":
        return Finding("NCCL", "ok", f"not needed ({_BACKEND}=staged): {described['error']}")
    advice = f"install it, as it says; or set {_BACKEND}=staged, which copies through the host's memory"
    return Finding("NCCL", "warning", str(described["error"]), advice)
