# Promise of this file (checkpoints.md): the launcher recommends complete files only.

import json
import os
import zipfile
from pathlib import Path

import pytest

from lockstep.launch.base.saved_files import is_complete

h5py = pytest.importorskip("h5py")
np = pytest.importorskip("numpy")


def _write_zip(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", "{}" * 500)
        archive.writestr("model.weights.h5", b"weights" * 500)


def _write_hdf5(version):
    def write(path):
        with h5py.File(path, "w", libver=version) as file:
            file["vars/0"] = np.arange(5000.0)

    return write


def _write_checkpoint(path):
    import tensorflow as tf

    prefix = path.removesuffix(".index")
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=["a"], shape_and_slices=[""], tensors=[tf.range(1000)])


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("model.keras", _write_zip),
        ("old.weights.h5", _write_hdf5("earliest")),
        ("new.weights.h5", _write_hdf5("latest")),
        ("model.ckpt-7.index", _write_checkpoint),
    ],
)
def test_a_file_that_was_cut_off_anywhere_is_not_complete(tmp_path, name, write):
    path = str(tmp_path / name)
    write(path)
    assert is_complete(path)
    whole = Path(path).read_bytes()
    for size in {0, 1, 8, 9, 96, len(whole) // 2, len(whole) - 1} - {len(whole)}:
        with open(path, "wb") as file:
            file.write(whole[:size])
        assert not is_complete(path), size


def test_a_zip_file_that_a_failed_save_closed_without_weights_is_not_complete(tmp_path):
    with zipfile.ZipFile(tmp_path / "model.keras", "w") as archive:
        archive.writestr("config.json", "{}")
    assert not is_complete(str(tmp_path / "model.keras"))


def test_a_checkpoint_needs_all_its_data_files(tmp_path):
    path = str(tmp_path / "model.ckpt-7.index")
    _write_checkpoint(path)
    data = path.replace(".index", ".data-00000-of-00001")
    os.rename(data, data.replace("of-00001", "of-00002"))
    assert not is_complete(path)


def test_a_backup_is_complete_if_its_files_or_their_copies_are(tmp_path):
    assert not is_complete(str(tmp_path))
    _write_hdf5("earliest")(tmp_path / "latest.weights.h5")
    (tmp_path / "training_metadata.json").write_text(json.dumps({"epoch": 3}))
    assert is_complete(str(tmp_path))
    whole = (tmp_path / "latest.weights.h5").read_bytes()
    (tmp_path / "latest.weights.h5").write_bytes(whole[:96])
    assert not is_complete(str(tmp_path))
    (tmp_path / "latest.weights.h5.bkp").write_bytes(whole)
    assert is_complete(str(tmp_path))
    (tmp_path / "training_metadata.json").write_text("{")
    assert not is_complete(str(tmp_path))


def test_a_missing_file_is_not_complete_and_files_of_unknown_kinds_are(tmp_path):
    assert not is_complete(str(tmp_path / "nowhere"))
    (tmp_path / "weights.bin").write_bytes(b"1")
    assert is_complete(str(tmp_path / "weights.bin"))
    os.mkfifo(tmp_path / "pipe.json")
    assert is_complete(str(tmp_path))
