"""The scope's promises, on two workers (scope_worker.py holds them)."""

import re
import sys
from pathlib import Path

import pytest

from lockstep.testing import run_workers

pytestmark = pytest.mark.oldest

ROOT = Path(__file__).resolve().parents[2]


def test_the_scope_keeps_its_promises_on_every_worker():
    promises = re.findall(r"^def (\w+_\w+)\(\):", (ROOT / "tests/multiprocess/scope_worker.py").read_text(), re.M)
    outputs = run_workers(2, [sys.executable, "-m", "tests.multiprocess.scope_worker"], cwd=ROOT, timeout_s=120)
    for output in outputs:
        assert re.findall(r"^kept: (\w+)", output, re.M) == promises
