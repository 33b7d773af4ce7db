"""`tf.estimator` for programs of TensorFlow 1 where TensorFlow has none: on all workers together, or each by itself.

A program that has joined a job of named collectives (`hvd.init()`) says itself what is exchanged. There each process is
a job of its own, and trains, evaluates and saves by itself, as with TensorFlow's own estimators. Each call of a method
looks for it, so that it does not matter when the estimator was made.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import socket
from collections.abc import Callable
from typing import Any

from lockstep._src.collectives import named_job
from lockstep._src.engine.context import context
from lockstep._src.estimator import estimator

_taken: dict[str, socket.socket] = {}  # by its address: for as long as this process lives


def _in_its_place(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def placed(self: Estimator, *args: Any, **kwargs: Any) -> Any:
        with self._place():
            return method(self, *args, **kwargs)

    return placed


class Estimator(estimator.Estimator):
    """The project's estimator; after `hvd.init()`, each process's own. Also where that is called later on.

    Raises:
      RuntimeError: `hvd.init()` was called, but this process has connected to the other workers by a scope; from every
        method.
      ValueError: two processes of a host, each by itself, save checkpoints in one `model_dir`; from `train`.
    """

    __init__ = _in_its_place(estimator.Estimator.__init__)
    train = _in_its_place(estimator.Estimator.train)
    evaluate = _in_its_place(estimator.Estimator.evaluate)
    predict = _in_its_place(estimator.Estimator.predict)
    export_saved_model = _in_its_place(estimator.Estimator.export_saved_model)

    @contextlib.contextmanager
    def _place(self) -> Any:
        with contextlib.ExitStack() as stack:
            if named_job.was_started():
                try:
                    stack.enter_context(context.alone())
                except RuntimeError as error:
                    raise RuntimeError(
                        "tf.estimator trains on each rank by itself after hvd.init(), as TensorFlow's own does, but "
                        f"{error}: by a scope, or by an estimator before hvd.init(). Use hb.estimator.Estimator, which "
                        "trains on all workers together, or leave hvd.init() or the scope out"
                    ) from None
            yield

    def _session(self, *args: Any) -> Any:
        if named_job.was_started() and (self._config.save_checkpoints_steps or self._config.save_checkpoints_secs):
            _take(self.model_dir)
        return super()._session(*args)


def _take(folder: str) -> None:
    """Takes a folder for this process; ValueError where another of the job has taken it, on this host.

    By a name of the kernel's, an abstract address, which goes with the process.
    """
    secret = context.cluster.secret
    path = folder if "://" in folder else os.path.realpath(folder)
    address = "\0lockstep-" + hashlib.sha256(f"{secret} {path}".encode()).hexdigest()
    if not secret or address in _taken:
        return
    taken = socket.socket(socket.AF_UNIX)
    try:
        taken.bind(address)
    except OSError as error:
        taken.close()
        if error.errno != errno.EADDRINUSE:
            return
        raise ValueError(
            f"tf.estimator: two ranks save checkpoints in {folder!r}. After hvd.init() each rank trains and saves by "
            "itself: give that model_dir to rank 0 alone (model_dir if hvd.rank() == 0 else None), or a folder to each "
            "rank. hb.estimator.Estimator trains on all ranks together, and saves once"
        ) from None
    _taken[address] = taken
