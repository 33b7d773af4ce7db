"""The rules of an elastic job, without processes: the events that the driver gets, and its actions."""

# Promise of this file (horovod_elastic.md): rounds, ranks, waiting and failing follow Horovod's rules.

import pytest

from lockstep.launch.elastic.driver import Driver, Limits
from lockstep.launch.elastic.host_pool import Cooldown, HostPool

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

KILLED = (-9, "was killed by SIGKILL")


class Job:
    """A driver that gets the events of imaginary workers; `now` only moves when a test moves it."""

    def __init__(self, *, hosts=None, cooldown=None, num_proc=2, min_np=1, max_np=4, **limits):
        self.now = 0.0
        self.hosts = HostPool(cooldown)
        self.hosts.found(hosts or {"localhost": 2})
        self.driver = Driver(Limits(num_proc, min_np, max_np, **limits), self.hosts)
        self.started = []

    def next(self):
        actions = self.driver.next(self.now)
        self.started += [(worker.host, worker.slot) for worker in actions.start]
        return actions

    def ready(self, *numbers, has_state=False, keeps_state=False):
        for number in numbers:
            self.driver.ready(number, has_state, keeps_state)
        return self.next()

    def end(self, number, code=-9, how="was killed by SIGKILL", is_secondary=False):
        said = self.driver.ended(number, code, how, self.now, is_secondary)
        return said, self.next()


def ranks(actions):
    return {number: (place["rank"], place["size"], place["local_rank"]) for number, place in actions.places.items()}


def test_a_round_begins_when_all_are_there():
    job = Job()
    assert [worker.number for worker in job.next().start] == [0, 1]
    assert not job.ready(1).places
    actions = job.ready(0)
    assert ranks(actions) == {0: (0, 2, 0), 1: (1, 2, 1)}
    assert not actions.places[0]["all_keep_state"]
    assert job.end(0, 0)[1].over is None
    assert job.end(1, 0)[1].over == 0


def test_a_dead_worker_is_survived_by_the_others_in_their_order():
    job = Job(hosts={"localhost": 3})
    job.next(), job.ready(0, 1, 2)
    said, actions = job.end(0)
    assert said == ["rank 0 was killed by SIGKILL; no new workers on localhost"]
    assert (actions.over, actions.start, actions.changed) == (None, [], None)
    assert not job.ready(2).places
    assert ranks(job.ready(1)) == {1: (0, 2, 0), 2: (1, 2, 1)}
    assert job.end(1, 0)[1].over is None
    assert job.end(2, 0)[1].over == 0  # the job survives the death


def test_workers_of_a_machine_have_ranks_in_a_row():
    job = Job(hosts={"192.0.2.1": 2, "localhost": 2}, num_proc=3)
    job.next()
    job.ready(0, 1, 2)
    actions = job.ready(3)
    assert ranks(actions) == {0: (0, 4, 0), 1: (1, 4, 1), 2: (2, 4, 0), 3: (3, 4, 1)}
    assert [(actions.places[n]["cross_rank"], actions.places[n]["cross_size"]) for n in range(4)] == [
        (0, 2), (0, 2), (1, 2), (1, 2)
    ]  # fmt: skip
    # One dies on the first machine. Its replacement stands behind its neighbour, and before the others.
    job.end(0)
    job.hosts.found({"192.0.2.1": 2, "localhost": 2, "me@192.0.2.1": 1})
    assert [worker.number for worker in job.next().start] == [4]
    job.ready(4), job.ready(1, 2, has_state=True)
    assert ranks(job.ready(3, has_state=True)) == {1: (0, 4, 0), 2: (1, 4, 0), 3: (2, 4, 1), 4: (3, 4, 0)}


