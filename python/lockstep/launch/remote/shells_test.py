# Promise of this file (launching.md): hosts are reached over ssh, and workers there get the environment.

import os
import subprocess
import sys

import pytest

from lockstep.launch.placement.hosts import Host
from lockstep.launch.remote import agent_wire
from lockstep.launch.remote.shells import Srun, Ssh, agent_command

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


def test_ssh_asks_nothing_and_is_given_one_word_for_a_shell():
    assert Ssh().command(Host("a", 1), ["env", "A=b c", "python"]) == [
        "ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "a", "exec env 'A=b c' python",
    ]  # fmt: skip
    shell = Ssh("/opt/bin/ssh -4", 2222, "/k", "-o LogLevel=ERROR")
    assert shell.command(Host("::1", 1, "me"), ["x"]) == [
        "/opt/bin/ssh", "-4", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-p", "2222", "-i", "/k",
        "-o", "LogLevel=ERROR", "me@::1", "exec x",
    ]  # fmt: skip


def test_what_stands_for_ssh_gets_a_host_and_a_word_for_a_shell():
    assert Ssh("netns run").command(Host("a", 1), ["x", "y z"]) == ["netns", "run", "a", "exec x 'y z'"]


def test_srun_starts_one_task_on_the_host_beside_what_runs_there():
    words = Srun("17").command(Host("n1", 4), ["env", "x"])
    assert words[0] == "srun" and words[-2:] == ["env", "x"]
    assert {"--jobid=17", "--nodelist=n1", "--nodes=1", "--ntasks=1", "--overlap", "--cpu-bind=none"} <= set(words)


def test_the_agent_is_found_by_this_interpreter_wherever_it_starts(tmp_path):
    words = agent_command({"PYTHONPATH": "/theirs"})
    assert words[0] == "env" and words[1].startswith("PYTHONPATH=/theirs") and words[2] == sys.executable
    ended = subprocess.run(words, cwd="/", env={"PATH": os.environ["PATH"]}, input=b"", capture_output=True, timeout=99)
    assert ended.stdout.startswith(agent_wire.MARK)
    assert b"the launcher is gone" in ended.stderr
