"""Links and file names in the pages lead to files, and comments refer only to pages that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
    for path in re.findall(r"`((?:[\w.-]+/)+[\w-]+\.(?:py|cc|h|md|yaml|sbatch))(?:::\w+)?`", _text(page)):
        assert path.split("/")[0] not in FOLDERS or (ROOT / path).exists(), path


def test_comments_name_pages_that_exist():
    for folder in FOLDERS:
        for source in (ROOT / folder).rglob("*.*"):
            if source.suffix in {".py", ".cc", ".h", ".sh", ".toml"}:
                for path in re.findall(r"\bdocs/[a-z_0-9]+\.md\b", source.read_text()):
                    assert (ROOT / path).exists(), f"{source}: {path}"
