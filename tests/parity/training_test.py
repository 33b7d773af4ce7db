"""W workers with batches of B compute what plain TensorFlow computes with W·B, for every optimizer, sharded or not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from lockstep.testing import run_module
from tests.parity import model


def plain_tensorflow(optimizer: str) -> dict[str, np.ndarray]:
    with tf.Graph().as_default():
        features = model.placeholders()
        train_op = model.OPTIMIZERS[optimizer]().minimize(model.loss(features))
        names = [v.op.name for v in tf.global_variables()]
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for step in range(model.STEPS):
                session.run(train_op, {features[k]: v for k, v in model.batch(step).items()})
            return dict(zip(names, session.run(tf.global_variables()), strict=True))


@pytest.fixture(scope="module")
def oracle() -> dict[str, dict[str, np.ndarray]]:
    return {optimizer: plain_tensorflow(optimizer) for optimizer in model.OPTIMIZERS}


def train(workers: int, out: Path) -> list[dict[str, np.ndarray]]:
    run_module(workers, "tests.parity.train_worker", str(out), timeout_s=300)
    return [dict(np.load(f"{out}.{rank}.npz")) for rank in range(workers)]


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory) -> list[dict[str, np.ndarray]]:
    """Returns the weights that a number of workers train; each job runs once."""
    return train(request.param, tmp_path_factory.mktemp("trained") / "weights")


# Promise (promises.md): a fixed model with each optimizer trains as in plain TensorFlow, replicated and sharded.
@pytest.mark.parametrize("kind", ["replicated", "sharded"])
@pytest.mark.parametrize("optimizer", model.OPTIMIZERS)
# 2 is first in both tests, so that its job runs once.
@pytest.mark.parametrize("trained", [2, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 4))], indirect=True)
def test_workers_train_as_plain_tensorflow_does(trained, optimizer, kind, oracle):
    for name, value in oracle[optimizer].items():
        got = model.assembled(trained, f"{optimizer}/{kind}/{name}", value.shape)
        np.testing.assert_allclose(got, value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("trained", [2], indirect=True)
def test_the_same_job_twice_is_equal_bit_for_bit(trained, tmp_path):
    for a, b in zip(trained, train(2, tmp_path / "again"), strict=True):
        assert a.keys() == b.keys()
        for key in a:
            assert a[key].tobytes() == b[key].tobytes(), key
