"""Evaluation during training, on all workers together.

The evaluated model is built once, in the training graph, with the variables of training. An evaluation is a series of
session runs that bypass the training hooks, so it takes no training data and counts no step:

1. One run resets the counters of the metrics, and the iterators over the evaluation data.
2. Up to `steps` runs execute the updates of all metrics. A worker whose data ends early gets empty batches. When no
   worker has data any more, the evaluation ends on all of them.
3. One run sums the counters over the workers, for metrics that count one worker's data, as TensorFlow's metrics do.
4. One run reads the metrics' values.
5. Policies (`result_policies.py`) get the results. They may end training, or keep the best checkpoint.

All workers count runs, and these counts are the same, so the workers evaluate at the same time without an exchange.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.python.ops import variable_scope

from lockstep._src.collectives import agreement
from lockstep._src.engine import arguments, progress
from lockstep._src.engine.context import context
from lockstep._src.evaluation.batches import takes_data
from lockstep._src.evaluation.counters import combine_counters
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception
from lockstep._src.scope import scope
from lockstep._src.sessions import session
from lockstep._src.sessions.job_hooks import adapt_hooks

_tf1 = tf.compat.v1
_keys = _tf1.GraphKeys

# The evaluated model must not add to these collections of training. For example, if its summaries were among the ones
# of training, writing summaries on worker 0 would take evaluation data and start exchanges. Its saveables do not belong
# in training's checkpoints either.
_TRAINING_COLLECTIONS = (
    *(_keys.SUMMARIES, _keys.LOSSES, _keys.REGULARIZATION_LOSSES, _keys.UPDATE_OPS, _keys.TRAIN_OP),
    _keys.SAVEABLE_OBJECTS,
)


class EvaluationSpec(NamedTuple):
    """The parts of an evaluation. The `fn` of `EvaluationHook` may return it in place of a dict of metrics.

    Attributes:
      name: a name for users; it has no effect.
      hooks: `SessionRunHook`s for the runs of the evaluation only, or None. A hook that requests a stop ends the
        evaluation on all workers, but not training.
      update_op: the operation or tensor to run for each batch, or a list of them.
      eval_dict: tensors by name; they are read after the last batch.
    """

    name: str
    hooks: Sequence[Any] | None
    update_op: Any
    eval_dict: Mapping[str, Any]


class EvaluationHook(tf.compat.v1.train.SessionRunHook):
    """A hook that evaluates the model every few runs of a `MonitoredTrainingSession`, on all workers of the job.

    Every evaluation starts with counters at zero, and with its data from the beginning. The class follows
    HybridBackend's `EvaluationHook` (docs/hybridbackend.md).

    Args:
      fn: builds the evaluated model and its data. It returns a dict from name to (value, update_op), the pair that a
        metric returns, or an `EvaluationSpec`. It is called once, when the session is made, in the training graph,
        under the name scope 'eval', in a scope with `mode='eval'`. `get_variable` finds the variables of training in
        it. Default names, which feature columns and layers give to their variable scopes, are counted from the
        beginning again. The calls that built the training model therefore find its variables. Moving averages are not
        updated. A value that is not a metric but computed from a batch, such as a loss, is the value of this worker's
        last batch.
      steps: the largest number of batches that a worker takes in one evaluation; None: all of its data.
      every_n_iter: the number of runs of the session between two evaluations.
      summary_dir: the folder to which worker 0 writes the scalars as TensorBoard events; None: no events are written.
      history: a list, or an object with its method `append`. Each evaluation appends a dict of the values and the
        'global_step' (in a graph without one, the number of runs).
      at_end: evaluates also when training ends, unless the last run was already evaluated.
      policies: called in order with the results of each evaluation, on all workers: `EarlyStopping`, `BestCheckpoint`,
        or a `Policy` of your own (its periods have no effect here). All workers get worker 0's results.

    Raises:
      TypeError: an argument is of another type.
      ValueError: `steps` or `every_n_iter` is less than 1.
    """

    # The hook stops training only by decisions that are the same on all workers.
    stops_alike = True

    def __init__(
        self,
        fn: Callable[[], Mapping[str, tuple[Any, Any]] | EvaluationSpec],
        steps: int | None = 100,
        every_n_iter: int = 1000,
        summary_dir: str | os.PathLike[str] | None = None,
        history: list[dict[str, Any]] | None = None,
        *,
        at_end: bool = False,
        policies: Sequence[Callable[..., None]] = (),
    ) -> None:
        if not callable(fn):
            raise TypeError(f"EvaluationHook: fn is {fn!r}, wanted a function without arguments")
        arguments.integer("EvaluationHook", "steps", steps, 1)
        arguments.integer("EvaluationHook", "every_n_iter", every_n_iter, 1, optional=False)
        if history is not None and not callable(getattr(history, "append", None)):
            raise TypeError(f"EvaluationHook: history is {history!r}, wanted a list, or an object with append")
        if summary_dir is not None and not isinstance(summary_dir, (str, os.PathLike)):
            raise TypeError(f"EvaluationHook: summary_dir is {summary_dir!r}, wanted a path")
        self._fn = fn
        self._steps = steps
        self._every_n_iter = every_n_iter
        self._summary_dir = None if summary_dir is None else os.fspath(summary_dir)
        self._history = history
        self._at_end = at_end
        self._policies = arguments.listed(
            "EvaluationHook", "policies", policies, callable, "a list of policies, such as EarlyStopping"
        )
        self._runs = 0
        self._evaluated_at = 0

    def begin(self) -> None:
        """Builds the evaluated model. The session calls it with the training graph, before the graph is finalized.

        Raises:
          TypeError: `fn` returned neither a dict of name to (value, update_op) nor an EvaluationSpec.
          ValueError: `fn` made variables that training does not have; or `steps` is None, and `fn` made no iterator
            whose end could end the evaluation.
        """
        self._runs = self._evaluated_at = 0
        graph = _tf1.get_default_graph()
        of_training = {key: graph.get_collection(key) for key in _TRAINING_COLLECTIONS}
        trained = set(_tf1.global_variables())
        local = set(_local_variables())
        with (
            scope(mode="eval"),
            _tf1.variable_scope(_tf1.get_variable_scope(), reuse=_tf1.AUTO_REUSE, auxiliary_name_scope=False),
            _fresh_default_names(),
            tf.name_scope("eval"),
            _frozen_averages(),
            _restartable_iterators() as restarts,
        ):
            spec = _checked(self._fn())
            self._hooks = adapt_hooks(spec.hooks or ())
            for hook in self._hooks:
                hook.begin()
            made = [v.op.name for v in _tf1.global_variables() if v not in trained and v.op.name != "global_step"]
            if made:
                raise ValueError(
                    f"EvaluationHook: variables {', '.join(made)} are not in the training graph, so their values would "
                    "be untrained; build the evaluated model with the variable names of training"
                )
            if self._steps is None and not restarts:
                raise ValueError("EvaluationHook: steps is None, wanted a number: fn made no iterator that could end")
            counters = [v for v in _local_variables() if v not in local]
            self._reset = [v.initializer for v in counters] + restarts
            self._combine = combine_counters(counters)
        for key, content in of_training.items():
            graph.get_collection_ref(key)[:] = content
        # Reading a value that is computed from a batch takes a batch, so the value is fetched together with the
        # updates.
        self._along = {name: value for name, value in spec.eval_dict.items() if takes_data(value)}
        self._values = {name: value for name, value in spec.eval_dict.items() if name not in self._along}
        self._updates = spec.update_op
        self._global_step = _tf1.train.get_global_step(graph)
        for policy in self._policies:
            if hasattr(policy, "begin"):
                policy.begin()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Passes the call on to the evaluation's own hooks."""
        for hook in self._hooks:
            hook.after_create_session(session, coord)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Counts a run of the session, and evaluates after every `every_n_iter`th."""
        del run_values
        self._runs += 1
        if self._runs % self._every_n_iter == 0:
            self.evaluate(run_context.session, run_context)

    def end(self, session: Any) -> None:
        """Evaluates the final model if `at_end` is set."""
        if self._at_end and self._evaluated_at != self._runs:
            self.evaluate(session)
        for hook in self._hooks:
            hook.end(session)

    def evaluate(self, session: Any, run_context: Any = None) -> dict[str, Any]:
        """Evaluates now; all workers call it together. Returns the dict that is appended to `history`.

        Args:
          session: a session of the graph in which `begin` was called.
          run_context: the context of the training step's run, in which policies may request a stop; None if training
            has ended.

        Raises:
          RuntimeError: no worker has any evaluation data.
        """
        self._evaluated_at = self._runs
        session.run(self._reset)
        steps = 0
        along: dict[str, Any] = {}
        stop = False
        # The error must not reach the session, which would take the end of this iterator for the end of training.
        with contextlib.suppress(tf.errors.OutOfRangeError):
            while not stop and (self._steps is None or steps < self._steps):
                along, stop = self._run_batch(session)
                steps += 1
        if steps == 0:
            raise RuntimeError(
                "EvaluationHook: the evaluation data has no batch on any worker; an iterator that was made outside of "
                "fn cannot start again, so make it inside fn"
            )
        session.run(self._combine)
        values, step = session.run([self._values, [] if self._global_step is None else [self._global_step]])
        result = {**values, **along}
        step = int(step[0]) if step else self._runs
        if context.is_chief:
            report(result, step, steps, self._summary_dir)
        result.setdefault("global_step", step)
        if self._history is not None:
            self._history.append(result)
        self._tell_policies(result, step, session, run_context)
        return result

    def _run_batch(self, session: Any) -> tuple[dict[str, Any], bool]:
        """Takes a batch. Returns the values computed from it, and whether a hook requests the evaluation's end."""
        fetches: dict[str, Any] = {"updates": self._updates, "along": self._along}
        feeds: dict[Any, Any] = {}
        run_context = _tf1.train.SessionRunContext(_tf1.train.SessionRunArgs(self._updates), session)
        for number, hook in enumerate(self._hooks):
            request = hook.before_run(run_context)
            if request is not None:
                feeds.update(request.feed_dict or {})
                if request.fetches is not None:
                    fetches[f"hook_{number}"] = request.fetches
        results = session.run(fetches, feeds)
        for number, hook in enumerate(self._hooks):
            values = _tf1.train.SessionRunValues(
                results.get(f"hook_{number}"), options=_tf1.RunOptions(), run_metadata=_tf1.RunMetadata()
            )
            hook.after_run(run_context, values)
        return results["along"], run_context.stop_requested

    def _tell_policies(self, result: Mapping[str, Any], step: int, session: Any, run_context: Any) -> None:
        if not self._policies:
            return
        scalars = agreement.from_chief(_numbers(result), "evaluation_results")
        writer = None
        if self._summary_dir is not None and context.is_chief:
            writer = _tf1.summary.FileWriterCache.get(self._summary_dir)
        for policy in self._policies:
            policy(step, dict(scalars), session, context=run_context, scaffold=None, writer=writer)


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if _is_number(value)}


