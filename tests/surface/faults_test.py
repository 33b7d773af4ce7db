"""The table of faults in docs/hybridbackend.md names tests that exist."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.oldest

ROOT = Path(__file__).resolve().parents[2]
TESTS = re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / "docs/hybridbackend.md").read_text())


def test_there_is_a_table():
    assert len(TESTS) > 25


@pytest.mark.parametrize(("file", "name"), TESTS)
def test_the_test_exists(file, name):
    assert f"def {name}(" in (ROOT / file).read_text()
