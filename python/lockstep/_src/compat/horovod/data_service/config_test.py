# Promise of this file (security.md): the secret is on no command line, and in files only for their owner.

import dataclasses
import json
import logging
import stat
import time

import pytest

from lockstep._src.compat.horovod.data_service import config
from lockstep._src.compat.horovod.data_service.config import TfDataServiceConfig
from lockstep._src.compat.horovod.data_service.errors import ComputeJobError, UnreachableError, WrongKeyError
from lockstep._src.compat.horovod.data_service.service import ComputeService

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


_ADDRESSES = {"eth0": [("127.0.0.1", 1)]}
_DEAD = TfDataServiceConfig(2, 4, "training", _ADDRESSES, b"k" * 32, timeout=1)


@pytest.fixture(name="file")
def _file(tmp_path):
    return tmp_path / "compute.json"


@pytest.fixture(name="alive")
def _alive():
    key = b"a" * 32
    service = ComputeService(1, 1, key)
    yield TfDataServiceConfig(1, 1, "compute", service.addresses(), key)
    service.shutdown()


def test_a_written_config_is_read_back(file):
    _DEAD.write(str(file))
    assert TfDataServiceConfig.read(str(file)) == _DEAD
    assert TfDataServiceConfig.from_dict(_DEAD.to_dict()) == _DEAD
    assert json.loads(file.read_text()) == {
        "dispatchers": 2,
        "workers_per_dispatcher": 4,
        "dispatcher_side": "training",
        "addresses": {"eth0": [["127.0.0.1", 1]]},
        "key": b"k".hex() * 32,
        "timeout": 1,
    }


def test_only_the_user_may_read_the_key(file):
    _DEAD.write(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(file.parent.iterdir()) == [file]
    assert "kkk" not in repr(_DEAD) and b"k".hex() * 4 not in repr(_DEAD)


def test_a_file_that_cannot_be_written_leaves_nothing(file):
    (file / "in the way").mkdir(parents=True)
    with pytest.raises(OSError):
        _DEAD.write(file)
    assert list(file.parent.iterdir()) == [file]


def test_without_waiting_the_file_has_to_be_there(file):
    with pytest.raises(FileNotFoundError):
        TfDataServiceConfig.read(file)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"key": None}, "has no 'key'"),
        ({"addresses": {"lo": [1]}}, "malformed"),
        ({"dispatchers": "many"}, "malformed.*many"),
        ({"dispatchers": 0}, "dispatchers is 0, wanted more than 0"),
        ({"timeout": "soon"}, "timeout is 'soon', wanted seconds"),
        ({"dispatcher_side": "foo"}, "dispatcher_side is 'foo', wanted compute or training"),
    ],
)
def test_a_file_that_is_not_a_config_is_refused_by_name(file, change, said):
    values = {name: value for name, value in {**_DEAD.to_dict(), **change}.items() if value is not None}
    file.write_text(json.dumps(values))
    with pytest.raises(ValueError, match=f"{file}: .*{said}"):
        TfDataServiceConfig.read(file)


def test_it_waits_for_the_file(file, start):
    reading = start(lambda: TfDataServiceConfig.read(file, wait_for_file_creation=True))
    time.sleep(0.2)
    assert not reading.has_ended
    _DEAD.write(file)
    assert reading.end() == _DEAD


def test_waiting_jobs_get_the_error_of_a_job_that_fails_meanwhile(file, start):
    reading = start(lambda: TfDataServiceConfig.read(file, wait_for_file_creation=True))
    time.sleep(0.2)
    config.leave_failure_note(file, "3 processes, 2 dispatchers")
    error = reading.end()
    assert isinstance(error, ComputeJobError)
    assert str(error) == "the compute job has failed: 3 processes, 2 dispatchers"
    with pytest.raises(ComputeJobError, match="2 dispatchers"):
        TfDataServiceConfig.read(file)


def test_a_file_of_a_job_that_runs_is_taken_at_once(file, alive):
    alive.write(file)
    assert TfDataServiceConfig.read(file, wait_for_file_creation=True) == alive
    assert config.running(file) == alive


def test_a_file_of_a_dead_job_is_reported_and_another_is_awaited(file, alive, start, caplog):
    dataclasses.replace(_DEAD, timeout=100).write(file)
    with caplog.at_level(logging.WARNING, "lockstep"):
        reading = start(lambda: TfDataServiceConfig.read(file, wait_for_file_creation=True))
        while not caplog.records:
            assert not reading.has_ended
            time.sleep(0.01)
        file.unlink()
        time.sleep(0.3)
        alive.write(file)
        assert reading.end() == alive
    assert "may be left over from a compute job that has ended" in caplog.text and "127.0.0.1:1" in caplog.text


def test_a_file_of_a_dead_job_is_an_error_when_no_other_comes(file):
    _DEAD.write(file)
    with pytest.raises(UnreachableError, match=f"{file}: no compute service answered: 127.0.0.1:1.*within 1 s"):
        TfDataServiceConfig.read(file, wait_for_file_creation=True)


def test_another_job_at_the_old_address_is_not_used(file, alive):
    TfDataServiceConfig(1, 1, "compute", alive.addresses, b"o" * 32, timeout=1).write(file)
    assert config.running(file) is None
    with pytest.raises(WrongKeyError):
        TfDataServiceConfig.read(file, wait_for_file_creation=True)


def test_only_the_jobs_own_file_is_removed(file, alive):
    alive.write(file)
    config.remove(file, _DEAD)
    assert file.exists()
    config.remove(file, alive)
    config.remove(file, alive)
    assert not file.exists()
