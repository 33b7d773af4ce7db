"""Files that must have a checksum."""

import hashlib
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import orc

from lockstep.data import FrameDataset, ParquetDataset, TabularDataset

ROWS = 100


@pytest.fixture(name="files")
def _files(tmp_path):
    paths = [tmp_path / "data" / name for name in ("a.orc", "b.orc")]
    paths[0].parent.mkdir()
    for i, path in enumerate(paths):
        orc.write_table(pa.table({"x": np.arange(ROWS) + ROWS * i, "text": ["word"] * ROWS}), str(path))
    return paths


def _digest(path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _rows(dataset) -> list[int]:
    return [x for batch in dataset for x in batch["x"].numpy().tolist()]


def _damage(path) -> tuple[str, str]:
    """Changes a letter of the text, which the file format cannot detect; returns the digests before and after."""
    before, data = _digest(path), path.read_bytes()
    path.write_bytes(data.replace(b"word", b"ward", 1))
    return before, _digest(path)


@pytest.mark.parametrize("prefix", ["", "sha256:"])
def test_files_with_their_checksums_are_read(files, prefix):
    checksums = {str(path): prefix + _digest(path) for path in files} | {"/of/another/file": "0" * 64}
    assert _rows(ParquetDataset([*map(str, files)], 30, checksums=checksums)) == list(range(2 * ROWS))


def test_a_manifest_of_sha256sum_is_relative_to_its_folder(files, monkeypatch):
    folder = files[0].parent
    manifest = subprocess.run(["sha256sum", "a.orc", "b.orc"], cwd=folder, capture_output=True, check=True).stdout
    (folder.parent / "SUMS").write_bytes(manifest.replace(b"  ", b"  data/"))
    monkeypatch.chdir(folder.parent)
    for name in ("SUMS", folder.parent / "SUMS"):
        assert _rows(ParquetDataset("data", 30, checksums=name)) == list(range(2 * ROWS))
        assert _rows(TabularDataset.from_orc(str(folder), checksums=name).batch(30)) == list(range(2 * ROWS))
        assert _rows(FrameDataset("data/*.orc", 30, checksums=name)) == list(range(2 * ROWS))


def test_the_rows_before_a_damaged_file_are_read_and_none_of_it(files):
    checksums = {str(path): _digest(path) for path in files}
    before, after = _damage(files[1])
    paths = [*map(str, files)]
    assert _rows(ParquetDataset(paths, 20)) == list(range(2 * ROWS)), "nothing else tells"
    got = []
    with pytest.raises(tf.errors.DataLossError, match=f"b.orc': its SHA-256 is {after}, wanted {before}"):
        for batch in ParquetDataset(paths, 20, checksums=checksums):
            got += batch["x"].numpy().tolist()
    assert got == list(range(ROWS))
    assert _rows(ParquetDataset(paths, 20, checksums=checksums, skip_corrupted_data=True)) == list(range(ROWS))


def test_a_worker_verifies_only_the_files_of_its_share(files):
    checksums = {str(path): _digest(path) for path in files}
    _damage(files[1])
    paths = [*map(str, files)]
    assert _rows(ParquetDataset(paths, 20, None, 2, 0, checksums=checksums)) == list(range(ROWS))
    with pytest.raises(tf.errors.DataLossError, match="b.orc"):
        _rows(ParquetDataset(paths, 20, None, 2, 1, checksums=checksums))


def test_a_file_that_claims_to_have_no_rows_is_verified(files):
    checksums = {str(path): _digest(path) for path in files}
    orc.write_table(pa.table({"x": np.arange(0), "text": pa.array([], pa.string())}), str(files[1]))
    with pytest.raises(tf.errors.DataLossError, match="b.orc': its SHA-256 is"):
        iter(ParquetDataset([*map(str, files)], 20, checksums=checksums))


def test_a_restored_position_reads_on_with_checksums(files):
    checksums = {str(path): _digest(path) for path in files}
    iterator = iter(ParquetDataset([*map(str, files)], 30, checksums=checksums))
    next(iterator)
    saved = tf.train.Checkpoint(iterator=iterator).save(str(files[0].parent.parent / "position"))
    other = iter(ParquetDataset([*map(str, files)], 30, checksums=checksums))
    tf.train.Checkpoint(iterator=other).restore(saved)
    assert next(other)["x"].numpy().tolist() == list(range(30, 60))


@pytest.mark.parametrize(
    ("checksums", "error", "message"),
    [
        (lambda path: {path: "md5:1"}, ValueError, "file '.*a.orc' has 'md5:1', wanted 'sha256:' and 64"),
        (lambda path: {}, ValueError, "checksums is empty"),
        (lambda path: 3, TypeError, "checksums is 3, wanted a dict"),
        (lambda path: {path + "x": "0" * 64}, tf.errors.InvalidArgumentError, "a.orc' has no checksum, .* there are 1"),
        (lambda path: path + " no such manifest", tf.errors.NotFoundError, "no such manifest"),
        (
            lambda path: Path(path).with_name("manifest"),
            ValueError,
            "manifest line 1 is 'what is this', wanted a line of",
        ),
    ],
    ids=["algorithm", "empty", "type", "another file's", "no manifest", "manifest"],
)
def test_invalid_checksums_are_refused(files, checksums, error, message):
    files[0].with_name("manifest").write_text("what is this\n")
    with pytest.raises(error, match=message):
        iter(ParquetDataset(str(files[0]), checksums=checksums(str(files[0]))))
