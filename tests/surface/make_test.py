"""Commands of the Makefile refuse bad variables before they build anything, and run the tests that they select."""

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

_PROJECT = Path(__file__).parents[2]


def _make(*arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    command = ["make", *arguments]
    return subprocess.run(command, cwd=_PROJECT, env=environ, capture_output=True, text=True, timeout=120, check=False)


def _program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)


@pytest.mark.parametrize("workers", ["0", "-1", "two", "1.5", ""])
def test_a_training_of_no_workers_is_refused_before_anything_is_built(tmp_path, workers):
    # The set-up would create its environment there.
    folder = tmp_path / "environment"
    done = _make("train", f"WORKERS={workers}", f"VENV={folder}")
    assert done.returncode == 2
    assert done.stderr.startswith(f"make train: WORKERS={workers}: wanted a number, 1 or more\n"), done.stderr
    assert not folder.exists()


@pytest.mark.parametrize("pattern", ["Rendezvous Test", "Rendezvous;ls", "$$HOME"])
def test_a_filter_that_is_no_pattern_is_refused_before_anything_is_built(tmp_path, pattern):
    folder = tmp_path / "environment"
    done = _make("test-core", f"FILTER={pattern}", f"VENV={folder}")
    assert done.returncode == 2
    assert "wanted a pattern of GoogleTest, such as Rendezvous*" in done.stderr
    assert not folder.exists()


def test_core_and_python_tests_run_apart_with_the_commands_of_make_test(tmp_path):
    variables = (f"VENV={tmp_path}", "TF=2.21.0")
    together = _make("-n", "test", "TESTS=tools -k layers", *variables).stdout
    core = _make("-n", "test-core", "FILTER=Rendezvous*:Adasum*", *variables).stdout
    python = _make("-n", "test-python", "TESTS=tools -k layers", *variables).stdout
    assert "tools/test_core.sh build/core-tf-2.21.0 ''" in together
    assert "tools/test_core.sh build/core-tf-2.21.0 'Rendezvous*:Adasum*'" in core
    assert "tools/test_python.sh  tools -k layers" in together
    assert "tools/test_python.sh  tools -k layers" in python
    assert "test_python" not in core
    assert "test_core" not in python


def test_a_filter_runs_the_folders_of_the_core_that_have_such_tests(tmp_path):
    listed = 'if [ "$1" = "--gtest_filter=Rendezvous*" ]; then printf "RendezvousTest.\\n  IsKept\\n"; fi\n'
    _program(tmp_path / "core/comm/lockstep_comm_test", 'echo "Running main()"\n' + listed)
    _program(tmp_path / "core/base/lockstep_base_test", 'echo "Running main()"\n')
    _program(tmp_path / "core/columnar/memory/lockstep_memory_test", listed.replace("Rendezvous*", "Buffer*"))
    _program(tmp_path / "bin/ctest", 'echo "$GTEST_FILTER" "$@"\n')

    def run(pattern: str) -> subprocess.CompletedProcess[str]:
        command = [str(_PROJECT / "tools" / "test_core.sh"), str(tmp_path), pattern]
        environ = {**os.environ, "VENV": str(tmp_path), "JOBS": "2"}
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)

    selected = run("Rendezvous*")
    assert selected.stdout.startswith("Rendezvous* --test-dir")
    assert "-R ^(comm)(_[0-9]+)?$" in selected.stdout
    assert "-R ^(memory)(_[0-9]+)?$" in run("Buffer*").stdout
    nothing = run("Nothing*")
    assert nothing.returncode == 2
    assert nothing.stderr == "make test-core: FILTER=Nothing*: no test of the core has such a name\n"
    assert "-R" not in run("").stdout
