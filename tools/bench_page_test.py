import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import bench_page

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

ROOT = bench_page.PAGE.parents[1]


def test_a_page_gets_the_output_of_programs_that_printed_some(tmp_path):
    (tmp_path / "one.txt").write_text("allreduce 4 B   22 us\n")
    (tmp_path / "two.txt").write_text("\n")
    regions = [f"<!-- output: {name} -->\n\nold\n\n<!-- end of output -->\n" for name in ("one", "two", "three")]
    page = bench_page.filled("Text.\n" + "".join(regions), tmp_path)
    assert page == "Text.\n" + "".join([regions[0].replace("old", "```text\nallreduce 4 B   22 us\n```"), *regions[1:]])


def test_the_page_names_programs_that_make_bench_runs():
    named = [name for _, name, _ in bench_page.OUTPUT.findall(bench_page.PAGE.read_text())]
    assert len(named) == len(set(named)) > 0
    scripts = {path.stem for path in (ROOT / "benchmarks").rglob("*.py")}
    # The benchmarks of a folder and of the folders below it are one program (cmake/Lockstep.cmake).
    folders = {path.relative_to(ROOT / "core").parts[0] for path in (ROOT / "core").rglob("*_benchmark.cc")}
    binaries = {f"lockstep_{name}_benchmark" for name in folders}
    assert set(named) <= scripts | binaries
    assert re.search(r"tools/bench_page\.py", (ROOT / "Makefile").read_text())
