"""Writes docs/tests.md, the page of promises and their tests, from comments in the tests.

    python tools/tests_page.py          # a part of make docs

A comment above a test of pytest or GoogleTest names the page that makes a promise, and the promise:

    # Promise (input.md): every row is read once, by one worker.
    def test_shares_are_the_data(): ...

    // Promise (security.md): a wrong proof ends the connection.
    TEST(RendezvousTest, RefusesAWrongProof) { ... }

Further lines of the comment continue the promise. `Promise of this file (PAGE)` stands for all tests of a file. Tests
with the same promise share a row. Pages lie in docs/; others have their paths, such as deploy/README.md.
"""

import collections
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "tests.md"

_BEGIN = """# Tests of the promises

<!-- Written by tools/tests_page.py from comments in the tests. Change these, and run make docs. -->

```bash
make test-python TESTS=python/lockstep/_src/data/parquet_test.py::test_shares_are_the_data      # a test of this page
make test-core FILTER='Rendezvous*'                                                             # tests of the core
```

Each row is a promise of a page, and the tests that check it. A comment above each of these tests names the page and
the promise (`tools/tests_page.py`). The [promises](promises.md) about whole jobs stand beside the commands that check
them. `make test` runs the first of the random programs; `make test-long TESTS=tests/parity/random_programs_test.py`
runs 2000 of each kind, for hours. A failure prints the program and a smaller one.
"""

_FOLDERS = ("benchmarks", "core", "examples", "python", "tests", "tf", "tools")
_PROMISE = re.compile(r"\s*(#|//) Promise( of this file)? \(([\w/.]+\.md)\): (.*)$")
_TEST = re.compile(
    r"\s*(?:async )?def (\w+)\(|(test_\w+) = |TE?ST(?:_[FP])?\((\w+), *(\w+)|TYPED_TEST(?:_P)?\((\w+), *(\w+)"
)


class Promise(NamedTuple):
    """A promise of a page, and a test of it: `path`, `path::function` or `path::Suite.Name`."""

    page: str
    text: str
    test: str


def promises_in(path: str, source: str) -> Iterator[Promise]:
    """Yields the promises in a file of tests. Raises ValueError for one without a test."""
    lines = source.splitlines()
    for number, line in enumerate(lines):
        if not (found := _PROMISE.match(line)):
            continue
        mark, whole_file, page, text = found.groups()
        below = number + 1
        while below < len(lines) and _continues(lines[below], mark):
            text += " " + lines[below].strip().removeprefix(mark).strip()
            below += 1
        name = "" if whole_file else next((_name(test) for one in lines[below:] if (test := _TEST.match(one))), None)
        if name is None:
            raise ValueError(f"{path}:{number + 1}: a promise without a test below it")
        yield Promise(page, text.strip().removesuffix("."), path + name)


def _continues(line: str, mark: str) -> bool:
    return line.strip().startswith(mark) and not _PROMISE.match(line)


def _name(test: re.Match[str]) -> str:
    function, *suite = (group for group in test.groups() if group)
    return "::" + ".".join([function, *suite])


def promises() -> list[Promise]:
    """Returns the promises of all tests of the repository, in the order of their files."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *_FOLDERS],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    files = sorted({name for name in listed.stdout.splitlines() if name.endswith((".py", ".cc"))})
    found: list[Promise] = []
    for path in (ROOT / name for name in files):
        # The tool and its test have promises as examples.
        if path.exists() and not path.name.startswith("tests_page"):
            found += promises_in(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    return found


def page(found: list[Promise]) -> str:
    """Returns the text of the page."""
    of_page = collections.defaultdict[str, dict[str, list[str]]](dict)
    for promise in found:
        of_page[promise.page].setdefault(promise.text, []).append(promise.test)
    lines = [_BEGIN]
    for name, tests_of in sorted(of_page.items()):
        path, link = (ROOT / name, f"../{name}") if "/" in name else (ROOT / "docs" / name, name)
        title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").partition(": `")[0]
        lines += [f"## {title}", "", f"The page: [{name}]({link}).", "", "| promise | tests |", "| --- | --- |"]
        lines += [f"| {text} | {', '.join(f'`{test}`' for test in tests)} |" for text, tests in tests_of.items()]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(promises()), encoding="utf-8")
