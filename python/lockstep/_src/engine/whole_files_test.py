# Promise of this file (keras.md): a save of Keras that fails or is killed leaves the files of the last one, in all
# formats.
# Promise of this file (checkpoints.md): saves into new folders and read-only folders do as without a scope; a read-only
# file is refused.

import errno
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstep._src.engine import whole_files


def _tree(folder):
    return {
        os.path.relpath(os.path.join(place, name), folder): Path(place, name).read_text()
        for place, _, names in os.walk(folder)
        for name in names
    }


def _replace(target, files):
    """Writes a folder of files, by name, as a save does."""
    with whole_files.draft_of(str(target)) as draft:
        for name, text in files.items():
            path = os.path.join(draft, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write(text)
        whole_files.publish(draft, str(target))


def test_a_text_is_replaced_and_keeps_its_mode_and_its_link(tmp_path):
    target, link = tmp_path / "a.json", tmp_path / "elsewhere" / "link.json"
    link.parent.mkdir()
    link.symlink_to(target)
    target.write_text("first")
    target.chmod(0o640)
    whole_files.write_text(str(link), "second")
    assert target.read_text() == "second" and link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(tmp_path)) == ["a.json", "elsewhere"]


def test_a_block_that_fails_leaves_the_file_and_no_draft(tmp_path):
    (tmp_path / "a").write_text("first")
    with pytest.raises(ValueError, match="in the middle"), whole_files.draft_of(str(tmp_path / "a")) as draft:
        Path(draft).write_text("second")
        raise ValueError("in the middle")
    assert _tree(tmp_path) == {"a": "first"}


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_is_replaced_and_keeps_files_of_others(tmp_path, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(whole_files, "_exchange", lambda one, other: False)
    target = tmp_path / "model"
    _replace(target, {"config.json": "1", "variables/index": "1"})
    (target / "notes.txt").write_text("the user's")
    (target / "variables" / "more").write_text("as well")
    (target / "mine").mkdir()
    (target / "mine" / "a").write_text("a")
    _replace(target, {"config.json": "2", "variables/index": "2"})
    wanted = {"config.json": "2", "variables/index": "2", "notes.txt": "the user's", "mine/a": "a"}
    wanted["variables/more"] = "as well"
    assert _tree(tmp_path) == {f"model/{name}": text for name, text in wanted.items()}


def test_a_folder_has_its_name_at_every_moment_of_an_exchange(tmp_path):
    target = tmp_path / "model"
    _replace(target, {"a": "0"})
    watch = "import os, sys; print('watching', flush=True)\nwhile True: os.close(os.open(sys.argv[1], os.O_DIRECTORY))"
    with subprocess.Popen([sys.executable, "-c", watch, str(target)], stdout=subprocess.PIPE) as watcher:
        assert watcher.stdout.readline() == b"watching\n"
        for number in range(30):
            _replace(target, {"a": str(number)})
        code = watcher.poll()
        watcher.kill()
    assert code is None


def test_only_drafts_of_processes_that_are_gone_are_removed(tmp_path, monkeypatch):
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    machine = whole_files._machine()
    gone, lives = f".m.keras.saving-{machine}-{process.pid}-0", f".m.keras.saving-{machine}-{os.getppid()}-0"
    foreign, old = ".m.keras.saving-0123456789ab-1-0", ".m.keras.saving-0123456789ab-2-0"
    others = [".m.keras.saving", "m.keras.saving-a-1-0", ".config"]
    for name in (gone, lives, foreign, old, *others):
        (tmp_path / name).mkdir()
    day_before = time.time() - 25 * 3600
    os.utime(tmp_path / old, (day_before, day_before))
    whole_files.write_text(str(tmp_path / "a"), "")
    assert sorted(os.listdir(tmp_path)) == sorted(["a", lives, foreign, *others])


def test_devices_and_mount_points_have_no_drafts(tmp_path):
    assert whole_files.is_replaceable(str(tmp_path)) and whole_files.is_replaceable(str(tmp_path / "new"))
    for path in ("/dev/null", "/proc", "/", "s3://bucket/a"):
        assert not whole_files.is_replaceable(path)


def _without_exchange(monkeypatch):
    monkeypatch.setattr(whole_files, "_exchange", lambda one, other: False)


# Promise (checkpoints.md): a save that replaces a folder loses no file that comes into it meanwhile, nor the folder if
# the process is killed.
def test_a_folder_of_a_process_that_is_killed_between_two_renames_gets_its_name_back(tmp_path, monkeypatch):
    _without_exchange(monkeypatch)
    target = tmp_path / "model"
    _replace(target, {"a": "1", "old": "1"})
    process = os.fork()
    if process == 0:
        rename = os.rename

        def dies_at_second(source, wanted):
            if wanted == str(target):
                os._exit(0)
            rename(source, wanted)

        os.rename = dies_at_second
        _replace(target, {"a": "2"})
    os.waitpid(process, 0)
    assert not target.exists() and len(os.listdir(tmp_path)) == 1
    whole_files.remove_abandoned(str(tmp_path))
    assert _tree(tmp_path) == {"model/a": "1", "model/old": "1"} and os.listdir(tmp_path) == ["model"]


def test_an_interrupt_between_two_renames_leaves_the_folder(tmp_path, monkeypatch):
    _without_exchange(monkeypatch)
    _replace(tmp_path / "model", {"a": "1"})
    rename, calls = os.rename, []

    def interrupted(source, wanted):
        calls.append(wanted)
        if len(calls) == 2:
            raise KeyboardInterrupt
        rename(source, wanted)

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _replace(tmp_path / "model", {"a": "2"})
    assert _tree(tmp_path) == {"model/a": "1"}


# Promise (checkpoints.md): a save that replaces a folder loses no file that comes into it meanwhile, nor the folder if
# the process is killed.
@pytest.mark.parametrize("exchange", [True, False])
def test_a_file_that_comes_into_a_folder_before_the_exchange_stays(tmp_path, monkeypatch, exchange):
    if not exchange:
        _without_exchange(monkeypatch)
    target, renamed = tmp_path / "model", whole_files._renamed
    _replace(target, {"a": "1", "variables/index": "1"})

    def late(draft, wanted):
        (target / "late").write_text("of another process")
        (target / "variables" / "late").write_text("as well")
        return renamed(draft, wanted)

    monkeypatch.setattr(whole_files, "_renamed", late)
    _replace(target, {"a": "2", "variables/index": "2"})
    wanted = {"a": "2", "variables/index": "2", "late": "of another process", "variables/late": "as well"}
    assert _tree(target) == wanted and os.listdir(tmp_path) == ["model"]


def test_a_folder_and_its_files_keep_their_modes(tmp_path):
    target = tmp_path / "model"
    _replace(target, {"a": "1", "variables/index": "1"})
    modes = {target: 0o2770, target / "a": 0o640, target / "variables": 0o711}
    for path, mode in modes.items():
        path.chmod(mode)
    _replace(target, {"a": "2", "variables/index": "2"})
    assert (target / "a").read_text() == "2"
    assert {path: path.stat().st_mode & 0o7777 for path in modes} == modes


@pytest.mark.parametrize("inner", ["", "variables"])
def test_the_working_directory_stays_the_same_folder(tmp_path, monkeypatch, inner):
    target, replaced, replace = tmp_path / "model", [], os.replace
    _replace(target, {"saved_model.pb": "1", "variables/index": "1"})
    (target / "notes.txt").write_text("the user's")
    monkeypatch.chdir(target / inner)
    number = target.stat().st_ino
    monkeypatch.setattr(os, "replace", lambda one, other: (replaced.append(other), replace(one, other)))
    _replace(os.curdir if not inner else target, {"saved_model.pb": "2", "variables/index": "2", "assets/words": "2"})
    wanted = {"saved_model.pb": "2", "variables/index": "2", "assets/words": "2", "notes.txt": "the user's"}
    assert _tree(target) == wanted and target.stat().st_ino == number and os.listdir(tmp_path) == ["model"]
    assert replaced[-1] == str(target / "saved_model.pb") and os.getcwd() == str(target / inner)


def _fails(number, *paths):
    """Returns a function that fails in the way of a file system."""

    def fail(*args, **kwargs):
        raise OSError(number, os.strerror(number), *paths)

    return fail


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EBUSY, errno.EROFS])
@pytest.mark.parametrize("function", ["mkdir", "replace"])
def test_a_file_that_no_draft_can_replace_is_written_directly_with_one_warning(
    tmp_path, monkeypatch, caplog, function, number
):
    target = tmp_path / "a"
    target.write_text("first")
    node = target.stat().st_ino
    monkeypatch.setattr(os, function, _fails(number))
    for text in ("second, which is longer", "third"):
        whole_files.write_text(str(target), text)
        assert target.read_text() == text and target.stat().st_ino == node
    assert os.listdir(tmp_path) == ["a"]
    (record,) = caplog.records
    assert f"{target} is overwritten in place" in record.message and os.strerror(number) in record.message


