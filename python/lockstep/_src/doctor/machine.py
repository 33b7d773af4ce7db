"""Checks of this machine's processors and memory. Each returns findings, and imports no TensorFlow."""

import errno
import mmap
import os
import resource
from pathlib import Path

from lockstep._src.doctor.findings import Finding
from lockstep.launch.base.sizes import size_of
from lockstep.launch.placement.worker_environment import available_cpus

_SHARED_BYTES = "LOCKSTEP_SHARED_BYTES_PER_RANK"
# Python 3.10 has no name for this flag of Linux.
_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
# With less, TensorFlow by itself fills the memory of a worker.
_LEAST_BYTES_PER_RANK = 1 << 30
# A container's default; NCCL and loaders of other libraries need more.
_SMALL_SHM_BYTES = 64 << 20


def processors(ranks: int, root: Path = Path("/sys/fs/cgroup")) -> Finding:
    """Compares the processors that this process may use with the ranks of this machine.

    Args:
      ranks: The number of ranks that a job would have here.
      root: The folder of control groups.
    """
    cpus = available_cpus(root)
    seen = f"{cpus} for {ranks} ranks (affinity and control group), {os.cpu_count()} in the machine"
    if cpus >= ranks:
        return Finding("processors", "ok", seen)
    advice = (
        "ranks take turns, and each collective waits for all of them: start at most one rank per processor (-n), or "
        "give the job more (taskset, the container's limit, Slurm's --cpus-per-task)"
    )
    return Finding("processors", "warning", seen, advice)


def cpu_features(proc: Path = Path("/proc")) -> Finding:
    """Looks for the vector instructions that TensorFlow and the engine use."""
    name = "CPU features"
    try:
        lines = (proc / "cpuinfo").read_text().splitlines()
    except OSError as error:
        return Finding(name, "warning", f"{proc}/cpuinfo: {error.strerror}", "mount /proc in the container")
    values = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = (values.get("flags") or values.get("Features") or "").split()
    model = values.get("model name", "unknown model")
    known = [flag for flag in ("avx", "avx2", "fma", "avx512f", "amx_bf16", "asimd", "sve") if flag in flags]
    seen = f"{model}: {', '.join(known) or 'no vector instructions'}"
    if "avx" in flags or "asimd" in flags:
        return Finding(name, "ok", seen)
    advice = (
        "TensorFlow's packages need AVX and end with SIGILL without it: use a newer machine, or let the virtual "
        "machine pass the host's features on (QEMU: -cpu host)"
    )
    return Finding(name, "problem", seen, advice)


def memory(ranks: int, proc: Path = Path("/proc"), root: Path = Path("/sys/fs/cgroup")) -> Finding:
    """Compares the memory that is available, by the machine and the control group, with the ranks of this machine."""
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        kibibytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
        available = kibibytes["MemAvailable"] * 1024
    except (OSError, KeyError, ValueError, IndexError):
        return Finding("memory", "warning", f"{proc}/meminfo cannot be read", "mount /proc in the container")
    seen = f"{size_of(available)} available"
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        path = root / name
        limit = path.read_text().strip() if path.is_file() else ""
        if limit.isdecimal() and int(limit) < kibibytes.get("MemTotal", 0) * 1024:
            available = min(available, int(limit))
            seen += f", control group's limit {size_of(int(limit))}"
    if available >= ranks * _LEAST_BYTES_PER_RANK:
        return Finding("memory", "ok", seen)
    advice = (
        f"{ranks} ranks with TensorFlow take about {size_of(ranks * _LEAST_BYTES_PER_RANK)}: start fewer, or free some"
    )
    return Finding("memory", "warning", seen, advice)


def shared_memory(ranks: int, bytes_per_rank: int) -> Finding:
    """Makes and maps as much shared memory as the engine will, and gives it back. No page of it is touched.

    Args:
      ranks: The number of ranks that a job would have here.
      bytes_per_rank: The engine's option `shared_bytes_per_rank`.
    """
    name, wanted = "shared memory", ranks * bytes_per_rank
    try:
        fd = os.memfd_create("lockstep-doctor")
        try:
            os.ftruncate(fd, wanted)
            mmap.mmap(fd, wanted, flags=mmap.MAP_SHARED | _MAP_NORESERVE).close()
        finally:
            os.close(fd)
    except (OSError, OverflowError) as error:
        limits = {"ulimit -v": resource.RLIMIT_AS, "ulimit -f": resource.RLIMIT_FSIZE}
        low = [f"{shown} is {size_of(limit)}" for shown, kind in limits.items() if (limit := _soft(kind)) >= 0]
        cause = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        seen = f"{size_of(wanted)} of address space for {ranks} ranks cannot be reserved: {cause}"
        seen += f" ({', '.join(low)})" if low else ""
        if isinstance(error, OSError) and error.errno in (errno.ENOSYS, errno.EPERM):
            return Finding(name, "problem", seen, "allow memfd_create in the container's seccomp profile")
        advice = f"raise the limit, or set {_SHARED_BYTES} below {size_of(bytes_per_rank)}, the present value"
        return Finding(name, "problem", seen, advice)
    return Finding(name, "ok", f"{size_of(wanted)} of address space for {ranks} ranks ({_SHARED_BYTES})")


def _soft(kind: int) -> int:
    limit = resource.getrlimit(kind)[0]
    return -1 if limit == resource.RLIM_INFINITY else limit


def dev_shm(path: str = "/dev/shm") -> Finding:
    """Looks at the file system of POSIX shared memory, which containers make small."""
    try:
        state = os.statvfs(path)
    except OSError as error:
        why = "Lockstep needs none (its memory has no name); other libraries may, so mount a tmpfs there"
        return Finding(path, "ok", f"{error.strerror}", why)
    size, free = state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize
    seen = f"{size_of(size)}, {size_of(free)} free"
    if free >= _SMALL_SHM_BYTES:
        return Finding(path, "ok", seen)
    advice = (
        "nothing for Lockstep: its shared memory is a memfd, which this size does not limit. NCCL and loaders of other "
        "libraries need more (docker run --shm-size=1g; in Kubernetes an emptyDir with medium: Memory)"
    )
    return Finding(path, "ok", f"{seen}: small", advice)
