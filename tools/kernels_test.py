"""Tests of tools/kernels.py, with reports as ptxas writes them."""

import pathlib
import subprocess
import sys

import kernels

_TOOL = pathlib.Path(__file__).with_name("kernels.py")
_REPORT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z4Copyv' for 'sm_90'
ptxas info    : Function properties for _Z4Copyv
    16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 56 registers, used 0 barriers, 16 bytes cumulative stack size
ptxas info    : Compiling entry function '_Z3Sumv' for 'sm_80'
ptxas info    : Function properties for _Z3Sumv
    0 bytes stack frame, %d bytes spill stores, 4 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 8288 bytes smem
"""


def test_a_report_has_a_kernel_for_each_architecture() -> None:
    assert list(kernels.read((_REPORT % 8).splitlines())) == [
        kernels.Kernel("_Z4Copyv", "sm_90", 56, 0, 0),
        kernels.Kernel("_Z3Sumv", "sm_80", 255, 12, 8288),
    ]


def _run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, _TOOL, *map(str, words)], capture_output=True, text=True, timeout=60)


# Promise (gpu.md): a kernel that spills registers into memory fails the build.
def test_a_spill_is_an_error_and_stands_in_the_table(tmp_path: pathlib.Path) -> None:
    report, table = tmp_path / "report.txt", tmp_path / "table.txt"
    report.write_text(_REPORT % 8)
    ran = _run("--out", table, report)
    assert ran.returncode == 1
    assert ran.stdout == "2 kernels of all architectures: at most 255 registers, 1 with spills\n"
    assert table.read_text().splitlines()[2].split() == ["255", "12", "8288", "sm_80", "Sum()"]


def test_reports_without_kernels_are_an_error(tmp_path: pathlib.Path) -> None:
    report = tmp_path / "report.txt"
    report.write_text("ptxas info    : 0 bytes gmem\n")
    ran = _run(report)
    assert ran.returncode == 1
    assert "no kernel" in ran.stderr