def report(values: Mapping[str, Any], step: int, batches: int, summary_dir: str | None) -> None:
    """Logs the results of an evaluation, and writes them as TensorBoard events if a folder is given."""
    text = ", ".join(f"{name} = {value:.6g}" for name, value in _numbers(values).items() if name != "global_step")
    progress.info("evaluation at step %d, %d batches a worker: %s", step, batches, text)
    if summary_dir is not None:
        writer = _tf1.summary.FileWriterCache.get(summary_dir)
        writer.add_summary(_tf1.Summary(value=[v for item in values.items() for v in _events(*item)]), step)
        writer.flush()


def _events(name: str, value: Any) -> list[Any]:
    """Returns a result as values of a TensorBoard summary; none if it is not a number, array or serialized summary."""
    if _is_number(value):
        return [_tf1.Summary.Value(tag=name, simple_value=float(value))]
    if isinstance(value, bytes):
        try:
            summary = _tf1.Summary.FromString(value)
        except DecodeError:
            return []
        for number, part in enumerate(summary.value):
            part.tag = f"{name}/{number}"
        return list(summary.value)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return [_tf1.Summary.Value(tag=name, node_name=name, tensor=tf.make_tensor_proto(value))]
    return []


def _is_number(value: Any) -> bool:
    return np.ndim(value) == 0 and np.asarray(value).dtype.kind in "fiu"


