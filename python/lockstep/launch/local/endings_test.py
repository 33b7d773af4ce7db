# Promise of this file (checkpoints.md): the launcher recommends complete files only.
# Promise of this file (launching.md): the last lines name the last complete checkpoint.

import os
from types import SimpleNamespace

import pytest

from lockstep.launch.base.notes import Saved
from lockstep.launch.local.endings import with_checkpoint

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


def _worker(*saved, because=""):
    notes = SimpleNamespace(saved=saved, because=because)
    return SimpleNamespace(
        notes=notes,
        may_exist=lambda file: file is None or os.path.exists(file),
        may_load=lambda file: file is None or os.path.isfile(file),
    )


def _saved(name, file=None, at="", resumes=True, data=True):
    return Saved(name, file, at, resumes, data)


_SESSION = _saved("run/model.ckpt-5", at="step 5")
_WITHOUT_POSITION = _saved("run/model.ckpt-5", at="step 5", data=False)
_FILE = _saved("best.keras", resumes=False, data=False)
_GONE = _saved("run/backup", "/nowhere/backup")
_BROKEN = _saved("run/model.keras", os.path.dirname(os.path.abspath(__file__)))
_HERE = _saved("run/backup", os.path.abspath(__file__), "2 epochs")


@pytest.mark.parametrize(
    ("workers", "text"),
    [
        ([_worker()], ""),
        ([_worker(because="itself")], "; no checkpoint was saved"),
        (
            [_worker(), _worker(_SESSION)],
            "; the last checkpoint is run/model.ckpt-5 (step 5): the same command continues from there",
        ),
        (
            [_worker(_WITHOUT_POSITION)],
            "; the last checkpoint is run/model.ckpt-5 (step 5): the same command restores it and "
            "reads data from its first batch",
        ),
        ([_worker(_FILE)], "; the last saved file is best.keras: a program that loads it continues from there"),
        (
            [_worker(_HERE, _FILE)],
            "; the last checkpoint is run/backup (2 epochs): the same command continues from there",
        ),
        (
            [_worker(_FILE, _GONE)],
            "; the last saved file is best.keras: a program that loads it continues from there",
        ),
        (
            [_worker(_HERE, _BROKEN)],
            "; run/model.keras is incomplete and cannot be loaded; the last checkpoint is run/backup (2 epochs): "
            "the same command continues from there",
        ),
        ([_worker(_BROKEN)], "; run/model.keras is incomplete and cannot be loaded; no other checkpoint is left"),
        ([_worker(_GONE)], "; no checkpoint is left: the program deleted all that it saved"),
    ],
)
def test_the_last_line_names_a_checkpoint_that_exists_and_how_training_goes_on(workers, text):
    assert with_checkpoint("the job has failed", workers) == "the job has failed" + text
