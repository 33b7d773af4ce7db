import os

import pytest

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.output import Console
from lockstep.launch.local.output_folder import LogFile, OutputCopy, OutputFolder, open_copies

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


@pytest.fixture
def console(tmp_path):
    """Yields a console that writes to tmp_path / "shown"."""
    with open(tmp_path / "shown", "wb") as file:
        yield Console(file.fileno(), file.fileno())


def test_each_rank_has_a_folder_and_names_sort_as_numbers(tmp_path, console):
    for size, first in ((10, "rank.0"), (11, "rank.00")):
        folder = tmp_path / "made" / str(size)
        copies = open_copies(str(folder), range(size), size, console)
        assert list(copies) == list(range(size))
        names = sorted(os.listdir(folder))
        assert names[0] == first and names[-1] == f"rank.{size - 1}"
        assert sorted(os.listdir(folder / first)) == ["stderr", "stdout"]


def test_a_copy_is_byte_for_byte_and_replaces_what_was_there(tmp_path, console):
    for text in (b"former run, longer\n", b"\r10 %\r\xff no end"):
        stdout, stderr = open_copies(str(tmp_path), [0], 1, console)[0]
        for byte in text:
            stdout.write(bytes([byte]))
        stderr.write(b"other")
        assert (tmp_path / "rank.0" / "stdout").read_bytes() == text
        assert (tmp_path / "rank.0" / "stderr").read_bytes() == b"other"
        stdout.close()


def test_a_copy_may_follow_what_was_there(tmp_path, console):
    for appends in (False, True):
        for copy in open_copies(str(tmp_path), [3], 4, console, appends)[3]:
            copy.write(b"attempt\n")
            copy.close()
    assert (tmp_path / "rank.3" / "stdout").read_bytes() == b"attempt\nattempt\n"


def test_a_folder_that_cannot_be_made_is_refused(tmp_path, console):
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match="output folder .*file: (Not a directory|File exists)"):
        open_copies(str(tmp_path / "file"), [0], 1, console)


# Promise (horovod.md): the output folder keeps each byte, also of failed and killed processes.
def test_a_full_disk_is_said_once_and_ends_the_copy_alone(tmp_path, console):
    (tmp_path / "full").symlink_to("/dev/full")
    copy = OutputCopy(tmp_path / "full", console)
    copy.write(b"one")
    copy.write(b"two")
    assert (tmp_path / "shown").read_text().splitlines() == [
        f"[lockstep] {tmp_path}/full: No space left on device; later output is not kept"
    ]


def test_a_log_file_has_lines_without_control_characters_and_the_last_state_of_bars(tmp_path, console):
    stdout, stderr = open_copies(OutputFolder(str(tmp_path), holds_lines=True), [0], 1, console)[0]
    for byte in b"\x1b[31mred\x1b[0m\n\r10 %\r20 %\r30 %\r\nno end":
        stdout.write(bytes([byte]))
    for file in (stdout, stderr):
        file.close()
    assert (tmp_path / "rank.0" / "stdout").read_text() == "red\n30 %\nno end\n"
    assert (tmp_path / "rank.0" / "stderr").read_text() == ""


def test_a_full_disk_ends_a_log_file_alone(tmp_path, console):
    (tmp_path / "full").symlink_to("/dev/full")
    log = LogFile(tmp_path / "full", console)
    log.write(b"one\ntwo\nthree")
    log.close()
    assert (tmp_path / "shown").read_text().count("No space left on device") == 1
