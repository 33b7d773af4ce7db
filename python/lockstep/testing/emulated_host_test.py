"""`run_on` on this machine: system calls that need root are replaced. tests/hosts/cluster_test.py has real hosts."""

import ctypes
import errno
import os
import signal
import subprocess
import sys

import pytest

from lockstep.testing.emulated_host import _checked
from lockstep.testing.launching import DEADLINE_S

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

# The namespaces are this process's own, and nothing has to enter them.
HEAD = """
import atexit, os, signal, sys, types
from lockstep.testing import emulated_host
from lockstep.testing.emulated_host import run_on
ok = lambda *_: 0
emulated_host._libc = types.SimpleNamespace(setns=ok, prctl=ok)
"""


def _run(text):
    done = subprocess.run([sys.executable, "-c", HEAD + text], capture_output=True, text=True, timeout=DEADLINE_S)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("body", "code", "stdout", "stderr"),
    [
        ("print(os.getcwd())", 0, "/tmp\n", ""),
        ("sys.exit(3)", 3, "", ""),
        ("sys.exit()", 0, "", ""),
        ("sys.exit('why')", 1, "", "why\n"),
        ("1 / 0", 1, "", "ZeroDivisionError: division by zero\n"),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, "", ""),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, "", ""),
        ("atexit.register(print, 'left in good order')", 0, "left in good order\n", ""),
    ],
)
def test_this_process_ends_as_the_new_one_does(body, code, stdout, stderr):
    got = _run(f"def body(): {body}\nrun_on(os.getpid(), '/tmp', body)\nprint('not reached')\n")
    assert got[:2] == (code, stdout)
    assert got[2].endswith(stderr) if stderr else not got[2]


def test_the_namespaces_are_entered_in_an_order_in_which_each_can_be():
    """All are opened before the first is entered: afterwards /proc is the host's. That of the files comes last."""
    _, stdout, _ = _run(
        "def setns(space, kind):\n"
        "  print(os.readlink(f'/proc/self/fd/{space}').partition(':')[0], kind, flush=True)\n"
        "  return 0\n"
        "emulated_host._libc.setns = setns\n"
        "run_on(os.getpid(), '/', lambda: None)\n"
    )
    assert stdout.split("\n")[:-1] == [f"{kind} 0" for kind in ("net", "uts", "ipc", "pid", "mnt")]


def test_a_program_replaces_the_new_process():
    code, stdout, _ = _run(
        "sys.argv = ['', 'run', str(os.getpid()), '/', 'sh', '-c', 'echo $0 $1; exit 4', 'one', 'two']\n"
        "emulated_host.main()\n"
    )
    assert (code, stdout) == (4, "one two\n")


@pytest.mark.parametrize("slow", ["the program", "the first process"])
def test_the_number_is_printed_once_the_host_is_ready_whichever_process_is_slow(slow, tmp_path):
    code, stdout, stderr = _run(
        "import socket, subprocess, time\n"
        "emulated_host._libc = types.SimpleNamespace(unshare=ok, mount=ok)\n"
        "socket.sethostname = ok\n"
        f"mark = {str(tmp_path / 'set up')!r}\n"
        "subprocess.run = lambda *_, **__: open(mark, 'w')\n"
        "fork = os.fork\n"
        "def slow():\n"
        "  pid = fork()\n"
        f"  if bool(pid) == {slow == 'the program'}: time.sleep(0.3)\n"
        "  return pid\n"
        "os.fork = slow\n"
        "emulated_host.print = lambda *words, **_: print(*map(str.isdigit, map(str, words)), os.path.exists(mark))\n"
        "sys.argv = ['', 'live', 'a', 'hosts']\n"
        "emulated_host.main()\n"
    )
    assert (code, stdout) == (0, "True True\n"), stderr


def test_a_call_of_the_system_that_fails_is_an_error_with_its_reason():
    _checked(0, "mount")
    ctypes.set_errno(errno.EPERM)
    with pytest.raises(PermissionError, match=f"mount x on y: {os.strerror(errno.EPERM)}"):
        _checked(-1, "mount x on y")
