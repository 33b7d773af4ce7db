"""The page of tests is made from the comments of the tests, of Python and C++ alike."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import tests_page
from tests_page import Promise

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

PYTHON = '''"""A module of tests."""

# Promise of this file (input.md): files are read.

import pytest


# Promise (input.md): every row is read once,
# by one worker.
# Promise (keras.md): `fit` trains.
@pytest.mark.parametrize("workers", [1, 2])
def test_shares(workers):
    # A comment of its own.
    pass


class TestMore:
    # Promise (keras.md): losses fall
    async def test_losses(self):
        pass
'''
CPP = """// Tests.

// Promise (security.md): a wrong proof
// ends the connection.
TEST(RendezvousTest, RefusesAWrongProof) {}

// Promise (security.md): keys differ.
TEST_P(KeyTest,  Differ) {}
"""


def test_promises_have_the_page_the_text_and_the_test_below():
    assert list(tests_page.promises_in("a_test.py", PYTHON)) == [
        Promise("input.md", "files are read", "a_test.py"),
        Promise("input.md", "every row is read once, by one worker", "a_test.py::test_shares"),
        Promise("keras.md", "`fit` trains", "a_test.py::test_shares"),
        Promise("keras.md", "losses fall", "a_test.py::test_losses"),
    ]
    assert list(tests_page.promises_in("a_test.cc", CPP)) == [
        Promise("security.md", "a wrong proof ends the connection", "a_test.cc::RendezvousTest.RefusesAWrongProof"),
        Promise("security.md", "keys differ", "a_test.cc::KeyTest.Differ"),
    ]


def test_a_promise_without_a_test_is_an_error():
    with pytest.raises(ValueError, match="^a_test.py:1: a promise without a test below it$"):
        list(tests_page.promises_in("a_test.py", "# Promise (input.md): files are read.\n"))


def test_tests_of_one_promise_share_a_row():
    found = [Promise("input.md", "files are read", test) for test in ("a_test.py", "b_test.py::test_b")]
    text = tests_page.page([*found, Promise("deploy/README.md", "pods start", "c_test.py")])
    assert "\n| files are read | `a_test.py`, `b_test.py::test_b` |\n" in text
    assert "[deploy/README.md](../deploy/README.md)" in text
    assert text.index("## Jobs on clusters") < text.index("## Input")


def test_the_page_is_made_from_the_tests():
    wanted = tests_page.page(tests_page.promises())
    assert tests_page.PAGE.read_text(encoding="utf-8") == wanted, "run: make docs"
