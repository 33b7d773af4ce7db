"""`horovodrun` as its users see it: a process with workers below it."""

import functools
import os
import pickle
import socket
import subprocess
import sys
import time

import pytest

from lockstep.launch.frontends.horovod_request import Request
from lockstep.launch.frontends.horovodrun import run_function
from lockstep.testing import fake_ssh

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

DEADLINE_S = 120
# Configuration files are in JSON, which is YAML as well.
RUN = "import json, sys; from lockstep.launch.frontends.horovodrun import main; sys.exit(main(read_yaml=json.loads))"
SHOW = "import os, sys\nprint(*[os.environ.get(name) for name in sys.argv[1:]])\n"
PLACE = [f"HOROVOD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")]


@pytest.fixture
def horovodrun(tmp_path):
    """Returns a function that runs it in tmp_path, and returns its exit code and the lines of stdout and stderr."""
    (tmp_path / "show.py").write_text(SHOW)

    def run_it(*words: str, **variables: str) -> tuple[int, list[str], list[str]]:
        hidden = ("LOCKSTEP_", "HOROVOD_", "CUDA_", "NVIDIA_", "TF_CONFIG")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        ended = subprocess.run(
            [sys.executable, "-c", RUN, *words],
            cwd=tmp_path,
            env={**environment, **variables},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        return ended.returncode, ended.stdout.splitlines(), ended.stderr.splitlines()

    return run_it


# Promise (horovod.md): processes find ranks under both names, see all GPUs, and never get `TF_CONFIG`.
def test_processes_find_their_places_under_both_names(horovodrun):
    ours = ("LOCKSTEP_RANK", "LOCKSTEP_WORLD_SIZE", "HOROVOD_HOSTNAME")
    code, stdout, stderr = horovodrun("-np", "2", "-H", "localhost:2", sys.executable, "show.py", *PLACE, *ours)
    assert (code, stderr) == (0, [])
    assert sorted(stdout) == ["[0]<stdout>:0 2 0 2 0 1 0 2 localhost", "[1]<stdout>:1 2 1 2 0 1 1 2 localhost"]


def test_a_single_process_takes_the_launchers_place(horovodrun):
    code, stdout, _ = horovodrun("-np", "1", sys.executable, "show.py", *PLACE)
    assert (code, stdout) == (0, ["0 1 0 1 0 1"])


@pytest.mark.parametrize(
    "words", [("-H", f"localhost:1,{socket.gethostname()}:1"), ("-hostfile", "hosts")], ids=["-H", "-hostfile"]
)
def test_hosts_may_have_several_names_of_this_machine(horovodrun, tmp_path, words):
    (tmp_path / "hosts").write_text("localhost slots=1\n127.0.0.1 slots=3\n")
    code, stdout, _ = horovodrun("-np", "2", *words, sys.executable, "show.py", *PLACE)
    assert (code, sorted(stdout)) == (0, ["[0]<stdout>:0 2 0 2 0 1", "[1]<stdout>:1 2 1 2 0 1"])


# Promise (horovod.md): processes find ranks under both names, see all GPUs, and never get `TF_CONFIG`.
def test_every_process_sees_all_gpus_of_which_it_takes_that_of_its_local_rank(horovodrun):
    words = ("-np", "2", sys.executable, "show.py", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
    assert sorted(horovodrun(*words)[1]) == ["[0]<stdout>:None None", "[1]<stdout>:None None"]
    assert sorted(horovodrun(*words, CUDA_VISIBLE_DEVICES="3")[1]) == ["[0]<stdout>:3 None", "[1]<stdout>:3 None"]


# Promise (horovod.md): processes find ranks under both names, see all GPUs, and never get `TF_CONFIG`.
def test_a_cluster_of_tensorflows_is_neither_read_nor_handed_on(horovodrun):
    config = '{"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 0}}'
    code, stdout, _ = horovodrun("-np", "1", sys.executable, "show.py", "HOROVOD_RANK", "TF_CONFIG", TF_CONFIG=config)
    assert (code, stdout) == (0, ["0 None"])
    words = ("-np", "2", sys.executable, "show.py", "TF_CONFIG")
    assert sorted(horovodrun(*words, TF_CONFIG=config)[1]) == ["[0]<stdout>:None", "[1]<stdout>:None"]


# Promise (horovod.md): options after the command belong to the command.
@pytest.mark.parametrize("np", ["1", "2"])
def test_the_users_options_are_the_users(horovodrun, np):
    theirs = ["-np", "7", "--max", "5", "--verbose", "-H", "a:1", "--", "--min-np", "-v", "--help", "--cycle-time-ms"]
    shows = "import sys; print(sys.argv[1:])"
    code, stdout, stderr = horovodrun("-np", np, "--verbose", sys.executable, "-c", shows, *theirs)
    assert code == 0, stderr
    assert {line.removeprefix("[0]<stdout>:").removeprefix("[1]<stdout>:") for line in stdout} == {str(theirs)}
    assert horovodrun("-np", np, "--", "echo", "--", "x")[1][0].endswith("-- x")


def test_settings_reach_programs(horovodrun, tmp_path):
    (tmp_path / "config").write_text('{"params": {"cycle_time_ms": 5, "cache_capacity": 9}, "extra": 1}')
    names = ("HOROVOD_CYCLE_TIME", "HOROVOD_CACHE_CAPACITY", "LOCKSTEP_RENDEZVOUS_TIMEOUT")
    options = ("-np", "1", "--cycle-time-ms", "3.5", "--start-timeout", "9", "--config-file", "config")
    code, stdout, stderr = horovodrun(*options, sys.executable, "show.py", *names)
    assert (code, stdout) == (0, ["3.5 9 9"])
    assert stderr == ["[lockstep] --config-file config: extra has no effect in horovodrun"]


# Promise (horovod.md): the output folder keeps each byte, also of failed and killed processes.
@pytest.mark.parametrize("np", [1, 2])
def test_output_is_kept_byte_for_byte_and_shown(horovodrun, tmp_path, np):
    writes = "import sys; print('out\\rput'); sys.stderr.write('no end')"
    code, stdout, stderr = horovodrun(
        "-np", str(np), "--output-filename", "made/out", sys.executable, "-c", writes
    )  # fmt: skip
    assert code == 0
    for rank in range(np):
        folder = tmp_path / "made" / "out" / f"rank.{rank}"
        assert (folder / "stdout").read_bytes() == b"out\rput\n"
        assert (folder / "stderr").read_bytes() == b"no end"
        assert f"[{rank}]<stderr>:no end" in stderr
        assert f"[{rank}]<stdout>:put" in stdout


# Promise (horovod.md): the output folder keeps each byte, also of failed and killed processes.
def test_what_failed_and_what_was_killed_had_written_is_kept(horovodrun, tmp_path):
    fails = (
        "import os, sys, time\n"
        "print('written', flush=True)\n"
        "if os.environ['HOROVOD_RANK'] == '1':\n"
        "  while any(os.path.getsize(f'out/rank.{rank}/stdout') < 8 for rank in '01'): time.sleep(.01)\n"
        "  sys.exit(37)\n"
        "time.sleep(600)\n"
    )
    code, _, stderr = horovodrun("-np", "2", "--output-filename", "out", sys.executable, "-c", fails)
    assert code == 37
    assert stderr[-2:] == ["[lockstep] rank 1 failed with exit code 37; its last lines:", "[lockstep]   written"]
    assert [(tmp_path / f"out/rank.{rank}/stdout").read_text() for rank in (0, 1)] == ["written\n"] * 2


def test_lines_may_begin_with_the_time(horovodrun):
    _, (line,), _ = horovodrun("-np", "1", "-prefix-timestamp", "echo", "hello")
    stamp, _, rest = line.partition("[0]<stdout>:")
    assert rest == "hello"
    assert time.time() - 600 < time.mktime(time.strptime(stamp)) < time.time() + 600


def test_verbose_says_what_is_started(horovodrun):
    options = ("-np", "2", "-H", "localhost:1,127.0.0.1:1", "--verbose", "--cache-capacity", "9")
    _, _, stderr = horovodrun(*options, "echo", "two words")
    assert stderr == [
        "[lockstep] 2 processes on localhost:2: echo 'two words'",
        "[lockstep] HOROVOD_CACHE_CAPACITY=9",
    ]


# Promise (horovod.md): a request that cannot be met is one line.
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("true", 2, "-np is missing: wanted the number of processes"),
        ("-np 0 true", 2, "-np 0: wanted 1 or more processes"),
        ("-np 3 -H localhost:2 true", 2, "-np 3: there are 2 slots (localhost:2)"),
        ("-np 3 -H localhost:2,192.0.2.77:2 --ssh-port 0 true", 2, "ssh port: got 0, wanted 1 to 65535"),
        ("-np 2 -H localhost true", 2, "hosts 'localhost': got 'localhost', wanted host:slots"),
        ("-np 2 -hostfile nowhere true", 2, "hostfile nowhere: No such file"),
        ("-np 2 --min-np 3 true", 2, "got --min-np 3, -np 2; wanted --min-np <= -np <= --max-np"),
        ("-np 2 --mpi true", 2, "controller mpi: "),
        ("-np 2 --fusion-threshold-mb -1 true", 2, "params.fusion_threshold_mb: got -1"),
        ("-np 2 --output-filename /dev/null/x true", 2, "output folder /dev/null/x: Not a directory"),
        ("-np 2 no-such-program", 127, "cannot run 'no-such-program': No such file"),
        ("-np 1 no-such-program", 127, "cannot run 'no-such-program': No such file"),
    ],
)
def test_a_request_that_cannot_be_met_is_one_line(horovodrun, words, code, message):
    got, stdout, stderr = horovodrun(*words.split())
    assert (got, stdout, len(stderr)) == (code, [], 1)
    assert stderr[0].startswith(f"horovodrun: {message}")


