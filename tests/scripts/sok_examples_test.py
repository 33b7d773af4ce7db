"""The examples with SparseOperationKit's API learn on two workers, and print what one process prints.

Both launchers start them, and programs with and without `hvd.init()`.
"""

from __future__ import annotations

import functools
import re
import runpy
import sys
from pathlib import Path

import pytest

from lockstep.testing import call_workers
from tests.scripts.documents import run_launcher

EXAMPLES = Path(__file__).parents[2] / "examples" / "sparse_operation_kit"
LAUNCHERS = {
    "horovodrun": ["horovod.runner", "-np", "2"],
    "hybridbackend.run": ["hybridbackend.run", "-n", "2"],
}
# A line with a loss: its text, and the number after it.
_LOSS = re.compile(r"^(.*: loss) (\d+\.\d+)$", re.M)


OPTIONS = ["--rows", "6144", "--epochs", "2"]


def _run(example: str) -> None:
    """Runs an example, in a worker."""
    sys.path.insert(0, str(EXAMPLES))
    sys.argv = [example, *OPTIONS]
    runpy.run_path(str(EXAMPLES / example), run_name="__main__")


@functools.cache
def of_one_process(example: str) -> str:
    (outcome,) = call_workers(_run, 1, example, environment={"CUDA_VISIBLE_DEVICES": ""}, timeout_s=100, check=False)
    assert outcome.succeeded, f"{outcome.error}\n{outcome.output}"
    return outcome.output


def rows(output: str) -> tuple[int, int]:
    """Returns the numbers of users and items that a process has."""
    users, items = re.search(r"^rank \d: .*has (\d+) users and (\d+) items$", output, re.M).groups()
    return int(users), int(items)


# Promise (sok.md): both launchers start the examples, which print what one process prints.
@pytest.mark.parametrize(
    ("example", "launcher"),
    [
        ("tensorflow2_keras_dlrm.py", "horovodrun"),
        ("tensorflow2_custom_loop.py", "horovodrun"),  # without hvd.init()
        pytest.param("tensorflow2_custom_loop.py", "hybridbackend.run", marks=pytest.mark.long),
        ("tensorflow1_session.py", "hybridbackend.run"),
    ],
)
def test_an_example_learns_as_one_process_does(example, launcher):
    words = [sys.executable, "-m", *LAUNCHERS[launcher], sys.executable, example, *OPTIONS]
    first, second = run_launcher(words, EXAMPLES, 2, {"CUDA_VISIBLE_DEVICES": ""})
    alone = of_one_process(example)
    losses, expected = _LOSS.findall(first), _LOSS.findall(alone)
    assert [what for what, _ in losses] == [what for what, _ in expected] and len(losses) >= 2
    assert [float(loss) for _, loss in losses] == pytest.approx([float(loss) for _, loss in expected], abs=1e-4)
    assert float(losses[1][1]) < float(losses[0][1]) < 0.7
    assert [sum(two) for two in zip(rows(first), rows(second), strict=True)] == list(rows(alone))
    assert not _LOSS.findall(second)


def test_the_loop_loads_what_it_dumped():
    """Uses the output of the test above."""
    output = of_one_process("tensorflow2_custom_loop.py")
    trained, zeros, loaded = (float(loss) for what, loss in _LOSS.findall(output) if what.startswith("other clicks"))
    assert loaded == trained < zeros
    assert re.search(r"^\d+ items were looked up since [\d:]+; their rows have the shape \(\d+, 8\)$", output, re.M)


def test_the_model_ranks_other_clicks():
    areas = re.findall(r"area under the curve (0\.\d+)", of_one_process("tensorflow2_keras_dlrm.py"))
    assert len(areas) == 1 and float(areas[0]) > 0.55
