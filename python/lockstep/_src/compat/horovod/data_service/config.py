"""The config file: the addresses and the key of the compute job.

Rank 0 of the compute job writes the file, as JSON. Only its user may read it, because it holds the key of the service.

    {"dispatchers": 1, "workers_per_dispatcher": 4, "dispatcher_side": "compute", "timeout": 60,
     "addresses": {"eth0": [["10.0.0.7", 40001]]}, "key": "<64 hex digits>", "job": "<id from the launcher, optional>"}

If the compute job fails, it replaces the file by a note without a secret: {"failed": "<reason>"}.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep._src.compat.horovod.data_service.client import ComputeClient
from lockstep._src.compat.horovod.data_service.errors import FAILED, ComputeJobError, DataServiceError

_LOG = logging.getLogger("lockstep")

DEFAULT_TIMEOUT_S = 60
SIDES = ("compute", "training")
_POLL_S = 0.1
_FAILED = "failed"


@dataclasses.dataclass(frozen=True)
class TfDataServiceConfig:
    """The facts about a compute job that the training job needs.

    Attributes:
      dispatchers: number of dispatchers.
      workers_per_dispatcher: number of workers of each dispatcher.
      dispatcher_side: the job that runs the dispatchers: `compute` or `training`.
      addresses: addresses of the registry: (IPv4 address, port) by network interface.
      key: the registry's key; any program that knows it can end the compute job.
      timeout: how long to wait for dispatchers and workers, in seconds.
      job: an id from the compute job's launcher, by which its processes recognize their own file.
    """

    dispatchers: int
    workers_per_dispatcher: int
    dispatcher_side: str
    addresses: Mapping[str, Sequence[tuple[str, int]]]
    key: bytes = dataclasses.field(repr=False)
    timeout: float = DEFAULT_TIMEOUT_S
    job: str = ""

    def compute_client(self, verbose: int = 1) -> ComputeClient:
        """Returns a client of the registry; takes arguments and raises errors as `ComputeClient` does."""
        return ComputeClient(self.addresses, self.key, verbose=verbose)

    def to_dict(self) -> dict[str, Any]:
        """Returns the content of the file; `from_dict` is the inverse."""
        values = dataclasses.asdict(self) | {"key": self.key.hex()}
        if not self.job:
            del values["job"]
        return values

    @staticmethod
    def from_dict(config: Mapping[str, Any]) -> TfDataServiceConfig:
        """Returns the config for a result of `to_dict`. Raises ValueError if a field is missing or malformed."""
        try:
            parsed = TfDataServiceConfig(
                dispatchers=int(config["dispatchers"]),
                workers_per_dispatcher=int(config["workers_per_dispatcher"]),
                dispatcher_side=str(config["dispatcher_side"]),
                addresses={
                    str(name): [(str(host), int(port)) for host, port in found]
                    for name, found in config["addresses"].items()
                },
                key=bytes.fromhex(config["key"]),
                timeout=_seconds(config.get("timeout", DEFAULT_TIMEOUT_S)),
                job=str(config.get("job", "")),
            )
        except KeyError as error:
            raise ValueError(f"the data service's config has no {error.args[0]!r}") from None
        except (TypeError, AttributeError, ValueError, OverflowError) as error:
            raise ValueError(f"the data service's config is malformed: {error}") from None
        parsed._check()
        return parsed

    def _check(self) -> None:
        wrong = ""
        if self.dispatcher_side not in SIDES:
            wrong = f"dispatcher_side is {self.dispatcher_side!r}, wanted {' or '.join(SIDES)}"
        for name in ("dispatchers", "workers_per_dispatcher", "timeout"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
                wrong = f"{name} is {value!r}, wanted more than 0"
        if wrong:
            raise ValueError(f"the data service's config is malformed: {wrong}")

    def write(self, filename: str | os.PathLike[str]) -> None:
        """Writes the file; readers see the old file, none, or the complete new one. Raises OSError if it fails."""
        _replace(Path(filename), self.to_dict(), 0o600)

    @staticmethod
    def read(filename: str | os.PathLike[str], wait_for_file_creation: bool = False) -> TfDataServiceConfig:
        """Reads the file.

        Args:
          filename: path of the file.
          wait_for_file_creation: waits, without a limit, until the compute job has written the file. An existing file
            is used only if its compute job answers. If it does not, an earlier job may have left the file: a warning
            is logged, and an error is raised if no new file appears within the `timeout` in the file.

        Raises:
          FileNotFoundError: the file does not exist, and `wait_for_file_creation` is false.
          ComputeJobError: the compute job has failed; the message has its reason.
          UnreachableError, WrongKeyError: the compute job of the file has ended, or cannot be reached.
          ValueError: the file is not a config file.
        """
        path = Path(filename)
        if not wait_for_file_creation:
            return _parse(path, path.read_text(encoding="utf-8", errors="replace"))
        found = _text(path)
        if found is not None:
            try:
                config = _parse(path, found)
                config.compute_client().check()
                return config
            except DataServiceError as error:
                _wait_for_another(path, found, error)
        while (text := _text(path)) is None:
            time.sleep(_POLL_S)
        return _parse(path, text)


def _seconds(timeout: Any) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 <= timeout < float("inf"):
        raise ValueError(f"timeout is {timeout!r}, wanted seconds")
    return timeout


def running(path: Path) -> TfDataServiceConfig | None:
    """Returns the config in a file if its compute job answers, else None."""
    try:
        config = TfDataServiceConfig.read(path)
        config.compute_client().check()
    except (FileNotFoundError, ValueError, DataServiceError):
        return None
    return config


def leave_failure_note(path: Path, reason: str) -> None:
    """Replaces the file by a note with the reason of the failure, which waiting training jobs raise as an error."""
    _replace(path, {_FAILED: reason.removeprefix(FAILED)}, 0o644)


def remove(path: Path, config: TfDataServiceConfig) -> None:
    """Removes the file if it still holds `config`."""
    with contextlib.suppress(FileNotFoundError, ValueError, DataServiceError):
        if TfDataServiceConfig.read(path).key == config.key:
            path.unlink()


def _wait_for_another(path: Path, old: str, why: DataServiceError) -> None:
    """Waits until the file has changed or is removed; raises `why` if this does not happen in time."""
    timeout_s: float = DEFAULT_TIMEOUT_S
    with contextlib.suppress(ValueError, DataServiceError):
        timeout_s = _parse(path, old).timeout
    _LOG.warning(
        "%s may be left over from a compute job that has ended: %s. Waiting %s s for a new file", path, why, timeout_s
    )
    deadline = time.monotonic() + timeout_s
    while _text(path) == old:
        if time.monotonic() > deadline:
            raise type(why)(f"{path}: {why}; no other compute job has written it within {timeout_s} s") from None
        time.sleep(_POLL_S)


def _parse(path: Path, text: str) -> TfDataServiceConfig:
    try:
        content = json.loads(text)
        if isinstance(content, dict) and _FAILED in content:
            raise ComputeJobError(f"{FAILED}{content[_FAILED]}")
        return TfDataServiceConfig.from_dict(content)
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        raise ValueError(f"{path}: {error}") from None


def _text(path: Path) -> str | None:
    with contextlib.suppress(FileNotFoundError):
        return path.read_text(encoding="utf-8", errors="replace")  # _parse reports malformed text
    return None


def _replace(path: Path, content: Mapping[str, Any], mode: int) -> None:
    # mkstemp makes the file readable for its user only.
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file)
            os.fchmod(file.fileno(), mode)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise
