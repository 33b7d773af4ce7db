"""Tests of a worker's part of a table as bytes, and of malformed bytes."""

# Promise of this file (security.md): parts of tables with pickles, wrong sizes or names of other files are refused.

import json
import pickle

import pytest

from lockstep._src.tables.dynamic import serialized

pytestmark = pytest.mark.newest_only  # does not use TensorFlow


@pytest.mark.parametrize("has_rows", [False, True])
def test_a_part_comes_back(tmp_path, has_rows):
    files = {"part-00001.index": b"\0index", "part-00001.data-00000-of-00001": b"", "part-00001-strings": b"words" * 99}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    assert serialized._unpack(serialized._pack(has_rows, tmp_path), "part-00001") == (has_rows, files)


def _part(about, contents=b""):
    header = json.dumps(about).encode()
    return len(header).to_bytes(8, "little") + header + contents


@pytest.mark.parametrize(
    ("packed", "said"),
    [
        (pickle.dumps((True, {"part-00001.index": b""})), "do not begin with a part's description"),
        (b"", "got 0 bytes"),
        (b"\xff" * 100, "got 100 bytes that do not begin"),
        (_part([True, {}]), "do not begin"),
        (_part({"has_rows": True}), "do not begin"),
        (_part({"has_rows": "yes", "files": {}}), "wanted whether there are rows"),
        (_part({"has_rows": True, "files": {"part-00001.index": -1}}), "wanted whether there are rows, and sizes"),
        (_part({"has_rows": True, "files": {"../part-00001": 1}}, b"x"), "got a file '../part-00001', wanted names"),
        (_part({"has_rows": True, "files": {"part-00002": 1}}, b"x"), "wanted names that begin with 'part-00001'"),
        (_part({"has_rows": True, "files": {"part-00001": 2}}, b"x"), "wanted the "),
        (_part({"has_rows": True, "files": {"part-00001": 1}}, b"xy"), "bytes, wanted the "),
    ],
)
def test_what_is_no_part_is_refused(packed, said):
    with pytest.raises(ValueError, match=said):
        serialized._unpack(packed, "part-00001")
