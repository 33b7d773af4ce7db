"""The command line as its users see it: numbers of workers, GPUs, tasks of TF_CONFIG, and requests that are refused."""

import json
import os
import signal
import subprocess
import sys

import pytest

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.output import Console
from lockstep.launch.cli.job_factory import CommandJobs
from lockstep.launch.cli.main import environments_of, execute, main
from lockstep.launch.placement.hosts import Host
from lockstep.launch.remote.multi_host_job import JobHosts
from lockstep.launch.remote.shells import Ssh
from lockstep.testing.launching import DEADLINE_S, RANK, finish, launchers, without_reminder

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

launch = pytest.fixture(launchers)


def test_options_of_the_program_are_never_taken_for_ours(launch):
    theirs = ["-n", "7", "--tf", "--work=5", "--", "--help"]
    code, stdout, _ = finish(launch("-n", "2", sys.executable, "-c", "import sys; print(sys.argv[1:])", *theirs))
    assert (code, sorted(stdout)) == (0, [f"[{rank}] {theirs}" for rank in (0, 1)])


def test_a_single_worker_is_run_as_if_there_were_no_launcher(launch):
    code, stdout, stderr = finish(
        launch(worker=RANK + 'print(rank, os.environ["LOCKSTEP_WORLD_SIZE"], os.getpid()); sys.exit(7)')
    )
    assert (code, stderr) == (7, [])
    assert stdout[0].startswith("0 1 ")


def test_a_single_worker_takes_the_launchers_place(launch):
    process = launch("-n", "1", worker="print(os.getpid(), flush=True); os.kill(os.getpid(), signal.SIGKILL)")
    code, stdout, _ = finish(process)
    assert int(stdout[0]) == process.pid
    assert code == -signal.SIGKILL


def test_a_worker_per_gpu_each_with_its_own(launch):
    worker = RANK + 'print(os.environ["CUDA_VISIBLE_DEVICES"], os.environ["LOCKSTEP_WORLD_SIZE"])'
    code, stdout, _ = finish(launch(worker=worker, variables={"CUDA_VISIBLE_DEVICES": "3,GPU-a"}))
    assert (code, sorted(stdout)) == (0, ["[0] 3 2", "[1] GPU-a 2"])


# Promise (hybridbackend.md): it keeps its number (HybridBackend: GPU 3 becomes GPU 0).
def test_one_gpu_keeps_its_number(launch):
    _, stdout, _ = finish(
        launch(worker='print(os.environ["CUDA_VISIBLE_DEVICES"])', variables={"CUDA_VISIBLE_DEVICES": "3"})
    )
    assert stdout == ["3"]


def test_workers_may_be_fewer_than_gpus_but_not_more(launch):
    gpus = {"CUDA_VISIBLE_DEVICES": "4,5,6"}
    worker = 'print(os.environ["CUDA_VISIBLE_DEVICES"])'
    assert sorted(finish(launch("-n", "2", worker=worker, variables=gpus))[1]) == ["[0] 4", "[1] 5"]
    code, _, stderr = finish(launch("-n", "4", worker=worker, variables=gpus))
    assert code == 2
    assert "-n 4: only 3 GPUs are visible (4, 5, 6)" in stderr[0]


def test_workers_on_the_cpu_see_no_gpu(launch):
    assert sorted(finish(launch("-n", "2", worker='print(repr(os.environ["CUDA_VISIBLE_DEVICES"]))'))[1]) == [
        "[0] ''",
        "[1] ''",
    ]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ((), 2, "no command"),
        (("-n", "0", "true"), 2, "-n 0: wanted 1 or more"),
        (("-np0", "true"), 2, "-np 0: wanted 1 or more"),
        (("-n", "1", "-np", "2", "true"), 2, "got -n 1 (of each machine) and -np 2 (of the job), wanted one of them"),
        (("-np", "3", "-H", "localhost:2", "true"), 2, "-np 3: there are 2 slots (localhost:2)"),
        (("-n", "2", "no-such-program"), 127, "cannot run 'no-such-program': No such file"),
        (("no-such-program",), 127, "cannot run 'no-such-program': No such file"),
        (("-n", "2", "/etc/passwd"), 126, "cannot run '/etc/passwd': Permission denied"),
        (("--tf1", "bash", "run.sh"), 2, "no Python program"),
        (("-n", "2", "--output-rank", "2", "true"), 2, "--output-rank 2: wanted a rank of the job, 0 to 1"),
        (("--quiet", "--output-rank", "0", "true"), 2, "not allowed with argument --quiet"),
    ],
)
def test_a_request_that_cannot_be_met_is_one_line(launch, options, code, message):
    got, _, stderr = finish(launch(*options))
    assert got == code
    assert message in stderr[-1]


