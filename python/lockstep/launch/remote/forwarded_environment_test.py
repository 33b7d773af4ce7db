# Promise of this file (launching.md): hosts are reached over ssh, and workers there get the environment.

import pytest

from lockstep.launch.remote.forwarded_environment import combined_environment, forwarded_variables

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


def test_what_belongs_to_a_machine_or_a_login_stays():
    travels = {
        "PATH": "/p", "PYTHONPATH": "/q", "HB_X": "1", "DATA": "/d", "OMP_NUM_THREADS": "2", "LD_LIBRARY_PATH": "/l",
        "HOMEBREW": "1", "USERS": "2", "CUDA_VISIBLE_DEVICES": "0",
    }  # fmt: skip
    stays = {
        "HOME": "/h", "USER": "me", "SSH_AUTH_SOCK": "/s", "DISPLAY": ":0", "TMPDIR": "/t", "_": "x", "PWD": "/w",
        "SLURM_PROCID": "0", "SLURMD_NODENAME": "a", "XDG_STATE_HOME": "/x", "HOSTNAME": "a", "TERM": "xterm",
        "LOCKSTEP_HOST": "a",
    }  # fmt: skip
    assert forwarded_variables({**travels, **stays}) == travels


def test_a_hosts_own_variables_stay_but_for_what_the_job_says():
    own = {
        "HOME": "/its",
        "DATA": "/its",
        "LOCKSTEP_HOST": "b",
        "LOCKSTEP_RANK": "7",
        "HOROVOD_RANK": "7",
        "TF_CONFIG": "{}",
        "TMPDIR": "/t",
    }
    assert combined_environment({"DATA": "/d", "LOCKSTEP_X": "1"}, own, "/work") == {
        "HOME": "/its", "TMPDIR": "/t", "LOCKSTEP_HOST": "b", "DATA": "/d", "LOCKSTEP_X": "1", "PWD": "/work",
    }  # fmt: skip


def test_a_host_that_says_which_gpus_it_has_is_right():
    told = {"CUDA_VISIBLE_DEVICES": "0,1", "NVIDIA_VISIBLE_DEVICES": "all"}
    assert combined_environment(told, {}, "/")["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert combined_environment(told, {"CUDA_VISIBLE_DEVICES": "5"}, "/") == {"CUDA_VISIBLE_DEVICES": "5", "PWD": "/"}
