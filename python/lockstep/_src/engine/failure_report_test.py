"""Tests of the output of a job whose ranks train together, when one of them fails or the user interrupts it."""

# Promise of this file (launching.md): a worker's reports reach the launcher after a failure and Ctrl-C.

import importlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tensorflow as tf

from lockstep._src.engine import failure_report
from lockstep.launch.base import notes
from lockstep.testing.launching import finish, launchers, wait_for

launch = pytest.fixture(launchers)

_DEADLINE_S = 240
_QUIET = {"CUDA_VISIBLE_DEVICES": ""}  # TensorFlow's lines are hidden, unless TF_CPP_MIN_LOG_LEVEL is set
# Trains and saves each step. On request, rank 0 fails by itself; its process then ends after rank 1's process.
_WORKER = """
import atexit, sys
import tensorflow as tf
import lockstep
from lockstep.testing.launching import runs
tf1 = tf.compat.v1
tf.get_logger().setLevel("ERROR")
rank, fails = int(os.environ["LOCKSTEP_RANK"]), os.environ["FAILS"] == "1"
open(f"pid{rank}", "w").write(str(os.getpid()))

def wait_for_rank_1():
    while runs(int(open("pid1").read())): time.sleep(.01)

if rank == 0 and fails:
    atexit.register(wait_for_rank_1)  # called after the engine's, which leaves the job
with tf.Graph().as_default(), lockstep.scope():
    step = tf1.train.get_or_create_global_step()
    weight = tf1.get_variable("weight", [10])
    train = tf1.train.GradientDescentOptimizer(.01).minimize(tf.reduce_sum(weight ** 2), global_step=step)
    with tf1.train.MonitoredTrainingSession(checkpoint_dir="saved", save_checkpoint_steps=1) as session:
        while True:
            reached = session.run([step, train])[0]
            if reached >= 3 and not os.path.exists(f"trains{rank}"):
                print("trains", file=sys.stderr)
                open(f"trains{rank}", "w").close()
            if reached >= 6 and rank == 0 and fails:
                raise ValueError("the batch of step 6 is empty")
"""


def _said_by(stderr: list[str], rank: int) -> list[str]:
    """Returns the lines of a rank after the one in which it says that it trains."""
    lines = [line for line in stderr if line.startswith(f"[{rank}] ")]
    return lines[lines.index(f"[{rank}] trains") + 1 :]


def _interrupted(process: subprocess.Popen, folder: Path, times: int = 1) -> tuple[int, list[str], str]:
    """Interrupts a job whose two ranks train. Returns its exit code, and its stderr as lines and as one text."""
    wait_for(lambda: len([*folder.glob("trains*")]) == 2 or process.poll() is not None, "training", _DEADLINE_S)
    for _ in range(times):
        process.send_signal(signal.SIGINT)
    code, _, stderr = finish(process, _DEADLINE_S)
    return code, stderr, "\n".join(stderr)


def test_a_failure_shows_its_own_error_and_one_line_of_the_other_rank(launch, tmp_path):
    process = launch("-n", "2", worker=_WORKER, variables={"FAILS": "1", **_QUIET})
    code, _, stderr = finish(process, _DEADLINE_S)
    said = "\n".join(stderr)
    assert code == 1, said
    assert _said_by(stderr, 0)[-1] == "[0] ValueError: the batch of step 6 is empty", said
    assert len(_said_by(stderr, 1)) == 1 and "rank 0" in _said_by(stderr, 1)[0], said
    assert [line for line in stderr if line.startswith("[lockstep] rank 0 (pid ")], said
    assert not [line for line in stderr if line.startswith("[lockstep] rank 1")], said
    saved = (tmp_path / "saved" / "checkpoint").read_text().split('"')[1]
    assert stderr[-1].startswith(f"[lockstep] the job has failed; the last checkpoint is saved/{saved} (step "), said


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_is_a_line_for_each_rank_and_names_the_last_checkpoint(launch, tmp_path, times):
    process = launch("-n", "2", worker=_WORKER, variables={"FAILS": "0", **_QUIET})
    code, stderr, said = _interrupted(process, tmp_path, times)
    assert code == 128 + signal.SIGINT, said
    assert "Traceback" not in said
    for rank in (0, 1):
        assert len(_said_by(stderr, rank)) <= 1, said
    assert stderr[-1].startswith("[lockstep] ended by SIGINT; the last checkpoint is saved/model.ckpt-"), said


