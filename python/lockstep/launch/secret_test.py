import os
import re
import subprocess
import sys

import pytest

from lockstep.launch.errors import LaunchError
from lockstep.launch.secret import shared_secret

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

DEADLINE_S = 30
AT = "127.0.0.1:8860"


def test_a_secret_that_is_given_is_the_secret(tmp_path):
    assert shared_secret({"LOCKSTEP_SECRET": "mine", "XDG_STATE_HOME": str(tmp_path)}, AT) == "mine"
    assert not list(tmp_path.iterdir())


def test_one_is_derived_from_a_key_that_only_the_user_reads(tmp_path):
    variables = {"XDG_STATE_HOME": str(tmp_path / "state"), "LOCKSTEP_SECRET": ""}
    secret = shared_secret(variables, AT)
    assert re.fullmatch("[0-9a-f]{64}", secret)
    assert shared_secret(variables, AT) == secret
    assert shared_secret(variables, "127.0.0.1:8861") != secret
    key = tmp_path / "state" / "lockstep" / "key"
    assert os.listdir(key.parent) == ["key"]
    assert (key.stat().st_mode & 0o777, key.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert key.read_bytes().hex() != secret
    assert shared_secret({"XDG_STATE_HOME": str(tmp_path / "other")}, AT) != secret


def test_launchers_that_start_together_agree(tmp_path):
    code = f"import os; from lockstep.launch.secret import shared_secret as s; print(s(os.environ, {AT!r}))"
    environment = {name: value for name, value in os.environ.items() if name != "LOCKSTEP_SECRET"}
    environment["XDG_STATE_HOME"] = str(tmp_path)
    started = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE) for _ in range(6)
    ]
    assert len({process.communicate(timeout=DEADLINE_S)[0] for process in started}) == 1


def test_a_key_that_others_could_read_or_that_is_cut_is_refused(tmp_path):
    variables = {"XDG_STATE_HOME": str(tmp_path)}
    shared_secret(variables, AT)
    key = tmp_path / "lockstep" / "key"
    key.chmod(0o640)
    with pytest.raises(LaunchError, match=r"mode 640\); set LOCKSTEP_SECRET to the same random text for all tasks"):
        shared_secret(variables, AT)
    key.chmod(0o600)
    key.write_bytes(b"")
    with pytest.raises(LaunchError, match=r"0 bytes, wanted 32"):
        shared_secret(variables, AT)


def test_where_no_key_can_be_made_the_variable_is_asked_for(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match=r"LOCKSTEP_SECRET is not set, nor can it be derived.*Not a directory"):
        shared_secret({"XDG_STATE_HOME": str(tmp_path / "file")}, AT)
