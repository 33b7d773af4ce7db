"""Tests of loading the op library, and of its plain functions."""

import dataclasses
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from lockstep import _build_info
from lockstep._src.engine import libraries, library
from lockstep.testing import call_workers


def test_the_library_was_built_with_the_flags_of_this_tensorflow():
    wanted = [flag for flag in tf.sysconfig.get_compile_flags() if not flag.startswith(("-I", "--std", "-std"))]
    assert wanted == _build_info.TENSORFLOW_FLAGS


# Promise (security.md): cryptography is libcrypto's, inside of the op library; its names meet none of TensorFlow's.
@pytest.mark.parametrize("kind", ["--undefined-only", "--defined-only"])
def test_no_function_of_libcrypto_is_taken_from_another_library_or_shown(kind):
    path = libraries.op_library(tf.__version__, Path(tf.__file__).parent)
    nm = subprocess.run(["nm", "-D", kind, str(path)], capture_output=True, text=True, check=True)
    names = [line.split()[-1] for line in nm.stdout.splitlines()]
    assert names
    assert [
        name for name in names if re.match(r"(EVP|HMAC|SHA\d*|CRYPTO|OPENSSL|OSSL|ERR|BIO|SSL)_|HMAC(@|$)", name)
    ] == []


def test_a_broken_library_is_one_error(tmp_path):
    (tmp_path / "liblockstep.so").write_bytes(b"no library")
    with pytest.raises(ImportError, match=r"cannot be loaded into TensorFlow.*Install lockstep-tf again"):
        library._load(tmp_path / "liblockstep.so")


_WITHOUT_PYARROW = """
import sys
from importlib import machinery

found = machinery.PathFinder.find_spec
machinery.PathFinder.find_spec = lambda name, *rest: None if name == "pyarrow" else found(name, *rest)
import tensorflow as tf
import lockstep as ls

loaded = [line.split()[-1].rsplit("/", 1)[-1] for line in open("/proc/self/maps") if ".so" in line]
print("arrow" if any("arrow" in name for name in loaded) else "no arrow")
batches = tf.data.Dataset.range(10).batch(3).apply(ls.data.rebatch(5))
print([batch.numpy().tolist() for batch in batches])
try:
    ls.data.ParquetDataset(sys.argv[1], 2)
except tf.errors.FailedPreconditionError as error:
    print(error.message)
"""


def test_without_pyarrow_all_but_parquet_works_and_parquet_says_what_to_install():
    command = [sys.executable, "-c", _WITHOUT_PYARROW, __file__]  # any file
    said = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert said.returncode == 0, said.stderr[-2000:]
    no_arrow, batches, error = said.stdout.splitlines()
    assert no_arrow == "no arrow"
    assert batches == "[[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]"
    assert "needs pyarrow, but none is installed" in error
    assert "pip install" in error


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


@pytest.mark.workers
def test_an_engine_begins_fails_and_ends_with_errors_of_their_own():
    call_workers(life_of_an_engine, 1)


def rank_0_at_a_busy_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        first = library.ConnectionOptions(
            0, 2, f"127.0.0.1:{port}", "secret", "auto", "", "", 5.0, 5.0, 5.0, 5.0, None, 1 << 20
        )
        with pytest.raises(tf.errors.OpError) as caught:
            library.init(first)
    for part in (rf"127.0.0.1:{port}", "Address already in use", rf"\(pid {os.getpid()}\)", f"doctor --port {port}"):
        assert re.search(part, caught.value.message), caught.value.message


@pytest.mark.workers
def test_a_busy_port_is_an_error_that_names_its_process():
    call_workers(rank_0_at_a_busy_port, 1)
