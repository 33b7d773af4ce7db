"""Elastic states of variables, and of Keras models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.collectives import named_job
from lockstep._src.compat.horovod import job
from lockstep._src.compat.horovod.elastic import states
from lockstep._src.compat.horovod.elastic.loop import run_fn
from lockstep._src.compat.horovod.objects import broadcast_object
from lockstep._src.compat.horovod.variables import broadcast_variables
from lockstep._src.engine.elastic import has_lost_peers

_PUBLIC_MODULE = "horovod.tensorflow.elastic"


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `func` in the loop of elastic programs; see `horovod.tensorflow.elastic.run`."""
    return run_fn(func, _rejoin, has_lost_peers)


def _rejoin() -> None:
    named_job.stop()
    job.init(None, None)


class ObjectState(states.ObjectState):
    """Python objects as attributes of a state; for a program without variables.

    Args:
      bcast_object: gives rank 0's argument on all ranks; `hvd.broadcast_object` by default.
      get_rank: gives this process's rank; `hvd.rank` by default.
      **kwargs: the objects.
    """

    __module__ = _PUBLIC_MODULE

    def __init__(
        self,
        bcast_object: Callable[[Any], Any] = broadcast_object,
        get_rank: Callable[[], int] = job.rank,
        **kwargs: Any,
    ):
        super().__init__(bcast_object, get_rank, **kwargs)


class _VariablesState(states.ObjectState):
    """Variables, and objects as attributes; the variables are eager, or belong to a session's graph."""

    def __init__(self, variables: Sequence[Any], session: Any, **kwargs: Any):
        self._kept, self._session = list(variables), session
        if session is not None:
            with session.graph.as_default():
                self._inputs = [tf.compat.v1.placeholder(v.dtype.base_dtype, v.shape) for v in self._kept]
                pairs = zip(self._kept, self._inputs, strict=True)
                self._assign = tf.group(*[variable.assign(given) for variable, given in pairs])
                # Made here, because the same operation has the same name on all ranks.
                self._broadcast = broadcast_variables(self._kept, root_rank=0)
        self._save_variables()
        super().__init__(bcast_object=broadcast_object, get_rank=job.rank, **kwargs)

    def save(self) -> None:
        """Keeps copies of variables and objects."""
        self._save_variables()
        super().save()

    def restore(self) -> None:
        """Restores the variables' and objects' saved values."""
        if self._session is not None:
            self._session.run(self._assign, dict(zip(self._inputs, self._values_kept, strict=True)))
        else:
            for variable, value in zip(self._kept, self._values_kept, strict=True):
                variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Copies variables and objects of rank 0 to all ranks, and saves them. All ranks call it together."""
        if self._session is not None:
            self._session.run(self._broadcast)
        else:
            broadcast_variables(self._kept, root_rank=0)
        super().sync()
        self._save_variables()

    def _save_variables(self) -> None:
        if self._session is not None:
            self._values_kept = self._session.run(self._kept)
        else:
            self._values_kept = [tf.convert_to_tensor(variable).numpy() for variable in self._kept]


class TensorFlowState(_VariablesState):
    """A list of variables, and Python objects as attributes.

    Args:
      variables: `tf.Variable`s; in a graph all global ones by default.
      session: in a graph, the session with the variables' values, by default the default session; they have to be
        initialized.
      **kwargs: the objects.

    Raises:
      ValueError: eagerly no variables are given, or in a graph no session.
    """

    __module__ = _PUBLIC_MODULE

    def __init__(self, variables: Iterable[Any] | None = None, session: Any = None, **kwargs: Any):
        if tf.executing_eagerly():
            session = None
        else:
            session = session or tf.compat.v1.get_default_session()
            if session is None:
                raise ValueError("TensorFlowState: got neither a session nor a default session; pass session")
        self.session = session
        if variables is None:
            if session is None:
                raise ValueError("TensorFlowState: got no variables, wanted a list of them: this program runs eagerly")
            with session.graph.as_default():
                variables = tf.compat.v1.global_variables()
        self.variables = list(variables)
        super().__init__(self.variables, session, **kwargs)


class TensorFlowKerasState(_VariablesState):
    """A Keras model and its optimizer, and Python objects as attributes: for Keras 3, tf.keras and tf_keras.

    The model's weights and all variables of the optimizer are part of the state. The optimizer's are created here if
    they do not exist yet, so that all ranks have the same.

    Args:
      model: built.
      optimizer: the model's by default, if it has one.
      backend: in a graph, an object with the session as `get_session()`.
      **kwargs: the objects.

    Raises:
      ValueError: the model is not built.
    """

    __module__ = _PUBLIC_MODULE

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any):
        if not getattr(model, "built", True):
            raise ValueError("Model must be built first. Run `model.build(input_shape)`.")
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        self.backend = backend
        variables, session = [*model.weights, *_variables_of(self.optimizer, model)], None
        if not tf.executing_eagerly():
            session = (backend or tf.compat.v1.keras.backend).get_session()
            _initialize(variables, session)
        super().__init__(variables, session, **kwargs)


def _initialize(variables: Sequence[Any], session: Any) -> None:
    """Initializes the variables without a value in the session, such as an optimizer's new ones."""
    with session.graph.as_default():
        there = session.run([tf.compat.v1.is_variable_initialized(variable) for variable in variables])
        missing = [variable for variable, has_value in zip(variables, there, strict=True) if not has_value]
        session.run(tf.compat.v1.variables_initializer(missing))


def _variables_of(optimizer: Any, model: Any) -> list[Any]:
    """Returns all variables of an optimizer, which are created here if they do not exist yet."""
    if optimizer is None:
        return []
    variables = model.trainable_variables
    if hasattr(optimizer, "build"):
        if not getattr(optimizer, "built", getattr(optimizer, "_built", False)):
            optimizer.build(variables)
    elif hasattr(optimizer, "_create_all_weights"):  # tf.keras.optimizers.legacy
        optimizer._create_all_weights(variables)
    found = optimizer.variables
    return list(found() if callable(found) else found)
