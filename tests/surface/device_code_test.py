"""Device code is one source: what differs between CUDA and the emulator stands in few lines of one header."""

import pathlib
import subprocess

import pytest

_ROOT = pathlib.Path(__file__).parents[2]
_MOST_LINES = 200


def conditional_lines(text: str) -> int:
    """Returns the lines of all blocks that ask for __CUDACC__, with the lines that begin and end them."""
    depth = 0
    begins: list[int] = []
    lines = 0
    for line in text.splitlines():
        words = line.replace("#", "# ").split()
        directive = words[1] if words[:1] == ["#"] and len(words) > 1 else ""
        if directive in ("if", "ifdef", "ifndef"):
            depth += 1
            if "__CUDACC__" in line:
                begins.append(depth)
        lines += bool(begins)
        if directive == "endif":
            if begins and begins[-1] == depth:
                begins.pop()
            depth -= 1
    return lines


def test_lines_are_counted_to_the_end_of_their_block() -> None:
    text = (
        "#pragma once\n#ifdef __CUDACC__\n#if 1\nint a;\n#endif\n#else\nint b;\n#endif\nint c;\n#if 0\nint d;\n#endif\n"
    )
    assert conditional_lines(text) == 7


def _sources() -> dict[str, str]:
    listed = subprocess.run(
        ["git", "ls-files", "core", "tf", "tests"], cwd=_ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    paths = [path for path in listed.stdout.split() if path.endswith((".h", ".cc", ".cu", ".cuh"))]
    return {path: (_ROOT / path).read_text() for path in paths}


# Promise (gpu.md): at most 200 lines differ between CUDA and the emulator.
def test_few_lines_differ_between_cuda_and_the_emulator() -> None:
    if not (_ROOT / ".git").exists():
        pytest.skip("no checkout of git")
    counts = {path: lines for path, text in _sources().items() if (lines := conditional_lines(text))}
    assert set(counts) == {"core/device/runtime.h"}
    assert sum(counts.values()) <= _MOST_LINES


def test_kernels_are_started_in_one_place() -> None:
    if not (_ROOT / ".git").exists():
        pytest.skip("no checkout of git")
    code = {path: text for path, text in _sources().items() if path.startswith("core/device/")}
    for written in (">>>(", "__shared__ "):
        assert [path for path, text in code.items() if written in text] == ["core/device/runtime.h"]
