"""Slurm's variables as in its manual, and a job in an allocation with a stand-in for srun."""

# Promise of this file (launching.md): lists of hosts, steps and allocations of Slurm are understood.

import os
import sys

import pytest

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.placement import slurm
from lockstep.launch.placement.hosts import Host
from lockstep.launch.placement.slurm import hosts_of_allocation, parse_nodes, tasks_of_step
from lockstep.testing import fake_ssh
from lockstep.testing.launching import finish, launchers, without_reminder

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

launch = pytest.fixture(launchers)

ALLOCATION = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)"}
STEP = {
    **ALLOCATION, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "5", "SLURM_STEP_NODELIST": "n[1-3]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1", "SLURM_PROCID": "3", "SLURM_NODEID": "1", "SLURM_LOCALID": "1",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("a", ["a"]),
        ("node-1.x,b_2", ["node-1.x", "b_2"]),
        ("node[01-03,7]", ["node01", "node02", "node03", "node7"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[098-101]e,m", ["n098e", "n099e", "n100e", "n101e", "m"]),
        ("r[1-2]n[3,5]", ["r1n3", "r1n5", "r2n3", "r2n5"]),
    ],
)
def test_lists_of_hosts_are_read(text, nodes):
    assert parse_nodes(text) == nodes


@pytest.mark.parametrize(
    "text",
    ["", ",", "a,,b", "a[1-", "a]", "a[]", "a[3-1]", "a[1-2-3]", "a[x]", "a[1,]", "[[1]]", "a b", "a,a", "-v", "a;b",
     "n[0-99999999]", "n[0-65535],m[0-65535]", "[0-300][0-300]", "a[[1]]", "n[1-2]" * 40,
     "n" * 100000 + "[0-65534]"],
)  # fmt: skip
def test_what_is_no_list_of_hosts_is_refused(text):
    with pytest.raises(LaunchError, match="Slurm's list of hosts"):
        parse_nodes(text)


@pytest.mark.parametrize("step", ["", "batch", "-1", "4294967290", "\N{SUPERSCRIPT TWO}"])
def test_a_step_that_no_user_asked_for_is_none(step):
    assert tasks_of_step({**STEP, "SLURM_STEP_ID": step}) is None


def test_a_task_of_a_step_finds_its_place():
    tasks = tasks_of_step(STEP)
    assert tasks.index == 3
    assert tasks.by_host == [("n1", 2), ("n2", 2), ("n3", 1)]
    assert tasks.job == "Slurm job 4711, step 0"
    host, port = tasks.addresses[0].split(":")
    assert (host, 20001 <= int(port) < 32768) == ("n1", True)
    # All launchers find the same port, another step another one. The distribution of tasks does not matter.
    last = {**STEP, "SLURM_NODEID": "2", "SLURM_LOCALID": "0", "SLURM_PROCID": "2"}
    assert (tasks_of_step(last).index, tasks_of_step(last).addresses) == (4, tasks.addresses)
    assert tasks_of_step({**STEP, "SLURM_STEP_ID": "1"}).addresses[0] != tasks.addresses[0]


def test_outside_of_a_step_of_several_tasks_there_are_none():
    assert tasks_of_step({}) is None
    assert tasks_of_step(ALLOCATION) is None
    assert tasks_of_step({**STEP, "LOCKSTEP_SLURM": "0"}) is None
    # In a shell of salloc, or a batch script, no user asked for the tasks.
    assert tasks_of_step({**STEP, "SLURM_STEP_ID": str(0xFFFFFFFA)}) is None
    one = {**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_STEP_NODELIST": "n1"}
    assert tasks_of_step({**one, "SLURM_NODEID": "0", "SLURM_LOCALID": "0"}) is None
    assert hosts_of_allocation(one, None) is None


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"SLURM_STEP_NUM_TASKS": "6"}, "contradict each other: 6 tasks, 3 hosts"),
        ({"SLURM_LOCALID": "2"}, "this is task 2 of host 1"),
        ({"SLURM_NODEID": "3"}, "this is task 1 of host 3"),
        ({"SLURM_NODEID": "x"}, "SLURM_NODEID: got 'x', wanted a number"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x"}, r"got '2\(x', wanted them as in 2\(x3\),1"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x999999999)"}, "wanted them as in"),
        ({"SLURM_STEP_TASKS_PER_NODE": "", "SLURM_TASKS_PER_NODE": ""}, "SLURM_STEP_TASKS_PER_NODE is missing"),
        (
            {"SLURM_STEP_TASKS_PER_NODE": "2(x2),999999995", "SLURM_STEP_NUM_TASKS": "999999999"},
            "got 999999999 workers, wanted at most 65536",
        ),
        ({"LOCKSTEP_SLURM": "no"}, "LOCKSTEP_SLURM='no': wanted 0"),
    ],
)
def test_variables_that_contradict_each_other_are_refused(variables, message):
    with pytest.raises(LaunchError, match=message):
        tasks_of_step({**STEP, **variables})


