"""Commands of the Makefile refuse bad variables before they build anything."""

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

_PROJECT = Path(__file__).parents[2]


@pytest.mark.parametrize("workers", ["0", "-1", "two", "1.5", ""])
def test_a_training_of_no_workers_is_refused_before_anything_is_built(tmp_path, workers):
    # The set-up would create its environment there.
    folder = tmp_path / "environment"
    environ = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    command = ["make", "train", f"WORKERS={workers}", f"VENV={folder}"]
    done = subprocess.run(command, cwd=_PROJECT, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"make train: WORKERS={workers}: wanted a number, 1 or more\n"), done.stderr
    assert not folder.exists()