@pytest.mark.parametrize("words", ["-np 2", "-np x true", "--no-such-option true"])
def test_a_line_that_is_none_is_refused(horovodrun, words):
    code, _, stderr = horovodrun(*words.split())
    assert code == 2
    assert stderr[0] == "usage: horovodrun [options] command ..."
    assert len(stderr) == 2


def test_the_version_can_be_asked(horovodrun):
    assert horovodrun("--version")[:2] == (0, ["0.28.1"])


@pytest.mark.parametrize("option", ["--check-build", "-cb"])
def test_what_there_is_can_be_asked(horovodrun, option):
    code, stdout, _ = horovodrun(option)
    assert code == 0
    assert "    [X] TensorFlow" in stdout and "    [ ] MPI" in stdout


@pytest.mark.timeout(240)
def test_a_function_is_called_by_every_process(tmp_path, monkeypatch, capfd):
    for name in PLACE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TF_CONFIG", "not read")
    request = Request(num_proc=2, hosts="localhost:2", output_filename=str(tmp_path / "out"), verbose=True)
    show = functools.partial(subprocess.check_output, [sys.executable, "-c", SHOW, *PLACE], text=True)
    assert run_function(show, pickle.dumps, request) == ["0 2 0 2 0 1\n", "1 2 1 2 0 1\n"]
    assert not set(PLACE) & set(os.environ)
    assert sorted(os.listdir(tmp_path / "out")) == ["rank.0", "rank.1"]
    assert capfd.readouterr().err.splitlines() == ["[lockstep] 2 processes on localhost:2: a function"]


