"""Leftovers of an ended job: processes, files, shared memory, parts of checkpoints. There should be none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lockstep.testing.emulated_cluster import Host


def own_tmp(folder: Path) -> dict[str, str]:
    """Returns the variable that gives a job a folder for temporary files of its own, below `folder`."""
    tmp = folder / "tmp"
    tmp.mkdir(parents=True, exist_ok=True)
    return {"TMPDIR": str(tmp)}


def found(hosts: Sequence[Host], folder: Path, moment: str) -> list[str]:
    """Returns a line for each leftover, and for each incomplete checkpoint.

    Args:
      hosts: the job's hosts.
      folder: the job's folder, with `tmp` and `checkpoints`.
      moment: the moment in which the fault struck.
    """
    lines = []
    for host in hosts:
        if left := processes(host):
            lines.append(f"processes are left on host {host.name}: {left}")
        if left := host.shared_memory():
            lines.append(f"shared memory is left on host {host.name}: {left}")
    if left := sorted(str(path.relative_to(folder)) for path in (folder / "tmp").rglob("*")):
        lines.append(f"files are left: {left}")
    return lines + _not_whole(folder / "checkpoints", moment)


def processes(host: Host) -> list[int]:
    """Returns the processes of the job on a host."""
    services = set(host.pids("emulated_ssh.py --serve"))
    return [pid for pid in host.pids() if pid not in services]


def _not_whole(folder: Path, moment: str) -> list[str]:
    """Returns a line for each incomplete checkpoint with an index; the last checkpoint must be one with an index."""
    import tensorflow as tf

    lines = []
    indices = sorted(folder.glob("*.index"))
    for index in indices:
        prefix = str(index.with_suffix(""))
        step = int(prefix.rpartition("-")[2])
        try:
            reader = tf.train.load_checkpoint(prefix)
            lines += [
                f"{index.name} has other values of {name}"
                for name in ("table", "dense")
                if not (reader.get_tensor(name) == step).all()
            ]
        except Exception as error:
            lines.append(f"{index.name} cannot be read: {error}")
    latest = tf.train.latest_checkpoint(str(folder))
    if moment not in ("rendezvous", "first step") and (latest is None or f"{latest}.index" not in map(str, indices)):
        lines.append(f"the last checkpoint is {latest}")
    return lines
