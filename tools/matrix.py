"""Runs the reduced tests with the wheels of dist/ on each TensorFlow and Python; writes the table of docs/install.md.

Usage: matrix.py [--only 'tf2.1?*'] [--smoke] [--write] [-- pytest's arguments]

Each row has an environment of its own in build/matrix. There pip installs the pinned TensorFlow, pytest and the wheels,
as users do. Tests are added beside the installed modules; no module comes from the source tree. Rows of Python 3.11 run
the reduced tests (conftest.py). The other rows run the programs of the README
and of two pages, and with --smoke all rows do.
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MATRIX = ROOT / "build" / "matrix"
PAGE = ROOT / "docs" / "install.md"
BEGIN, END = "<!-- begin: make test-matrix -->", "<!-- end: make test-matrix -->"
_PYTHON_OF_LOCKS = "3.11"
# Newer versions of pyarrow have no wheels for it, so pip chooses.
_OLDEST_PYTHON = "3.10"
# The Pythons for which there are wheels of a TensorFlow.
_PYTHONS = {"2.15": 11, "2.16": 12, "2.17": 12, "2.18": 12, "2.19": 12, "2.20": 13, "2.21": 13}
_INSTALL_S, _TESTS_S = 3600, 4 * 3600
_PAGES = "tests/scripts/pages_test.py::test_the_programs_of_a_page_run_one_after_another"
_SMOKE = ["tests/scripts/readme_test.py", f"{_PAGES}[horovod]", f"{_PAGES}[input]"]
# The folder of the libraries that auditwheel adds.
_LIBRARIES = "lockstep_tf.libs"
_PACKAGES = {
    "lockstep": "python/lockstep",
    "hybridbackend": "python/hybridbackend/hybridbackend",
    "horovod": "python/horovod/horovod",
    "deeprec": "python/deeprec/deeprec",
    "sparse_operation_kit": "python/sok/sparse_operation_kit",
}


def rows() -> list[tuple[str, str]]:
    """Returns (TensorFlow, Python) of all rows, in order."""
    names = [path.name.removeprefix("tf-").removesuffix(".txt") for path in (ROOT / "requirements").glob("tf-*.txt")]
    versions = sorted(names, key=lambda name: [int(part) for part in name.split(".")])
    return [
        (version, f"3.{minor}") for version in versions for minor in range(10, _PYTHONS[version.rpartition(".")[0]] + 1)
    ]


def requirements(tensorflow: str, python: str) -> list[str]:
    """Returns the arguments of pip that install what tests need, without Keras 2. The locks are for one Python."""
    pinned = ROOT / "requirements" / f"tf-{tensorflow}.txt"
    if python == _PYTHON_OF_LOCKS:
        build = str(ROOT / "requirements" / "build.txt")
        return ["-r", build, "-r", str(pinned), "-c", str(pinned.with_suffix(".lock"))]
    names = ("tensorflow", "protobuf", "pyarrow")
    lines = [line for line in pinned.read_text().splitlines() if line.startswith(names)]
    if python == _OLDEST_PYTHON:
        lines = [line for line in lines if not line.startswith("pyarrow")]
    return [*lines, "pytest", "pytest-timeout"]


def _interpreter(python: str) -> str:
    found = shutil.which(f"python{python}")
    for path in sorted(Path.home().glob(f".pyenv/versions/{python}.*/bin/python")):
        found = str(path)
    if found is None:
        raise FileNotFoundError(f"no python{python} on this machine")
    return found


def install(row: Path, tensorflow: str, python: str) -> Path:
    """Makes the row's environment with the wheels, and returns its interpreter."""
    interpreter = row / "venv" / "bin" / "python"
    wheels = sorted((ROOT / "dist").glob("lockstep_*.whl"))
    if not (row / "installed").exists():
        shutil.rmtree(row, ignore_errors=True)
        subprocess.run([_interpreter(python), "-m", "venv", row / "venv"], check=True, timeout=_INSTALL_S)
        pip = [interpreter, "-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check"]
        subprocess.run([*pip, *requirements(tensorflow, python)], check=True, timeout=_INSTALL_S)
        if (keras_2 := ROOT / "requirements" / f"tf_keras-{tensorflow}.txt").exists():
            subprocess.run([*pip, "--no-deps", "-r", keras_2], check=True, timeout=_INSTALL_S)
        (row / "installed").touch()
    for package in _PACKAGES:  # of an earlier run
        if (_site_packages(interpreter) / package).is_symlink():
            (_site_packages(interpreter) / package).unlink()
    pip = [interpreter, "-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check"]
    subprocess.run([*pip, *wheels], check=True, timeout=_INSTALL_S)
    subprocess.run([*pip, "--force-reinstall", "--no-deps", *wheels], check=True, timeout=_INSTALL_S)
    return interpreter


def add_tests(row: Path, interpreter: Path) -> Path:
    """Makes a tree of this repository with the installed packages in their places, and returns it.

    The packages move into the tree, and links take their places in the environment: tests find files of the repository
    by their own places.
    """
    tree = row / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    site = _site_packages(interpreter)
    for package, folder in _PACKAGES.items():
        (tree / folder).parent.mkdir(parents=True, exist_ok=True)
        (site / package).rename(tree / folder)
        (site / package).symlink_to(tree / folder)
    (tree / "python" / _LIBRARIES).symlink_to(site / _LIBRARIES)
    for name in subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True, timeout=60
    ).stdout.split():
        if (tree / name).exists() or not (ROOT / name).exists():
            continue
        if name.endswith(".py") and name.startswith(tuple(_PACKAGES.values())) and not _is_for_tests(name):
            raise FileNotFoundError(f"{name} is not in the wheel")
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name, follow_symlinks=False)
    return tree


