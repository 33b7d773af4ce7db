"""Elastic jobs that train: processes are killed in the middle, and what was committed is kept.

All jobs run in one program, which is this file: it imports TensorFlow once, and workers are its forks.
"""

# Promise of this file (horovod_elastic.md): committed state survives a rank that dies in any collective, save, restore,
# sync or reset.

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from lockstep.launch.base.output import Console
from lockstep.launch.elastic.driver import Limits
from lockstep.launch.elastic.elastic_job import ElasticJob, ElasticPlan
from lockstep.launch.local.process import call_starter

# For all jobs together.
DEADLINE_S = 540
X = np.arange(12, dtype=np.float32).reshape(6, 2)
COLLECTIVES = {
    "allreduce": lambda: hvd.allreduce(X, name="x"),
    "grouped_allreduce": lambda: hvd.grouped_allreduce([X, X + 1]),
    "allgather": lambda: hvd.allgather(X, name="x"),
    "grouped_allgather": lambda: hvd.grouped_allgather([X, X + 1]),
    "broadcast": lambda: hvd.broadcast(X, 0, name="x"),
    "alltoall": lambda: hvd.alltoall(X, name="x"),
    "reducescatter": lambda: hvd.reducescatter(X, name="x"),
    "grouped_reducescatter": lambda: hvd.grouped_reducescatter([X, X + 1]),
    "barrier": hvd.barrier,
    "broadcast_object": lambda: hvd.broadcast_object({"x": 1}),
}
# The operation in which a rank dies, and its rank: two follow each other.
DEATHS = [
    ("saved.1", "restored.0"),
    ("trains.2", "restored.1"),
    *(("trains.2", f"{what}.{rank}") for what in ("variables sent", "adapts") for rank in (0, 1)),
    ("saved.0",),
]


def run_job(train, console, *, size=3, spares=0, script=None) -> int:
    """Runs a function on workers; those that die are replaced as long as there are spare hosts. The exit code."""
    hosts = {f"127.0.0.{1 + i}": 1 for i in range(size + spares)}
    plan = ElasticPlan(Limits(size, 1, size, timeout_s=DEADLINE_S), hosts=hosts, script=script)
    return ElasticJob(call_starter(train), plan, dict(os.environ), console).run()


def once(name: str) -> bool:
    """Returns True for the one process of the job that asks first."""
    try:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def die():
    time.sleep(0.05)  # The others wait for it then.
    os.kill(os.getpid(), signal.SIGKILL)


def committed(step: int) -> int:
    """Records that `step` is committed, unless it is 0, and returns the highest step that any rank has recorded."""
    if step:
        Path(f"committed.{step}").touch()
    return max([int(path.suffix[1:]) for path in Path().glob("committed.*")], default=0)


# Programs of workers.


def lose_a_rank_in_each_collective():
    """Loses another rank each time; the new one gets the state that was committed before."""
    hvd.init()
    weights = tf.Variable(np.full([3], hvd.rank(), np.float32))
    state = hvd.elastic.TensorFlowState([weights], step=0, history=[])
    calls, resets = [], []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])

    @hvd.elastic.run
    def train(state):
        calls.append(hvd.rank())
        assert committed(0) <= state.step == len(state.history)
        np.testing.assert_array_equal(weights, np.full([3], state.step if state.step else 0, np.float32))
        while state.step < len(COLLECTIVES):
            while hvd.size() < 3:
                state.check_host_updates()
                time.sleep(0.01)
            kind = list(COLLECTIVES)[state.step]
            # Changes without a commit are undone.
            weights.assign_add([9, 9, 9])
            state.history.append("not committed")
            if hvd.rank() == state.step % 3 and once(f"lost.{kind}"):
                die()
            COLLECTIVES[kind]()
            state.history[-1] = kind
            state.step += 1
            weights.assign(np.full([3], state.step, np.float32))
            state.commit()
            committed(state.step)
        return state.step

    assert train(state) == len(COLLECTIVES) and state.history == list(COLLECTIVES)
    assert len(calls) == 1 + len(resets)
    print("done")