def _local_variables() -> list[tf.Variable]:
    """Returns the local variables of the graph, including variables of metrics, each once."""
    variables = _tf1.local_variables() + _tf1.get_collection(_keys.METRIC_VARIABLES)
    return list(dict.fromkeys(variables))


def _checked(returned: Any) -> EvaluationSpec:
    """Returns the result of `fn` as an EvaluationSpec, with the values as tensors sorted by name."""
    wanted = "wanted a dict of name to (value, update_op), or an EvaluationSpec"
    if isinstance(returned, EvaluationSpec):
        values, hooks, updates = returned.eval_dict, returned.hooks, returned.update_op
        if not isinstance(values, Mapping) or updates is None:
            raise TypeError(f"EvaluationHook: fn returned {returned!r}, wanted an update_op and a dict eval_dict")
    elif isinstance(returned, Mapping):
        for name, metric in returned.items():
            if not isinstance(metric, (tuple, list)) or len(metric) != 2:
                raise TypeError(f"EvaluationHook: fn returned {name!r}: {metric!r}, {wanted}")
        values, hooks = {name: value for name, (value, _) in returned.items()}, None
        updates = [returned[name][1] for name in sorted(returned, key=str)]
    else:
        raise TypeError(f"EvaluationHook: fn returned {returned!r}, {wanted}")
    if not values:
        raise TypeError(f"EvaluationHook: fn returned an empty dict, {wanted}")
    for name, value in values.items():
        if not isinstance(name, str):
            raise TypeError(f"EvaluationHook: fn returned {name!r}: {value!r}, {wanted}")
    tensors = {name: tf.convert_to_tensor(value) for name, value in sorted(values.items())}
    return EvaluationSpec(getattr(returned, "name", "evaluation"), hooks, updates, tensors)