_FIT = """
import sys
import time
import keras, numpy as np
import lockstep
class Tells(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 20:
            open(f"trains{os.environ['LOCKSTEP_RANK']}", "w").close()
with lockstep.scope():
    model = keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x = np.random.rand(2**12, 32).astype("f")
    print("trains", file=sys.stderr)
    model.fit(x, x.sum(1), batch_size=64, epochs=10**6, verbose=0, callbacks=[Tells()])
"""


@pytest.mark.newest_only
def test_an_interrupt_of_fit_is_a_line_for_each_rank(launch, tmp_path):
    variables = _QUIET | {"PYTHONFAULTHANDLER": "1"}  # a crash says where
    process = launch("-n", "2", worker=_FIT, variables=variables)
    code, stderr, said = _interrupted(process, tmp_path)
    assert code == 128 + signal.SIGINT, said
    for rank in (0, 1):
        assert len(_said_by(stderr, rank)) <= 1, said
    assert stderr[-1].startswith("[lockstep] ended by SIGINT"), said


# A step ends in a destructor, in which the first interrupt of each rank comes.
_DESTRUCTORS = """
import tensorflow as tf
import lockstep
rank = int(os.environ["LOCKSTEP_RANK"])
class Step:
    def __del__(self):
        open(f"trains{rank}", "w").close()
        time.sleep(600)  # until the interrupt
with lockstep.scope():
    lockstep.allreduce(tf.ones([2]), name="x")
    step = Step()
    del step
    open(f"continues{rank}", "w").close()
    time.sleep(600)
"""


def test_an_interrupt_in_a_destructor_is_not_lost(launch, tmp_path):
    process = launch("-n", "2", worker=_DESTRUCTORS, variables=_QUIET)
    code, stderr, said = _interrupted(process, tmp_path)
    assert code == 128 + signal.SIGINT, said
    assert {path.name for path in tmp_path.glob("continues*")} == {"continues0", "continues1"}, said
    assert "Exception ignored" not in said and "Traceback" not in said, said
    assert stderr[-1].startswith("[lockstep] ended by SIGINT"), said


@pytest.mark.parametrize("module", failure_report._MODULES_OF_ERRORS)
def test_an_interrupt_while_tensorflow_creates_an_error_comes_after_it(monkeypatch, module):
    monkeypatch.setattr(failure_report, "_was_interrupted", False)
    importlib.import_module(module)  # the name is one of TensorFlow's
    created = []
    names = {"__name__": module, "created": created, "raise_signal": signal.raise_signal}
    exec("def create():\n    raise_signal(2)\n    created.append('error')", names)
    before = signal.signal(signal.SIGINT, failure_report._interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            names["create"]()
            time.sleep(_DEADLINE_S)
    finally:
        signal.signal(signal.SIGINT, before)
    assert created == ["error"]
    assert failure_report._was_interrupted


# Rank 1 ends without an error. Rank 2 still waits for it; rank 0 fails by itself when all know that.
_AFTER_A_FAREWELL = """
import tensorflow as tf
import horovod.tensorflow as hvd
from lockstep.testing.launching import wait_for
hvd.init()
hvd.allreduce(tf.ones([2]), name="x")
if hvd.rank() == 0:
    wait_for(lambda: os.path.exists("heard"), "rank 2's error", 120)
    raise ValueError("the export has failed")
if hvd.rank() == 2:
    try:
        hvd.allreduce(tf.ones([2]), name="y")
    finally:
        open("heard", "w").close()
"""


def test_an_error_of_its_own_is_shown_though_another_rank_has_left(launch):
    code, _, stderr = finish(launch("-n", "3", worker=_AFTER_A_FAREWELL, variables=_QUIET), _DEADLINE_S)
    said = "\n".join(stderr)
    assert code == 1
    assert "[0] ValueError: the export has failed" in stderr, said
    assert "[0] Traceback (most recent call last):" in stderr, said
    assert "[2] Traceback (most recent call last):" not in stderr, said
    assert [line for line in stderr if line.startswith("[2] rank 1 left the job: it finished its program")], said
    assert [line for line in stderr if line.startswith("[lockstep] rank 0 (pid ")], said


# Rank 0 fails to save after Ctrl-C.
_SAVES = """
import tensorflow as tf
import lockstep
rank = int(os.environ["LOCKSTEP_RANK"])
try:
    while True:
        lockstep.allreduce(tf.ones([2]), name="x")
        open(f"trains{rank}", "w").close()
except BaseException:
    if rank == 0:
        raise OSError(28, "No space left on device", "last.ckpt")
    raise
"""


def test_a_failure_to_save_after_an_interrupt_is_shown(launch, tmp_path):
    process = launch("-n", "2", worker=_SAVES, variables=_QUIET)
    code, stderr, said = _interrupted(process, tmp_path)
    assert code == 1, said
    assert "[0] OSError: [Errno 28] No space left on device: 'last.ckpt'" in stderr, said
    assert "[1] Traceback (most recent call last):" not in stderr, said


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        RuntimeError("MISMATCH: ORIGINAL InternalError REPLACED BY KeyboardInterrupt: <EMPTY MESSAGE>"),
    ],
    ids=["interrupt", "replaced"],
)
def test_an_interrupt_counts_for_one(error):
    assert failure_report._reason(error) == {"because": notes.INTERRUPT, "error": "interrupted"}