def test_a_folder_that_cannot_be_exchanged_gets_the_files_one_by_one(tmp_path, monkeypatch, caplog):
    target = tmp_path / "model"
    _replace(target, {"a": "1", "variables/index": "1", "mine": "the user's"})
    nodes = target.stat().st_ino, (target / "mine").stat().st_ino
    monkeypatch.setattr(whole_files, "_exchange", _fails(errno.EBUSY))
    monkeypatch.setattr(os, "replace", _fails(errno.EXDEV))  # the folder is a mount of the same file system
    monkeypatch.setattr(whole_files, "link", shutil.copy2)
    _replace(target, {"a": "2", "variables/index": "2"})
    assert _tree(target) == {"a": "2", "variables/index": "2", "mine": "the user's"}
    assert (target.stat().st_ino, (target / "mine").stat().st_ino) == nodes
    assert f"{target} is overwritten in place" in caplog.text


def test_an_error_of_the_disk_or_of_a_new_file_is_raised(tmp_path, monkeypatch):
    target = tmp_path / "a"
    with monkeypatch.context() as patch, pytest.raises(PermissionError):
        patch.setattr(os, "mkdir", _fails(errno.EACCES))
        whole_files.write_text(str(target), "first")
    target.write_text("first")
    monkeypatch.setattr(os, "replace", _fails(errno.ENOSPC))
    with pytest.raises(OSError, match="No space"):
        whole_files.write_text(str(target), "second")
    assert _tree(tmp_path) == {"a": "first"}


def test_a_read_only_file_is_refused(tmp_path, monkeypatch):
    target = tmp_path / "a"
    target.write_text("first")
    access = os.access  # root may write to all files
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(target) and access(path, mode))
    with pytest.raises(PermissionError, match=f"{target} cannot be written: Permission denied"):
        whole_files.write_text(str(target), "second")
    assert _tree(tmp_path) == {"a": "first"}


def test_a_draft_is_synced_before_it_gets_a_mode_that_may_not_be_read(tmp_path, monkeypatch):
    target, modes, sync = tmp_path / "a", [], whole_files.sync
    target.write_text("first")
    target.chmod(0o200)

    def synced(path):
        if os.path.isfile(path):
            modes.append(os.stat(path).st_mode & 0o777)
        sync(path)

    monkeypatch.setattr(whole_files, "sync", synced)
    whole_files.write_text(str(target), "second")
    assert len(modes) == 1 and modes[0] & 0o400 and target.stat().st_mode & 0o777 == 0o200


def test_a_device_is_written_directly():
    whole_files.write_text("/dev/null", "text")
    assert not os.path.isfile("/dev/null")
