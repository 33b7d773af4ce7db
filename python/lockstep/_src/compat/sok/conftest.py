"""A job of one process for tests of SOK's API."""

from collections.abc import Iterator

import pytest
import tensorflow as tf

from lockstep._src.compat.sok import job, starting


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Starts SOK as `sok.init()` does, and leaves the optimizers of Keras as they were."""
    monkeypatch.setattr(job, "_tool", None)
    starting.init("horovod", use_legacy_optimizer=False)
    yield
    starting.use_default_optimizers()


@pytest.fixture
def graph() -> Iterator[tf.Graph]:
    """Makes a new graph the default one."""
    with tf.Graph().as_default() as graph:
        yield graph
