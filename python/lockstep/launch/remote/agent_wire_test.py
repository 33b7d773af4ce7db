# Promise of this file (launching.md): the agent refuses malformed messages.

import os
import selectors
import struct
import threading

import pytest

from lockstep.launch.remote.agent_wire import DATA_BYTES, Frames, Link, WireError, field, frame

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_frames_come_whole_however_they_are_cut(step):
    sent = [({"is": "a", "text": "ä" * 100}, b""), ({"is": "b"}, b"\0\n" * 1000), ({"is": "c"}, b"")]
    data = b"".join(frame(*message) for message in sent)
    frames = Frames()
    assert [found for at in range(0, len(data), step) for found in frames.feed(data[at : at + step])] == sent


def test_what_a_login_writes_is_no_part_of_the_conversation():
    frames = Frames(b"mark\n")
    assert frames.feed(b"Welcome!\nma") == [] and not frames.has_begun
    assert frames.feed(b"rk\n" + frame({"is": "a"})) == [({"is": "a"}, b"")]
    assert (frames.has_begun, frames.noise) == (True, b"Welcome!\n")
    with pytest.raises(WireError, match="more than 65536 bytes before the agent's first"):
        Frames(b"mark\n").feed(b"x" * 70000)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (struct.pack("!II", 1 << 31, 0), "a frame of 2147483648 and 0 bytes, wanted at most"),
        (struct.pack("!II", 0, DATA_BYTES + 1), f"and {DATA_BYTES + 1} bytes, wanted at most"),
        (struct.pack("!II", 2, 0) + b"[]", "not an object with its kind"),
        (struct.pack("!II", 2, 0) + b"{}", "not an object with its kind"),
        (struct.pack("!II", 3, 0) + b"\xff{}", "not an object with its kind"),
        (struct.pack("!II", 8, 0) + b'{"is":1}', "not an object with its kind"),
        (struct.pack("!II", 100000, 0) + b"[" * 100000, "not an object with its kind"),
    ],
)
def test_what_is_no_frame_is_refused_before_it_is_kept(data, message):
    with pytest.raises(WireError, match=message):
        Frames().feed(data)


def test_a_member_has_its_type():
    assert field({"is": "x", "rank": 1}, "rank", int) == 1


@pytest.mark.parametrize("members", [{}, {"rank": "1"}, {"rank": True}])
def test_a_member_of_another_type_is_refused(members):
    with pytest.raises(WireError, match="x: rank is .*, wanted int"):
        field({"is": "x", **members}, "rank", int)


def test_what_cannot_be_written_waits_and_threads_do_not_mix():
    source, target = os.pipe()
    link = Link(source, target)
    data = bytes(DATA_BYTES)
    link.say({"is": "output"}, data)
    assert link.waiting > 0
    link.alive()  # It must add nothing to the bytes that wait.
    threads = [threading.Thread(target=lambda: [link.say({"is": "x"}, b"y" * 100) for _ in range(200)]) for _ in "abc"]
    for thread in threads:
        thread.start()
    got = []
    while len(got) < 601:
        got += link.hear()[0]
        link.flush()
    for thread in threads:
        thread.join()
    assert got[0] == ({"is": "output"}, data)
    assert got[1:] == [({"is": "x"}, b"y" * 100)] * 600
    os.close(source)
    link.say({"is": "x"})
    link.say({"is": "x"})
    assert link.waiting == 0  # The reader has gone.
    link.close()
    os.close(target)


def test_a_selector_watches_for_space_while_bytes_wait():
    source, target = os.pipe()
    link = Link(source, target)
    with selectors.DefaultSelector() as selector:
        link.watch(selector)
        assert not selector.get_map()
        link.say({"is": "output"}, bytes(DATA_BYTES))  # more than a pipe holds
        for _ in range(2):
            link.watch(selector)
            assert list(selector.get_map()) == [target]
        got = []
        while not got:
            got += link.hear()[0]
            for key, events in selector.select(0):
                key.data(events)
        link.watch(selector)
        assert (got, list(selector.get_map())) == ([({"is": "output"}, bytes(DATA_BYTES))], [])
    os.close(source)
    os.close(target)
