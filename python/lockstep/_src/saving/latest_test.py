"""Tests that a folder's last checkpoint is found, and that a state file that does not name it is an error."""

import re

import pytest
import tensorflow.compat.v1 as tf

from lockstep._src.saving import latest


def announced(folder, steps, relative=True):
    """Writes checkpoints of some steps, and their state file."""
    with tf.Graph().as_default(), tf.Session() as session:
        value = tf.get_variable("value", initializer=1.0)
        saver = tf.train.Saver([value], max_to_keep=len(steps), save_relative_paths=relative)
        session.run(value.initializer)
        for step in steps:
            saver.save(session, f"{folder}/model.ckpt", step, write_meta_graph=False)
    return folder / "checkpoint", f"{folder}/model.ckpt-{steps[-1]}"


@pytest.mark.parametrize("relative", [True, False], ids=["relative", "absolute"])
def test_the_last_checkpoint_is_the_one_that_was_saved_last(tmp_path, relative):
    _, last = announced(tmp_path, [9, 10, 3], relative)
    assert latest.latest_checkpoint(tmp_path) == last == f"{tmp_path}/model.ckpt-3"
    assert latest.latest_checkpoint(str(tmp_path)) == tf.train.latest_checkpoint(str(tmp_path))
    assert latest.agreed_checkpoint(tmp_path, "latest") == last
    state = latest.checkpoint_state(tmp_path)
    assert list(state.all_model_checkpoint_paths) == [f"{tmp_path}/model.ckpt-{step}" for step in (9, 10, 3)]


def test_a_checkpoint_of_the_old_format_is_found(tmp_path):
    (tmp_path / "model.ckpt-5").write_bytes(b"")
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-5"')
    assert latest.latest_checkpoint(tmp_path) == f"{tmp_path}/model.ckpt-5"


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "no checkpoints"), (2, "ckpt-9, .*ckpt-10"), (12, "ckpt-13, .*ckpt-20$")]
)
def test_an_error_shows_the_newest_checkpoints_in_the_order_of_their_steps(tmp_path, count, shown):
    (tmp_path / "checkpoint").write_text("x")
    for step in range(8 + count, 8, -1):
        (tmp_path / f"model.ckpt-{step}.index").touch()
    (tmp_path / "model.ckpt.index").touch()
    with pytest.raises(tf.errors.DataLossError, match="In its folder: ") as error:
        latest.agreed_checkpoint(tmp_path, "latest")
    listed = re.search("In its folder: (.*?)\\. To continue", error.value.message)[1]
    assert re.search(shown, listed) and listed.count(",") == max(min(count, 8) - 1, 0)


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (b"", "is damaged"),
        (b"\xff\xfe", "is damaged"),
        (b'model_checkpoint_path: "model.ckpt-4"\n', "names .*model.ckpt-4, which does not exist"),
        (
            b'model_checkpoint_path: "model.ckpt-1"\nall_model_checkpoint_paths: "model.ckpt-2"\n',
            "names .*model.ckpt-1, and .*model.ckpt-2 as the newest of all",
        ),
        (None, "is missing beside 2 checkpoints"),
    ],
)
def test_a_state_file_that_does_not_say_which_checkpoint_is_the_last_is_an_error_that_says_what_to_do(
    tmp_path, content, wrong
):
    path, last = announced(tmp_path, [1, 2])
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(
        tf.errors.DataLossError, match=f"{path}: .* {wrong}.*In its folder: .*ckpt-1, .*ckpt-2. To continue"
    ) as error:
        latest.latest_checkpoint(tmp_path)
    path.write_text(re.search("only line: (.*?);", error.value.message)[1])
    assert latest.latest_checkpoint(tmp_path) == last


@pytest.mark.parametrize("place", [None, "", "nowhere", "."], ids=["none", "empty", "no folder", "empty folder"])
def test_a_folder_without_checkpoints_has_no_last_one(tmp_path, place):
    folder = tmp_path / place if place else place
    assert latest.latest_checkpoint(folder) is None
    assert latest.checkpoint_state(folder) is None
    assert latest.agreed_checkpoint(folder, "latest") is None


def test_where_no_checkpoint_was_announced_there_is_none(tmp_path):
    """This happens if a job dies in its first save, after the checkpoint and before the state file."""
    path, _ = announced(tmp_path, [2])
    path.unlink()
    assert latest.latest_checkpoint(tmp_path) is None
    assert latest.latest_checkpoint(tmp_path / "model.ckpt-2") is None  # a prefix, as some callers take as well


def test_a_save_between_two_looks_is_no_damage(tmp_path, monkeypatch):
    """Another process looks for a job's checkpoints; the job deletes the named one as soon as there is a new one."""
    path, _ = announced(tmp_path, [1])
    look = latest._look

    def saving_meanwhile(*args):
        monkeypatch.setattr(latest, "_look", look)
        for file in tmp_path.glob("model.ckpt-1.*"):
            file.unlink()
        found = look(*args)
        announced(tmp_path, [2])
        return found

    monkeypatch.setattr(latest, "_look", saving_meanwhile)
    assert latest.latest_checkpoint(tmp_path) == f"{tmp_path}/model.ckpt-2"
