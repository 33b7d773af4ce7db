"""DeepRec's launcher: its differences from this project's."""

import os
import subprocess
import sys

import pytest

DEADLINE_S = 120
RUN = "import sys; from lockstep.launch.frontends.deeprec import main; sys.exit(main())"
SHOW = """
import os
print(*[os.environ.get(name) for name in ("LOCKSTEP_WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "COLLECTIVE_STRATEGY")])
"""


@pytest.fixture
def folder(tmp_path):
    """Returns a folder with a program, and no nvidia-smi."""
    (tmp_path / "main.py").write_text(SHOW)
    return tmp_path


def _launch(folder, *words, path=None, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_VISIBLE_DEVICES")}
    environment.update({"LOCKSTEP_TF1": "0", "PATH": str(path or folder), **variables})
    environment = {name: value for name, value in environment.items() if value is not None}
    return subprocess.run(
        [sys.executable, "-c", RUN, *words],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=DEADLINE_S,
    )  # fmt: skip


def test_a_worker_for_each_gpu_that_is_named(folder):
    run = _launch(folder, sys.executable, "main.py", CUDA_VISIBLE_DEVICES="0,1", COLLECTIVE_STRATEGY="sok")
    assert sorted(run.stdout.splitlines()) == ["[0] 2 0 sok", "[1] 2 1 sok"], run.stderr


# Promise (deeprec.md): the launcher starts a worker for each GPU, and returns the exit code of the first failure.
def test_without_variables_a_worker_for_each_gpu_of_the_machine(folder):
    smi = folder / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'GPU 0: A (UUID: GPU-aa)'\necho 'GPU 1: A (UUID: GPU-bb)'\n")
    smi.chmod(0o755)
    run = _launch(folder, sys.executable, "main.py", path=f"{folder}:/bin:/usr/bin")
    assert sorted(run.stdout.splitlines()) == ["[0] 2 GPU-aa None", "[1] 2 GPU-bb None"], run.stderr


def test_without_gpus_one_worker_on_the_cpu_or_as_many_as_are_asked_for(folder):
    assert _launch(folder, sys.executable, "main.py").stdout.split()[0] in ("None", "1")
    assert len(_launch(folder, "-n", "2", sys.executable, "main.py").stdout.splitlines()) == 2


def test_a_script_may_stand_without_its_interpreter(folder):
    assert len(_launch(folder, "main.py", CUDA_VISIBLE_DEVICES="0").stdout.splitlines()) == 1


def test_an_unknown_backend_is_refused(folder):
    run = _launch(folder, sys.executable, "main.py", COLLECTIVE_STRATEGY="ps")
    assert run.returncode == 2
    assert run.stderr.endswith("COLLECTIVE_STRATEGY='ps': wanted hb or sok, or the variable unset (hb)\n")


def test_programs_are_of_tensorflow_1_unless_that_is_refused(folder):
    shows = ["-c", "import sys; print('lockstep.launch.tf1' in sys.orig_argv)"]
    assert _launch(folder, sys.executable, *shows, LOCKSTEP_TF1=None).stdout == "True\n"
    assert _launch(folder, sys.executable, *shows, LOCKSTEP_TF1="0").stdout == "False\n"


# Promise (deeprec.md): the launcher starts a worker for each GPU, and returns the exit code of the first failure.
def test_the_first_failure_is_the_exit_code(folder):
    (folder / "main.py").write_text("import os, sys\nsys.exit(7 * int(os.environ['LOCKSTEP_RANK']))\n")
    run = _launch(folder, sys.executable, "main.py", CUDA_VISIBLE_DEVICES="0,1")
    assert run.returncode == 7
    assert "rank 1 failed with exit code 7" in run.stderr
