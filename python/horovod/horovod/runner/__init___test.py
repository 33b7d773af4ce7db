"""`horovod.run`, in programs of a few lines, each a process of its own."""

import inspect
import os
import subprocess
import sys

import pytest

import horovod

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

DEADLINE_S = 240
NAMES = [
    *("func", "args", "kwargs", "num_proc", "min_num_proc", "max_num_proc", "slots", "reset_limit", "cooldown_range"),
    *("hosts", "hostfile", "host_discovery_script", "start_timeout", "ssh_port", "ssh_identity_file", "disable_cache"),
    *("output_filename", "verbose", "use_gloo", "use_mpi", "mpi_args", "network_interface", "network_interfaces"),
    *("executable", "np", "min_np", "max_np"),
]


@pytest.fixture
def program(tmp_path):
    """Returns a function that runs a program of several files, for its exit code and the lines of stdout and stderr."""

    def run_it(text: str, **modules: str) -> tuple[int, list[str], list[str]]:
        (tmp_path / "elsewhere").mkdir()
        for name, content in {"main": "import os, horovod\n" + text, **modules}.items():
            (tmp_path / f"{name}.py").write_text(content)
        ended = subprocess.run(
            [sys.executable, str(tmp_path / "main.py")],
            cwd=tmp_path / "elsewhere",
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        return ended.returncode, ended.stdout.splitlines(), ended.stderr.splitlines()

    return run_it


def test_arguments_are_those_that_horovod_documents():
    parameters = inspect.signature(horovod.run).parameters
    assert list(parameters) == [*NAMES, "restarts"]  # Our own parameter comes last.
    defaults = {name: parameters[name].default for name in NAMES[1:]}
    assert {name: value for name, value in defaults.items() if value is not None} == {"args": (), "num_proc": 1}


# Promise (horovod.md): `horovod.run` returns results by rank and raises an exception of a rank.
def test_functions_of_the_program_and_of_its_modules_are_called_with_their_arguments(program):
    text = (
        "import beside\n"
        "scale = 10\n"
        "def work(x, y=0):\n"
        "  return int(os.environ['HOROVOD_RANK']), x * scale + y, beside.size(), os.getpid() == here\n"
        "here = os.getpid()\n"
        "print(horovod.run(work, args=(3,), kwargs={'y': 4}, np=2))\n"
        "print(horovod.run(lambda: os.environ['HOROVOD_SIZE'], num_proc=1, hosts='localhost:1', use_gloo=True))\n"
        "print(horovod.run(beside.size, (), None, 2))\n"
    )
    code, stdout, stderr = program(text, beside="import os\ndef size(): return int(os.environ['HOROVOD_SIZE'])\n")
    assert (code, stderr) == (0, [])
    assert stdout == ["[(0, 34, 2, False), (1, 34, 2, False)]", "['1']", "[2, 2]"]


# Promise (horovod.md): `horovod.run` returns results by rank and raises an exception of a rank.
def test_an_exception_of_a_process_is_raised_with_its_rank(program):
    text = (
        "def work():\n"
        "  if os.environ['HOROVOD_RANK'] == '1': raise KeyError('this is why')\n"
        "  import time; time.sleep(600)\n"
        "try: horovod.run(work, np=2, output_filename='out')\n"
        "except RuntimeError as error: print(error, os.listdir('out'))\n"
    )
    code, stdout, stderr = program(text)
    assert code == 0
    assert stdout[0].startswith("rank 1 failed with exit code 1: KeyError: 'this is why' ['rank.")
    assert any(line.startswith("[1]<stderr>:KeyError: 'this is why'") for line in stderr)


# Promise (horovod.md): `horovod.run` returns results by rank and raises an exception of a rank.
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"np": 4, "hosts": "localhost:2"}, "-np 4: there are 2 slots"),
        ({"num_proc": 2, "hosts": "a-host.invalid:2"}, "host a-host.invalid cannot be reached: "),
        ({"hosts": "localhost:1", "hostfile": "x"}, "got hosts and a hostfile"),
        ({"use_mpi": True}, "controller mpi: "),
        ({"network_interface": "lo,no0"}, "network interface 'no0' does not exist"),
        ({"network_interfaces": ["no0"]}, "network interface 'no0' does not exist"),
        ({"min_np": 2}, "got --min-np 2, -np 1; wanted --min-np <= -np <= --max-np"),
        ({"min_num_proc": 1, "max_np": 0}, "--max-np 0: wanted 1 or more"),
        ({"max_num_proc": 2, "cooldown_range": (2, 1)}, "--blacklist-cooldown-range 2 1: wanted"),
        ({"slots": 1}, "--slots-per-host is for elastic jobs"),
        ({"np": 2, "host_discovery_script": "./no-such-script"}, "host discovery script './no-such-script' cannot be"),
    ],
)
def test_a_request_that_cannot_be_met_is_an_error(arguments, message):
    from lockstep.launch import LaunchError

    with pytest.raises(LaunchError) as refused:
        horovod.run(print, **arguments)
    assert str(refused.value).startswith(message)


@pytest.mark.timeout(240)
def test_a_function_of_an_elastic_job_is_called_by_what_processes_there_are():
    """Here without rounds, which tests of `horovod.tensorflow.elastic` have."""
    name = "LOCKSTEP_ELASTIC_WORKER"
    assert horovod.run(lambda: os.environ[name], np=2, min_np=1) == ["0", "1"]
    with pytest.raises(RuntimeError, match="ended with exit code 3: all workers failed before the first round"):
        horovod.run(lambda: sys.exit(3), np=1, min_np=1)
