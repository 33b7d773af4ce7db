"""Tests that sealed content is read as it was written, and that damaged content is an error."""

import os

import pytest

from lockstep._src.saving import sealed


def test_sealed_content_is_json_of_any_kind():
    content = {"value": 0.1, "text": "ä\ud800", "list": [1, None, {"a": True}]}
    assert sealed.unseal(sealed.seal(content).encode("utf-8", "surrogatepass"), "x") == content


@pytest.mark.parametrize(
    "damaged",
    [b"", b"[]", b"7", b"{}", b"\xff", b"[" * 100_000, b'{"a": 1, "crc32": 1}', os.urandom(50)],
    ids=["nothing", "list", "number", "no checksum", "no text", "deep", "another checksum", "random bytes"],
)
def test_content_without_its_checksum_is_damaged(damaged):
    with pytest.raises(ValueError, match="x.json is damaged"):
        sealed.unseal(damaged, "x.json")
