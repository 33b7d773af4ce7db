"""Tests of rows of the table that do not match the installed library."""

import re
import sys
import types

import keras
import pytest
import tensorflow as tf

from lockstep._src.hooks import symbols
from lockstep._src.hooks.hook import ABSENT, Hook, HookError
from lockstep._src.hooks.interception import Interception


@pytest.fixture
def library(monkeypatch):
    """Provides a module `replaced_library` with a function and a class."""
    module = types.ModuleType("replaced_library")

    def read(path, mode="r"):
        return path, mode

    class File:
        def close(self):
            return "closed"

    module.read, module.File = read, File
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def row(name, signature, **more):
    return Hook(f"replaced_library:{name}", signature, {symbols.SCOPE: "a test"}, **more)


def refusal(hook):
    with pytest.raises(HookError) as error:
        hook.check()
    return str(error.value)


def test_another_signature_is_refused_with_both_signatures_and_all_versions(library):
    text = refusal(row("read", "(path, encoding=None)"))
    assert text.startswith(
        "cannot replace replaced_library:read: wanted (path, encoding=None), found (path, mode='r'); with "
        f"tensorflow {tf.__version__}, keras {keras.__version__}"
    )


def test_a_symbol_that_is_missing_is_refused_by_name(library):
    assert re.match(
        r"cannot replace replaced_library:File\.flush: wanted \(self\), found none: .*'flush'; with tensorflow 2\.",
        refusal(row("File.flush", "(self)")),
    )
    assert "No module named 'no_such_library'" in refusal(Hook("no_such_library:f", "()", {}))


def test_a_refused_hook_replaces_nothing(library):
    own = library.read
    with Interception(symbols.SCOPE) as interception:
        with pytest.raises(HookError):
            interception.replace(row("read", "(path)"), lambda _: None)
        assert library.read is own


def test_an_optional_symbol_may_be_missing_and_no_other(library):
    with Interception(symbols.SCOPE) as interception:
        interception.replace(row("File.flush", "(self)", optional=True), lambda _: None)
        assert not hasattr(library.File, "flush")
        with pytest.raises(HookError):
            interception.replace(row("File.flush", "(self)"), lambda _: None)


def test_an_absent_name_is_added_and_taken_away(library):
    with Interception(symbols.SCOPE) as interception:
        interception.replace(row("File.size", ABSENT), lambda present: lambda self: present)
        assert library.File().size() is None
    assert not hasattr(library.File, "size")


def test_the_table_has_to_list_the_period_of_a_replacement(library):
    with pytest.raises(ValueError, match=r"replaced_library:read: the table does not list the period 'job'"):
        Interception(symbols.JOB).replace(row("read", "(...)"), lambda read: read)


def test_a_row_of_keras_2_stands_for_either_package():
    hook = symbols.KERAS_2_UPDATE_STEPS["Adam"]
    assert (hook.library, hook.name) == ("Keras 2", "update_step")
    assert hook.of("keras").symbol == "keras.src.optimizers.adam:Adam.update_step"
