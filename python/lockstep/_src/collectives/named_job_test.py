"""Tests of a job of only this process, of the places of ranks on hosts, and of messages about process sets."""

from __future__ import annotations

import types

import pytest

from lockstep._src.collectives import named, named_job
from lockstep._src.collectives.named_job import NotStartedError

ACCESSORS = (
    named_job.rank,
    named_job.size,
    named_job.local_rank,
    named_job.local_size,
    named_job.cross_rank,
    named_job.cross_size,
    named_job.is_homogeneous,
    named_job.process_sets,
    lambda: named_job.ranks_of(named.ALL),
    lambda: named_job.add_process_set([0]),
    lambda: named_job.remove_process_set(1),
)


@pytest.fixture
def alone():
    """Joins a job of only this process, and leaves it."""
    named_job.start()
    yield
    named_job.stop()


@pytest.mark.parametrize("accessor", ACCESSORS)
def test_without_a_job_there_are_no_ranks(accessor):
    assert not named_job.is_started()
    named_job.stop()
    with pytest.raises(NotStartedError, match="this process is not in a job: it has not joined one, or has left it"):
        accessor()


def test_a_process_without_a_launcher_is_a_job_of_one(alone):
    named_job.start(stall_warning_s=1)  # does nothing
    assert named_job.is_started() and named_job.was_started()
    assert [named_job.rank(), named_job.size(), named_job.local_rank(), named_job.local_size()] == [0, 1, 0, 1]
    assert [named_job.cross_rank(), named_job.cross_size(), named_job.is_homogeneous()] == [0, 1, True]
    assert named_job.process_sets() == {0: [0]}
    assert int(named.size_of()) == 1


def test_a_job_may_be_left_and_joined_again(alone):
    named_job.stop()
    assert not named_job.is_started() and named_job.was_started()
    named_job.start()
    assert named_job.size() == 1


@pytest.mark.parametrize(
    "ranks, message",
    [
        ([0], r"process set of the ranks \[0\]: a duplicate of process set 0"),
        ([], r"process set of the ranks \[\]: wanted one or more, each once, from 0 to 0"),
        ([0, 0], r"process set of the ranks \[0, 0\]: wanted one or more, each once, from 0 to 0"),
        ([1], r"process set of the ranks \[1\]: wanted one or more, each once, from 0 to 0"),
        ([-1], r"process set of the ranks \[-1\]: wanted one or more, each once, from 0 to 0"),
    ],
)
def test_a_wrong_set_is_refused_when_it_is_added_and_at_the_start(alone, ranks, message):
    with pytest.raises(ValueError, match=message):
        named_job.add_process_set(ranks)
    assert named_job.process_sets() == {0: [0]}
    named_job.stop()
    with pytest.raises(ValueError, match=message):
        named_job.start(process_sets=[ranks])
    assert not named_job.is_started()


def test_a_set_that_is_not_there_is_named_and_not_removed(alone):
    with pytest.raises(ValueError, match="process set 3 does not exist; there are 0"):
        named_job.ranks_of(3)
    assert named_job.remove_process_set(3) is False
    assert named_job.remove_process_set(named.ALL) is False
    assert named_job.ranks_of(named.ALL) == [0]


@pytest.mark.parametrize(
    "ranks, message",
    [
        ([0, 0, 1], r"got the ranks \[0, 0, 1\], wanted each once, from 0 to 2"),
        ([0, 3, 1], r"got the ranks \[0, 3, 1\], wanted each once, from 0 to 2"),
        ([0, 2], r"rank 1 is not one of the ranks \[0, 2\] that take part"),
        ([1, 0], r"got the ranks \[1, 0\], wanted rank 0 first"),
    ],
)
def test_ranks_that_take_part_are_of_the_launchers_job_and_begin_with_its_first(ranks, message):
    cluster = types.SimpleNamespace(rank=1, world_size=3)
    with pytest.raises(ValueError, match=message):
        named_job._checked_ranks(ranks, cluster)
    assert named_job._checked_ranks(None, cluster) == [0, 1, 2]
    assert named_job._checked_ranks([0, 1], cluster) == [0, 1]


# Host a has the ranks 0, 2 and 4, in another order of local ranks, and host b the ranks 1 and 3.
@pytest.mark.parametrize(
    "rank, local_rank, local_size, cross_rank, cross_size",
    [(0, 1, 3, 0, 2), (1, 0, 2, 1, 2), (2, 0, 3, 0, 2), (3, 1, 2, 1, 2), (4, 2, 3, 0, 1)],
)
def test_places_on_hosts_of_different_sizes(monkeypatch, rank, local_rank, local_size, cross_rank, cross_size):
    hosts, local_ranks = ["a", "b", "a", "b", "a"], [1, 0, 0, 1, 2]
    job = named_job._Job(None, [0, 1, 2, 3, 4], rank, hosts, local_ranks, {0: [0, 1, 2, 3, 4]})
    monkeypatch.setattr(named_job, "_job", job)
    assert (named_job.local_rank(), named_job.local_size()) == (local_rank, local_size)
    assert (named_job.cross_rank(), named_job.cross_size()) == (cross_rank, cross_size)
    assert not named_job.is_homogeneous()


def test_errors_say_which_ranks_differ():
    named_job._check_right(["", ""])
    named_job._check_alike([[0, 1], [0, 1]])
    with pytest.raises(ValueError, match="^rank 1: too many$"):
        named_job._check_right(["", "too many"])
    with pytest.raises(ValueError, match="^too many$"):
        named_job._check_right(["too many", "too many"])
    with pytest.raises(ValueError, match=r"the ranks want different process sets: rank 0 \[0\], rank 2 \[1\]"):
        named_job._check_alike([[0], [0], [1]])
