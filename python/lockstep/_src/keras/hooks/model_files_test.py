"""Saves of Keras 3 that fail leave the files of the last save, on one worker and on two."""

# Promise of this file (keras.md): a save of Keras that fails or is killed leaves the files of the last one, in all
# formats.

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine import whole_files
from lockstep._src.engine.context import context
from lockstep._src.scope import embedding_scope, scope
from lockstep.testing.workers import call_workers

if not getattr(tf.keras, "__version__", "2").startswith("3"):
    pytest.skip("the files are those of Keras 3", allow_module_level=True)

from lockstep._src.keras.saved_model_export import export  # noqa: E402  it imports Keras 3

pytestmark = pytest.mark.workers

ROWS, LIMIT = 4000, 20_000


def model_of(name="model"):
    keras = tf.keras
    ids = keras.Input([], dtype="int64")
    with embedding_scope():
        rows = keras.layers.Embedding(ROWS, 8, name="items")(ids)
    model = keras.Model(ids, keras.layers.Dense(1, name="dense")(rows), name=name)
    model.compile("sgd", "mse")
    return model


def fill(model, number):
    """Gives the dense weights a value that tells the saves apart."""
    model.get_layer("dense").kernel.assign(np.full([8, 1], number, np.float32))


def kernel_of(model):
    return float(np.asarray(model.get_layer("dense").kernel)[0, 0])


@contextlib.contextmanager
def limited():
    """Makes files of worker 0 fail that grow further than LIMIT bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if context.is_chief:
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def content_of(folder):
    return {
        os.path.relpath(os.path.join(place, name), folder): open(os.path.join(place, name), "rb").read()
        for place, _, names in os.walk(folder)
        for name in names
    }


def backed_up(model, folder):
    backup = tf.keras.callbacks.BackupAndRestore(folder)
    backup.set_model(model)
    backup.on_epoch_end(0)


SAVES = {
    "model.keras": lambda model, path: model.save(path),
    "public.keras": lambda model, path: tf.keras.saving.save_model(model, path),
    "model.h5": lambda model, path: model.save(path),
    "folder": lambda model, path: model.save(path, zipped=False),
    "one.weights.h5": lambda model, path: model.save_weights(path),
    "several.weights.json": lambda model, path: model.save_weights(path, max_shard_size=2e-4),
    "backup": backed_up,
    "export": lambda model, path: export(model, path, verbose=False),
}


def load(name, folder, model, place=None):
    """Returns the number in a save of the kind `name`, which has another name if `place` is given."""
    path = f"{folder}/{place or name}"
    if name in ("several.weights.json", "one.weights.h5", "backup"):
        model.load_weights(path if name != "backup" else f"{path}/latest.weights.h5")
        return kernel_of(model)
    if name == "export":
        loaded = tf.saved_model.load(path)
        (kernel,) = (np.asarray(v) for v in loaded.signatures["serving_default"].variables if v.shape == [8, 1])
        return float(kernel[0, 0])
    return kernel_of(tf.keras.models.load_model(path, compile=False))


def fail_and_save_again(folder):
    """Saves, fails to save, and saves again in all ways. Returns the errors and what is wrong, by name."""
    found = {}
    with scope():
        model = model_of()
        for name, save in SAVES.items():
            os.makedirs(f"{folder}/{name}-place", exist_ok=True)
            place = f"{folder}/{name}-place"
            fill(model, 1)
            save(model, f"{place}/{name}")
            before = content_of(place)
            fill(model, 2)
            with limited(), pytest.raises(Exception) as raised:
                save(model, f"{place}/{name}")
            unchanged = content_of(place) == before
            fill(model, 3)
            save(model, f"{place}/{name}")
            found[name] = (raised.type.__name__, str(raised.value), unchanged, sorted(os.listdir(place)))
    return found


def saves_that_are_refused(folder):
    """Returns errors whose paths must be the caller's, and whether `overwrite=False` asks."""
    from keras.src.utils import io_utils

    asked = []
    io_utils.ask_to_proceed_with_overwrite = lambda path: asked.append(path) or False
    texts = []
    with scope():
        model = model_of()
        model.save(f"{folder}/a.keras")
        before = content_of(folder)
        model.save(f"{folder}/a.keras", overwrite=False)
        for save in (
            lambda: model.save_weights(f"{folder}/a.h5"),
            lambda: model.save(f"{folder}/nowhere/a.keras"),
            lambda: model.save(f"{folder}/a.other"),
        ):
            with pytest.raises(Exception) as raised:
                save()
            texts.append(str(raised.value))
    return asked, texts, content_of(folder) == before


