"""The programs of the pages run, and the commands of the pages have the options that they name.

page_blocks.py describes the marks by which a page says how a block runs. README's programs have their own test.
"""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep import command
from lockstep.launch.cli import main as launcher
from lockstep.launch.frontends import deeprec, horovod_command_line
from lockstep.testing import call_workers
from tests.scripts.page_blocks import ROOT, Block, Program, blocks, programs, write_data

PAGES = sorted((ROOT / "docs").glob("*.md"))
# Page -> the package that its programs need, which may not be installed.
NEEDED = {"keras_rs": "keras_rs", "mlflow": "mlflow"}


def _needs(page: Path) -> pytest.MarkDecorator:
    package = NEEDED.get(page.stem, "lockstep")
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")


PAGES_WITH_PROGRAMS = [pytest.param(page, marks=_needs(page), id=page.stem) for page in PAGES if programs(page)]
COMMANDS = [
    block
    for page in [*PAGES, *ROOT.glob("*.md"), ROOT / "deploy/README.md", ROOT / "examples/ranking/README.md"]
    for block in blocks(page)
    if block.language in ("bash", "sh")
]

# Programs of the pages may start main.py, so they have another name.
_FILE = "program_of_the_page.py"

# Blocks that only compile. A new page gets along without them.
FRAGMENTS = 3


def _matches(pattern: str) -> Callable[[list[str]], bool]:
    return lambda outputs: all(re.search(pattern, output) for output in outputs)


def _keys_are_on_one_worker_each(outputs: list[str]) -> bool:
    return sum(int(re.search(r"\(3, 16\) (\d+)", output)[1]) for output in outputs) == 3


def _ranks_train_the_same_number(outputs: list[str]) -> bool:
    numbers = [float(re.search(r"^0\.\d+$", output, re.M)[0]) for output in outputs]
    return numbers == pytest.approx([0.5, 0.5], abs=1e-6)


def _ranks_of_sok_have_their_rows(outputs: list[str]) -> bool:
    """Checks that each rank has half of the users, its keys of the words, and the loss of both ranks' data."""
    rows = [re.search(r"^\(500, 8\) \[([\d ]+)\] loss (\S+)$", output, re.M) for output in outputs]
    return [row[1] for row in rows] == ["2 4", "1 3"] and all(float(row[2]) < 0.6 for row in rows)


def _worker_0_logs_what_all_workers_see(outputs: list[str]) -> bool:
    """Checks the metrics that MLflow has, and those that Keras returns on each worker."""
    logged = {name: float(re.search(rf"'{name}': ([\d.]+)", outputs[0])[1]) for name in ("loss", "mae")}
    seen = [tuple(map(float, re.findall(r"^([\d.]+) ([\d.]+)$", output, re.M)[-1])) for output in outputs]
    return seen == [(logged["loss"], logged["mae"])] * 2 and "'loss'" not in outputs[1]


def _delta_changes_the_scores(outputs: list[str]) -> bool:
    """Checks that the export has the scores of its checkpoint, and that training brings them near to 1."""
    scores = re.search(r"exported: \[(\S+) +(\S+)\]\nwith the delta: \[(\S+) +(\S+)\]", outputs[0])
    exported, with_delta = [float(scores[1]), float(scores[2])], [float(scores[3]), float(scores[4])]
    return exported == [0.0, 0.0] and all(abs(score - 1.0) < 0.1 for score in with_delta)


# Page -> what its first program must print, as the page says: a check of the workers' outputs.
PRINTED = {
    "design": _matches("Lockstep.*Route"),
    "glossary": lambda outputs: all(
        f"{rank} [2. 2.] [0 1 1] [{rank} {rank}]" in output for rank, output in enumerate(outputs)
    ),
    "launching": _matches("of 2: the workers' ones are 2"),
    "robustness": _matches("rows.parquet.*user"),
    "checkpoints": _matches("30"),
    "many_hosts": lambda outputs: "2 workers on 1 hosts; the sum of their ones is 2" in outputs[0],
    "debugging_a_hang": lambda outputs: bool(re.search("nothing from rank 1 for 2 s in allreduce", outputs[0])),
    "start": _matches(r"holds 500 rows of the table"),
    "algorithms": _matches(r"tf\.Tensor\(\[1\. 1\. 1\. 1\.\]"),
    "sharding": _matches(r"\(3, 16\) \(500, 16\) \(1000, 16\)"),
    "deltas": _delta_changes_the_scores,
    "checkpoint_format": _matches(r"\(1000, 16\)"),
    "hooks": _matches(r"(?s)False.*True"),
    "keras_rs": _matches(r"\(500, 16\) \(1000, 16\)"),
    "mlflow": _worker_0_logs_what_all_workers_see,
    "embedding": _keys_are_on_one_worker_each,
    "horovod": _ranks_train_the_same_number,
    "sok": _ranks_of_sok_have_their_rows,
}


