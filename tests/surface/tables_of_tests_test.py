"""The tables in the façades' documents name tests that exist."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.oldest

ROOT = Path(__file__).resolve().parents[2]
LEAST = {"hybridbackend": 25, "deeprec": 10, "horovod": 20}
TESTS = {page: re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / f"docs/{page}.md").read_text()) for page in LEAST}


@pytest.mark.parametrize("page", LEAST)
def test_there_is_a_table(page):
    assert len(TESTS[page]) >= LEAST[page]


@pytest.mark.parametrize(("file", "name"), [test for tests in TESTS.values() for test in tests])
def test_the_test_exists(file, name):
    assert f"def {name}(" in (ROOT / file).read_text()
