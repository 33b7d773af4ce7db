"""`lockstep doctor` with wrong options, and in environments that no launcher makes: it reports them as findings."""

# Promise of this file (command.md): `lockstep inspect`, `timeline` and `doctor` answer hostile files and variables with
# one line.

import json

import pytest

from lockstep._src.doctor import command, machine
from lockstep._src.engine.options import Options
from lockstep.testing.mutations import TF_CONFIGS, feed, text_of
from lockstep.testing.tools import run_tool

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


@pytest.fixture(name="doctor")
def _doctor(monkeypatch, capsys):
    """Returns a function that runs the doctor with some variables, and returns the names of the problems."""
    monkeypatch.setattr(command, "probe", dict)  # imports TensorFlow in a process
    monkeypatch.setattr(command, "installation", lambda found: [])
    monkeypatch.setattr(command, "gpus", lambda found: [])
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: [])

    def run(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        run_tool(lambda words: command.main(words) * 0, ["--quiet", "--no-collectives"], capsys)
        command.main(["--json", "--no-collectives"])
        (findings,) = json.loads(capsys.readouterr().out).values()
        return [(one["name"], one["seen"]) for one in findings if one["state"] == "problem"]

    return run


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--port", "99999"], "--port: got '99999', wanted an integer from 1 to 65535"),
        (["--port", "0"], "--port: got '0'"),
        (["--port", "²"], "--port: got '²'"),
        (["-n", "0"], "-n/--workers: got '0', wanted an integer from 1 to 1024"),
        (["-n", "-1"], "-n/--workers: got '-1'"),
        (["-n", "9" * 5000], "-n/--workers: got '999"),
    ],
)
def test_a_number_out_of_its_range_is_refused(words, says, capsys):
    with pytest.raises(SystemExit) as end:
        command.main(words)
    assert end.value.code == 2 and says in capsys.readouterr().err


@pytest.mark.parametrize("size", ["-5", "0", "", "lots", "1" * 30])
def test_a_setting_with_which_no_job_starts_is_a_problem(doctor, size):
    ((name, seen),) = doctor(LOCKSTEP_SHARED_BYTES_PER_RANK=size)
    if len(size) < 30:
        assert (
            name == "settings"
            and f"LOCKSTEP_SHARED_BYTES_PER_RANK: option shared_bytes_per_rank: got {size}"[:60] in seen
        )
    else:
        assert name == "shared memory"


def test_shared_memory_is_checked_at_its_present_size(doctor, monkeypatch):
    sizes = []
    monkeypatch.setattr(machine, "shared_memory", lambda *size: sizes.append(size) or command.Finding("x", "ok", ""))
    doctor(LOCKSTEP_SHARED_BYTES_PER_RANK="65536")
    assert sizes[0] == (2, 1 << 16) and Options().shared_bytes_per_rank > 1 << 16


@pytest.mark.parametrize(
    "address", ["127.0.0.1:99999", "127.0.0.1:x", "127.0.0.1:", "a..b:80", "[::1]:-1", "\x1b[2J:1"]
)
def test_a_first_address_at_which_nobody_can_listen_is_a_problem(doctor, address):
    cluster = {"worker": [address, "b:1"]}
    ((name, seen),) = doctor(TF_CONFIG=json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}}))
    assert name.startswith("port") and "the job's first address" in seen


@pytest.mark.parametrize("inputs", [60, pytest.param(3000, marks=pytest.mark.long)])
def test_a_changed_environment_is_reported_in_findings(doctor, inputs):
    feed("lockstep doctor", lambda data: doctor(TF_CONFIG=text_of(data)), TF_CONFIGS, (), inputs)
