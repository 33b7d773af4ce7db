"""Copies of checkpoints, read by TensorFlow."""

import errno
import glob
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from lockstep._src.saving import bundle

rng = np.random.default_rng(3)
TENSORS = {
    "table": rng.normal(size=(40, 3)).astype(np.float32),
    "table/slot": rng.normal(size=(40, 3)).astype(np.float32),
    "scalar": np.int64(7),
    "none": np.zeros((0, 4), np.float32),
    "words": np.array([b"", b"a longer word", b"\0\xff"], object),
    "flags": np.array([True, False]),
    "half": np.array([1.5], np.float16),
}


def write(prefix, tensors, specs=None):
    specs = specs or [""] * len(tensors)
    with tf.Graph().as_default(), tf.Session() as session:
        # The values are fed, because a graph with large constants is slow to build.
        values = [tf.placeholder(tf.as_dtype(np.asarray(value).dtype), np.shape(value)) for _, value in tensors]
        names = [name for name, _ in tensors]
        save = tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=specs, tensors=values)
        session.run(save, {fed: value for fed, (_, value) in zip(values, tensors, strict=True)})


@pytest.fixture
def checkpoint(tmp_path):
    """Creates a checkpoint of two files; one tensor has slices in both."""
    parts = [f"{tmp_path}/part{i}" for i in range(2)]
    rows = TENSORS["table"]
    write(parts[0], [*TENSORS.items()][1:] + [("table", rows[:25])], [""] * (len(TENSORS) - 1) + ["40 3 0,25:-"])
    write(parts[1], [("table", rows[25:])], ["40 3 25,15:-"])
    prefix = f"{tmp_path}/model.ckpt"
    with tf.Graph().as_default(), tf.Session() as session:
        session.run(tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=prefix))
    return prefix


def test_a_copy_of_empty_tensors_alone_can_be_read(checkpoint, tmp_path):
    bundle.copy_tensors(checkpoint, ["none"], f"{tmp_path}/copy")
    with tf.Graph().as_default(), tf.Session() as session:
        read = session.run(
            tf.raw_ops.RestoreV2(
                prefix=f"{tmp_path}/copy", tensor_names=["none"], shape_and_slices=[""], dtypes=[tf.float32]
            )
        )
    assert read[0].shape == (0, 4)


@pytest.mark.parametrize("chunk_bytes", [1, 7, 1 << 20])
@pytest.mark.parametrize("block_bytes", [0, 1 << 14])
def test_copy_has_the_requested_tensors(checkpoint, tmp_path, monkeypatch, chunk_bytes, block_bytes):
    monkeypatch.setattr(bundle, "_CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(bundle, "_BLOCK_BYTES", block_bytes)
    names = set(TENSORS) - {"table/slot"}
    bundle.copy_tensors(checkpoint, names, f"{tmp_path}/copy")
    reader = tf.train.load_checkpoint(f"{tmp_path}/copy")
    assert set(reader.get_variable_to_shape_map()) == names
    for name in names:
        np.testing.assert_array_equal(reader.get_tensor(name), TENSORS[name], err_msg=name)
        assert reader.get_tensor(name).dtype == np.asarray(TENSORS[name]).dtype
    # Slices are read as slices, too.
    with tf.Graph().as_default(), tf.Session() as session:
        args = {"tensor_names": ["table"], "shape_and_slices": ["40 3 20,10:-"], "dtypes": [tf.float32]}
        (rows,) = session.run(tf.raw_ops.RestoreV2(prefix=f"{tmp_path}/copy", **args))
    np.testing.assert_array_equal(rows, TENSORS["table"][20:30])


def test_many_tensors(tmp_path):
    tensors = [(f"layer_{i:04d}/weight", np.full([i % 5, 2], i, np.float32)) for i in range(700)]
    write(f"{tmp_path}/many", tensors)
    bundle.copy_tensors(f"{tmp_path}/many", {name for name, _ in tensors[::2]}, f"{tmp_path}/copy")
    reader = tf.train.load_checkpoint(f"{tmp_path}/copy")
    assert len(reader.get_variable_to_shape_map()) == 350
    for name, value in tensors[::50]:
        np.testing.assert_array_equal(reader.get_tensor(name), value)


def test_damaged_checkpoints_are_refused(checkpoint, tmp_path):
    with pytest.raises(ValueError, match="lacks nothing, there"):
        bundle.copy_tensors(checkpoint, {"table", "there", "nothing"}, f"{tmp_path}/copy")
    for path in glob.glob(f"{checkpoint}.data-00001*"):
        with open(path, "r+b") as file:
            file.truncate(10)
    with pytest.raises(tf.errors.DataLossError, match="ends 170 bytes before the end"):
        bundle.copy_tensors(checkpoint, {"table"}, f"{tmp_path}/copy")
    with open(f"{checkpoint}.index", "r+b") as file:
        file.truncate(100)
    with pytest.raises(ValueError, match="not an index of a checkpoint"):
        bundle.copy_tensors(checkpoint, {"table"}, f"{tmp_path}/copy")


def test_a_folder_that_cannot_be_read_does_not_count_as_empty(tmp_path, monkeypatch):
    place, draft = f"{tmp_path}/model.ckpt", f"{tmp_path}/draft/model.ckpt"
    write(place, [("x", np.int64(1))])
    write(draft, [("x", np.int64(2))])

    def fail(*_):
        raise OSError(errno.EIO, "the file server is away")

    with monkeypatch.context() as patch:
        for name in ("listdir", "scandir", "stat"):
            patch.setattr(os, name, fail)
        with pytest.raises(OSError, match="the file server is away"):
            bundle.publish(draft, place)
    assert tf.train.load_checkpoint(place).get_tensor("x") == 1
    bundle.publish(draft, place)
    assert tf.train.load_checkpoint(place).get_tensor("x") == 2
    assert sorted(os.listdir(tmp_path)) == [
        "draft",
        *(f"model.ckpt.data-0000{i}-of-00002" for i in range(2)),
        "model.ckpt.index",
    ]


def test_tensor_that_exceeds_memory_is_copied(tmp_path):
    rows = np.arange(24 << 20, dtype=np.float32)  # 96 MiB in one piece, as one worker writes it
    write(f"{tmp_path}/large", [("table", rows)])
    code = (
        "import resource, sys; from lockstep._src.saving import bundle;"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "bundle.copy_tensors(sys.argv[1], {'table'}, sys.argv[2]);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    command = [sys.executable, "-c", code, f"{tmp_path}/large", f"{tmp_path}/copy"]
    done = subprocess.run(command, check=True, timeout=500, stdout=subprocess.PIPE, text=True)
    assert int(done.stdout) < 48 << 10  # KiB
    np.testing.assert_array_equal(tf.train.load_checkpoint(f"{tmp_path}/copy").get_tensor("table"), rows)