@pytest.mark.parametrize(
    "words", ["-n 2", "-n2", "--workers=2", "-np 2", "-np2", "--num-proc 2", "-np 2 -H localhost:4"]
)
def test_the_number_of_workers_may_be_said_as_to_other_launchers(launch, words):
    worker = 'print(os.environ["LOCKSTEP_RANK"], os.environ["LOCKSTEP_WORLD_SIZE"])'
    code, stdout, stderr = finish(launch(*words.split(), worker=worker))
    assert (code, sorted(stdout), without_reminder(stderr)) == (0, ["[0] 0 2", "[1] 1 2"], [])


def test_a_number_of_all_workers_is_refused_where_each_task_has_a_launcher(launch):
    variables = {"TF_CONFIG": _tf_config({"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}, "chief")}
    code, _, (said,) = finish(launch("-np", "2", worker="pass", variables=variables))
    assert code == 2
    assert "-np 2: this launcher starts the workers of one of 2 tasks; wanted -n" in said


def _tf_config(cluster: dict, role: str) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": role, "index": 0}})


def test_several_hosts_without_a_common_secret_are_refused(launch, tmp_path):
    config = _tf_config({"chief": ["a:1"], "worker": ["b:1"]}, "chief")
    variables = {"TF_CONFIG": config, "XDG_STATE_HOME": str(tmp_path)}
    code, _, stderr = finish(launch("-n", "2", worker="pass", variables=variables))
    assert code == 2
    assert "tasks on 2 hosts, LOCKSTEP_SECRET is not set" in stderr[0]


# Promise (launching.md): launchers of all tasks make one job, on one host and on several.
def test_tasks_of_several_hosts_make_one_job(launch):
    """Each launcher runs on its own host; two addresses of this machine stand for the hosts."""
    cluster = {"chief": ["127.0.0.2:8860"], "worker": ["127.0.0.3:8861"]}
    names = '"RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "RENDEZVOUS", "SECRET"'
    tell = f'print(*(os.environ["LOCKSTEP_" + n] for n in ({names})))'
    told = []
    for role in cluster:
        variables = {"TF_CONFIG": _tf_config(cluster, role), "LOCKSTEP_SECRET": "common"}
        code, stdout, stderr = finish(launch("-n", "2", worker=tell, variables=variables))
        assert (code, without_reminder(stderr)) == (0, [])
        told += sorted(line.partition("] ")[2] for line in stdout)
    assert told == [f"{rank} {rank % 2} 2 4 127.0.0.2:8860 common" for rank in range(4)]


@pytest.mark.parametrize("role", ["evaluator", "ps"])
def test_an_evaluator_or_a_parameter_server_runs_alone_with_its_configuration(launch, role):
    config = _tf_config({"chief": ["a:1"], role: ["b:1"]}, role)
    worker = 'print(os.environ["TF_CONFIG"] + str(os.environ.get("LOCKSTEP_RANK")))'
    _, stdout, _ = finish(launch("-n", "2", worker=worker, variables={"TF_CONFIG": config}))
    assert stdout == [config + "None"]


TELL = 'names = ("RANK", "WORLD_SIZE", "RENDEZVOUS", "SECRET")\nprint(*(os.environ["LOCKSTEP_" + n] for n in names))\n'


# Promise (launching.md): launchers of all tasks make one job, on one host and on several.
@pytest.mark.parametrize("workers", [1, 2])
def test_a_launcher_for_each_task_of_a_machine_makes_one_job(launch, tmp_path, workers):
    cluster = {"chief": ["127.0.0.1:8860"], "worker": ["127.0.0.1:8861"]}
    launched = []
    for role in cluster:
        variables = {"TF_CONFIG": _tf_config(cluster, role), "XDG_STATE_HOME": str(tmp_path)}
        launched.append(launch("-n", str(workers), worker=TELL, variables=variables))
    told = []
    for process in launched:
        code, stdout, stderr = finish(process)
        assert (code, without_reminder(stderr)) == (0, [])
        told += [line.split()[-4:] for line in stdout]
    ranks, sizes, rendezvous, secrets = map(list, zip(*told, strict=True))
    assert sorted(ranks) == [str(rank) for rank in range(2 * workers)]
    assert set(sizes) == {str(2 * workers)}
    assert set(rendezvous) == {"127.0.0.1:8860"}
    assert len(set(secrets)) == 1


def test_another_projects_launcher_prepares_command_and_environment(capfd):
    def prepare(words, environment):
        environment["LOCKSTEP_TF1"] = "7"
        return [*words, "more"]

    assert main(["true"], "theirs", prepare) == 2
    assert capfd.readouterr().err == "theirs: LOCKSTEP_TF1='7': wanted 1 (run as a TensorFlow 1 script) or 0\n"

    def refuse(words, environment):
        raise LaunchError(f"not {words}", 9)

    assert main(["true"], "theirs", refuse) == 9
    assert capfd.readouterr().err == "theirs: not ['true']\n"


@pytest.mark.parametrize("is_horovod", [False, True])
def test_hosts_that_are_all_this_machine_are_planned_as_one_task(is_horovod):
    """A TF_CONFIG of the launcher's environment is not read: the list of hosts replaces it."""
    here = JobHosts([Host("localhost", 2)], Ssh(), is_horovod=is_horovod)
    planned = environments_of(None, here, Console())({"TF_CONFIG": "no cluster"})
    assert [worker["LOCKSTEP_RANK"] for worker in planned] == ["0", "1"]
    configs = [worker["TF_CONFIG"] for worker in planned]
    if is_horovod:
        assert configs == ["no cluster"] * 2
    else:
        assert [json.loads(config)["task"]["type"] for config in configs] == ["chief", "worker"]


@pytest.mark.parametrize(("restarts", "kept"), [(1, False), (0, True)])
def test_a_single_worker_is_supervised_where_it_may_restart_or_its_output_is_kept(tmp_path, restarts, kept):
    """Otherwise it would replace this process, and nothing would follow."""
    folder = str(tmp_path / "out") if kept else None
    with open(tmp_path / "shown", "wb") as shown:
        console = Console(shown.fileno(), shown.fileno())
        words = ["sh", "-c", "echo done"]
        jobs = CommandJobs(environments_of(1, None, console), None, {**os.environ}, console, folder, restarts)
        assert execute(words, jobs) == 0
    assert (tmp_path / "shown").read_text() == "[0] done\n"
    assert not kept or (tmp_path / "out/rank.0/stdout").read_text() == "done\n"


@pytest.mark.parametrize("workers", [1, 2])
def test_output_may_be_that_of_a_rank_or_of_none_and_is_kept_in_log_files(launch, tmp_path, workers):
    worker = (
        RANK
        + 'print("hello from", rank, "\\033[1mbold\\033[0m", flush=True); open(f"done{rank}", "w").close()\n'
        + f'while not os.path.exists("done{workers - 1}"): time.sleep(.01)\n'
        + "sys.exit(3 * (rank == 0))"
    )
    wanted = {"--output-rank=0": ["[0] hello from 0 \033[1mbold\033[0m"], "--quiet": []}
    for option, shown in wanted.items():
        for path in tmp_path.glob("done*"):
            path.unlink()
        code, stdout, stderr = finish(launch(f"-n{workers}", option, "--log-dir", "logs", worker=worker))
        assert (code, stdout) == (3, shown)
        assert "[lockstep] rank 0 (pid " in stderr[0] and "failed with exit code 3" in stderr[0]
        for rank in range(workers):
            assert (tmp_path / f"logs/rank.{rank}/stdout").read_text() == f"hello from {rank} bold\n"


@pytest.mark.parametrize("workers", [1, 2])
def test_tensorflows_start_up_lines_are_shown_only_for_a_worker_that_fails(launch, workers):
    start_up = "I0000 00:00:1795475969.182574   19546 port.cc:153] oneDNN custom operations are on."
    worker = RANK + f'print("{start_up}", file=sys.stderr); print("mine", file=sys.stderr); sys.exit(int(sys.argv[1]))'
    options = ("-n", str(workers), "--output-rank=0", "--output-rank", str(workers - 1))
    (words,) = [(sys.executable, "-c", "import os, sys\n" + worker)]
    code, stdout, stderr = finish(launch(*options, *words, "0"))
    assert (code, stdout) == (0, [])
    assert sorted(without_reminder(stderr)) == [f"[{rank}] mine" for rank in range(workers)]
    asked = {"TF_CPP_MIN_LOG_LEVEL": "0"}
    assert finish(launch(*options, *words, "0", variables=asked))[2].count(f"[0] {start_up}") == 1
    code, _, stderr = finish(launch(*options, *words, "3"))
    assert code == 3
    assert stderr.count(f"[lockstep]   {start_up}") == 1
    assert any("hidden start-up lines of TensorFlow:" in line for line in stderr)


def test_a_task_without_a_rank_runs_alone_whatever_the_options_of_output(launch):
    variables = {"TF_CONFIG": _tf_config({"chief": ["a:1"], "evaluator": ["b:1"]}, "evaluator")}
    options = ("--restarts", "1", "--log-dir", "logs", "--quiet")
    assert finish(launch(*options, worker="print('alone')", variables=variables)) == (0, ["alone"], [])


def test_the_launcher_never_loads_tensorflow():
    code = "import sys, lockstep.launch; print(sorted(m for m in sys.modules if m.startswith(('tensorflow', 'numpy'))))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True, timeout=DEADLINE_S) == "[]\n"
