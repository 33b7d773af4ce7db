import os
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
