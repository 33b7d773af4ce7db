"""Writes the output of benchmarks into docs/benchmarks.md.

    python tools/bench_page.py FOLDER

`make bench` keeps each program's output in FOLDER as NAME.txt. The page names these programs in comments,
`<!-- output: NAME -->` up to `<!-- end of output -->`. The output of a program that has printed nothing stays as it is.
"""

import re
import sys
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
OUTPUT = re.compile(r"(<!-- output: ([\w-]+) -->)\n.*?(<!-- end of output -->)", re.S)


def filled(page: str, folder: Path) -> str:
    """Returns the page with the output of the programs that have a file in the folder."""

    def replaced(found: re.Match[str]) -> str:
        path = folder / f"{found[2]}.txt"
        printed = path.read_text(encoding="utf-8").strip("\n") if path.exists() else ""
        return f"{found[1]}\n\n```text\n{printed}\n```\n\n{found[3]}" if printed else found[0]

    return OUTPUT.sub(replaced, page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), Path(sys.argv[1])), encoding="utf-8")