@contextlib.contextmanager
def _fresh_default_names() -> Iterator[None]:
    """Restarts, inside the block, the numbers of TensorFlow's default names of variable scopes, as in an empty graph.

    The second `variable_scope(None, "layer")` of the graph is then named "layer" again, and not "layer_1".
    """
    store = variable_scope.get_variable_scope_store()
    counts, store.variable_scopes_count = store.variable_scopes_count, {}
    try:
        yield
    finally:
        store.variable_scopes_count = counts


@contextlib.contextmanager
def _frozen_averages() -> Iterator[None]:
    """Disables updates of moving averages inside the block, because the evaluated model shares them with training."""
    with Interception(symbols.EVALUATION) as interception:
        interception.replace(symbols.RESTING_AVERAGE, lambda _: lambda variable, *args, **kwargs: tf.identity(variable))
        yield


@contextlib.contextmanager
def _restartable_iterators() -> Iterator[list[tf.Operation]]:
    """Makes all iterators that are created inside the block restartable, and yields the list of their initializers."""
    initializers: list[tf.Operation] = []

    def initializable(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            iterator = original(*args, **kwargs)
            initializers.append(iterator.initializer)
            return iterator

        return wrapped

    def one_shot(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapped(dataset: Any) -> Any:
            return _tf1.data.make_initializable_iterator(dataset)

        return wrapped

    def structured(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            initializer = original(*args, **kwargs)
            _, iterator = initializer.inputs
            if any(iterator is other.inputs[1] for other in initializers):
                raise ValueError(f"EvaluationHook: fn gives {iterator.op.name} a second dataset, wanted one to start")
            initializers.append(initializer)
            return initializer

        return wrapped

    with Interception(symbols.EVALUATION) as interception:
        interception.replace(symbols.MAKE_INITIALIZER, structured)
        for hook in symbols.INITIALIZABLE_ITERATORS:
            interception.replace(hook, initializable)
        for hook in symbols.ONE_SHOT_ITERATORS:
            interception.replace(hook, one_shot)
        yield initializers


session.evaluate_with(EvaluationHook)
