# Promise of this file (launching.md): several launchers agree on a secret.
# Promise of this file (security.md): the secret is on no command line, and in files only for their owner.

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.launch.base import secret
from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.secret import shared_secret

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

DEADLINE_S = 120
AT = "127.0.0.1:8860"


def test_a_secret_that_is_given_is_the_secret(tmp_path):
    assert shared_secret({"LOCKSTEP_SECRET": "mine", "XDG_STATE_HOME": str(tmp_path)}, AT) == "mine"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("end", ["", "\n"])
def test_what_manifests_have_in_its_place_is_no_secret(end):
    with pytest.raises(LaunchError, match="LOCKSTEP_SECRET is REPLACE-WITH-RANDOM-TEXT, the public value"):
        shared_secret({"LOCKSTEP_SECRET": "REPLACE-WITH-RANDOM-TEXT" + end}, AT)


def test_one_is_derived_from_a_key_that_only_the_user_reads(tmp_path):
    variables = {"XDG_STATE_HOME": str(tmp_path / "state"), "LOCKSTEP_SECRET": ""}
    derived = shared_secret(variables, AT)
    assert re.fullmatch("[0-9a-f]{64}", derived)
    assert shared_secret(variables, AT) == derived
    assert shared_secret(variables, "127.0.0.1:8861") != derived
    key = tmp_path / "state" / "lockstep" / "key"
    assert os.listdir(key.parent) == ["key"]
    assert (key.stat().st_mode & 0o777, key.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert key.read_bytes().hex() != derived
    assert shared_secret({"XDG_STATE_HOME": str(tmp_path / "other")}, AT) != derived


def test_launchers_that_start_together_agree(tmp_path):
    code = f"import os; from lockstep.launch.base.secret import shared_secret as s; print(s(os.environ, {AT!r}))"
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
    with pytest.raises(LaunchError, match=r"LOCKSTEP_SECRET is not set, and it cannot be derived.*Not a directory"):
        shared_secret({"XDG_STATE_HOME": str(tmp_path / "file")}, AT)


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.sshfs"])
def test_launchers_on_several_hosts_derive_one_from_a_home_that_they_have_in_common(tmp_path, monkeypatch, kind):
    variables = {"XDG_STATE_HOME": str(tmp_path)}
    monkeypatch.setattr(secret, "file_system", lambda path: kind)
    assert shared_secret(variables, AT, hosts=2) == shared_secret(variables, AT)


def test_launchers_on_several_hosts_derive_none_from_a_home_of_one_host(tmp_path, monkeypatch):
    variables = {"XDG_STATE_HOME": str(tmp_path)}
    monkeypatch.setattr(secret, "file_system", lambda path: "ext4")
    message = r"tasks on 2 hosts, LOCKSTEP_SECRET is not set, .*only this host sees .* \(ext4\), so other hosts have"
    with pytest.raises(LaunchError, match=message):
        shared_secret(variables, AT, hosts=2)
    assert shared_secret({**variables, "LOCKSTEP_SECRET": "given"}, AT, hosts=2) == "given"


def test_jobs_of_slurm_that_meet_at_one_address_have_secrets_of_their_own(tmp_path):
    variables = {"XDG_STATE_HOME": str(tmp_path)}
    assert (
        len({shared_secret(variables, AT, job=job) for job in ("", "Slurm job 1, step 0", "Slurm job 2, step 0")}) == 3
    )


def test_the_file_system_of_a_path_is_that_of_the_mount_that_is_seen_there(tmp_path, monkeypatch):
    assert secret.file_system(Path("/proc/self/mounts")) == "proc"
    assert secret.file_system(tmp_path / "not" / "there") == secret.file_system(tmp_path)
    mounts = (
        "/dev/a / ext4 rw 0 0\nserver:/h /home nfs4 rw 0 0\nx /home/a\\040b xfs rw 0 0\ny /home/a\\040b lustre rw 0 0\n"
    )
    monkeypatch.setattr(Path, "read_text", lambda path: mounts)
    found = [secret.file_system(Path(path)) for path in ("/homes/x", "/home/x", "/home/a b/x", "/home/a")]
    assert found == ["ext4", "nfs4", "lustre", "nfs4"]
