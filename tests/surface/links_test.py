"""Links, files, functions and commands in the pages exist, and comments refer only to pages that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where the build brings the same under this name.
    import tomli as tomllib

from tests.surface.definitions import has_python

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ["benchmarks", "core", "deploy", "docs", "examples", "python", "tests", "tf", "tools"]
PAGES = [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in sorted((ROOT / folder).rglob("*.md")))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def _text(page: Path) -> str:
    """Returns a page without its blocks of code."""
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.S)


def _anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub forms them."""
    headings = re.findall(r"^#+ (.*)$", _text(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_to_files_and_headings(page):
    for link in re.findall(r"\]\(([^)]+)\)", _text(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in _anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_named_files_exist(page):
    for path in re.findall(r"`((?:[\w.-]+/)+[\w-]+\.(?:py|cc|h|md|yaml|sbatch|sh|toml))(?:::[\w.:]+)?`", _text(page)):
        assert path.split("/")[0] not in FOLDERS or (ROOT / path).exists(), path


def _has_cpp(text: str, names: list[str]) -> bool:
    """Returns whether a file of C++ declares the classes, and the last name as a function or a class, or as a test."""
    suite, is_test, test = names[-1].partition(".")
    if is_test:
        return re.search(rf"\bTEST\w*\({suite}, {test}\)", text) is not None
    function = re.escape(names[-1])
    if re.search(rf"\b{re.escape('::'.join(names))}\(", text):
        return True
    classes = all(re.search(rf"\b(?:class|struct) {re.escape(name)}\b", text) for name in names[:-1])
    return classes and re.search(rf"\b(?:class |struct ){function}\b|\b{function}\(", text) is not None


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_named_functions_exist(page):
    for path, name in re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|cc|h))::([\w.:]+)`", _text(page)):
        text = (ROOT / path).read_text()
        if path.endswith(".py"):
            assert has_python(ast.parse(text), name.split(".")), f"{path}::{name}"
        else:
            assert _has_cpp(text, name.split("::")), f"{path}::{name}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_of_make_exist(page):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    commands = re.findall(r"(?:^|`)(?:nice )?make ([a-z][\w-]*)", page.read_text(), re.M)
    assert set(commands) <= targets


def test_the_picture_shows_the_folders_of_the_table_of_layers():
    picture = re.search(r"```text\n(.*?)```", (ROOT / "docs/architecture.md").read_text(), re.S)[1]
    shown = set(re.findall(r"(?:core|tf|_src|launch)(?:/\w+)+(?![\w.])", picture))
    table = tomllib.loads((ROOT / "tools/layers.toml").read_text())
    modules = {name.removeprefix("lockstep.").replace(".", "/") for name in table["python"]["layers"]}
    listed = {name for name in modules | set(table["cpp"]["layers"]) if re.match(r"(core|_src|launch)/", name)}
    packages = {"core/comm", "_src/compat", "_src/tables", "launch/tf1"}  # their parts are shown
    for_tests = {"core/comm/conformance", "core/columnar/arrow/linked", "core/device/check"}
    for_tests |= {"core/testing", "core/testing/emulator", "core/testing/nccl", "core/fuzzing"}
    for_tests |= {"core/device/comm/conformance"}
    assert listed - packages - for_tests <= shown
    for name in shown - listed:
        assert (ROOT / name).is_dir(), name


@pytest.mark.parametrize("folder", FOLDERS)
def test_comments_name_pages_that_exist(folder):
    for source in (ROOT / folder).rglob("*.*"):
        if source.suffix in {".py", ".cc", ".cu", ".cuh", ".h", ".sh", ".toml"}:
            for path in re.findall(r"\bdocs/[a-z_0-9]+\.md\b", source.read_text()):
                assert (ROOT / path).exists(), f"{source}: {path}"
