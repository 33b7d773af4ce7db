"""The secret of a job that several launchers start, each for a task of TF_CONFIG or of Slurm.

The launchers cannot send each other a random secret. If LOCKSTEP_SECRET is not set, each derives the secret from a key
that only the user can read: 32 random bytes in `$XDG_STATE_HOME/lockstep/key` (`~/.local/state/lockstep/key`). The
first launcher that needs the key creates it. The job's secret is the HMAC-SHA-256 of its rendezvous address, and of
Slurm's job and step numbers if there are any, under that key. Launchers on several hosts share the key if the folder is
on a network file system.
"""

import contextlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from lockstep.launch.base.errors import LaunchError

VARIABLE = "LOCKSTEP_SECRET"
# The text that manifests have until the user puts a secret there. It is publicly known.
PLACEHOLDER = "REPLACE-WITH-RANDOM-TEXT"
PLACEHOLDER_HINT = "the public value of the manifest; wanted a random text of your own: openssl rand -hex 32"
_KEY_BYTES = 32
# By their names in /proc/self/mounts. File systems in user space ("fuse.") are nearly always network file systems too.
_NETWORK_FILE_SYSTEMS = {
    "9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "orangefs", "panfs", "smb3",
    "virtiofs", "wekafs",
}  # fmt: skip


def shared_secret(environment: Mapping[str, str], rendezvous: str, hosts: int = 1, job: str = "") -> str:
    """Returns the secret of a job: LOCKSTEP_SECRET, or one that is derived from the user's key.

    Args:
      environment: The launcher's environment variables.
      rendezvous: The address of the job's rendezvous, host:port.
      hosts: The number of hosts with launchers of the job.
      job: Further text that distinguishes it from other jobs.

    Raises:
      LaunchError: the secret is the placeholder of a manifest. Or it is not set, and the key cannot be read or created,
        is not the user's own, or lies only on this host although there are several.
    """
    if given := environment.get(VARIABLE):
        if given.strip() == PLACEHOLDER:
            raise LaunchError(f"{VARIABLE} is {PLACEHOLDER}, {PLACEHOLDER_HINT}")
        return given
    state = environment.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    path = Path(state) / "lockstep" / "key"
    wanted = f"set {VARIABLE} to the same random text for all tasks"
    try:
        if hosts > 1 and not _is_of_the_network(kind := file_system(path)):
            raise LaunchError(
                f"the job has tasks on {hosts} hosts, {VARIABLE} is not set, and it cannot be derived from the key in "
                f"{path}: only this host sees its file system ({kind}), so other hosts have another key; {wanted}"
            )
        key = _read_or_make(path)
    except OSError as error:
        raise LaunchError(
            f"the job has several tasks, {VARIABLE} is not set, and it cannot be derived from a key in {path} "
            f"({error.strerror or error}); {wanted}"
        ) from None
    about = f"lockstep job at {rendezvous}" + (f", {job}" if job else "")
    return hmac.new(key, about.encode(), "sha256").hexdigest()


def file_system(path: Path) -> str:
    """Returns the kind of file system that a file is on, or will be on: ext4, nfs4, ...

    Raises:
      OSError: it cannot be found out.
    """
    place = os.path.realpath(path)
    best, kind = "", ""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, found, *_ = line.split(" ")
        where = os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), os.fsencode(where)))
        # If two are mounted at one path, the later one is visible.
        if os.path.commonpath((place, where)) == where and len(where) >= len(best):
            best, kind = where, found
    return kind


def _is_of_the_network(kind: str) -> bool:
    return kind in _NETWORK_FILE_SYSTEMS or kind.startswith("fuse.")


def _read_or_make(path: Path) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        return _read(path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"key.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
        # A link makes the key appear complete, and only once: a launcher that comes second reads the first one's key.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
    return _read(path)


def _read(path: Path) -> bytes:
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        key = file.read(_KEY_BYTES + 1)
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise OSError(f"others may read or have written it: owner {status.st_uid}, mode {status.st_mode & 0o777:o}")
    if len(key) != _KEY_BYTES:
        raise OSError(f"{status.st_size} bytes, wanted {_KEY_BYTES}")
    return key
