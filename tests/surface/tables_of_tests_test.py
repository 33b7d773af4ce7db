"""The tables of the page of tests name tests that exist."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.oldest

ROOT = Path(__file__).resolve().parents[2]
LEAST = {"HybridBackend's API": 25, "DeepRec's API": 10, "Horovod's API": 20, "SparseOperationKit's API": 10}
SECTIONS = dict(re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", (ROOT / "docs/tests.md").read_text(), re.M))
TESTS = {title: re.findall(r"`([\w/]+\.py)::(\w+)`", text) for title, text in SECTIONS.items()}


@pytest.mark.parametrize("title", LEAST)
def test_there_is_a_table(title):
    assert len(TESTS[title]) >= LEAST[title]


@pytest.mark.parametrize(("file", "name"), [test for tests in TESTS.values() for test in tests])
def test_the_test_exists(file, name):
    assert re.search(rf"\bdef {name}\(|^{name} = ", (ROOT / file).read_text(), re.M)
