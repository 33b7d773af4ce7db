# Promise of this file (horovod_elastic.md): unauthenticated, forged and repeated messages are refused.
# Promise of this file (security.md): elastic jobs refuse forged and repeated messages.

import pytest

from lockstep.launch.base.elastic_wire import Channel, WireError, round_secret

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


def carry(source: Channel, target: Channel, piece: int = 7) -> list[dict]:
    """Moves the outgoing bytes of one end to the other, in pieces."""
    data, source.outgoing = source.outgoing, b""
    return [message for i in range(0, len(data), piece) for message in target.feed(data[i : i + piece])]


def test_both_sides_understand_each_other():
    launcher, worker = Channel("secret", True), Channel("secret", False)
    worker.say({"is": "ready", "worker": 3})  # before it has received anything
    assert carry(launcher, worker) == []
    assert not launcher.is_known
    assert carry(worker, launcher) == [{"is": "ready", "worker": 3}]
    assert launcher.is_known
    launcher.say({"is": "round", "host": "ä\n"})
    launcher.say({"is": "changed"})
    assert carry(launcher, worker) == [{"is": "round", "host": "ä\n"}, {"is": "changed"}]
    assert b"secret" not in launcher.outgoing + worker.outgoing


def test_a_stranger_is_not_heard():
    launcher, stranger = Channel("secret", True), Channel("guess", False)
    stranger.say({"is": "ready"})
    carry(launcher, stranger)
    with pytest.raises(WireError, match="a wrong MAC"):
        carry(stranger, launcher)
    assert not launcher.is_known


@pytest.mark.parametrize("line", [b"GET / HTTP/1.0\r\n", b"x" * 70000, b"\n"])
def test_what_is_no_conversation_is_ended(line):
    with pytest.raises(WireError):
        Channel("secret", True).feed(line)


def test_a_message_cannot_be_said_twice():
    launcher, worker = Channel("secret", True), Channel("secret", False)
    carry(launcher, worker)
    carry(worker, launcher)
    worker.say({"is": "ready"})
    said = worker.outgoing
    assert launcher.feed(said) == [{"is": "ready"}]
    with pytest.raises(WireError):
        launcher.feed(said)


def test_rounds_have_secrets_of_their_own():
    assert len({round_secret("a", 1), round_secret("a", 2), round_secret("b", 1)}) == 3
