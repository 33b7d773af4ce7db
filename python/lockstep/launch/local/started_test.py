"""Processes that workers started are found wherever they are."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from lockstep.launch.base import notes
from lockstep.launch.local import started

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

_DEADLINE_S = 30
_MARK = f"7:{os.getpid()}00000"


@pytest.fixture
def daemon():
    """Yields a process in a session of its own, with the environment of a worker."""
    command = [sys.executable, "-c", "print('ready', flush=True); import time; time.sleep(600)"]
    environment = {**os.environ, notes.VARIABLE: _MARK}
    process = subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


def _refuse(pid):
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


@pytest.mark.parametrize("handles", ["there", "refused", "missing"])
def test_a_daemon_is_killed_with_and_without_handles_of_processes(daemon, handles, monkeypatch):
    if handles == "refused":
        monkeypatch.setattr(os, "pidfd_open", _refuse)
    elif handles == "missing":
        monkeypatch.delattr(os, "pidfd_open")
    started.kill_started({1 << 22: _MARK})  # no process has this number
    assert daemon.wait(_DEADLINE_S) == -signal.SIGKILL


def test_other_processes_and_those_of_the_workers_group_get_no_signal(daemon):
    assert started.signal_started({1 << 22: "7:1"}, signal.SIGKILL) == 0
    assert started.signal_started({1 << 22: ""}, signal.SIGKILL) == 0
    assert started.signal_started({daemon.pid: _MARK}, signal.SIGKILL) == 0, "its group has got the signal already"
    assert daemon.poll() is None
