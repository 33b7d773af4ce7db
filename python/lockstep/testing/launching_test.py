"""The helpers for tests that start a launcher: here they start short programs in its place."""

import contextlib
import os
import subprocess
import sys

import pytest

from lockstep.testing.launching import DEADLINE_S, finish, launchers, pids_of, runs, wait_for

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


@pytest.fixture
def shown(tmp_path):
    """Returns a function that runs shell code by `launchers`, and returns its exit code and its lines."""
    with contextlib.contextmanager(launchers)(tmp_path) as launch:
        yield lambda code, **how: finish(
            launch(code, program=("-c", "import os, sys; os.execvp('sh', ['sh', '-c', sys.argv[1]])"), **how)
        )


def test_a_program_runs_in_the_folder_and_its_lines_are_returned(shown, tmp_path):
    assert shown("pwd; echo err >&2; exit 3") == (3, [str(tmp_path)], ["err"])


@pytest.mark.parametrize(
    "name", ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "TF_CONFIG", "LOCKSTEP_X", "HOROVOD_X", "SLURM_X"]
)
def test_variables_of_this_process_that_a_launcher_reads_are_hidden(shown, monkeypatch, name):
    monkeypatch.setenv(name, "ours")
    assert shown(f"echo ${{{name}-none}}")[1] == ["none"]
    assert shown(f"echo ${{{name}-none}}", variables={name: "theirs"})[1] == ["theirs"]


def test_a_worker_is_a_program_in_the_folder(tmp_path):
    with contextlib.contextmanager(launchers)(tmp_path) as launch:
        process = launch(
            program=("-c", "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"), worker="print(os.getpid())"
        )
        assert finish(process) == (0, [str(process.pid)], [])


def test_processes_are_killed_at_the_end_and_so_are_those_that_left_their_numbers(tmp_path):
    code = "import os, subprocess\nchild = subprocess.Popen(['sleep', '600'])\n"
    code += "open('pid0', 'w').write(str(child.pid))\nchild.wait()"
    with contextlib.contextmanager(launchers)(tmp_path) as launch:
        process = launch(program=("-c", code))
        (child,) = pids_of(tmp_path, 1)
        assert runs(child) and runs(process.pid)
    assert process.returncode == -9
    wait_for(lambda: not runs(child), "the child to end")


def test_numbers_of_processes_are_awaited_until_all_are_written(tmp_path):
    (tmp_path / "pid0").write_text("17")
    (tmp_path / "pid1").touch()
    with pytest.raises(AssertionError, match=r"^waited 0\.05 s for 2 processes to start$"):
        pids_of(tmp_path, 2, 0.05)
    (tmp_path / "pid1").write_text("18")
    assert sorted(pids_of(tmp_path, 2)) == [17, 18]


def test_the_value_of_a_condition_is_returned():
    values = iter((None, 0, "", "found"))
    assert wait_for(lambda: next(values), "a value") == "found"


def test_a_condition_that_never_holds_is_named():
    with pytest.raises(AssertionError, match=r"^waited 0\.05 s for rain$"):
        wait_for(lambda: None, "rain", 0.05)


def test_a_zombie_does_not_run_nor_does_a_process_that_is_gone():
    assert runs(os.getpid())
    process = subprocess.Popen([sys.executable, "-c", ""])
    wait_for(lambda: not runs(process.pid), "a zombie")
    assert os.path.exists(f"/proc/{process.pid}")
    process.wait(DEADLINE_S)
    assert not runs(process.pid)
