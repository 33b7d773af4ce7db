import socket

import pytest

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.placement.hosts import Host, assign_slots, is_this_machine, parse_hosts, read_hostfile

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

# An address that is reserved for documentation (RFC 5737): no machine has it.
ELSEWHERE = "192.0.2.1"


def test_hosts_have_slots():
    assert parse_hosts("localhost:2") == [Host("localhost", 2)]
    assert parse_hosts("a-1.b_c:2, 127.0.0.1:3,[::1]:1") == [Host("a-1.b_c", 2), Host("127.0.0.1", 3), Host("::1", 1)]
    assert [str(host) for host in parse_hosts("a:2,[::1]:1,me@b:3")] == ["a:2", "[::1]:1", "me@b:3"]
    assert parse_hosts("me@a:2") == [Host("a", 2, "me")]
    assert parse_hosts("[fe80::1%eth0]:2,me@[fe80::2%br-1.5]:1") == [
        Host("fe80::1%eth0", 2),
        Host("fe80::2%br-1.5", 1, "me"),
    ]
    assert parse_hosts("a,b:3", slots=2) == [Host("a", 2), Host("b", 3)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost",
        "localhost:",
        ":2",
        "localhost:two",
        "a:1,,b:1",
        "a b:1",
        "a:-1",
        "-v:1",
        "@a:1",
        "[::1%]:1",
        "[%lo]:1",
        "a%lo:1",
    ],
)
def test_hosts_of_another_form_are_refused(text):
    with pytest.raises(LaunchError, match="wanted host:slots"):
        parse_hosts(text)


def test_a_host_without_slots_is_refused(tmp_path):
    with pytest.raises(LaunchError, match="hosts 'a:1,b:0': b has no slots"):
        parse_hosts("a:1,b:0")
    (tmp_path / "hosts").write_text("a slots=1\nb slots=0\n")
    with pytest.raises(LaunchError, match="hosts, line 2: b has no slots"):
        read_hostfile(str(tmp_path / "hosts"))


def test_a_hostfile_may_have_empty_lines_and_comments(tmp_path):
    (tmp_path / "hosts").write_text("# ours\nlocalhost slots=2\n\n  127.0.0.1  slots = 3  # the same\n")
    assert read_hostfile(str(tmp_path / "hosts")) == [Host("localhost", 2), Host("127.0.0.1", 3)]
    (tmp_path / "hosts").write_text("me@a slots=2\n[::1]\n")
    assert read_hostfile(str(tmp_path / "hosts"), slots=4) == [Host("a", 2, "me"), Host("::1", 4)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("localhost\n", "line 1: got 'localhost', wanted `host slots=N`"),
        ("a slots=1\nb:2\n", "line 2: got 'b:2', wanted `host slots=N`"),
        ("a slots=x\n", "line 1: got 'a slots=x'"),
        ("[] slots=1\n", "line 1: got a host without a name"),
        ("# nothing\n", "it names no host"),
    ],
)
def test_a_hostfile_that_is_none_is_refused(tmp_path, text, message):
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(LaunchError) as refused:
        read_hostfile(str(tmp_path / "hosts"))
    assert message in str(refused.value)


def test_a_hostfile_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(LaunchError, match="hostfile .*nowhere: No such file"):
        read_hostfile(str(tmp_path / "nowhere"))


def test_workers_fill_hosts_in_their_order():
    assert assign_slots(2, [Host("localhost", 2)]) == [Host("localhost", 2)]
    assert assign_slots(3, [Host(ELSEWHERE, 2), Host("localhost", 4)]) == [Host(ELSEWHERE, 2), Host("localhost", 1)]
    # A host without workers is left out.
    assert assign_slots(2, [Host("localhost", 2), Host(ELSEWHERE, 2)]) == [Host("localhost", 2)]


# Promise (horovod.md): hosts and slots are counted as Horovod counts them, under all names of a machine.
def test_a_host_that_is_named_again_is_one_host():
    hosts = [
        Host("localhost", 1),
        Host(ELSEWHERE, 1),
        Host("127.0.0.1", 2),
        Host(ELSEWHERE, 1),
        Host(ELSEWHERE, 1, "me"),
    ]
    assert assign_slots(5, hosts) == [Host("localhost", 3), Host(ELSEWHERE, 2)]
    assert assign_slots(6, hosts)[2:] == [Host(ELSEWHERE, 1, "me")]


# Promise (horovod.md): hosts and slots are counted as Horovod counts them, under all names of a machine.
def test_more_workers_than_slots_are_refused_with_both_numbers():
    with pytest.raises(LaunchError, match=r"-np 4: there are 3 slots \(localhost:1,127.0.0.1:2\)"):
        assign_slots(4, [Host("localhost", 1), Host("127.0.0.1", 2)])


def test_more_workers_than_a_job_can_have_are_refused():
    assert assign_slots(65536, [Host("a", 65535), Host("b", 1)]) == [Host("a", 65535), Host("b", 1)]
    with pytest.raises(LaunchError, match="hosts a:65535,b:2: got 65537 workers, wanted at most 65536"):
        assign_slots(65537, [Host("a", 65535), Host("b", 2)])


def test_another_users_workers_are_not_started_directly():
    assert Host("localhost", 1).is_this_machine()
    assert not Host("localhost", 1, "me").is_this_machine()


# Promise (horovod.md): hosts and slots are counted as Horovod counts them, under all names of a machine.
@pytest.mark.parametrize(
    ("name", "is_here"),
    [("localhost", True), (socket.gethostname(), True), ("127.0.0.1", True), ("127.0.0.2", True), (ELSEWHERE, False)],
    ids=["localhost", "own name", "loopback", "another loopback", "elsewhere"],
)
def test_this_machine_has_many_names(name, is_here):
    assert is_this_machine(name) == is_here


def test_a_name_of_which_one_address_is_this_machines_is_its_name(monkeypatch):
    resolved = [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (address, 0)) for address in (ELSEWHERE, "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: resolved)
    assert is_this_machine("an-alias")


def test_a_name_that_nobody_knows_is_another_machines(monkeypatch):
    def unknown(*args, **kwargs):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert not is_this_machine("nowhere")
    with pytest.raises(LaunchError, match="a name of 300 characters; wanted at most 253"):
        is_this_machine("a" * 300)
