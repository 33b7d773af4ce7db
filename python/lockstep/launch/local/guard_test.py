"""The guard kills the processes of a job whose launcher has ended, or is silent."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from lockstep.launch.local.guard import Guard

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

_DEADLINE_S = 30
# A launcher that registers a process group and a folder, shows that it is ready, and waits.
_LAUNCHER = """
import sys, time
from lockstep.launch.local.guard import Guard
with Guard({arguments}) as guard:
  guard.watch(int(sys.argv[1]))
  guard.removes(sys.argv[2])
  print('ready', flush=True)
  {then}
"""


@pytest.fixture
def group() -> Iterator[subprocess.Popen]:
    """Yields a shell that leads a process group with its child."""
    process = subprocess.Popen(["sh", "-c", "sleep 600 & wait"], start_new_session=True)
    yield process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _launcher(group: subprocess.Popen, folder: object, arguments: str = "", then: str = "time.sleep(600)"):
    command = [sys.executable, "-c", _LAUNCHER.format(arguments=arguments, then=then), str(group.pid), str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def test_the_groups_and_folders_of_a_killed_launcher_go(group, tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "secret").write_text("x")
    launcher = _launcher(group, folder)
    launcher.kill()
    launcher.wait()
    assert group.wait(_DEADLINE_S) == -signal.SIGKILL
    deadline = time.monotonic() + _DEADLINE_S
    while folder.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_groups_and_folders_of_a_launcher_that_leaves_the_block_stay(group, tmp_path):
    launcher = _launcher(group, tmp_path, then="pass")
    assert launcher.wait(_DEADLINE_S) == 0
    time.sleep(0.2)  # The guard has ended: the launcher waited for it.
    assert group.poll() is None
    assert tmp_path.exists()


def test_a_silent_launchers_groups_are_killed_and_the_launcher_lives(group, tmp_path):
    launcher = _launcher(group, tmp_path, "silence_s=0.5")
    assert group.wait(_DEADLINE_S) == -signal.SIGKILL
    assert launcher.poll() is None
    launcher.kill()
    launcher.wait()


def test_a_silent_agent_is_killed_with_its_groups(group, tmp_path):
    agent = _launcher(group, tmp_path, "silence_s=0.5, kills_parent=True")
    assert agent.wait(_DEADLINE_S) == -signal.SIGKILL
    assert group.wait(_DEADLINE_S) == -signal.SIGKILL


def test_a_launcher_that_says_that_it_lives_keeps_its_groups(group):
    with Guard(silence_s=1.0) as guard:
        guard.watch(group.pid)
        for _ in range(15):
            guard.alive()
            time.sleep(0.1)
        assert group.poll() is None
