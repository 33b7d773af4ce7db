"""The blocks of code of the pages, and the programs that they form.

A block of Python is a program of its own and runs on one worker. The programs of a page run one after another in one
folder. HTML comments right before a block change this. The page does not show them.

| comment | effect |
| --- | --- |
| `<!-- run: workers=2 tf1 -->` | two workers; `import tensorflow` means TensorFlow 1, as with the launcher's `--tf1` |
| `<!-- before: CODE -->` | the program begins with this code, such as a model that the page leaves open |
| `<!-- continues -->` | the block belongs to the program of the block before it |
| `<!-- fragment: REASON -->` | the block is only compiled; the reason says where the rest is run |
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import textwrap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[2]

_BLOCK = re.compile(
    r"(?P<marks>(?:^<!-- (?:run|before|continues|fragment)\b.*?-->\n)*)"
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<code>.*?)^(?P=indent)```$",
    re.M | re.S,
)
_MARK = re.compile(r"<!-- (\w+)(?:: ?)?(.*?)\s*-->", re.S)


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
      page: the page's path in the repository.
      line: the number of the block's first line.
      language: the word after the fence.
      code: the text, without the indentation of the fence.
      marks: the comments before it: name -> text.
    """

    page: str
    line: int
    language: str
    code: str
    marks: dict[str, str]


@dataclasses.dataclass
class Program:
    """A program that runs: one block, or several that continue each other.

    Attributes:
      name: the page's name and the line of the first block.
      code: the text.
      workers: the number of workers.
      tf1: whether `import tensorflow` means TensorFlow 1.
    """

    name: str
    code: str
    workers: int = 1
    tf1: bool = False


def blocks(page: Path) -> list[Block]:
    """Returns the blocks of a page, in their order."""
    text = page.read_text()
    return [
        Block(
            page=str(page.relative_to(ROOT)),
            line=text.count("\n", 0, found.start("code")) + 1,
            language=found["language"],
            code=textwrap.dedent(found["code"]),
            marks={mark[1]: mark[2] for mark in _MARK.finditer(found["marks"])},
        )
        for found in _BLOCK.finditer(text)
    ]


def programs(page: Path) -> list[Program]:
    """Returns the programs of Python of a page, in their order."""
    found: list[Program] = []
    for block in blocks(page):
        if block.language != "python" or "fragment" in block.marks:
            continue
        code = block.marks.get("before", "") + "\n" + block.code
        if "continues" in block.marks:
            found[-1].code += code
            continue
        program = Program(f"{page.stem}:{block.line}", code)
        for option in block.marks.get("run", "").split():
            name, _, value = option.partition("=")
            if name not in ("workers", "tf1"):
                raise ValueError(f"{block.page}:{block.line}: run: {option}: wanted workers=N or tf1")
            setattr(program, name, int(value) if value else True)
        found.append(program)
    return found


def write_data(folder: Path) -> None:
    """Writes the files that the pages' programs and commands name into a folder."""
    rng = np.random.default_rng(0)
    (folder / "data").mkdir()
    for day in range(2):
        user = rng.integers(0, 100, 2048)
        table = pa.table(
            {
                "label": (user % 2).astype(np.int64),
                "user": user,
                "genres": [list(range(n)) for n in rng.integers(0, 4, len(user))],
                "price": rng.random(len(user), np.float32),
                "age": rng.integers(10, 60, len(user)),
                "country": rng.choice(["de", "fr", "it"], len(user)),
            }
        )
        pq.write_table(table, folder / f"day_{day}.parquet", row_group_size=512)
        pyarrow.csv.write_csv(table.drop_columns("genres"), folder / f"day_{day}.csv")
        pyarrow.orc.write_table(table, folder / "data" / f"day_{day}.orc")
    user = rng.integers(0, 1000, 8192)
    clicks = {"user": user, "query": [f"query {i % 7}" for i in user], "click": (user % 2).astype(np.float32)}
    pq.write_table(pa.table(clicks), folder / "clicks.parquet")
    sums = [f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}\n" for f in sorted((folder / "data").iterdir())]
    (folder / "data" / "SHA256SUMS").write_text("".join(sums))
    (folder / "hosts").write_text("a slots=2\nb slots=2\n")
    (folder / "main.py").write_text("print('a worker')\n")