def lose_ranks_while_the_state_moves():
    """Loses ranks when the state was saved, restored or sent in part, or while the program adapts to it."""
    hvd.init()

    def moment(name):
        for i, deaths in enumerate(DEATHS):
            for death in deaths:
                # Once all three have the state the first of two dies, and the second before they have it again.
                if not Path(f"{i}.{death}").exists():
                    if death == f"{name}.{hvd.rank()}" and (death != deaths[0] or hvd.size() == 3):
                        Path(f"{i}.{death}").touch()
                        die()
                    return

    class State(hvd.elastic.TensorFlowState):
        def save(self):
            super().save()
            moment("saved")

        def restore(self):
            super().restore()
            moment("restored")

    def send(objects):
        moment("variables sent")
        return hvd.broadcast_object(objects)

    weights = tf.Variable(np.full([3], hvd.rank(), np.float32))
    state = State([weights], step=0)
    state._bcast_object = send
    state.register_reset_callbacks([lambda: moment("adapts")])

    @hvd.elastic.run
    def train(state):
        assert committed(0) <= state.step
        while state.step < 3 + len(DEATHS):
            while hvd.size() < 3:
                state.check_host_updates()
                time.sleep(0.01)
            everyone = hvd.allgather(weights[None]).numpy()
            np.testing.assert_array_equal(everyone, np.full([3, 3], state.step if state.step else everyone[0, 0]))
            moment("trains")
            state.step += 1
            weights.assign(np.full([3], state.step, np.float32))
            state.commit()
            committed(state.step)

    train(state)
    np.testing.assert_array_equal(weights, np.full([3], 3 + len(DEATHS)))
    print("done")


