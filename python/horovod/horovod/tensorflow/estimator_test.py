"""Programs of Horovod's for `tf.estimator`: TensorFlow's own where there is one (2.15), ours on later ones."""

import os
import subprocess
import sys

import pytest

DEADLINE_S = 300
PROGRAM = '''
import os
import sys

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

ROWS, BATCH, STEPS, RATE = 40, 16, 10, 0.05


def data(rank):
    x = np.random.RandomState(rank).uniform(-1, 1, [ROWS, 3]).astype(np.float32)
    return x, (x @ np.array([1, -2, 3], np.float32) + rank).astype(np.float32)


def model_fn(features, labels, mode):
    keys = tf.estimator.ModeKeys
    start = tf.constant_initializer(float(hvd.rank()))  # which rank 0 gives to all
    w, b = tf.get_variable("w", [3], initializer=start), tf.get_variable("b", [], initializer=start)
    scores = tf.reduce_sum(features["x"] * w, 1) + b
    if mode == keys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"scores": scores})
    loss = tf.losses.mean_squared_error(labels, scores)
    if mode == keys.EVAL:
        metrics = {"mae": tf.metrics.mean_absolute_error(labels, scores)}
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    optimizer = hvd.DistributedOptimizer(tf.train.GradientDescentOptimizer(RATE))
    train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def trained():
    """The weights after all steps, by numpy."""
    w, b = np.zeros(3), 0.0
    for step in range(STEPS):
        rows = np.arange(step * BATCH, (step + 1) * BATCH) % ROWS
        gradients = []
        for rank in range(hvd.size()):
            x, y = (values[rows] for values in data(rank))
            error = x @ w + b - y
            gradients.append((2 * x.T @ error / BATCH, 2 * error.mean()))
        w = w - RATE * np.mean([g for g, _ in gradients], 0)
        b = b - RATE * np.mean([g for _, g in gradients])
    return w, b


def main(_):
    assert "TF_CONFIG" not in os.environ
    hvd.init()
    inputs = tf.estimator.inputs.numpy_input_fn
    x, y = data(hvd.rank())
    model = tf.estimator.Estimator(
        model_fn,
        model_dir=sys.argv[1] if hvd.rank() == 0 else None,  # only rank 0 keeps checkpoints
        config=tf.estimator.RunConfig(save_checkpoints_steps=4),
    )
    model.train(
        inputs({"x": x}, y, batch_size=BATCH, num_epochs=None, shuffle=False),
        steps=STEPS,
        hooks=[hvd.BroadcastGlobalVariablesHook(0)],
    )
    w, b = trained()
    np.testing.assert_allclose(model.get_variable_value("w"), w, rtol=1e-4)
    np.testing.assert_allclose(model.get_variable_value("b"), b, rtol=1e-4)
    scores = [row["scores"] for row in model.predict(inputs({"x": x}, shuffle=False))]
    np.testing.assert_allclose(scores, x @ w + b, rtol=1e-3, atol=1e-4)
    if hvd.rank() == 0:
        found = model.evaluate(inputs({"x": x}, y, batch_size=BATCH, shuffle=False))
        np.testing.assert_allclose(found["mae"], np.abs(x @ w + b - y).mean(), rtol=1e-3)
        assert found["global_step"] == STEPS
    print(f"rank {hvd.rank()} of {hvd.size()}: as numpy")


if __name__ == "__main__":
    tf.app.run()
'''


# Promise (horovod.md): a program for `tf.estimator` trains on two ranks what numpy does.
# Promise (horovod_training.md): an estimator of two ranks trains what numpy does.
@pytest.mark.timeout(DEADLINE_S + 30)
def test_an_estimator_of_two_ranks_trains_what_numpy_does(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    hidden = ("LOCKSTEP_", "HOROVOD_", "CUDA_", "NVIDIA_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    # Left over from a job that the user's shell was part of. Neither horovodrun nor its processes read it.
    environment["TF_CONFIG"] = '{"cluster": {"worker": ["localhost:1"]}, "task": {"type": "worker", "index": 0}}'
    launcher = [sys.executable, "-m", "horovod.runner", "-np", "2", "--tf1"]
    ended = subprocess.run(
        [*launcher, sys.executable, "program.py", str(tmp_path / "model")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == [f"[{rank}]<stdout>:rank {rank} of 2: as numpy" for rank in (0, 1)]