def test_newcomers_join_behind_those_that_have_the_state():
    job = Job()
    job.next(), job.ready(0, 1)
    job.hosts.found({"localhost": 2, "127.0.0.1": 1})
    assert [(worker.number, worker.host, worker.slot) for worker in job.next().start] == [(2, "127.0.0.1", 2)]
    assert job.next().changed is None  # the job does not wait for its start
    changed = job.ready(2).changed
    assert (changed["added"], changed["removed"]) == (True, False)
    assert job.next().changed is None
    job.now += 1
    assert job.next().changed["at"] == 1  # repeated until they come
    actions = job.ready(0, 1, keeps_state=True)
    assert ranks(actions) == {0: (0, 3, 0), 1: (1, 3, 1), 2: (2, 3, 2)}
    assert not actions.places[0]["all_keep_state"]


def test_a_newcomer_gets_the_slot_of_the_dead():
    job = Job(hosts={"localhost": 3}, cooldown=Cooldown(1, 1))
    job.next(), job.ready(0, 1, 2)
    job.end(0)
    assert ranks(job.ready(1, 2)) == {1: (0, 2, 0), 2: (1, 2, 1)}
    job.now = 2.5
    assert [(worker.number, worker.slot) for worker in job.next().start] == [(3, 0)]
    job.ready(3)
    assert ranks(job.ready(1, 2)) == {1: (0, 3, 1), 2: (1, 3, 2), 3: (2, 3, 0)}


def test_workers_of_a_host_that_is_gone_are_dismissed_at_the_next_round():
    job = Job(hosts={"localhost": 1, "127.0.0.1": 2}, num_proc=3)
    job.next(), job.ready(0, 1, 2)
    job.hosts.found({"127.0.0.1": 1})
    changed = job.next().changed
    assert (changed["added"], changed["removed"]) == (False, True)
    assert not job.ready(1, 2, keeps_state=True).dismiss
    actions = job.ready(0, keeps_state=True)
    assert actions.dismiss == [0, 2]
    assert ranks(actions) == {1: (0, 1, 0)}
    assert actions.places[1]["all_keep_state"]
    assert job.end(0, 0)[1].over is None and job.end(2)[0] == []


def test_the_state_does_not_go_with_the_last_that_have_it():
    job = Job()
    job.next(), job.ready(0, 1)
    job.hosts.found({})
    assert job.next().changed is None
    job.hosts.found({"127.0.0.1": 2})
    assert [worker.number for worker in job.next().start] == [2, 3]
    job.ready(2, 3)
    assert ranks(job.ready(0, 1)) == {0: (0, 4, 0), 1: (1, 4, 1), 2: (2, 4, 2), 3: (3, 4, 3)}
    assert job.next().changed["removed"]
    actions = job.ready(0, 1, 2, 3)
    assert actions.dismiss == [0, 1]
    assert ranks(actions) == {2: (0, 2, 0), 3: (1, 2, 1)}


def test_too_few_wait_and_then_fail():
    job = Job(min_np=2, timeout_s=5)
    job.next(), job.ready(0, 1)
    job.end(1)
    assert job.ready(0).say == ["1 of at least 2 workers are ready; waiting for up to 5 s"]
    job.now = 4.9
    assert job.next().over is None
    job.now = 5
    actions = job.next()
    assert (actions.over, actions.why) == (
        137,
        "1 of at least 2 workers are ready, after 5 s of waiting; hosts: localhost:2",
    )


def test_too_few_slots_are_waited_for_before_the_start():
    job = Job(hosts={"localhost": 1}, timeout_s=3)
    assert job.next().say == ["1 of 2 slots are available; waiting for up to 3 s"]
    job.hosts.found({"localhost": 2})
    assert len(job.next().start) == 2
    job = Job(hosts={"localhost": 1}, timeout_s=3)
    job.next()
    job.now = 3
    assert job.next().over == 1


def test_a_worker_that_does_not_come_back_is_ended():
    job = Job(timeout_s=5)
    job.next(), job.ready(0, 1)
    job.ready(1)
    job.now = 5
    actions = job.next()
    assert (actions.kill, actions.say) == ([0], ["rank 0 did not return within 5 s: killing it"])
    assert ranks(job.end(0)[1]) == {1: (0, 1, 0)}


