import multiprocessing
import subprocess
import sys

import pytest

from lockstep._src.engine import at_exit

_PROGRAM = """
from lockstep._src.engine import at_exit
at_exit.register(lambda: print("left", flush=True))
gone = lambda: print("taken back", flush=True)
at_exit.register(gone)
at_exit.unregister(gone)
at_exit.unregister(gone)
"""


def _write(path):
    path.write_text(path.read_text() + "left\n" if path.exists() else "left\n")


def _work(path, takes_back):
    def leave():
        _write(path)

    at_exit.register(leave)
    if takes_back:
        at_exit.unregister(leave)


def test_what_is_registered_is_done_at_the_end():
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, timeout=500)
    assert done.stdout == "left\n"


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("takes_back", [False, True])
def test_so_it_is_in_processes_of_multiprocessing(tmp_path, method, takes_back):
    path = tmp_path / "said"
    process = multiprocessing.get_context(method).Process(target=_work, args=(path, takes_back))
    process.start()
    process.join(500)
    assert process.exitcode == 0
    assert (path.read_text() if path.exists() else "") == ("" if takes_back else "left\n")
