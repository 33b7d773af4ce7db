"""Public docstrings are for users: they name no source files."""

import importlib
import inspect
import re

import pytest

MODULES = [
    *("lockstep", "lockstep.data", "lockstep.embedding", "lockstep.keras", "lockstep.metrics", "lockstep.train"),
    *("hybridbackend.tensorflow", "horovod.tensorflow", "horovod.keras", "horovod.tensorflow.keras", "deeprec"),
    *("sparse_operation_kit", "sparse_operation_kit.communication", "sparse_operation_kit.optimizers"),
]
# A file of the sources. Programs of users are named in examples.
_SOURCE = re.compile(r"[\w/]+\.(?:py|cc|h)\b")
_PROGRAMS = {"main.py", "train.py", "script.py"}


def _docstrings(value):
    yield inspect.getdoc(value) or ""
    if inspect.isclass(value):
        for name, member in inspect.getmembers(value, inspect.isroutine):
            if not name.startswith("_") and getattr(member, "__module__", "").startswith("lockstep"):
                yield inspect.getdoc(member) or ""


@pytest.mark.parametrize("module", MODULES)
def test_public_docstrings_name_no_source_files(module):
    found = importlib.import_module(module)
    named = {}
    for name in {*getattr(found, "__all__", ())}:
        value = getattr(found, name)
        if getattr(value, "__module__", "").startswith("lockstep"):
            files = {file for text in _docstrings(value) for file in _SOURCE.findall(text)} - _PROGRAMS
            if files:
                named[name] = files
    assert not named
