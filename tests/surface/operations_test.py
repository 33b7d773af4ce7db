"""Each file that registers operations has a test beside it, which names each of them."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.oldest

ROOT = Path(__file__).resolve().parents[2]
_REGISTERED = re.compile(r'^(?:REGISTER_OP|LOCKSTEP_[A-Z_]*OP)\("(\w+)"\)', re.MULTILINE)
# Pairs of a file and one of its operations.
OPERATIONS = [
    (path.relative_to(ROOT).as_posix(), operation)
    for path in sorted((ROOT / "tf").rglob("*.cc"))
    for operation in _REGISTERED.findall(path.read_text(encoding="utf-8"))
]


def snake_case(operation):
    """Returns the name of an operation's function in Python."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", operation).lower()


@pytest.mark.parametrize(("file", "operation"), OPERATIONS)
def test_an_operation_has_a_test_beside_it(file, operation):
    test = ROOT / f"{file.removesuffix('.cc')}_test.py"
    assert test.is_file(), f"{file} registers {operation}, and has no {test.name} beside it"
    named = rf"\b({operation}|{snake_case(operation)})\b"
    assert re.search(named, test.read_text(encoding="utf-8")), f"{test.name} names no {snake_case(operation)}"


def test_the_operations_of_the_library_are_found():
    """Compares them with those that TensorFlow has loaded, so that another macro doesn't hide some."""
    from lockstep._src.engine.library import ops

    loaded = {name for name in dir(ops) if re.fullmatch(r"lockstep_\w+", name) and not name.endswith("eager_fallback")}
    assert {snake_case(operation) for _, operation in OPERATIONS} == loaded
