"""The runner of the host discovery script, on a selector of the test; elastic_job_test has it in a job."""

import contextlib
import os
import selectors
import sys
import time

import pytest

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.output import Console
from lockstep.launch.elastic import discovery as discovery_module
from lockstep.launch.elastic.discovery import Discovery
from lockstep.launch.elastic.host_pool import HostPool
from lockstep.testing.launching import DEADLINE_S, runs, wait_for

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


class Runs:
    """A discovery with its selector, its hosts and the messages that it has shown."""

    def __init__(self, folder, script, slots=None):
        self._folder, self._stack = folder, contextlib.ExitStack()
        self.hosts, self._selector = HostPool(), self._stack.enter_context(selectors.DefaultSelector())
        shown = self._stack.enter_context((folder / "shown").open("wb"))
        console = Console(shown.fileno(), shown.fileno())
        path = folder / "hosts.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        self.discovery = Discovery(str(path), slots, self.hosts, self._selector, console)

    def until(self, condition):
        """Runs the discovery until a condition is true."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline
            self.discovery.tick()
            for key, events in self._selector.select(max(0.0, self.discovery.wake_at() - time.monotonic())):
                key.data(events)

    def shown(self):
        return [line.removeprefix("[lockstep] ") for line in (self._folder / "shown").read_text().splitlines()]

    def close(self):
        self.discovery.__exit__()
        assert not self._selector.get_map()
        self._stack.close()


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Yields a function that makes a discovery whose script runs without a pause; nothing of it is left at the end."""
    monkeypatch.setattr(discovery_module, "_DISCOVER_EVERY_S", 0.0)
    monkeypatch.chdir(tmp_path)
    made = []

    def make(text, slots=None):
        made.append(Runs(tmp_path, text, slots))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_each_run_replaces_the_list(script, tmp_path):
    found = script("echo a:2; test -e more && echo b:1; true")
    found.until(lambda: found.discovery.has_list)
    assert found.hosts.slots() == {"a": 2}
    (tmp_path / "more").touch()
    found.until(lambda: len(found.hosts.slots()) == 2)
    assert (found.hosts.slots(), found.shown()) == ({"a": 2, "b": 1}, [])


def test_hosts_without_a_number_have_the_slots_that_are_given(script):
    found = script("echo a; echo b:1", slots=3)
    found.until(lambda: found.discovery.has_list)
    assert found.hosts.slots() == {"a": 3, "b": 1}


FAILURES = [
    pytest.param("exit 3", "host discovery script '{}' failed with exit code 3", id="exit code"),
    pytest.param("kill -9 $$", "host discovery script '{}' was killed by SIGKILL", id="killed"),
    pytest.param("kill -40 $$", "host discovery script '{}' was killed by SIGRTMIN+6", id="real-time signal"),
    pytest.param("echo a", "{} printed 'a', wanted host:slots, or only host with --slots-per-host", id="no slots"),
    pytest.param("exec yes", "host discovery script '{}' printed more than 1 MiB", id="endless"),
]


@pytest.mark.parametrize(("failure", "message"), FAILURES)
def test_a_failure_before_the_first_list_is_an_error(script, tmp_path, failure, message):
    found = script(failure)
    with pytest.raises(LaunchError) as refused:
        found.until(lambda: False)
    assert str(refused.value) == message.format(tmp_path / "hosts.sh")
    assert not found.discovery.has_list


@pytest.mark.parametrize(("failure", "message"), FAILURES)
def test_a_later_failure_is_told_once_and_the_hosts_stay(script, tmp_path, failure, message):
    found = script(f"echo >> runs; if [ -e fails ]; then {failure}; else echo a:2; fi")
    found.until(lambda: found.discovery.has_list)
    (tmp_path / "fails").touch()
    counted = len((tmp_path / "runs").read_text())
    found.until(lambda: len((tmp_path / "runs").read_text()) >= counted + 4)
    assert found.shown() == [message.format(tmp_path / "hosts.sh") + "; keeping the current hosts"]
    assert found.hosts.slots() == {"a": 2}


def test_a_failure_is_told_again_after_a_success(script, tmp_path):
    found = script("echo >> runs; if [ -e fails ]; then exit 3; else echo a:2; fi")
    found.until(lambda: found.discovery.has_list)
    for times in (1, 2):
        (tmp_path / "fails").touch()
        found.until(lambda times=times: len(found.shown()) == times)
        (tmp_path / "fails").unlink()
        counted = len((tmp_path / "runs").read_text())
        found.until(lambda counted=counted: len((tmp_path / "runs").read_text()) >= counted + 3)


def test_a_script_that_takes_too_long_is_killed_with_its_children(script, tmp_path, monkeypatch):
    monkeypatch.setattr(discovery_module, "SCRIPT_TIMEOUT_S", 0.5)
    found = script("sleep 600 & echo $! > child; wait")
    with pytest.raises(LaunchError, match=r"^host discovery script '.*hosts\.sh': still running after 0\.5 s$"):
        found.until(lambda: False)
    child = int((tmp_path / "child").read_text())
    wait_for(lambda: not runs(child), "the child to end")


def test_a_script_that_cannot_be_run_is_an_error():
    with selectors.DefaultSelector() as selector:
        discovery = Discovery("/no/such/script", None, HostPool(), selector, Console())
        with pytest.raises(LaunchError, match="^host discovery script '/no/such/script' cannot be run: No such file"):
            discovery.tick()


def test_the_end_of_the_block_kills_a_script_that_runs(tmp_path):
    code = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    command = f'{sys.executable} -c "{code}"'
    with selectors.DefaultSelector() as selector:
        with Discovery(command, None, HostPool(), selector, Console()) as discovery:
            discovery.tick()
            assert discovery.wake_at() > time.monotonic()
            wait_for(lambda: os.path.exists(tmp_path / "pid") and (tmp_path / "pid").read_text(), "the script")
        assert not selector.get_map()
    assert not runs(int((tmp_path / "pid").read_text()))