def _site_packages(interpreter: Path) -> Path:
    program = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([interpreter, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    return Path(done.stdout.strip())


def _is_for_tests(name: str) -> bool:
    return name.endswith(("_test.py", "conftest.py")) or "/testing/" in name


def run(tensorflow: str, python: str, smoke: bool, options: list[str]) -> dict[str, str]:
    """Installs and tests a row; returns its cells."""
    row = MATRIX / _name_of(tensorflow, python)
    cells = {"TensorFlow": tensorflow, "Python": python, "tests": "", "result": ""}
    started = time.monotonic()
    try:
        interpreter = install(row, tensorflow, python)
        shown = "import pyarrow, keras; print(keras.__version__, pyarrow.__version__)"
        quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
        versions = subprocess.run([interpreter, "-c", shown], capture_output=True, text=True, timeout=600, env=quiet)
        cells["Keras"], cells["pyarrow"] = (versions.stdout.split() or ["?", "?"])[-2:]
        tree = add_tests(row, interpreter)
    except (subprocess.SubprocessError, FileNotFoundError) as error:
        return {**cells, "result": f"not installed: {error}"}
    small = smoke or python != _PYTHON_OF_LOCKS
    cells["tests"] = "programs of pages" if small else "reduced"
    if options:
        cells["tests"] = " ".join(options)
    arguments = options or (_SMOKE if small else ["--reduced"])
    log = row / "tests.log"
    # The commands of the environment, and a home without anything of the user's.
    environment = {**quiet, "PATH": f"{interpreter.parent}:{os.environ['PATH']}", "HOME": str(row / "home")}
    (row / "home").mkdir(exist_ok=True)
    arguments = ["-q", "--timeout=1200", "--durations=5", "-p", "no:cacheprovider", *arguments]
    command = [interpreter, "-m", "pytest"] if small else [tree / "tools" / "test_python.sh"]
    jobs = os.environ.get("JOBS", str(os.cpu_count()))
    with log.open("w") as to:
        variables = {**environment, "VENV": str(row / "venv"), "JOBS": jobs}
        del variables["TF_CPP_MIN_LOG_LEVEL"]  # tests look for warnings, and for what the launcher hides
        subprocess.run([*command, *arguments], cwd=tree, env=variables, stdout=to, stderr=to, timeout=_TESTS_S)
    cells["result"] = summary(log.read_text()) or f"no result: {log}"
    print(f"{row.name}: {cells['result']} ({time.monotonic() - started:.0f} s, {log})", file=sys.stderr, flush=True)
    return cells


def summary(log: str) -> str:
    """Returns the sum of pytest's summaries in a log, such as "4 passed, 1 skipped"; empty if there is none."""
    total: collections.Counter[str] = collections.Counter()
    for line in log.splitlines():
        if re.search(r" in [\d.]+s\b", line):
            for number, what in re.findall(r"(\d+) (passed|failed|error|skipped)", line):
                total[what] += int(number)
    return ", ".join(f"{total[what]} {what}" for what in ("failed", "error", "passed", "skipped") if total[what])


def read(page: str) -> dict[str, dict[str, str]]:
    """Returns the rows of a page's table by their names, such as "tf2.21.0-py3.11"."""
    lines = [line.strip("| ").split(" | ") for line in page.partition(BEGIN)[2].partition(END)[0].split("\n") if line]
    rows_of_page = [dict(zip(lines[0], cells, strict=True)) for cells in lines[2:]]
    return {_name_of(cells["TensorFlow"], cells["Python"]): cells for cells in rows_of_page}


def _name_of(tensorflow: str, python: str) -> str:
    return f"tf{tensorflow}-py{python}"


def table(results: list[dict[str, str]]) -> str:
    """Returns the rows as a table of the page."""
    names = ["TensorFlow", "Python", "Keras", "pyarrow", "tests", "result"]
    lines = ["| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]
    lines += ["| " + " | ".join(cells.get(name, "") for name in names) + " |" for cells in results]
    return "\n".join(lines)


def write(results: list[dict[str, str]]) -> None:
    """Replaces the table of the page."""
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, behind = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table(results)}\n{END}{behind}")


def main() -> None:
    """Runs the chosen rows, and prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="*", help="a pattern of rows, such as tf2.16*-py3.11")
    parser.add_argument("--smoke", action="store_true", help="the programs of the README on all rows")
    parser.add_argument("--write", action="store_true", help="write docs/install.md")
    arguments, options = parser.parse_known_args()
    chosen = [row for row in rows() if fnmatch.fnmatch(_name_of(*row), arguments.only)]
    if not chosen:
        parser.error(f"--only {arguments.only}: no such row; there are " + ", ".join(_name_of(*row) for row in rows()))
    MATRIX.mkdir(parents=True, exist_ok=True)
    ran: dict[str, dict[str, str]] = {}
    for row in chosen:
        ran[_name_of(*row)] = run(*row, arguments.smoke, [option for option in options if option != "--"])
        # The page's other rows stay. It is read again, because another run may have written some meanwhile.
        results = {**read(PAGE.read_text()), **ran}
        ordered = [results[name] for name in (_name_of(*row) for row in rows()) if name in results]
        if arguments.write:
            write(ordered)
    print(table(ordered))
    bad = re.compile(r"failed|error|not installed|no result")
    sys.exit(any(bad.search(cells["result"]) for cells in ran.values()))


if __name__ == "__main__":
    main()
