"""Saves of Keras 2 that fail leave the files of the last save, in all formats; on one worker, in a scope."""

# Promise of this file (keras.md): a save of Keras 2 that fails leaves the files of the last one, in all formats.

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

import pytest

FORMATS = ["m.keras", "m.h5", "folder", "w.weights.h5", "w.h5", "prefix"]


def fail_and_save_again(folder):
    """Saves, fails to save, and saves again in all formats. Returns the errors and what is wrong, by name."""
    import lockstep

    keras = __import__("tf_keras" if os.environ.get("TF_USE_LEGACY_KERAS") else "keras")
    found = {}
    with lockstep.scope():
        model = keras.Sequential([keras.layers.Dense(80_000, input_shape=(1,))])
        for name in FORMATS:
            place = f"{folder}/{name}-place"
            if name in ("m.keras", "w.weights.h5", "w.h5"):  # Keras makes the folders of the others
                os.makedirs(place)
            save = model.save_weights if name[0] in "wp" else model.save

            def saved(number, save=save, path=f"{place}/{name}"):
                model.layers[0].kernel.assign(model.layers[0].kernel * 0 + number)
                save(path)

            saved(1.0)
            before = content_of(place)
            limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
            try:
                saved(2.0)
                error = "none"
            except Exception as raised:
                error = f"{type(raised).__name__}: {raised}"
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            unchanged = content_of(place) == before
            saved(3.0)
            if save == model.save_weights:
                model.layers[0].kernel.assign(model.layers[0].kernel * 0)
                model.load_weights(f"{place}/{name}")
                loaded = model
            else:
                loaded = keras.models.load_model(f"{place}/{name}")
            value = float(loaded.layers[0].kernel.numpy()[0, 0])
            found[name] = [error, unchanged, value, sorted(os.listdir(place))]
    return found


def content_of(folder):
    return {
        os.path.join(place, name): open(os.path.join(place, name), "rb").read()  # noqa: SIM115
        for place, _, names in os.walk(folder)
        for name in names
    }


def test_a_save_that_fails_leaves_the_last_one(tmp_path):
    import tensorflow as tf

    variables = {**os.environ}
    if not hasattr(tf.keras, "__internal__"):
        pytest.importorskip("tf_keras")
        variables["TF_USE_LEGACY_KERAS"] = "1"
    command = [sys.executable, __file__, str(tmp_path)]
    run = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert list(found) == FORMATS
    for name, (error, unchanged, value, names) in found.items():
        path = f"{tmp_path}/{name}-place/{name}"
        assert unchanged and value == 3.0, name
        assert f"{path} cannot be saved: " in error and "File too large" in error and ".saving-" not in error, error
        assert not [one for one in names if ".saving-" in one], names
    assert found["prefix"][-1] == [
        "checkpoint",
        "prefix.data-00000-of-00002",
        "prefix.data-00001-of-00002",
        "prefix.index",
    ]


if __name__ == "__main__":
    print(json.dumps(fail_and_save_again(sys.argv[1])))
