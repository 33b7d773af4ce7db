"""The rows of the matrix are the supported versions, and its table is on the page."""

import re

import pytest

from tools import matrix

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


def test_there_is_a_row_for_each_tensorflow_and_python_with_wheels():
    rows = matrix.rows()
    assert rows[0] == ("2.15.1", "3.10") and rows[-1] == ("2.21.0", "3.13")
    assert sorted({version.rpartition(".")[0] for version, _ in rows}) == [f"2.{minor}" for minor in range(15, 22)]
    assert ("2.15.1", "3.12") not in rows and ("2.19.1", "3.13") not in rows and ("2.20.0", "3.13") in rows
    assert len(rows) == len(set(rows)) == 2 + 4 * 3 + 2 * 4


def test_the_locked_python_gets_pins_and_the_others_newest_versions():
    assert [str(word).rpartition("/")[2] for word in matrix.requirements("2.18.1", "3.11")] == [
        "-r", "build.txt", "-r", "tf-2.18.1.txt", "-c", "tf-2.18.1.lock",
    ]  # fmt: skip
    others = matrix.requirements("2.18.1", "3.12")
    assert others[0] == "tensorflow-cpu==2.18.1" and "pytest" in others
    assert "pyarrow==26.0.1" in others and not [line for line in others if line.startswith("numpy")]
    assert not [line for line in matrix.requirements("2.18.1", "3.10") if line.startswith("pyarrow")]


def test_the_table_replaces_that_of_the_page_and_nothing_else(tmp_path, monkeypatch):
    page = tmp_path / "install.md"
    page.write_text(f"# Install\n\n{matrix.BEGIN}\nold\n{matrix.END}\n\nMore.\n")
    monkeypatch.setattr(matrix, "PAGE", page)
    cells = {
        "TensorFlow": "2.18.1",
        "Python": "3.12",
        "Keras": "3.15.1",
        "pyarrow": "26.0.1",
        "tests": "a",
        "result": "4 passed",
    }
    matrix.write([cells])
    text = page.read_text()
    assert "old" not in text and text.startswith("# Install\n\n") and text.endswith(f"{matrix.END}\n\nMore.\n")
    assert matrix.read(text) == {"tf2.18.1-py3.12": cells}
    assert re.search(r"^\| 2\.18\.1 \| 3\.12 \| 3\.15\.1 \| 26\.0\.1 \| a \| 4 passed \|$", text, re.M)


def test_the_table_of_the_page_has_rows_of_the_matrix_and_changes_alone_where_they_are_run():
    text = matrix.PAGE.read_text()
    rows = matrix.read(text)
    assert rows and set(rows) <= {f"tf{tensorflow}-py{python}" for tensorflow, python in matrix.rows()}
    assert matrix.table(list(rows.values())) in text


def test_the_result_is_the_sum_of_both_runs_of_pytest():
    log = """
=== short test summary info ===
FAILED a_test.py::test_of_3_failed in some way
2 failed, 1034 passed, 3 skipped, 7 deselected in 601.02s (0:10:01)
992 passed, 10 skipped, 5 warnings in 700.41s (0:11:40)
"""
    assert matrix.summary(log) == "2 failed, 2026 passed, 13 skipped"
    assert not matrix.summary("no tests ran\n")
