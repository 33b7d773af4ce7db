import sys

import pytest

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.cli.tf1_command import as_tf1, wants_tf1

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

RUN = ["-m", "lockstep.launch.tf1"]


@pytest.mark.parametrize(
    ("command", "rewritten"),
    [
        ("python main.py --x 1", ["python", *RUN, "main.py", "--x", "1"]),
        ("/opt/bin/python3.11 main.py", ["/opt/bin/python3.11", *RUN, "main.py"]),
        ("python -u -B main.py -c 1", ["python", "-u", "-B", *RUN, "main.py", "-c", "1"]),
        ("python -W ignore -X dev main.py", ["python", "-W", "ignore", "-X", "dev", *RUN, "main.py"]),
        ("python -Wignore -uXdev main.py", ["python", "-Wignore", "-uXdev", *RUN, "main.py"]),
        (
            "python --check-hash-based-pycs never main.py",
            ["python", "--check-hash-based-pycs", "never", *RUN, "main.py"],
        ),
        ("python -m ranking.train -n 2", ["python", *RUN, "-m", "ranking.train", "-n", "2"]),
        ("python -mranking.train -n 2", ["python", *RUN, "-m", "ranking.train", "-n", "2"]),
        ("python -um ranking.train", ["python", "-u", *RUN, "-m", "ranking.train"]),
        ("python -uBc print()", ["python", "-uB", *RUN, "-c", "print()"]),
        ("numactl -N 0 python main.py", ["numactl", "-N", "0", "python", *RUN, "main.py"]),
        ("env A=1 python3 main.py python", ["env", "A=1", "python3", *RUN, "main.py", "python"]),
    ],
)
def test_the_python_program_in_a_command_is_run_as_tf1(command, rewritten):
    assert as_tf1(command.split()) == rewritten


def test_an_executable_script_is_run_as_tf1(tmp_path):
    script = tmp_path / "main.py"
    script.write_text("#!/usr/bin/env python3\n")
    script.chmod(0o755)
    assert as_tf1([str(script), "x"]) == [sys.executable, *RUN, str(script), "x"]


@pytest.mark.parametrize("command", ["bash run.sh", "python", "python -u", "python -", "python -m", "ls main.py"])
def test_a_command_without_a_python_program_is_an_error(command):
    with pytest.raises(LaunchError, match="--tf1: "):
        as_tf1(command.split())


def test_the_variable_asks_for_tf1_as_the_option_does():
    assert wants_tf1(True, {})
    assert wants_tf1(False, {"LOCKSTEP_TF1": "1"})
    assert not wants_tf1(False, {"LOCKSTEP_TF1": "0"})
    assert not wants_tf1(False, {"LOCKSTEP_TF1": ""})
    with pytest.raises(LaunchError, match="LOCKSTEP_TF1='yes'"):
        wants_tf1(False, {"LOCKSTEP_TF1": "yes"})
