"""`tf.estimator` for TensorFlow 1 programs whose TensorFlow has none: for all workers, or for each one by itself.

A program that has called `hvd.init()` (named collectives) decides itself which values are exchanged. Then each process
is a job of its own: it trains, evaluates and saves by itself, as with TensorFlow's own estimators. Each method call
checks for `hvd.init()`, so the estimator may be created before or after it.
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

_taken: dict[str, socket.socket] = {}  # sockets by address; they stay open until this process ends


def _called_in_place(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def placed(self: Estimator, *args: Any, **kwargs: Any) -> Any:
        with self._place():
            return method(self, *args, **kwargs)

    return placed


class Estimator(estimator.Estimator):
    """The estimator of this project. After `hvd.init()`, also if it is called later, each process uses it by itself.

    Raises:
      RuntimeError: from every method: `hvd.init()` was called, but a scope has connected this process to the other
        workers.
      ValueError: from `train`: after `hvd.init()`, two processes of a host save checkpoints in the same `model_dir`.
    """

    __init__ = _called_in_place(estimator.Estimator.__init__)
    train = _called_in_place(estimator.Estimator.train)
    evaluate = _called_in_place(estimator.Estimator.evaluate)
    predict = _called_in_place(estimator.Estimator.predict)
    export_saved_model = _called_in_place(estimator.Estimator.export_saved_model)

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
    """Reserves a folder for this process. Raises ValueError if another process of the job on this host has it.

    The reservation is a Unix socket with an abstract address. The kernel releases it when the process ends.
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
            "itself. Give that model_dir only to rank 0 (model_dir if hvd.rank() == 0 else None), or a folder to each "
            "rank. hb.estimator.Estimator trains on all ranks together, and saves once"
        ) from None
    _taken[address] = taken
