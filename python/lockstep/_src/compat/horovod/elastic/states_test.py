"""Elastic states and their loop with a communicator that is none: what rank 0 would send is in the test."""

# Promise of this file (horovod_elastic.md): states and the loop of an elastic program follow Horovod's rules.

import pytest

from lockstep._src.compat.horovod.elastic.loop import run_fn
from lockstep._src.compat.horovod.elastic.notifications import HostUpdateResult, notification_manager
from lockstep._src.compat.horovod.elastic.states import ObjectState, State
from lockstep._src.compat.horovod.exceptions import HorovodInternalError, HostsUpdatedInterrupt

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


def state_of(rank=0, received=None, **values):
    """Returns a state of a rank; ranks other than 0 get the value `received` from rank 0."""
    return ObjectState(lambda own: own if rank == 0 else received, lambda: rank, **values)


def test_objects_are_saved_restored_and_synchronized():
    state = state_of(batch=1, seen=[1])
    state.batch = 2
    state.seen.append(2)  # in place
    state.restore()
    assert (state.batch, state.seen) == (1, [1])
    state.batch, state.seen = 3, [3]
    state.save()
    state.seen.append(4)
    state.restore()
    state.seen.append(5)
    state.restore()
    assert (state.batch, state.seen) == (3, [3])
    other = state_of(1, {"batch": 7, "seen": []}, batch=0, seen=[9])
    other.sync()
    other.batch = 8
    other.restore()
    assert (other.batch, other.seen) == (7, [])


def test_sync_takes_what_is_there_also_if_it_was_not_committed():
    state = state_of(batch=1)
    state.batch = 5
    state.sync()
    assert state.batch == 5
    state.batch = 6
    state.restore()
    assert state.batch == 5


def test_changes_of_hosts_interrupt_at_commit():
    state = state_of(batch=1)
    state.commit()
    state.on_hosts_updated(1.0, HostUpdateResult.removed)
    state.batch = 2
    with pytest.raises(HostsUpdatedInterrupt) as interrupt:
        state.commit()
    assert interrupt.value.skip_sync
    state.restore()
    assert state.batch == 2
    state.check_host_updates()  # once for each
    state.on_hosts_updated(2.0, HostUpdateResult.removed)
    state.on_hosts_updated(3.0, HostUpdateResult.added)
    with pytest.raises(HostsUpdatedInterrupt) as interrupt:
        state.check_host_updates()
    assert not interrupt.value.skip_sync
    state.on_hosts_updated(3.0, HostUpdateResult.added)  # no news
    state.check_host_updates()


def test_rank_0_says_whether_hosts_have_changed():
    state = state_of(1, (0, 4.0, HostUpdateResult.added), batch=1)
    with pytest.raises(HostsUpdatedInterrupt):
        state.check_host_updates()
    state = state_of(1, (0, 0, HostUpdateResult.no_update), batch=1)
    state.on_hosts_updated(9.0, HostUpdateResult.added)
    state.check_host_updates()


class Recorder(State):
    """Writes down what is called."""

    def __init__(self):
        super().__init__(lambda own: own, lambda: 0)
        self.calls = []

    def __getattribute__(self, name):
        if name in ("save", "restore", "sync", "reset"):
            return lambda: self.calls.append(name)
        return super().__getattribute__(name)


def test_a_failure_goes_back_to_what_was_committed_and_tries_again():
    state, errors = Recorder(), [HorovodInternalError(), HostsUpdatedInterrupt(False), HostsUpdatedInterrupt(True)]
    state.register_reset_callbacks([lambda: state.calls.append("callback")])

    def train(given, number, *, name):
        assert (given, number, name) == (state, 1, "x")
        state.calls.append("train")
        if errors:
            raise errors.pop(0)
        return "done"

    run = run_fn(train, lambda: state.calls.append("leave and join"))
    assert run(state, 1, name="x") == "done"
    begin_anew = ["leave and join", "reset", "callback"]
    assert state.calls == [
        *("sync", "train", "restore", *begin_anew),
        *("sync", "train", *begin_anew),
        *("sync", "train", *begin_anew),
        "train",  # processes went away, nobody came
    ]
    assert run.__name__ == "train"
    assert notification_manager._listeners == {}


def test_other_errors_are_the_programs_own_unless_peers_were_lost():
    state = Recorder()
    failing = [KeyError("lost"), KeyError("own")]

    def train(state):
        raise failing.pop(0)

    with pytest.raises(KeyError, match="own"):
        run_fn(train, lambda: None, lambda error: "lost" in str(error))(state)
    assert state.calls == ["sync", "restore", "reset", "sync"]


def test_a_failure_while_the_state_is_sent_is_survived():
    state = Recorder()
    failures = [HorovodInternalError()]

    class Failing(Recorder):
        def __getattribute__(self, name):
            if name == "sync" and failures:
                raise failures.pop()
            return super().__getattribute__(name)

    state = Failing()
    assert run_fn(lambda state: 5, lambda: None)(state) == 5
    assert state.calls == ["restore", "reset", "sync"]


def test_a_failure_while_the_program_adapts_is_survived():
    state, failures = Recorder(), [HostsUpdatedInterrupt(True), HorovodInternalError()]

    def adapt():
        state.calls.append("callback")
        if failures:
            raise failures.pop()

    def train(state):
        if failures:
            raise failures.pop(0)
        return 5

    state.register_reset_callbacks([adapt])
    assert run_fn(train, lambda: None)(state) == 5
    begin_anew = ["reset", "callback"]
    assert state.calls == ["sync", *begin_anew, "restore", *begin_anew, "sync"]