def fit():
    """Loses rank 0 in the second epoch, before a commit: earlier batches are not repeated. Another process comes."""
    import horovod.tensorflow.keras as hvd_keras

    hvd.init()
    tf.keras.utils.set_random_seed(hvd.rank())
    model = tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.01))
    model.compile(optimizer, "mse", run_eagerly=False)
    elastic = hvd_keras.elastic
    state = elastic.KerasState(model, batch=0, epoch=0, seen=[])
    data = tf.data.Dataset.from_tensors((np.ones([4, 2], np.float32), np.ones([4, 1], np.float32))).repeat()

    class Watch(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            state.seen.append((state.epoch, state.batch))
            while hvd.size() < 3:
                state.check_host_updates()
                time.sleep(0.01)
            if hvd.rank() == 0 and state.epoch == 1 and state.batch == 2 and once("lost"):
                die()

    callbacks = [
        elastic.UpdateBatchStateCallback(state),
        elastic.UpdateEpochStateCallback(state),
        Watch(),
        elastic.CommitStateCallback(state, batches_per_commit=1),
    ]

    @elastic.run
    def train(state):
        model.fit(data, steps_per_epoch=4, epochs=3 - state.epoch, callbacks=callbacks, verbose=0, shuffle=False)

    train(state)
    assert (state.epoch, state.batch) == (3, 0)
    assert int(model.optimizer.iterations) == 12
    assert state.seen == [(epoch, batch) for epoch in range(3) for batch in range(1, 5)], state.seen
    weights = hvd.allgather(tf.reshape(model.get_weights()[0], [1, 2])).numpy()
    np.testing.assert_array_equal(weights, weights[:1].repeat(3, axis=0))
    print("done")


def train_in_a_graph():
    """Trains as a program of TensorFlow 1 does."""
    tf.compat.v1.disable_eager_execution()
    hvd.init()
    step = tf.compat.v1.get_variable("step", initializer=tf.constant(hvd.rank()))
    total = hvd.allreduce(tf.ones([2]), op=hvd.Sum, name="total")
    forward = tf.compat.v1.assign_add(step, 1)
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        state = hvd.elastic.TensorFlowState(session=session, batch=hvd.rank())

        @hvd.elastic.run
        def train(state):
            assert session.run(step) == state.batch
            while state.batch < 6:
                session.run(forward)
                if state.batch == 3 and hvd.rank() == 0 and once("lost"):
                    die()
                assert session.run(total).tolist() == [hvd.size()] * 2
                state.batch += 1
                if state.batch % 2 == 0:
                    state.commit()
            return session.run(step)

        assert train(state) == 6
        # Restoring takes nothing but what is there.
        state.batch = 9
        session.run(forward)
        state.restore()
        assert (state.batch, session.run(step)) == (6, 6)
    print("done")


def fail_by_itself():
    """Raises the program's own error, which does not restart training."""
    hvd.init()
    state = hvd.elastic.ObjectState(step=0)

    @hvd.elastic.run
    def train(state):
        hvd.allreduce(tf.ones([1]))
        raise ValueError("of the program")

    train(state)


JOBS = {
    "collectives": lambda console: run_job(lose_a_rank_in_each_collective, console, spares=len(COLLECTIVES)),
    "moments": lambda console: run_job(lose_ranks_while_the_state_moves, console, spares=sum(map(len, DEATHS))),
    "fit": lambda console: run_job(fit, console, script="sh hosts.sh"),
    "graph": lambda console: run_job(train_in_a_graph, console, size=2),
    "failure": lambda console: run_job(fail_by_itself, console, size=2),
}


def main() -> None:
    """Runs all jobs, each in a folder of its own."""
    for name, job in JOBS.items():
        os.makedirs(name)
        os.chdir(name)
        # For `fit`; the fourth host exists after a rank was lost.
        Path("hosts.sh").write_text("printf '127.0.0.%s:1\\n' 1 2 3\ntest ! -e lost || echo 127.0.0.4:1\n")
        with open("stdout", "w") as stdout, open("stderr", "w") as stderr:
            code = job(Console(stdout.fileno(), stderr.fileno()))
        Path("code").write_text(str(code))
        os.chdir("..")


# The tests.

# Not the file itself, whose folder would be where `import keras` looks first.
PROGRAM = f"import runpy; runpy.run_path({__file__!r}, run_name='__main__')"


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Returns a function for a job's exit code, and the lines of its stdout and stderr, sorted and as one text."""
    folder = tmp_path_factory.mktemp("jobs")
    hidden = ("LOCKSTEP_R", "LOCKSTEP_W", "LOCKSTEP_L", "HOROVOD_", "TF_CONFIG")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    command = [sys.executable, "-c", PROGRAM]
    subprocess.run(
        command, cwd=folder, env={**environment, "TF_CPP_MIN_LOG_LEVEL": "2"}, check=True, timeout=DEADLINE_S
    )

    def outcome(name: str) -> tuple[int, list[str], str]:
        code, stdout, stderr = ((folder / name / part).read_text() for part in ("code", "stdout", "stderr"))
        return int(code), sorted(stdout.splitlines()), stderr

    return outcome


@pytest.mark.timeout(DEADLINE_S + 30)
def test_a_rank_that_dies_in_any_collective_is_survived(jobs):
    code, stdout, stderr = jobs("collectives")
    assert (code, stdout) == (0, ["[0] done", "[1] done", "[2] done"]), stderr
    assert stderr.count("was killed by SIGKILL; no new workers on 127.0.0.") == len(COLLECTIVES)


def test_ranks_that_die_while_the_state_moves_are_survived(jobs):
    code, stdout, stderr = jobs("moments")
    assert (code, stdout) == (0, ["[0] done", "[1] done", "[2] done"]), stderr
    assert stderr.count("was killed by SIGKILL; no new workers on 127.0.0.") == sum(map(len, DEATHS))


def test_fit_goes_on_with_the_batch_behind_the_last_commit(jobs):
    code, stdout, stderr = jobs("fit")
    assert (code, stdout) == (0, ["[0] done", "[1] done", "[2] done"]), stderr


def test_a_session_goes_on_with_what_was_committed(jobs):
    code, stdout, stderr = jobs("graph")
    assert (code, stdout) == (0, ["[0] done"]), stderr


def test_an_error_of_the_program_ends_it(jobs):
    code, stdout, stderr = jobs("failure")
    assert (code, stdout) == (1, []), stderr
    assert "ValueError: of the program" in stderr


@pytest.mark.parametrize("optimizer", [None, "adam"])
def test_a_models_state_is_saved_and_restored(optimizer):
    """Also what an optimizer would make at its first step."""
    model = tf.keras.Sequential([tf.keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="Model must be built first"):
        hvd.elastic.TensorFlowKerasState(model)
    model.build((None, 3))
    if optimizer is not None:
        optimizer = tf.keras.optimizers.Adam(0.1)
    state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=1)
    before = model.get_weights()
    model.set_weights([w + 1 for w in model.get_weights()])
    state.batch = 2
    if optimizer is not None:
        variables = model.trainable_variables
        optimizer.apply_gradients(zip([tf.ones_like(v) for v in variables], variables, strict=True))
        assert int(optimizer.iterations) == 1
    state.restore()
    assert state.batch == 1
    for weight, wanted in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(tf.convert_to_tensor(weight), wanted)
    if optimizer is not None:
        found = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
        slots = [tf.convert_to_tensor(v).numpy() for v in found if v.shape.rank]
        assert int(optimizer.iterations) == 0 and slots and not any(slot.any() for slot in slots)


def test_what_has_no_variables_is_an_error():
    with pytest.raises(ValueError, match="got no variables"):
        hvd.elastic.TensorFlowState()


if __name__ == "__main__":
    main()
