"""The config file: where the compute job is, and how to talk to it.

JSON, written by rank 0 of the compute job and readable for its user alone, since it holds the key of the service:

    {"dispatchers": 1, "workers_per_dispatcher": 4, "dispatcher_side": "compute", "timeout": 60,
     "addresses": {"eth0": [["10.0.0.7", 40001]]}, "key": "<64 hex digits>", "job": "<of the launcher, may be missing>"}

A compute job that fails leaves a note in its place, without a secret: {"failed": "<reason>"}.
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
    """What the training job has to know of a compute job.

    Attributes:
      dispatchers: number of dispatchers.
      workers_per_dispatcher: number of workers of each.
      dispatcher_side: the job that runs the dispatchers: `compute` or `training`.
      addresses: of the registry: (IPv4 address, port) by network interface.
      key: of the registry; who knows it can end the compute job.
      timeout: how long dispatchers and workers are waited for, in seconds.
      job: of the compute job's launcher: tells its processes which file is theirs.
    """

    dispatchers: int
    workers_per_dispatcher: int
    dispatcher_side: str
    addresses: Mapping[str, Sequence[tuple[str, int]]]
    key: bytes = dataclasses.field(repr=False)
    timeout: int = DEFAULT_TIMEOUT_S
    job: str = ""

    def compute_client(self, verbose: int = 1) -> ComputeClient:
        """A client of the registry; arguments and errors of `ComputeClient`."""
        return ComputeClient(self.addresses, self.key, verbose=verbose)

    def to_dict(self) -> dict[str, Any]:
        """The content of the file; `from_dict` is the inverse."""
        values = dataclasses.asdict(self) | {"key": self.key.hex()}
        if not self.job:
            del values["job"]
        return values

    @staticmethod
    def from_dict(config: Mapping[str, Any]) -> TfDataServiceConfig:
        """The config that `to_dict` gave. ValueError: a field is missing, or is not what it should be."""
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
        """Writes the file: readers see the old one, none, or all of the new one. OSError: it cannot be written."""
        _replace(Path(filename), self.to_dict(), 0o600)

    @staticmethod
    def read(filename: str | os.PathLike[str], wait_for_file_creation: bool = False) -> TfDataServiceConfig:
        """Reads the file.

        Args:
          filename: of the file.
          wait_for_file_creation: wait, without a limit, until the compute job has written it. A file that is there
            already is only taken if its compute job answers. If not, it may be one that was left over: a warning says
            so, and after the file's `timeout` in which no new one has come an error.

        Raises:
          FileNotFoundError: it is not there, and is not waited for.
          ComputeJobError: the compute job has failed, and left word of it.
          UnreachableError, WrongKeyError: the compute job of the file has ended, or there is no way to it.
          ValueError: it is no such file.
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
    """The config in a file, if there is one whose compute job answers."""
    try:
        config = TfDataServiceConfig.read(path)
        config.compute_client().check()
    except (FileNotFoundError, ValueError, DataServiceError):
        return None
    return config


def leave_word(path: Path, reason: str) -> None:
    """Replaces the file by a note that the compute job has failed, which those who wait for it are told."""
    _replace(path, {_FAILED: reason.removeprefix(FAILED)}, 0o644)


def remove(path: Path, config: TfDataServiceConfig) -> None:
    """Removes the file if it is still that of `config`."""
    with contextlib.suppress(FileNotFoundError, ValueError, DataServiceError):
        if TfDataServiceConfig.read(path).key == config.key:
            path.unlink()


def _wait_for_another(path: Path, old: str, why: DataServiceError) -> None:
    """Returns when the file has changed or is gone, raises `why` if it does not in time."""
    timeout_s = DEFAULT_TIMEOUT_S
    with contextlib.suppress(ValueError, DataServiceError):
        timeout_s = _parse(path, old).timeout
    _LOG.warning(
        "%s may be left over from a compute job that is no more: %s. Waiting %s s for a new one", path, why, timeout_s
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
        return path.read_text(encoding="utf-8", errors="replace")  # _parse says what is wrong
    return None


def _replace(path: Path, content: Mapping[str, Any], mode: int) -> None:
    # mkstemp makes it readable for the user alone.
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file)
            os.fchmod(file.fileno(), mode)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise
