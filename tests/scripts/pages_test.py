"""The programs at the head of the pages run on two workers and print what the pages say."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from tests.scripts.documents import run_launcher

DOCS = Path(__file__).resolve().parents[2] / "docs"

NEEDS_KERAS_RS = pytest.mark.skipif(importlib.util.find_spec("keras_rs") is None, reason="keras_rs is not installed")
LAUNCH = [sys.executable, "-m", "lockstep.launch", "-n", "2"]
HOROVODRUN = [sys.executable, "-m", "horovod.runner", "-np", "2"]


def first_program(page: str) -> str:
    """Returns the first Python program of a page."""
    return re.search(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.S)[1]


def outputs(page: str, launcher: list[str], folder: Path) -> list[str]:
    """Runs the page's first program on two workers. Returns what each of them printed."""
    (folder / "main.py").write_text(first_program(page))
    return run_launcher([*launcher, sys.executable, "main.py"], folder, 2, {"CUDA_VISIBLE_DEVICES": ""}, timeout_s=300)


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("algorithms", r"tf\.Tensor\(\[1\. 1\. 1\. 1\.\]"),
        ("sharding", r"\(3, 16\) \(500, 16\) \(1000, 16\)"),
        ("checkpoint_format", r"\(1000, 16\)"),
        ("hooks", r"(?s)False.*True"),
        pytest.param("keras_rs", r"\(500, 16\) \(1000, 16\)", marks=NEEDS_KERAS_RS),
    ],
)
def test_each_worker_prints_what_the_page_says(page, printed, tmp_path):
    assert all(re.search(printed, output) for output in outputs(page, LAUNCH, tmp_path))


def test_the_keys_of_a_dynamic_table_are_on_one_worker_each(tmp_path):
    numbers = [re.search(r"\(3, 16\) (\d+)", output)[1] for output in outputs("embedding", LAUNCH, tmp_path)]
    assert sum(map(int, numbers)) == 3


def test_ranks_of_horovod_train_the_same_number(tmp_path):
    numbers = [float(re.search(r"0\.\d+", output)[0]) for output in outputs("horovod", HOROVODRUN, tmp_path)]
    assert numbers == pytest.approx([0.5, 0.5], abs=1e-6)
