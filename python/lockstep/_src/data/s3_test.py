"""Files in an object store: a moto server on this machine. pyarrow writes the files."""

import socket
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from pyarrow import fs

from lockstep.data import ParquetDataset


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(name="options", scope="module")
def _options():
    """Starts a server with three files of ten rows; yields the part of a file's name after the '?'."""
    port = _free_port()
    with (
        pytest.MonkeyPatch.context() as patch,
        subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as server,
    ):
        for name, value in (("ACCESS_KEY_ID", "k"), ("SECRET_ACCESS_KEY", "s"), ("EC2_METADATA_DISABLED", "true")):
            patch.setenv(f"AWS_{name}", value)
        try:
            _wait_for(port, server)
            where = {"endpoint_override": f"127.0.0.1:{port}", "scheme": "http", "region": "us-east-1"}
            store = fs.S3FileSystem(
                access_key="k", secret_key="s", allow_bucket_creation=True, allow_delayed_open=True, **where
            )
            store.create_dir("bucket/day")
            for i in range(3):
                table = pa.table({"id": range(10 * i, 10 * i + 10)})
                pq.write_table(table, f"bucket/day/{i}.parquet", filesystem=store)
            store.open_output_stream("bucket/day/_SUCCESS").close()
            yield "?" + "&".join(f"{name}={value}" for name, value in where.items())
        finally:
            server.kill()


def _wait_for(port: int, server: subprocess.Popen) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert server.poll() is None, "moto's server has ended"
        time.sleep(0.1)
    raise TimeoutError(f"moto's server does not listen on port {port} after 60 s")


@pytest.mark.parametrize(
    "names", [["day"], ["day/*.parquet"], ["d*/[0-9].parquet"], [f"day/{i}.parquet" for i in range(3)]]
)
def test_folders_patterns_and_files(options, names):
    dataset = ParquetDataset([f"s3://bucket/{name}{options}" for name in names], 4)
    assert [i for batch in dataset for i in batch["id"].numpy().tolist()] == list(range(30))


def test_filters_and_shares(options):
    def read(worker):
        dataset = ParquetDataset(f"s3://bucket/day{options}", 4, ["id"], 2, worker, filters=[("id", ">=", 8)])
        return [i for batch in dataset for i in batch["id"].numpy().tolist()]

    assert read(0) + read(1) == list(range(8, 30))


@pytest.mark.parametrize(("name", "message"), [("day/9.parquet", "does not exist"), ("x*", "no file matches")])
def test_missing_files_are_named(options, name, message):
    with pytest.raises(tf.errors.NotFoundError, match=message):
        ParquetDataset(f"s3://bucket/{name}{options}")


def test_an_unknown_kind_of_storage_is_named():
    with pytest.raises(tf.errors.UnimplementedError, match="foo://a/b"):
        ParquetDataset("foo://a/b")