def test_a_worker_that_does_not_end_is_spoken_of_once():
    job = Job(hosts={"localhost": 3}, num_proc=3, timeout_s=5)
    job.next(), job.ready(0, 1, 2)
    job.ready(1)
    job.now = 5
    assert job.next().say == [f"rank {rank} did not return within 5 s: killing it" for rank in (0, 2)]
    for _ in range(10):  # SIGKILL may take some time
        wake_at = job.driver.wake_at(job.now)
        assert wake_at > job.now
        job.now = wake_at
        actions = job.next()
        assert (actions.say, actions.kill, actions.over) == ([], [], None)
    job.end(0)
    assert ranks(job.end(2)[1]) == {1: (0, 1, 0)}


def test_who_is_started_in_the_place_of_one_that_did_not_come_has_as_long():
    job = Job(hosts={"localhost": 1, "127.0.0.1": 1}, min_np=2, timeout_s=5)
    job.next(), job.ready(0)
    job.now = 5
    assert job.next().kill == [1]
    job.end(1)
    job.hosts.found({"localhost": 1, "127.0.0.2": 1})
    actions = job.next()
    assert ([worker.number for worker in actions.start], actions.kill) == ([2], [])
    job.now = 9
    assert not job.next().kill
    assert ranks(job.ready(2)) == {0: (0, 2, 0), 2: (1, 2, 1)}


def test_all_dead_is_the_end():
    job = Job()
    job.next(), job.ready(0, 1)
    job.end(0)
    actions = job.end(1, 3, "failed with exit code 3")[1]
    assert (actions.over, actions.why) == (3, "all workers that had the job's state have failed")
    job = Job()
    job.next()
    job.end(0, 2)
    assert job.end(1, 2)[1].over == 2


def test_a_newcomer_that_did_not_get_the_state_is_not_its_keeper():
    job = Job(hosts={"localhost": 3}, num_proc=3, cooldown=Cooldown(1, 1))
    job.next(), job.ready(0, 1, 2)
    job.end(0)
    assert ranks(job.ready(1, 2, has_state=True)) == {1: (0, 2, 0), 2: (1, 2, 1)}
    job.now = 3
    job.next(), job.ready(3), job.ready(1, 2, has_state=True)
    job.end(1)
    job.driver.ready(3, False, False)  # before it had the state
    assert ranks(job.ready(2, has_state=True)) == {2: (0, 2, 1), 3: (1, 2, 0)}
    job.end(2)
    actions = job.ready(3)
    assert (actions.over, actions.why) == (137, "all workers that had the job's state have failed")


def test_the_reset_limit():
    job = Job(hosts={"localhost": 4}, reset_limit=1)
    job.next(), job.ready(0, 1, 2, 3)
    job.end(3)
    assert len(job.ready(0, 1, 2).places) == 3
    job.end(2)
    actions = job.ready(0, 1)
    assert actions.over == 137
    assert actions.why == "reset 2 exceeds the reset limit of 1"


def test_all_workers_of_a_new_host_are_one_reset():
    job = Job(hosts={"localhost": 2}, reset_limit=1)
    job.next(), job.ready(0, 1)
    job.hosts.found({"localhost": 2, "127.0.0.1": 2})
    assert [worker.number for worker in job.next().start] == [2, 3]
    assert job.ready(2).changed is None  # The other one has not come yet.
    assert job.ready(3).changed["added"]
    assert ranks(job.ready(0, 1))[3] == (3, 4, 3)
    # The next change exceeds the limit.
    job.end(3)
    assert job.ready(0, 1, 2).why == "reset 2 exceeds the reset limit of 1"


def test_the_rest_of_a_new_host_is_not_another_reset():
    job = Job(hosts={"localhost": 3}, num_proc=3, max_np=5, reset_limit=1)
    job.next(), job.ready(0, 1, 2)
    job.hosts.found({"localhost": 3, "127.0.0.1": 2})
    job.next(), job.ready(3)
    job.end(2)  # A worker that trains dies before the second newcomer is there.
    assert len(job.ready(0, 1).places) == 3
    job.ready(4)
    assert len(job.ready(0, 1, 3).places) == 4
    job.end(4)
    assert job.ready(0, 1, 3).over == 137


