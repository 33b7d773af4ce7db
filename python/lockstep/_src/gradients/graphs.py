"""Helpers that work the same eagerly, in a `tf.function` and in a graph of TensorFlow 1."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from lockstep._src.engine import elastic

# A function that is called with a variable made in a graph, so that the variable is initialized there.
Track = Callable[[tf.Variable], None]


class LocalVariables:
    """Variables outside of checkpoints, which are zero after their creation and after this process joins a job.

    Values that ranks began together are useless after the ranks have changed, because new ranks have not begun them.

    Args:
      track: called with each variable that is made in a graph. Without it they are local variables, which
        `local_variables_initializer` initializes.
    """

    def __init__(self, track: Track | None = None) -> None:
        self._track = track
        self._eager: list[tf.Variable] = []
        self._in_graphs: list[tf.Variable] = []
        # In a graph of an elastic job, the number of the rendezvous to which the values belong.
        self._rendezvous: tf.Variable | None = None
        elastic.forget_at_rendezvous(self)

    def make(self, name: str, shape: Any, dtype: tf.DType) -> tf.Variable:
        """Creates a variable; this may be called in a function."""
        with tf.init_scope():
            zeros = tf.zeros(shape, dtype)
            if tf.executing_eagerly():
                variable = tf.Variable(zeros, trainable=False, name=name)
                self._eager.append(variable)
            else:
                collections = [tf.compat.v1.GraphKeys.LOCAL_VARIABLES]
                variable = tf.compat.v1.Variable(
                    zeros, trainable=False, name=name, collections=collections, use_resource=True
                )
                if self._track is not None:
                    self._track(variable)
                self._in_graphs.append(variable)
        return variable

    def forget(self) -> None:
        """Sets the variables to zero; those in a graph of TensorFlow 1 are set when it runs, by `renewed`."""
        # A job may be joined while a graph is being built.
        with context.eager_mode():
            for variable in self._eager:
                variable.assign(tf.zeros_like(variable))

    def renewed(self) -> list[Any]:
        """Returns operations that must run before the variables are used; call it after all have been created."""
        if tf.compat.v1.executing_eagerly_outside_functions() or elastic.member() is None:
            return []
        if self._rendezvous is None:
            self._rendezvous = self.make("rendezvous", [], tf.int64)
        rendezvous = self._rendezvous
        now = tf.numpy_function(lambda: np.int64(elastic.rendezvous_count), [], tf.int64)

        def renew() -> list[Any]:
            zeros = [v.assign(tf.zeros_like(v), read_value=False) for v in self._in_graphs if v is not rendezvous]
            return [*zeros, rendezvous.assign(now, read_value=False)]

        return [tf.cond(tf.equal(now, rendezvous.read_value()), branch(list), branch(renew))]


def branch(act: Callable[[], Sequence[Any]]) -> Callable[[], tf.Tensor]:
    """Returns a branch of a conditional: its result, 0, is ready after the operations that `act` returns."""

    def run() -> tf.Tensor:
        with after(act()):
            return tf.constant(0)

    return run


def after(done: Sequence[Any]) -> Any:
    """Makes operations inside run after these; eagerly they have run already."""
    if tf.executing_eagerly():
        return contextlib.nullcontext()
    elements = [getattr(element, "op", element) for element in done]
    return tf.control_dependencies([e for e in elements if isinstance(e, tf.Operation)])