def _over_a_network(tmp_path) -> dict[str, str]:
    """Returns variables that make a stand-in for ssh lead from hosts with a user's name to this machine."""
    (tmp_path / "network").mkdir()
    return {"LOCKSTEP_SSH": f"{sys.executable} {fake_ssh.__file__}", "FAKE_SSH": str(tmp_path / "network")}


# Promise (horovod.md): processes and functions start on several hosts.
def test_processes_on_several_hosts_find_their_places(horovodrun, tmp_path):
    hosts = "localhost:1,me@127.0.0.2:2"
    words = ("-np", "3", "-H", hosts, "--output-filename", "logs", "--verbose", sys.executable, "show.py", *PLACE)
    network = _over_a_network(tmp_path)
    (tmp_path / "network" / "login.me@127.0.0.2").write_text("TF_CONFIG={}\n")
    code, stdout, stderr = horovodrun(*words, "HOROVOD_HOSTNAME", "TF_CONFIG", **network)
    assert code == 0
    assert sorted(stdout) == [
        "[0]<stdout>:0 3 0 1 0 2 localhost None",
        "[1]<stdout>:1 3 0 2 1 2 127.0.0.2 None",
        "[2]<stdout>:2 3 1 2 0 1 127.0.0.2 None",
    ]
    assert stderr[0].startswith("[lockstep] 3 processes on localhost:1, me@127.0.0.2:2: ")
    assert (tmp_path / "logs" / "rank.2" / "stdout").read_text() == "2 3 1 2 0 1 127.0.0.2 None\n"


def test_hosts_of_a_file_are_reached_as_the_command_line_says(horovodrun, tmp_path):
    (tmp_path / "hosts").write_text("me@127.0.0.2 slots=1\nyou@127.0.0.3 slots=1\n")
    (tmp_path / "key").touch()
    words = ("-np", "2", "-hostfile", "hosts", "-p", "2222", "-i", "key", "--nics", "lo", "--restarts", "1")
    code, stdout, stderr = horovodrun(
        *words, sys.executable, "show.py", "LOCKSTEP_INTERFACE", **_over_a_network(tmp_path)
    )
    assert (code, sorted(stdout), stderr) == (0, ["[0]<stdout>:lo", "[1]<stdout>:lo"], [])


def _place(*names: str) -> tuple[int, list[str]]:
    if os.environ["HOROVOD_RANK"] == os.environ.get("FAILS"):
        raise ValueError("no luck")
    return os.getpid(), [os.environ[name] for name in names]


# Promise (horovod.md): processes and functions start on several hosts.
def test_a_function_is_called_on_several_hosts(tmp_path, monkeypatch):
    for name, value in _over_a_network(tmp_path).items():
        monkeypatch.setenv(name, value)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    (tmp_path / "network" / "login.me@127.0.0.2").write_text(f"TMPDIR={temporary}\n")
    request = Request(num_proc=3, hosts="me@127.0.0.2:2,localhost:1")
    function = functools.partial(_place, "HOROVOD_RANK", "HOROVOD_CROSS_RANK")
    results = run_function(function, pickle.dumps, request)
    assert [names for _, names in results] == [["0", "0"], ["1", "0"], ["2", "1"]]
    assert len({pid for pid, _ in results}) == 3
    assert not list(temporary.iterdir())
    for fails, where in (("1", "rank 1"), ("2", "rank 2")):
        monkeypatch.setenv("FAILS", fails)
        with pytest.raises(RuntimeError, match=f"{where} failed with exit code 1: ValueError: no luck"):
            run_function(function, pickle.dumps, request)