def _run(folder: str, tf1: bool) -> None:
    """Runs the program of a folder, in a worker. Its output is the worker's."""
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.argv = [_FILE]
    if tf1:
        sys.argv = ["lockstep.launch.tf1", _FILE]
        runpy.run_module("lockstep.launch.tf1", run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(_FILE, run_name="__main__")


def _outputs(program: Program, folder: Path) -> list[str]:
    """Runs a program in a folder. Returns what each worker printed."""
    (folder / _FILE).write_text(program.code)
    variables = {"CUDA_VISIBLE_DEVICES": "", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    outcomes = call_workers(
        _run, program.workers, str(folder), program.tf1, timeout_s=300, environment=variables, check=False
    )
    for outcome in outcomes:
        assert outcome.succeeded, f"{program.name}, rank {outcome.rank}: {outcome.error}\n{outcome.output}"
    return [outcome.output for outcome in outcomes]


# Promise (sok.md): the program of the page runs.
# Promise (mlflow.md): MLflow has the metrics of all workers.
@pytest.mark.parametrize("page", PAGES_WITH_PROGRAMS)
def test_the_programs_of_a_page_run_one_after_another(page, tmp_path):
    write_data(tmp_path)
    first, *others = programs(page)
    outputs = _outputs(first, tmp_path)
    assert PRINTED.get(page.stem, _matches(""))(outputs), outputs
    for program in others:
        _outputs(program, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_begins_with_a_program_or_a_command(page):
    begin = page.read_text().partition("\n## ")[0]
    assert "```python\n" in begin or "```bash\n" in begin


def test_pages_whose_output_is_checked_have_programs():
    assert set(PRINTED) <= {page.stem for page in PAGES if programs(page)}


def test_fragments_compile_and_are_few():
    fragments = [block for page in PAGES for block in blocks(page) if "fragment" in block.marks]
    for block in fragments:
        compile(block.code, f"{block.page}:{block.line}", "exec")
        assert block.marks["fragment"], f"{block.page}:{block.line}: a fragment needs a reason"
    assert len(fragments) <= FRAGMENTS, [f"{block.page}:{block.line}" for block in fragments]


def _commands(block: Block) -> list[list[str]]:
    """Returns the commands of a block as words, without assignments of variables and without redirections."""
    text = re.sub(r"\$\((?:[^()]|\([^()]*\))*\)", "X", block.code.replace("\\\n", " "))
    lines = [shlex.shlex(line, posix=True, punctuation_chars="&|;<>") for line in text.splitlines()]
    found: list[list[str]] = []
    for line in lines:
        line.whitespace_split = True
        found.append([])
        for word in line:
            if re.fullmatch(r"[&|;]+", word):
                found.append([])
            elif found[-1] or not re.match(r"\w+=", word):
                found[-1].append(word)
    return [words for words in found if words]


def _arguments(words: list[str], program: list[str]) -> list[str] | None:
    """Returns the words after a program's name, which may stand behind another command such as srun."""
    for i in range(len(words) - len(program) + 1):
        if words[i : i + len(program)] == program:
            return words[i + len(program) :]
    return None


def _check_horovodrun(arguments: list[str]) -> None:
    horovod_command_line.command_line().parse(arguments)


def _parses(subcommand: command.Subcommand) -> Callable[[list[str]], None]:
    def check(arguments: list[str]) -> None:
        subcommand.parser().parse_args(arguments)

    return check


# Each program's words, and a function that refuses wrong arguments.
PARSERS = [
    (["python", "-m", "hybridbackend.run"], lambda words: launcher.main(words)),
    (["python", "-m", "lockstep.launch"], lambda words: launcher.main(words)),
    (["lockstep", "run"], lambda words: launcher.main(words)),
    (["python", "-m", "tensorflow.python.distribute.launch"], lambda words: deeprec.main(words)),
    *((["lockstep", name], _parses(one)) for name, one in command.SUBCOMMANDS.items() if not one.has_command),
    (["python", "-m", "horovod.runner"], _check_horovodrun),
    (["horovodrun"], _check_horovodrun),
]


@pytest.mark.parametrize("block", COMMANDS, ids=lambda block: f"{Path(block.page).stem}:{block.line}")
def test_commands_are_those_of_their_programs(block, tmp_path, monkeypatch):
    checked = subprocess.run(["bash", "-n"], input=block.code, capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stderr
    write_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    started: list[list[str]] = []
    monkeypatch.setattr(launcher, "execute", lambda words, jobs, reminds=False: started.append(words) or 0)
    for words in _commands(block):
        parsers = [(parse, _arguments(words, program)) for program, parse in PARSERS]
        known = [(parse, arguments) for parse, arguments in parsers if arguments is not None]
        for parse, arguments in known:
            assert "--help" in arguments or not parse(arguments), words
        if not known and words[0] == "python" and len(words) > 1:
            _check_python(words[1:])


def _check_python(words: list[str]) -> None:
    """Checks that a module or a program of the repository exists, and that a program knows the options."""
    if words[0] == "-m":
        assert importlib.util.find_spec(words[1]) is not None, words
    elif "/" in words[0]:
        source = (ROOT / words[0]).read_text()
        for option in (word for word in words[1:] if word.startswith("--") and word != "--help"):
            assert re.search(rf"[\"']{option}[\"']", source), words