def test_an_error_after_an_interrupt_counts_for_itself():
    own = OSError(28, "No space left on device")
    own.__context__ = KeyboardInterrupt()  # the error was raised while the interrupt was handled
    assert failure_report._reason(own) == {"because": notes.ITSELF}


# Fails in one of three ways: on all ranks alike, on each rank in its own way, or before the program joins the job.
_FAILS = """
import os, sys
import tensorflow as tf
import lockstep
rank, how = os.environ["LOCKSTEP_RANK"], sys.argv[1]

def to_inputs(batch):
    return batch["user" if how == "others" and rank == "0" else "usr"]

if how == "early":
    {}["path"]
with lockstep.scope():
    data = tf.data.Dataset.from_tensor_slices({"user": [1, 2]})
    lockstep.barrier()
    data.map(to_inputs)
    raise ValueError("no column item")
"""


def _failed(launch, tmp_path, how: str) -> tuple[list[str], list[str]]:
    """Returns the terminal's lines of a job that fails, and the files with the stderr of both ranks."""
    (tmp_path / "train.py").write_text(_FAILS)
    variables = {"CUDA_VISIBLE_DEVICES": ""}
    process = launch("-n", "2", "--log-dir", "logs", sys.executable, "train.py", how, variables=variables)
    code, _, stderr = finish(process, _DEADLINE_S)
    assert code == 1, stderr
    return stderr, [(tmp_path / f"logs/rank.{rank}/stderr").read_text() for rank in (0, 1)]


@pytest.mark.parametrize(("how", "error"), [("alike", "KeyError: 'usr'"), ("early", "KeyError: 'path'")])
def test_an_error_of_all_ranks_is_one_traceback_and_a_line_for_each_other_rank(launch, tmp_path, how, error):
    stderr, files = _failed(launch, tmp_path, how)
    said = "\n".join(stderr)
    assert said.count("Traceback (most recent call last):") == 1, said
    (first,) = {line[1] for line in stderr if line.endswith("Traceback (most recent call last):")}
    other = "1" if first == "0" else "0"
    assert [line for line in stderr if line.startswith(f"[{other}] ")] == [f"[{other}] the same error as rank {first}"]
    assert said.count(error) == 1, said
    # Nothing of TensorFlow's start, and no second traceback.
    assert len([line for line in stderr if line.startswith("[lockstep]")]) == 1, said
    for file in files:  # These have all of it.
        assert file.count("Traceback (most recent call last):") == 1 and error in file, file


def test_different_errors_of_ranks_are_all_shown(launch, tmp_path):
    stderr, files = _failed(launch, tmp_path, "others")
    said = "\n".join(stderr)
    # The slower rank may be ended while it reports its error.
    shown = ("[0] ValueError: no column item" in stderr) + ("[1]     KeyError: 'usr'" in stderr)
    assert said.count("Traceback (most recent call last):") == shown >= 1, said
    assert "the same error" not in said
    assert [("ValueError: no column item" in files[0]), ("KeyError: 'usr'" in files[1])].count(True) == shown


@pytest.mark.parametrize(
    ("error", "explains"),
    [(ImportError("libx.so"), True), (tf.errors.InternalError(None, None, "no GPU"), True), (KeyError("user"), False)],
    ids=["import", "device", "own"],
)
def test_start_up_lines_may_explain_errors_of_imports_and_devices(error, explains):
    assert failure_report._is_of_start_up(error) == explains