def saves_into_places_of_other_kinds(folder):
    """Saves into new folders, the working directory and read-only folders. Returns what was found, by name."""
    found = {}
    with scope():
        model = model_of()
        fill(model, 1)
        export(model, f"{folder}/new/exports/1", verbose=False)
        model.save(f"{folder}/new/folders/1", zipped=False)
        model.save(f"{folder}/new/older/1.h5")
        for save, path in ((model.save, "files/1.keras"), (model.save_weights, "weights/1.weights.h5")):
            with pytest.raises(OSError) as raised:
                save(f"{folder}/new/{path}")
            found[path] = str(raised.value)

        os.makedirs(f"{folder}/here/inner")
        os.chdir(f"{folder}/here/inner")
        for number, path in ((1, "."), (2, "."), (3, f"{folder}/here")):
            fill(model, number)
            export(model, path, verbose=False)
            found[f"cwd {number}"] = (os.getcwd(), sorted(os.listdir(".")))

        os.makedirs(f"{folder}/fixed/export")
        model.save(f"{folder}/fixed/a.keras")
        model.save(f"{folder}/fixed/b.keras")
        mkdir, access = os.mkdir, os.access

        def refused(path, *args, **kwargs):
            if os.path.dirname(path) == f"{folder}/fixed":
                raise PermissionError(13, "Permission denied", path)
            mkdir(path, *args, **kwargs)

        # As root may write everywhere, the system's answers are replaced.
        os.mkdir, os.access = refused, lambda path, *args: not str(path).endswith("b.keras") and access(path, *args)
        fill(model, 4)
        model.save(f"{folder}/fixed/a.keras")
        export(model, f"{folder}/fixed/export", verbose=False)
        with pytest.raises(OSError) as raised:
            model.save(f"{folder}/fixed/c.keras")
        found["new file"] = str(raised.value)
        before = content_of(f"{folder}/fixed")
        with pytest.raises(PermissionError) as raised:
            model.save(f"{folder}/fixed/b.keras")
        found["read-only"] = (str(raised.value), content_of(f"{folder}/fixed") == before)
        os.mkdir, os.access = mkdir, access
    return found


def killed_in_second_save(folder):
    class Kills(tf.keras.layers.Layer):
        saves = 0

        def call(self, x):
            return x

        def save_own_variables(self, store):
            super().save_own_variables(store)
            Kills.saves += 1
            if Kills.saves == 2:
                shutil.copytree(f"{folder}/saved", f"{folder}/before")
                os.kill(os.getpid(), signal.SIGKILL)

    with scope():
        inputs = tf.keras.Input([4])
        model = tf.keras.Model(inputs, Kills(name="kills")(tf.keras.layers.Dense(1, name="dense")(inputs)))
        model.compile("sgd", "mse")
        callbacks = [tf.keras.callbacks.BackupAndRestore(f"{folder}/saved")]
        model.fit(np.zeros([8, 4]), np.zeros([8]), epochs=3, verbose=0, callbacks=callbacks)


