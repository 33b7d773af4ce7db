"""Tests of loading the op library, and of its plain functions."""

import dataclasses
import types

import pytest
import tensorflow as tf

from lockstep import _build_info
from lockstep._src.engine import library
from lockstep.testing import call_workers


def pretend(monkeypatch, **members):
    """Makes the library find a `_build_info` with these members."""
    fake = types.SimpleNamespace(**members)
    monkeypatch.setattr(library.importlib, "import_module", lambda name: fake)


def test_finds_the_library_that_the_build_installed():
    assert library._find().name == "liblockstep.so"
    assert tf.__version__ == _build_info.TENSORFLOW_VERSION


def test_another_tensorflow_is_one_error_that_names_both_and_says_what_to_do(monkeypatch):
    pretend(monkeypatch, TENSORFLOW_VERSION="2.3.4", __file__="/nowhere/_build_info.py")
    with pytest.raises(ImportError, match=rf"against TensorFlow 2\.3\.4.*{tf.__version__} is imported.*pip install"):
        library._find()


def test_a_library_that_is_gone_is_named(monkeypatch, tmp_path):
    pretend(monkeypatch, TENSORFLOW_VERSION=tf.__version__, __file__=str(tmp_path / "_build_info.py"))
    with pytest.raises(ImportError, match=rf"{tmp_path}/liblockstep\.so is missing.*pip install"):
        library._find()


def test_a_package_that_was_never_built_says_so(monkeypatch):
    def fail(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(library.importlib, "import_module", fail)
    with pytest.raises(ImportError, match=r"not built in this environment.*pip install"):
        library._find()


def test_a_broken_library_is_one_error(tmp_path):
    (tmp_path / "liblockstep.so").write_bytes(b"no library")
    with pytest.raises(ImportError, match=r"cannot be loaded into TensorFlow.*Build it again"):
        library._load(tmp_path / "liblockstep.so")


def life_of_an_engine():
    alone = library.ConnectionOptions(0, 1, "", "", "auto", "", "", 5.0, 5.0, 5.0, 5.0, None, 1 << 20)
    assert not library.is_initialized() and library.rank() is library.size() is library.num_hosts() is None
    with pytest.raises(tf.errors.FailedPreconditionError):
        library.ops.lockstep_barrier()
    with pytest.raises(tf.errors.InvalidArgumentError, match="backend"):
        library.init(dataclasses.replace(alone, backend="pigeons"))
    library.init(alone)
    assert library.is_initialized() and library.rank() == 0 and library.size() == 1
    with pytest.raises(tf.errors.FailedPreconditionError):
        library.init(alone)
    library.abort("enough is enough")
    with pytest.raises(tf.errors.CancelledError, match="enough is enough"):
        library.ops.lockstep_barrier()
    library.shutdown()
    library.shutdown()
    assert not library.is_initialized()


def test_an_engine_begins_fails_and_ends_with_errors_of_their_own():
    call_workers(life_of_an_engine, 1)
