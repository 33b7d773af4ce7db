"""Estimators of a job: every worker trains, evaluates and predicts. They follow `tf.estimator` of TensorFlow 1.15.

The graph of each call is built inside a `scope`, so that a program for one worker runs on all workers:

| call | graph | data |
| --- | --- | --- |
| `train` | replicated and sharded variables, a `MonitoredTrainingSession` | ends on all workers together |
| `evaluate` | the same, with the values of a checkpoint | all data of all workers |
| `predict` | whole tables with the values of a checkpoint, no exchange | each worker's own |
| `export_saved_model` | the same as `predict` | none |

In TensorFlow 1 programs, `tf.estimator` may work for each process by itself: see `tf1_estimator.py`.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lockstep._src.collectives import agreement
from lockstep._src.engine import progress
from lockstep._src.engine.context import context
from lockstep._src.engine.options import OptionValues
from lockstep._src.estimator import checkpoints, evaluations, warm_start
from lockstep._src.estimator.exporters import signatures
from lockstep._src.estimator.specs import ModeKeys, RunConfig, checked_hooks, checked_metrics
from lockstep._src.estimator.warm_start import WarmStartSettings
from lockstep._src.evaluation.batches import FinalValues, loss_or_zero, mean_over_batches
from lockstep._src.evaluation.evaluation_hook import report
from lockstep._src.saving import data_positions, latest, saved_models
from lockstep._src.scope import scope
from lockstep._src.sessions.job_hooks import adapt_hooks

_tf1 = tf.compat.v1
_log = logging.getLogger("lockstep")

InputFn = Callable[..., Any]


def _check_steps(owner: str, name: str, steps: float | None) -> None:
    """Raises ValueError for a number of steps below 1. As in TensorFlow, a number may be written as 1e4."""
    if steps is not None and steps < 1:
        raise ValueError(f"{owner}: {name} is {steps}, wanted at least 1, or None")


class Estimator:
    """An estimator: it trains, evaluates, predicts with and exports the model that a function builds.

    All methods except `export_saved_model` and the properties must be called on all workers together. Arguments are not
    changed.

    Args:
      model_fn: `model_fn(features, labels, mode, params, config)` returns an `EstimatorSpec` (TensorFlow's own is also
        accepted). All arguments except `features` are optional in its signature.
      model_dir: the directory of checkpoints and summaries, the same for all workers. None: the directory in `config`,
        or a temporary one.
      config: a `RunConfig`; None for its defaults.
      params: hyperparameters that are passed to `model_fn`.
      warm_start_from: a checkpoint, or the directory of one. Trainable variables start with its values if `model_dir`
        has no checkpoint.
      train_drop_remainder: True: training ends with the first worker's data; False: with the last worker's. None: the
        option `data_sync_drop_remainder` decides.
      eval_drop_remainder: the same for evaluations. By default, all data is evaluated.
      predict_drop_remainder: accepted without effect, because every worker predicts all of its data.

    Raises:
      ValueError: `model_fn` has other arguments, or the directories in `config` and `model_dir` differ.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | os.PathLike[str] | None = None,
        config: Any = None,
        params: Mapping[str, Any] | None = None,
        warm_start_from: str | WarmStartSettings | None = None,
        *,
        train_drop_remainder: bool | None = None,
        eval_drop_remainder: bool = False,
        predict_drop_remainder: bool = False,
    ) -> None:
        del predict_drop_remainder
        self._model_fn = model_fn
        self._model_fn_arguments = _arguments(model_fn, "model_fn", ("features", "labels", "mode", "params", "config"))
        self._warm_start_from = warm_start.checked(warm_start_from)
        self._params = copy.deepcopy(dict(params)) if params is not None else {}
        self._train_drop_remainder = train_drop_remainder
        self._eval_drop_remainder = eval_drop_remainder
        config = RunConfig.build(config)
        model_dir = None if model_dir is None else os.fspath(model_dir)
        if model_dir and config.model_dir and model_dir != config.model_dir:
            raise ValueError(f"Estimator: model_dir is {model_dir!r}, but config has {config.model_dir!r}")
        model_dir = model_dir or config.model_dir
        if not model_dir:
            model_dir = agreement.from_chief(tempfile.mkdtemp() if context.rank == 0 else None, "model_dir")
            _log.warning("Estimator: model_dir is not given; checkpoints go to %s", model_dir)
        self._config = config.replace(model_dir=model_dir)

    @property
    def model_dir(self) -> str:
        """The directory of checkpoints and summaries."""
        return self._config.model_dir

    @property
    def config(self) -> RunConfig:
        """A copy of the configuration."""
        return copy.copy(self._config)

    @property
    def params(self) -> dict[str, Any]:
        """A copy of the hyperparameters for `model_fn`."""
        return copy.deepcopy(self._params)

    @property
    def model_fn(self) -> Callable[..., Any]:
        """The function that builds the model."""
        return self._model_fn

    def eval_dir(self, name: str | None = None) -> str:
        """Returns the directory of the summaries of evaluations with this name (`EvalSpec.name`)."""
        return os.path.join(self.model_dir, f"eval_{name}" if name else "eval")

    def latest_checkpoint(self) -> str | None:
        """Returns the prefix of the latest checkpoint; None if there is none yet.

        Raises:
          tf.errors.DataLossError: the state file, which names it, is damaged or lost.
        """
        return latest.latest_checkpoint(self.model_dir)

    def get_variable_names(self) -> list[str]:
        """Returns the names of the variables in the latest checkpoint."""
        return [name for name, _ in tf.train.list_variables(self.model_dir)]

    def get_variable_value(self, name: str) -> np.ndarray:
        """Returns the value of a variable in the latest checkpoint; for a sharded table, the whole table."""
        return tf.train.load_variable(self.model_dir, name)

    # Training.

    def train(
        self,
        input_fn: InputFn,
        hooks: Sequence[Any] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[Any] | None = None,
    ) -> Estimator:
        """Trains on all workers, starting from the latest checkpoint.

        Args:
          input_fn: returns this worker's data: a dataset of (features, labels) or of features, or such tensors. It may
            take `mode`, `params` and `config`. Iterators that it makes end on all workers together.
          hooks: hooks that run on every worker.
          steps: the number of steps to train; None: until the data ends.
          max_steps: the global step at which training ends. If it is already reached, nothing is trained.
          saving_listeners: `CheckpointSaverListener`s, which are called for each checkpoint on every worker.

        Returns:
          This estimator.

        Raises:
          ValueError: both `steps` and `max_steps` are given, or one of them is not positive.
          TypeError: an argument is of another type.
        """
        if steps is not None and max_steps is not None:
            raise ValueError(f"train: steps is {steps} and max_steps is {max_steps}, wanted one of them")
        _check_steps("train", "steps", steps)
        _check_steps("train", "max_steps", max_steps)
        hooks = list(checked_hooks("train: hooks", hooks))
        saving_listeners = checked_hooks("train: saving_listeners", saving_listeners, "CheckpointSaverListener")
        if max_steps is not None and checkpoints.trained_steps(self.model_dir) >= max_steps:
            progress.info("training has already reached step %d", max_steps)
            return self
        if steps is not None or max_steps is not None:
            hooks.append(_tf1.train.StopAtStepHook(steps, max_steps))
        options: OptionValues = {"mode": "train"}
        if self._train_drop_remainder is not None:
            options["data_sync_drop_remainder"] = self._train_drop_remainder
        with self._graph(), scope(**options):
            _tf1.train.create_global_step()
            features, labels, spec = self._build(input_fn, ModeKeys.TRAIN)
            with self._session(features, labels, spec, hooks, saving_listeners) as session:
                loss = None
                while not session.should_stop():
                    _, loss = session.run([spec.train_op, spec.loss])
        progress.info("training ended with loss %s", loss)
        return self

    def _session(self, features: Any, labels: Any, spec: Any, hooks: list[Any], listeners: Any) -> Any:
        config = self._config
        scaffold = self._scaffold(spec)
        if not any(op.name == "loss" for op in _tf1.get_collection(_tf1.GraphKeys.SUMMARIES)):
            _tf1.summary.scalar("loss", spec.loss)
        hooks = [*hooks, _tf1.train.NanTensorHook(loss_or_zero(spec.loss, features, labels)), *spec.training_hooks]
        if config.log_step_count_steps:
            shown = {"loss": spec.loss, "step": _tf1.train.get_global_step()}
            hooks.append(_tf1.train.LoggingTensorHook(shown, every_n_iter=config.log_step_count_steps))
        chief_hooks = list(spec.training_chief_hooks)
        listeners = [*listeners, *context.saving_listeners]
        savers = [hook for hook in (*hooks, *chief_hooks) if isinstance(hook, _tf1.train.CheckpointSaverHook)]
        period = {"save_secs": config.save_checkpoints_secs, "save_steps": config.save_checkpoints_steps}
        if savers:
            saver = copy.copy(savers[0])
            saver._listeners = [*saver._listeners, *listeners]
            hooks = [saver if hook is savers[0] else hook for hook in hooks]
            chief_hooks = [saver if hook is savers[0] else hook for hook in chief_hooks]
        elif any(period.values()):
            chief_hooks.append(
                _tf1.train.CheckpointSaverHook(self.model_dir, scaffold=scaffold, listeners=listeners, **period)
            )
        return _tf1.train.MonitoredTrainingSession(
            checkpoint_dir=self.model_dir,
            scaffold=scaffold,
            hooks=hooks,
            chief_only_hooks=chief_hooks,
            save_checkpoint_secs=None,
            save_checkpoint_steps=None,
            save_summaries_secs=None,
            save_summaries_steps=config.save_summary_steps or None,
            config=config.session_config,
            log_step_count_steps=config.log_step_count_steps,
            save_incremental_checkpoint_secs=config.save_incremental_checkpoint_secs,
            save_incremental_checkpoint_steps=config.save_incremental_checkpoint_steps,
        )

    def _scaffold(self, spec: Any) -> Any:
        """Returns a copy of the model's scaffold, with a saver as configured and the warm start."""
        scaffold = copy.copy(spec.scaffold or _tf1.train.Scaffold())
        savers = _tf1.get_collection(_tf1.GraphKeys.SAVERS)
        if scaffold.saver is None and not savers:
            scaffold._saver = _tf1.train.Saver(
                max_to_keep=self._config.keep_checkpoint_max,
                keep_checkpoint_every_n_hours=self._config.keep_checkpoint_every_n_hours,
                defer_build=True,
                save_relative_paths=True,
                allow_empty=True,
            )
        if self._warm_start_from is not None:
            scaffold._init_fn = warm_start.initializer(self._warm_start_from, scaffold.init_fn)
        return scaffold

    # Evaluation.

    def evaluate(
        self,
        input_fn: InputFn,
        steps: int | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluates a checkpoint on the data of all workers.

        Metrics of `tf.compat.v1.metrics` count one worker's data, and are summed over the workers at the end. Metrics
        of this library count the data of all workers in every batch. The loss is the mean over all workers' batches.

        Args:
          input_fn: returns this worker's data; see `train`.
          steps: the largest number of batches that a worker takes; None: all of its data.
          hooks: hooks that run on every worker. If a hook requests a stop, the evaluation ends on all workers.
          checkpoint_path: the prefix of the checkpoint; None: worker 0's latest.
          name: a name for these evaluations, which gives their summaries a folder of their own.

        Returns:
          Values by name, the same on all workers, including 'loss' and 'global_step'.

        Raises:
          ValueError: no checkpoint exists, or `steps` is not positive.
          RuntimeError: no worker has any data.
        """
        _check_steps("evaluate", "steps", steps)
        hooks = checked_hooks("evaluate: hooks", hooks)
        path = checkpoints.found(checkpoint_path, self.model_dir)
        with self._graph(), scope(mode="eval"):
            step = _tf1.train.create_global_step()
            metrics, spec = self._build_metrics(input_fn)
            final = FinalValues({**{key: value for key, (value, _) in metrics.items()}, "global_step": step})
            hooks = adapt_hooks([*hooks, *(spec.evaluation_hooks or ()), final])
            creator = _tf1.train.ChiefSessionCreator(
                scaffold=self._scaffold_of_checkpoint(spec),
                checkpoint_filename_with_path=path,
                config=self._config.session_config,
            )
            updates = [update for _, update in metrics.values()]
            taken = 0
            with _tf1.train.MonitoredSession(creator, hooks) as session:
                while not session.should_stop() and (steps is None or taken < steps):
                    along = session.run([updates, final.along])[1]
                    taken += 1
            if taken == 0:
                raise RuntimeError("evaluate: the evaluation data has no batch on any worker")
        values = {**final.values, **along}
        if context.rank == 0:
            # In eager mode, the constructor of a writer of events needs a graph.
            with tf.Graph().as_default():
                report(values, int(values["global_step"]), taken, self.eval_dir(name))
        return values

    def _build_metrics(self, input_fn: InputFn) -> tuple[dict[str, tuple[Any, Any]], Any]:
        """Returns the metrics of the model for evaluation, including the loss, sorted by name; and the model's spec."""
        features, labels, spec = self._build(input_fn, ModeKeys.EVAL)
        metrics = checked_metrics("EstimatorSpec: eval_metric_ops", spec.eval_metric_ops)
        metrics["loss"] = mean_over_batches(spec.loss, features, labels)
        return dict(sorted(metrics.items())), spec

    def _scaffold_of_checkpoint(self, spec: Any) -> Any:
        # The checkpoint may have positions in the training data. They do not apply to this data.
        data_positions.forget()
        scaffold = copy.copy(spec.scaffold or _tf1.train.Scaffold())
        if scaffold.saver is None:
            scaffold._saver = _tf1.train.Saver(allow_empty=True, defer_build=True)
        return scaffold

    # Prediction and export.

    def predict(
        self,
        input_fn: InputFn,
        predict_keys: str | Sequence[str] | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Predicts this worker's data.

        Each worker holds the whole model and does not communicate with the others, so workers may take different
        numbers of predictions.

        Args:
          input_fn: returns this worker's data; see `train`. Labels are ignored.
          predict_keys: the names of the predictions to return; None: all.
          hooks: hooks that run during prediction.
          checkpoint_path: the prefix of the checkpoint; None: this worker's latest.
          yield_single_examples: yields one prediction per row; if false, one per batch.

        Returns:
          An iterator over predictions. Each is a dict of name to array, or an array, like the model's predictions.

        Raises:
          ValueError: no checkpoint exists, or no prediction has that name.
        """
        hooks = checked_hooks("predict: hooks", hooks)
        path = checkpoint_path or self.latest_checkpoint()
        if path is None:
            raise ValueError(f"predict: no checkpoint in {self.model_dir!r}")
        with self._graph(), context.scope(mode="infer", sharding=False), context.detached():
            _tf1.train.create_global_step()
            features, _ = self._inputs(input_fn, ModeKeys.PREDICT)
            spec = self._call_model_fn(features, None, ModeKeys.PREDICT)
            predictions = _chosen(spec.predictions, predict_keys)
            creator = _tf1.train.ChiefSessionCreator(
                scaffold=self._scaffold_of_checkpoint(spec),
                checkpoint_filename_with_path=path,
                config=self._config.session_config,
            )
            session = _tf1.train.MonitoredSession(creator, [*hooks, *(spec.prediction_hooks or ())])
        return _predictions(session, predictions, yield_single_examples)

    def export_saved_model(
        self,
        export_dir_base: str | os.PathLike[str],
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        experimental_mode: str = ModeKeys.PREDICT,
    ) -> str | None:
        """Writes a SavedModel of stock TensorFlow operations for prediction, on worker 0 only.

        Args:
          export_dir_base: directory in which a new directory is made; its name is the time in seconds.
          serving_input_receiver_fn: returns a `ServingInputReceiver`.
          assets_extra: files to copy: from the path inside `assets.extra` to the path of the source.
          as_text: writes the graph as text.
          checkpoint_path: the prefix of the checkpoint; None: the latest.
          experimental_mode: must be 'infer'.

        Returns:
          The directory of the SavedModel on worker 0. On other workers None, without waiting.

        Raises:
          ValueError: the mode is another; no checkpoint exists; or it does not fit the model.
        """
        if experimental_mode != ModeKeys.PREDICT:
            raise ValueError(f"export_saved_model: experimental_mode is {experimental_mode!r}, wanted 'infer'")
        if not callable(serving_input_receiver_fn):
            raise ValueError(f"export_saved_model: got {serving_input_receiver_fn!r}, wanted a function")
        if context.rank != 0:
            return None

        def build() -> Any:
            _tf1.set_random_seed(self._config.tf_random_seed)
            _tf1.train.create_global_step()
            receiver = serving_input_receiver_fn()
            spec = self._call_model_fn(receiver.features, None, ModeKeys.PREDICT)
            return signatures(spec.export_outputs, spec.predictions, receiver), getattr(
                spec.scaffold, "local_init_op", None
            )

        path = checkpoint_path or self.latest_checkpoint()
        return saved_models.export(export_dir_base, path, build, assets_extra=assets_extra, as_text=as_text)

    def experimental_export_all_saved_models(
        self,
        export_dir_base: str | os.PathLike[str],
        input_receiver_fn_map: Mapping[str, Callable[[], Any]],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
    ) -> str | None:
        """Writes a SavedModel like `export_saved_model`; the dict must have a function for mode 'infer' only."""
        if set(input_receiver_fn_map) != {ModeKeys.PREDICT}:
            raise ValueError(f"input_receiver_fn_map has {sorted(input_receiver_fn_map)}, wanted only 'infer'")
        receive = input_receiver_fn_map[ModeKeys.PREDICT]
        return self.export_saved_model(export_dir_base, receive, assets_extra, as_text, checkpoint_path)

    def train_and_evaluate(
        self, train_spec: Any, eval_spec: Any, eval_every_n_iter: int | None = None, eval_history: Any = None
    ) -> tuple[dict[str, Any] | None, list[Any]]:
        """Trains and evaluates this estimator; see the function `train_and_evaluate`."""
        return train_and_evaluate(self, train_spec, eval_spec, eval_every_n_iter, eval_history)

    def _place(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context for methods: here this process stays a worker of its job, unlike in `tf1_estimator.py`."""
        return contextlib.nullcontext()

    # Graphs.

    @contextlib.contextmanager
    def _graph(self) -> Iterator[None]:
        with tf.Graph().as_default() as graph, graph.device(self._config.device_fn):
            _tf1.set_random_seed(self._config.tf_random_seed)
            yield

    def _build(self, input_fn: InputFn, mode: str) -> tuple[Any, Any, Any]:
        features, labels = self._inputs(input_fn, mode)
        return features, labels, self._call_model_fn(features, labels, mode)

    def _inputs(self, input_fn: InputFn, mode: str) -> tuple[Any, Any]:
        """Returns features and labels of a batch."""
        offered = {"mode": mode, "params": self.params, "config": self.config}
        names = _arguments(input_fn, "input_fn", tuple(offered))
        drops = mode == ModeKeys.EVAL and self._eval_drop_remainder
        # Iterators of evaluations end when no worker has data. To end with the first worker's data, the iterator is
        # made as one for training.
        options: OptionValues = {"mode": "train", "data_sync_drop_remainder": True} if drops else {}
        with context.scope(**options):
            data = input_fn(**{name: offered[name] for name in names})
            if isinstance(data, (tf.data.Dataset, _tf1.data.Dataset)):
                iterator = _tf1.data.make_initializable_iterator(data)
                _tf1.add_to_collection(_tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
                data = iterator.get_next()
        if isinstance(data, (tuple, list)):
            if len(data) != 2:
                raise ValueError(f"input_fn returned {len(data)} values, wanted (features, labels)")
            return data[0], data[1]
        return data, None

    def _call_model_fn(self, features: Any, labels: Any, mode: str) -> Any:
        offered = {"labels": labels, "mode": mode, "params": self.params, "config": self.config}
        if "labels" not in self._model_fn_arguments and labels is not None:
            raise ValueError("model_fn takes no labels, but input_fn returns some")
        named = {name: offered[name] for name in self._model_fn_arguments if name != "features"}
        spec = self._model_fn(features, **named)
        for attribute in ("mode", "loss", "train_op", "predictions", "eval_metric_ops", "export_outputs"):
            if not hasattr(spec, attribute):
                raise ValueError(f"model_fn returned {spec!r} for mode {mode!r}, wanted an EstimatorSpec")
        if spec.mode != mode:
            raise ValueError(f"model_fn returned a spec for mode {spec.mode!r}, wanted {mode!r}")
        return spec


def train_and_evaluate(
    estimator: Estimator,
    train_spec: Any,
    eval_spec: Any,
    eval_every_n_iter: int | None = None,
    eval_history: Any = None,
) -> tuple[dict[str, Any] | None, list[Any]]:
    """Trains and evaluates, both on all workers in parallel; follows `tf.estimator.train_and_evaluate`.

    By default, an evaluation follows each checkpoint if `throttle_secs` have passed, by worker 0's clock, since the
    previous evaluation; another one follows the end of training. If TF_CONFIG has a task 'evaluator', that process
    evaluates all checkpoints instead, outside of the job.

    Args:
      estimator: the estimator to train.
      train_spec: a `TrainSpec`.
      eval_spec: an `EvalSpec`.
      eval_every_n_iter: the number of steps between evaluations inside the training session, which need no checkpoint.
        A last evaluation follows the end of training.
      eval_history: a list to which the evaluations of `eval_every_n_iter` are appended.

    Returns:
      The values of the last evaluation (None if there was none), and a list of the results of the exporters at the end
      of training. The list is empty on workers other than worker 0.

    Raises:
      TypeError: `train_spec` or `eval_spec` is of another type.
    """
    evaluations.check_specs(train_spec, eval_spec)

    def metrics() -> dict[str, Any]:
        return estimator._build_metrics(eval_spec.input_fn)[0]

    with estimator._place():
        return evaluations.in_turn(estimator, metrics, train_spec, eval_spec, eval_every_n_iter, eval_history)


def _arguments(function: Callable[..., Any], what: str, known: Sequence[str]) -> list[str]:
    """Returns the names of the known arguments that a function takes.

    Raises:
      ValueError: the function needs other arguments, or is a model function without `features`.
    """
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return list(known)
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    needed = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    unknown = [name for name in needed if name not in known]
    if unknown or (what == "model_fn" and "features" not in names):
        raise ValueError(f"{what} takes {', '.join(names) or 'nothing'}, wanted some of {', '.join(known)}")
    return [name for name in names if name in known]


def _chosen(predictions: Any, keys: str | Sequence[str] | None) -> Any:
    if keys is None:
        return predictions
    keys = [keys] if isinstance(keys, str) else list(keys)
    if not isinstance(predictions, Mapping):
        raise ValueError(f"predict_keys is {keys}, but the predictions have no names")
    unknown = [key for key in keys if key not in predictions]
    if unknown:
        raise ValueError(f"predict_keys has {', '.join(unknown)}, the predictions are {', '.join(sorted(predictions))}")
    return {key: predictions[key] for key in keys}


def _predictions(session: Any, predictions: Any, one_by_one: bool) -> Iterator[Any]:
    with session:
        while not session.should_stop():
            batch = session.run(predictions)
            if not one_by_one:
                yield batch
            elif not isinstance(batch, Mapping):
                yield from batch
            else:
                lengths = {name: len(values) for name, values in batch.items()}
                if len(set(lengths.values())) != 1:
                    raise ValueError(f"predictions have {lengths} rows; use yield_single_examples=False")
                for row in range(next(iter(lengths.values()))):
                    yield {name: values[row] for name, values in batch.items()}
