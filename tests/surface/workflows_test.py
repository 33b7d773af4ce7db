"""The workflows of continuous integration run commands that exist, and the checks before a commit see changed files."""

import itertools
import os
import re
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/workflows").glob("*.yml")}
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))


def commands(job: dict) -> list[str]:
    """Returns the commands of a job, for each value of its matrix."""
    matrix = job.get("strategy", {}).get("matrix", {})
    found = []
    for values in itertools.product(*matrix.values()):
        for step in job["steps"]:
            text = step.get("run", "")
            for name, value in zip(matrix, values, strict=True):
                text = text.replace(f"${{{{ matrix.{name} }}}}", value)
            found.append(text)
    return found


JOBS = [pytest.param(job, id=f"{name}-{key}") for name, one in WORKFLOWS.items() for key, job in one["jobs"].items()]
COMMANDS = {name: [text for job in one["jobs"].values() for text in commands(job)] for name, one in WORKFLOWS.items()}


@pytest.mark.parametrize("job", JOBS)
def test_a_job_runs_targets_and_programs_that_exist_and_has_a_deadline(job):
    made = [target for text in commands(job) for target in re.findall(r"^make ([\w-]+)", text)]
    own = [text for text in commands(job) if text.startswith(".ci/")]
    assert made or own
    assert set(made) <= TARGETS
    assert all(os.access(ROOT / program, os.X_OK) for program in own)
    assert not [text for text in commands(job) if "${{" in text]
    assert job["timeout-minutes"] <= 360


def test_a_pull_request_is_checked_each_night_the_rest_and_a_tag_makes_wheels():
    # YAML 1.1 reads the key `on` as a truth value.
    assert "pull_request" in WORKFLOWS["ci"][True]
    assert {".ci/run", "make lint"} <= set(COMMANDS["ci"])
    assert WORKFLOWS["nightly"][True]["schedule"]
    nightly = {f"make {target}" for target in ("test-long", "test-hosts", "asan", "tsan")}
    assert nightly <= set(COMMANDS["nightly"])
    for python in ("3.10", "3.11", "3.12", "3.13"):
        assert f"make test-matrix ROWS='*-py{python}'" in COMMANDS["nightly"]
    assert WORKFLOWS["wheels"][True] == {"push": {"tags": ["v*"]}}
    assert "make wheel" in COMMANDS["wheels"]


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_a_workflow_may_only_read_and_has_no_secret(workflow):
    assert WORKFLOWS[workflow]["permissions"] == {"contents": "read"}
    assert "secrets." not in (ROOT / f".github/workflows/{workflow}.yml").read_text()


def test_checks_before_a_commit_see_changed_files_with_the_pinned_tools():
    hooks = [
        hook
        for repo in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
        for hook in repo["hooks"]
    ]
    assert {hook["id"] for hook in hooks} == {"ruff", "ruff-format", "clang-format"}
    pins = (ROOT / "requirements/build.txt").read_text().splitlines()
    for hook in hooks:
        assert hook.get("pass_filenames", True) and hook["types"]
        assert set(hook.get("additional_dependencies", [])) <= set(pins)
