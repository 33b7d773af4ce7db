"""The secret of a job that several launchers start, each for a task of TF_CONFIG.

They cannot tell each other a random one. Where LOCKSTEP_SECRET is not given, each derives it from a key that only the
user can read: 32 random bytes in `$XDG_STATE_HOME/lockstep/key` (`~/.local/state/lockstep/key`), made by the first
launcher that wants it. The job's secret is HMAC-SHA-256 of its rendezvous address under that key.
"""

import contextlib
import hmac
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from lockstep.launch.errors import LaunchError

VARIABLE = "LOCKSTEP_SECRET"
_KEY_BYTES = 32


def shared_secret(environment: Mapping[str, str], rendezvous: str) -> str:
    """The secret of the job that meets at `rendezvous` (host:port): LOCKSTEP_SECRET, or one that is derived.

    Raises:
      LaunchError: it is not given, and the key cannot be read or made, or is not the user's own.
    """
    if environment.get(VARIABLE):
        return environment[VARIABLE]
    state = environment.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    path = Path(state) / "lockstep" / "key"
    try:
        key = _read_or_make(path)
    except OSError as error:
        raise LaunchError(
            f"TF_CONFIG names several tasks, and {VARIABLE} is not set, nor can it be derived from a key in {path} "
            f"({error.strerror or error}); set {VARIABLE} to the same random text for all tasks"
        ) from None
    return hmac.new(key, f"lockstep job at {rendezvous}".encode(), "sha256").hexdigest()


def _read_or_make(path: Path) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        return _read(path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"key.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
        # Whole from its first moment, and only one: a launcher that comes second reads the first one's.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
    return _read(path)


def _read(path: Path) -> bytes:
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        key = file.read()
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise OSError(f"others may read or have written it: owner {status.st_uid}, mode {status.st_mode & 0o777:o}")
    if len(key) != _KEY_BYTES:
        raise OSError(f"{len(key)} bytes, wanted {_KEY_BYTES}")
    return key
