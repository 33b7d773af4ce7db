"""The tables of the page of tests name tests that exist."""

import ast
import re
from pathlib import Path

import pytest

from tests.surface.definitions import has_python

pytestmark = pytest.mark.oldest

ROOT = Path(__file__).resolve().parents[2]
LEAST = {"hybridbackend": 25, "deeprec": 10, "horovod": 20, "sok": 10}
SECTIONS = dict(
    re.findall(r"^The page: \[(\w+)\.md\].*\n((?:(?!## ).*\n)*)", (ROOT / "docs/tests.md").read_text(), re.M)
)
TESTS = {page: re.findall(r"`([\w/]+\.py)::(\w+)`", text) for page, text in SECTIONS.items()}


@pytest.mark.parametrize("page", LEAST)
def test_there_is_a_table(page):
    assert len(TESTS[page]) >= LEAST[page]


@pytest.mark.parametrize(("file", "name"), [test for tests in TESTS.values() for test in tests])
def test_the_test_exists(file, name):
    assert has_python(ast.parse((ROOT / file).read_text()), [name])