def test_an_allocation_has_hosts():
    assert hosts_of_allocation(ALLOCATION, None) == [Host("n1", 2), Host("n2", 2)]
    assert hosts_of_allocation(ALLOCATION, 3) == [Host("n1", 3), Host("n2", 3)]
    assert hosts_of_allocation({**ALLOCATION, "SLURM_JOB_NODELIST": "n1"}, None) is None
    assert hosts_of_allocation({}, None) is None
    assert hosts_of_allocation(STEP, None) is None
    with pytest.raises(LaunchError, match=r"'1\(x3\)' is for 3 hosts, and SLURM_JOB_NODELIST names 2"):
        hosts_of_allocation({**ALLOCATION, "SLURM_TASKS_PER_NODE": "1(x3)"}, None)


def test_an_allocation_of_one_host_says_how_many_workers():
    one = {**ALLOCATION, "SLURM_JOB_NODELIST": "n1", "SLURM_TASKS_PER_NODE": "4"}
    assert slurm.tasks_on_this_host({**one, "SLURM_NTASKS": "4"}) == 4
    assert slurm.tasks_on_this_host(one) is None  # The user gave none.


def test_a_step_of_launchers_is_one_job(launch):
    """Runs a launcher for each task, as srun does: one host with two tasks, one host with one."""
    names = "('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'RENDEZVOUS', 'SECRET')"
    tell = f"print(*(os.environ['LOCKSTEP_' + n] for n in {names}), os.environ['CUDA_VISIBLE_DEVICES'])"
    step = {**STEP, "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_TASKS_PER_NODE": "2,1"}
    told = []
    for node, local in ((0, 0), (0, 1), (1, 0)):
        place = {"SLURM_NODEID": str(node), "SLURM_LOCALID": str(local)}
        variables = {**step, **place, "LOCKSTEP_SECRET": "common", "CUDA_VISIBLE_DEVICES": "4,5"}
        code, stdout, stderr = finish(launch(worker=tell, variables=variables))
        # The launcher may warn that this machine has no such GPUs.
        assert (code, [line for line in stderr if "has no NVIDIA GPU" not in line]) == (0, [])
        told.append(stdout[0].split())
    assert [place[:4] for place in told] == [["0", "3", "0", "2"], ["1", "3", "1", "2"], ["2", "3", "0", "1"]]
    assert len({tuple(place[4:6]) for place in told}) == 1
    # Tasks of a host that see the same GPUs take one each.
    assert [place[6] for place in told] == ["4", "5", "4"]


def test_a_step_of_several_hosts_needs_a_secret_in_common(launch, tmp_path):
    variables = {**STEP, "XDG_STATE_HOME": str(tmp_path)}
    code, _, stderr = finish(launch(worker="pass", variables=variables))
    assert code == 2
    assert "the job has tasks on 3 hosts, LOCKSTEP_SECRET is not set" in stderr[0]


@pytest.fixture
def srun(tmp_path, monkeypatch):
    """Returns a folder with a stand-in for srun, first on the path."""
    folder = tmp_path / "network"
    folder.mkdir()
    program = tmp_path / "srun"
    program.write_text(f"""\
#!{sys.executable}
import shlex, sys
options = [word for word in sys.argv[1:] if word.startswith("--")]
words = sys.argv[1 + len(options):]
said = dict(option[2:].partition("=")[::2] for option in options)
assert said["jobid"] == "4711" and said["ntasks"] == said["nodes"] == "1" and "overlap" in said, said
import runpy
sys.argv = ["ssh", said["nodelist"], shlex.join(words)]
runpy.run_path({fake_ssh.__file__!r}, run_name="__main__")
""")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return {"FAKE_SSH": str(folder), "PATH": f"{tmp_path}:{os.environ['PATH']}"}


def test_in_an_allocation_workers_of_all_hosts_are_started_by_srun(launch, srun):
    tell = "print(*(os.environ[n] for n in ('LOCKSTEP_RANK', 'LOCKSTEP_LOCAL_RANK', 'LOCKSTEP_RENDEZVOUS')))"
    variables = {**ALLOCATION, **srun, "SLURM_NTASKS": "4"}
    code, stdout, stderr = finish(launch(worker=tell, variables=variables))
    assert (code, without_reminder(stderr)) == (0, [])
    assert sorted(line.split()[1:3] for line in stdout) == [["0", "0"], ["1", "1"], ["2", "0"], ["3", "1"]]
    code, stdout, _ = finish(launch("-n", "1", worker=tell, variables=variables))
    assert (code, len(stdout)) == (0, 2)


@pytest.mark.parametrize(
    ("words", "more"),
    [(("--hosts", "localhost:1"), {}), ((), {"TF_CONFIG": '{"cluster": {}}'})],
    ids=["hosts", "tasks"],
)
def test_hosts_that_are_named_and_tf_config_come_before_an_allocation(launch, srun, words, more):
    code, stdout, stderr = finish(launch(*words, worker="print(1)", variables={**ALLOCATION, **srun, **more}))
    assert (code, stdout, stderr) == (0, ["1"], [])


def test_a_program_that_calls_run_is_not_one_launcher_of_an_allocation(launch):
    program = "from lockstep.launch import run; run(['true'])"
    code, _, stderr = finish(launch(program=("-c", program), variables=ALLOCATION))
    assert code == 1
    assert "Slurm has given 2 hosts (n1, ...), but workers would start only on this one: start" in stderr[-1]