def between_two_files(folder):
    """Resumes from a backup whose second file is still from the epoch before. Returns the epochs."""
    epochs = []

    class Stops(tf.keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            epochs.append(epoch)
            if epochs == [0, 1, 2]:
                raise KeyboardInterrupt

    for _ in range(2):
        with scope(), contextlib.suppress(KeyboardInterrupt):
            callbacks = [tf.keras.callbacks.BackupAndRestore(f"{folder}/backup"), Stops()]
            model_of().fit(np.arange(8), np.zeros([8]), epochs=4, verbose=0, callbacks=callbacks)
        if context.is_chief and os.path.exists(f"{folder}/backup"):
            with open(f"{folder}/backup/training_metadata.json", "w") as file:
                file.write('{"epoch": 1, "batch": 0}')
    return epochs


@pytest.mark.parametrize("workers", [1, 2])
def test_a_save_that_fails_leaves_the_last_one_and_names_its_file_once(workers, tmp_path):
    folder = str(tmp_path)
    first, *others = call_workers(fail_and_save_again, workers, folder, timeout_s=300)
    assert len(first) == len(SAVES)
    for name, (kind, text, unchanged, names) in first.items():
        path = f"{folder}/{name}-place/{name}"
        if name == "backup":
            path += "/latest.weights.h5"
        assert unchanged, name
        if name == "export":  # TensorFlow writes it, and names the file in the folder
            assert kind == "ResourceExhaustedError" and text.startswith(f"{path} cannot be saved: {path}/variables/")
            assert text.endswith("; File too large")
        else:
            assert kind == "OSError" and text.count(path) == 1, (name, text)
            assert text.endswith(f"{path} cannot be saved: File too large; the file of the last save is unchanged")
        assert not [one for one in names if ".saving" in one], names
        assert load(name, f"{folder}/{name}-place", model_of()) == 3
        for other in others:
            assert other[name][0] == "RuntimeError" and path in other[name][1]
    names = first["several.weights.json"][-1]
    assert len(names) == len(set(names)) and "several.weights.json" in names


def test_a_save_that_is_refused_names_the_path_of_the_call_and_asks_before_it_replaces(tmp_path):
    ((asked, texts, unchanged),) = call_workers(saves_that_are_refused, 1, str(tmp_path), timeout_s=120)
    assert asked == [f"{tmp_path}/a.keras"] and unchanged
    for text, name in zip(texts, ("a.h5", "nowhere/a.keras", "a.other"), strict=True):
        assert f"{tmp_path}/{name}" in text and ".saving" not in text


# Promise (checkpoints.md): saves into new folders and read-only folders do as without a scope; a read-only file is
# refused.
def test_saves_into_new_folders_the_working_directory_and_read_only_folders_do_as_without_a_scope(tmp_path):
    folder = str(tmp_path)
    (found,) = call_workers(saves_into_places_of_other_kinds, 1, folder, timeout_s=120)
    assert load("export", f"{folder}/new/exports", None, "1") == 1
    assert load("folder", f"{folder}/new/folders", None, "1") == 1
    assert os.path.isfile(f"{folder}/new/older/1.h5")
    for path in ("files/1.keras", "weights/1.weights.h5"):
        assert not os.path.exists(f"{folder}/new/{os.path.dirname(path)}") and "No such file" in found[path]
    for number in (1, 2, 3):
        place, names = found[f"cwd {number}"]
        assert place == f"{folder}/here/inner" and "saved_model.pb" in names
    assert load("export", f"{folder}/here", None, "inner") == 2
    assert load("export", folder, None, "here") == 3
    assert load("a.keras", f"{folder}/fixed", None) == 4 and load("export", f"{folder}/fixed", None) == 4
    assert "Permission denied; no file was written" in found["new file"]
    text, unchanged = found["read-only"]
    assert unchanged and "b.keras cannot be saved: Permission denied; the file of the last save is unchanged" in text
    assert not [name for name in content_of(folder) if ".saving-" in name]


def test_a_job_that_is_killed_in_a_save_leaves_the_last_backup(tmp_path):
    call_workers(killed_in_second_save, 1, str(tmp_path), timeout_s=120, check=False)
    before, after = (
        {name: data for name, data in content_of(tmp_path / folder).items() if ".saving-" not in name}
        for folder in ("before", "saved")
    )
    assert set(before) == {"latest.weights.h5", "training_metadata.json"} and after == before
    assert [name for name in os.listdir(tmp_path / "saved") if ".saving-" in name]
    whole_files.write_text(str(tmp_path / "saved" / "next"), "")
    assert set(os.listdir(tmp_path / "saved")) == {*before, "next"}


# Promise (keras.md): a backup's weights and epoch never part.
@pytest.mark.parametrize("workers", [1, 2])
def test_a_backup_resumes_by_the_epoch_of_its_weights(workers, tmp_path):
    for epochs in call_workers(between_two_files, workers, str(tmp_path), timeout_s=120):
        assert epochs == [0, 1, 2, 2, 3]
