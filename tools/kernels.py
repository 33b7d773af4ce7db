"""Reads ptxas' reports, and writes the registers, spills and shared memory of each kernel.

Run it as:

    python tools/kernels.py [--out FILE] REPORT...

Prints one line with the sums. The file has a table with one line for each kernel and architecture. Exits with 1 if a
kernel spills registers to memory, or if the reports have no kernel.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_COMPILING = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


class Kernel(NamedTuple):
    """The needs of a kernel on one architecture."""

    name: str
    architecture: str
    registers: int
    spilled_bytes: int
    shared_bytes: int


def read(lines: Iterable[str]) -> Iterator[Kernel]:
    """Yields the kernels of a report (nvcc -Xptxas -v), with their names as the compiler writes them."""
    name = architecture = ""
    spilled = 0
    for line in lines:
        if compiling := _COMPILING.search(line):
            name, architecture = compiling[1], compiling[2]
            spilled = 0
        elif spills := _SPILLS.search(line):
            spilled = int(spills[1]) + int(spills[2])
        elif used := _USED.search(line):
            shared = _SHARED.search(line)
            yield Kernel(name, architecture, int(used[1]), spilled, int(shared[1]) if shared else 0)


def demangle(names: Iterable[str]) -> list[str]:
    """Returns the names as C++ writes them, or unchanged without c++filt."""
    names = list(names)
    try:
        ran = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return names
    return ran.stdout.split("\n")[: len(names)]


def main() -> int:
    """Runs the program, and returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("reports", nargs="+", type=Path)
    arguments = parser.parse_args()
    kernels = [kernel for path in arguments.reports for kernel in read(path.read_text().splitlines())]
    if not kernels:
        print("kernels: no kernel in the reports of ptxas", file=sys.stderr)
        return 1
    table = ["registers  spilled bytes  shared bytes  architecture  kernel"]
    for kernel, name in zip(kernels, demangle(kernel.name for kernel in kernels), strict=True):
        needs = f"{kernel.registers:9}  {kernel.spilled_bytes:13}  {kernel.shared_bytes:12}"
        table.append(f"{needs}  {kernel.architecture:12}  {name}")
    if arguments.out:
        arguments.out.write_text("\n".join(table) + "\n")
    spilling = sum(kernel.spilled_bytes > 0 for kernel in kernels)
    most = max(kernel.registers for kernel in kernels)
    print(f"{len(kernels)} kernels of all architectures: at most {most} registers, {spilling} with spills")
    return 1 if spilling else 0


if __name__ == "__main__":
    sys.exit(main())
