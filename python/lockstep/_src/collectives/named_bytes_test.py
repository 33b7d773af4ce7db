"""Tests that bytes which change on the way give an error that names the sender, and are not interpreted."""

# Promise of this file (security.md): objects that were changed, recorded or swapped in transit are not unpickled.

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.collectives import named
from lockstep._src.collectives.named_bytes import broadcast_bytes, gather_bytes
from lockstep._src.engine.context import context
from lockstep.testing import call_workers

pytestmark = [pytest.mark.workers, pytest.mark.newest_only]  # behaves the same with each version of TensorFlow

BROADCAST = b"what rank 0 says"
GATHERED = [b"of rank 0", b"and of rank 1"]
TAG = 32

# Functions that run on workers.


@contextlib.contextmanager
def changed(operation, change):
    """Changes the result of an exchange of bytes on rank 1, as an attacker between the hosts could."""
    tf.zeros([])  # exchanges before the first eager operation run in a session, and a result there has no value yet
    exchange = getattr(named, operation)

    def change_it(tensors, *args, **kwargs):
        (received,) = exchange(tensors, *args, **kwargs)
        if context.rank != 1 or received.dtype != tf.uint8:
            return [received]
        return [tf.constant(list(change(received.numpy().tobytes())), tf.uint8)]

    setattr(named, operation, change_it)
    try:
        yield
    finally:
        setattr(named, operation, exchange)


def flipped(place):
    def flip(data):
        return bytes(byte ^ (i == place % len(data)) for i, byte in enumerate(data))

    return flip


def kept(into):
    def keep(data):
        into.append(data)
        return data

    return keep


def refused(call, sender):
    """Checks that the call succeeds on rank 0, and gives rank 1 an error that names the sender."""
    if context.rank == 0:
        return call()
    with pytest.raises(tf.errors.DataLossError) as error:
        call()
    text = error.value.message
    assert "rank 1 got " in text and f"from rank {sender} with a wrong signature" in text, text
    assert text.startswith(("broadcast_bytes", "gather_bytes")), text
    return None


def say(name=None):
    return broadcast_bytes(BROADCAST, 0, name=name)


def tell(name=None):
    return gather_bytes(GATHERED[context.rank], name=name)


def changes_on_the_way():
    named.open_lane()
    assert say("first") == BROADCAST and tell() == GATHERED
    for place in (0, len(BROADCAST) - 1, len(BROADCAST), -1):
        with changed("broadcast", flipped(place)):
            assert refused(say, 0) in (BROADCAST, None)
    rows = len(GATHERED[0]) + TAG
    for place, sender in ((0, 0), (rows - 1, 0), (rows, 1), (-1, 1)):
        with changed("allgather", flipped(place)):
            assert refused(lambda: tell("x"), sender) in (GATHERED, None)
    assert say() == BROADCAST and tell("first") == GATHERED
    named.barrier(name="end")
    named.close_lane()


def recorded_and_said_again():
    """Replays bytes in a later call of the same name, of another name, in another rank's place, and in another job."""
    seen = []
    named.open_lane()
    with changed("broadcast", kept(seen)):
        assert say("x") == BROADCAST
    for name in ("x", "y"):
        with changed("broadcast", lambda _: seen[0]):
            refused(lambda name=name: say(name), 0)
    with changed("allgather", lambda data: seen[0]):
        refused(lambda: gather_bytes(BROADCAST[: -1 - context.rank]), 0)
    named.close_lane()
    named.open_lane()
    with changed("broadcast", lambda _: seen[0]):
        refused(lambda: say("x"), 0)

    def exchanged(data):
        return data[len(data) // 2 :] + data[: len(data) // 2]

    with changed("allgather", exchanged):
        refused(lambda: gather_bytes(b"alike long %d" % context.rank), 0)
    named.barrier(name="end")
    named.close_lane()


def lengths_that_cannot_be():
    """Checks that impossible lengths of rank 0 are refused on both ranks, and take no memory."""
    exchange = named.allgather
    named.open_lane()
    for change in (lambda rows: lied(rows, 2**62), lambda rows: lied(rows, -1), lambda rows: np.vstack([rows, rows])):

        def change_it(tensors, *args, change=change, **kwargs):
            (received,) = exchange(tensors, *args, **kwargs)
            return [tf.constant(change(received.numpy()))]

        named.allgather = change_it
        try:
            for call in (say, tell):
                with pytest.raises(tf.errors.DataLossError, match=r"rank 0 announces .* bytes|the lengths of 4 ranks"):
                    call()
        finally:
            named.allgather = exchange
    named.barrier(name="end")
    named.close_lane()


def lied(rows, length):
    """Changes the length in rank 0's row; after it are 16 random bytes."""
    rows = rows.copy()
    rows[0, -3] = length
    return rows


def all_parts():
    changes_on_the_way()
    lengths_that_cannot_be()
    recorded_and_said_again()


# Tests.


def test_bytes_that_others_changed_or_recorded_are_refused():
    call_workers(all_parts, 2)


def test_a_rank_alone_gets_what_it_gives():
    call_workers(alone, 1)


def alone():
    named.open_lane()
    assert gather_bytes(b"x") == [b"x"] and broadcast_bytes(b"", 0) == b""
    named.close_lane()