def test_a_newcomer_that_never_comes_does_not_keep_the_others_out():
    job = Job(timeout_s=5)
    job.next(), job.ready(0, 1)
    job.hosts.found({"localhost": 2, "127.0.0.1": 2})
    job.next()
    assert job.ready(2).changed is None
    job.now = 5
    assert job.next().changed["added"]
    assert len(job.ready(0, 1).places) == 3


def test_without_a_maximum_every_slot_gets_a_worker():
    job = Job(hosts={"localhost": 3, "127.0.0.1": 4}, num_proc=2, max_np=None)
    assert len(job.next().start) == 7
    job.hosts.found({"localhost": 3, "127.0.0.1": 4, "127.0.0.2": 2})
    assert len(job.next().start) == 2


def test_nobody_joins_a_job_that_has_succeeded():
    job = Job()
    job.next(), job.ready(0, 1)
    job.hosts.found({"localhost": 3})
    job.next()
    actions = job.end(0, 0)[1]
    assert (actions.kill, actions.over) == ([2], None)
    assert ranks(job.ready(1)) == {1: (0, 1, 0)}  # its peer left before it was done
    said, actions = job.end(1, 4, "failed with exit code 4")
    assert said == ["rank 0 failed with exit code 4 after another worker succeeded"]
    assert actions.over == 4


def test_who_had_not_begun_when_another_succeeded_has_nothing_to_do():
    job = Job(reset_limit=1)
    job.next(), job.ready(0, 1)
    job.ready(0, 1, has_state=True)
    job.end(0, 0)
    actions = job.ready(1)
    assert (actions.over, actions.why) == (0, "")


ECHO = (1, "failed with exit code 1", True)


@pytest.mark.parametrize("comes_first", [True, False])
def test_who_failed_because_of_another_is_no_failure_of_its_host(comes_first):
    job = Job(hosts={"localhost": 2, "127.0.0.1": 1}, num_proc=3, cooldown=Cooldown(10, 100))
    job.next(), job.ready(0, 1, 2)
    said, started = [], []
    for number, *how in [(2, *ECHO), (0, 3, "failed with exit code 3")][:: 1 if comes_first else -1]:
        lines, actions = job.end(number, *how)
        said += lines
        started += [worker.host for worker in actions.start]
        job.now += 1
    assert [line.partition(" for ")[0] for line in said] == [
        "rank 0 failed with exit code 3; no new workers on localhost",
        "rank 2 failed with exit code 1 because another worker failed",
    ]
    assert started == ["127.0.0.1"]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_exit_code_is_that_of_the_cause(order):
    job = Job()
    job.next(), job.ready(0, 1)
    ends = {0: (3, "failed with exit code 3"), 1: ECHO}
    assert [job.end(number, *ends[number])[1].over for number in order] == [None, 3]


def test_who_failed_because_of_one_that_goes_on_is_a_failure_after_a_while():
    job = Job(hosts={"localhost": 2})
    job.next(), job.ready(0, 1)
    said, actions = job.end(1, *ECHO)
    assert (said, actions.say, actions.start) == ([], [], [])
    job.now = job.driver.wake_at(job.now)
    while not (actions := job.next()).say:
        assert job.now < 100
        job.now = max(job.now + 0.5, job.driver.wake_at(job.now))
    assert actions.say == ["rank 1 failed with exit code 1; no new workers on localhost"]
    assert actions.start == []


def test_a_job_that_ends_says_who_failed_because_of_another():
    job = Job()
    job.next(), job.ready(0, 1)
    assert job.end(0, *ECHO)[0] == []
    said, actions = job.end(1, *ECHO)
    assert (said, actions.over) == ([], 1)
    assert [line.partition(";")[0] for line in actions.say] == [f"rank {n} failed with exit code 1" for n in (0, 1)]
