"""The settings of estimators: modes, configurations, and the specifications of models, training and evaluation.

Names, arguments and checks are as in `tf.estimator` of TensorFlow 1.15. TensorFlow has its own estimators up to
2.15; objects of its classes are accepted in place of objects of these classes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lockstep._src.engine import arguments
from lockstep._src.engine.context import context

_tf1 = tf.compat.v1


class ModeKeys:
    """The modes for which a model can be built."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


class _EstimatorSpec(NamedTuple):
    mode: str
    predictions: Any
    loss: tf.Tensor | None
    train_op: Any
    eval_metric_ops: dict[str, tuple[Any, Any]]
    export_outputs: dict[str, Any] | None
    training_chief_hooks: tuple[Any, ...]
    training_hooks: tuple[Any, ...]
    scaffold: Any
    evaluation_hooks: tuple[Any, ...]
    prediction_hooks: tuple[Any, ...]


class EstimatorSpec(_EstimatorSpec):
    """The result of a model function: the operations of a model for one mode.

    Args:
      mode: one of `ModeKeys`.
      predictions: a tensor or a dict of tensors; required for PREDICT.
      loss: a scalar (or a tensor of one element); required for TRAIN and EVAL.
      train_op: one step of training; required for TRAIN.
      eval_metric_ops: name to (value, update), as metrics return them.
      export_outputs: name to an output of `lockstep.estimator.export`; None exports the predictions.
      training_chief_hooks: hooks that run only on worker 0 during training.
      training_hooks: hooks that run on every worker during training.
      scaffold: a `tf.compat.v1.train.Scaffold`; None makes one.
      evaluation_hooks: hooks that run during evaluation.
      prediction_hooks: hooks that run during prediction.

    Raises:
      ValueError: an argument that the mode requires is missing, or the loss is not a scalar.
      TypeError: hooks or metrics are of another type.
    """

    __slots__ = ()

    def __new__(
        cls,
        mode: str,
        predictions: Any = None,
        loss: Any = None,
        train_op: Any = None,
        eval_metric_ops: Mapping[str, tuple[Any, Any]] | None = None,
        export_outputs: Mapping[str, Any] | None = None,
        training_chief_hooks: Sequence[Any] | None = None,
        training_hooks: Sequence[Any] | None = None,
        scaffold: Any = None,
        evaluation_hooks: Sequence[Any] | None = None,
        prediction_hooks: Sequence[Any] | None = None,
    ) -> EstimatorSpec:
        if mode not in (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT):
            raise ValueError(f"EstimatorSpec: mode is {mode!r}, wanted one of 'train', 'eval' or 'infer'")
        wanted = {ModeKeys.TRAIN: ("loss", "train_op"), ModeKeys.EVAL: ("loss",), ModeKeys.PREDICT: ("predictions",)}
        given = {"loss": loss, "train_op": train_op, "predictions": predictions}
        for name in wanted[mode]:
            if given[name] is None:
                raise ValueError(f"EstimatorSpec: {name} is None, which mode {mode!r} needs")
        hooks = {
            "training_chief_hooks": training_chief_hooks,
            "training_hooks": training_hooks,
            "evaluation_hooks": evaluation_hooks,
            "prediction_hooks": prediction_hooks,
        }
        return super().__new__(
            cls,
            mode=mode,
            predictions={} if predictions is None else predictions,
            loss=None if loss is None else _scalar(loss),
            train_op=train_op,
            eval_metric_ops=checked_metrics("EstimatorSpec: eval_metric_ops", eval_metric_ops),
            export_outputs=None if export_outputs is None else dict(export_outputs),
            scaffold=scaffold or _tf1.train.Scaffold(),
            **{name: checked_hooks(f"EstimatorSpec: {name}", value) for name, value in hooks.items()},
        )


def _scalar(loss: Any) -> tf.Tensor:
    loss = tf.convert_to_tensor(loss)
    if loss.shape.num_elements() not in (None, 1):
        raise ValueError(f"EstimatorSpec: loss has shape {loss.shape}, wanted a scalar")
    return tf.reshape(loss, []) if loss.shape.rank != 0 else loss


def checked_hooks(what: str, hooks: Sequence[Any] | None, kind: str = "SessionRunHook") -> tuple[Any, ...]:
    """Returns the program's hooks (or listeners) as a tuple. Raises TypeError, which names it, if one is not a hook."""
    owner, _, name = what.partition(": ")
    cls = getattr(_tf1.train, kind)
    return tuple(arguments.listed(owner, name, hooks, lambda hook: isinstance(hook, cls), f"a list of tf.train.{kind}"))


def checked_metrics(what: str, metrics: Any) -> dict[str, tuple[Any, Any]]:
    """Returns the program's metrics as a dict. Raises TypeError if one is not a pair of value and update."""
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise TypeError(f"{what} is {metrics!r}, wanted a dict of name to (value, update_op)")
    for name, metric in metrics.items():
        if not isinstance(metric, (tuple, list)) or len(metric) != 2:
            raise TypeError(f"{what} has {name!r}: {metric!r}, wanted (value, update_op)")
    return {str(name): tuple(metric) for name, metric in metrics.items()}


class _TrainSpec(NamedTuple):
    input_fn: Callable[..., Any]
    max_steps: int | None
    hooks: tuple[Any, ...]
    saving_listeners: tuple[Any, ...]


class TrainSpec(_TrainSpec):
    """The settings of training for `train_and_evaluate`.

    Args:
      input_fn: returns the training data; see `Estimator.train`.
      max_steps: the global step at which training ends; None: when the data ends.
      hooks: hooks that run on every worker.
      saving_listeners: listeners that are called for each checkpoint, on every worker.

    Raises:
      TypeError: an argument is of another type.
      ValueError: `max_steps` is less than 1.
    """

    __slots__ = ()

    def __new__(
        cls,
        input_fn: Callable[..., Any],
        max_steps: int | None = None,
        hooks: Sequence[Any] | None = None,
        saving_listeners: Sequence[Any] | None = None,
    ) -> TrainSpec:
        _check_callable("TrainSpec", "input_fn", input_fn)
        arguments.integer("TrainSpec", "max_steps", max_steps, 1)
        listeners = checked_hooks("TrainSpec: saving_listeners", saving_listeners, "CheckpointSaverListener")
        return super().__new__(cls, input_fn, max_steps, checked_hooks("TrainSpec: hooks", hooks), listeners)


class _EvalSpec(NamedTuple):
    input_fn: Callable[..., Any]
    steps: int | None
    name: str | None
    hooks: tuple[Any, ...]
    exporters: tuple[Any, ...]
    start_delay_secs: float
    throttle_secs: float


class EvalSpec(_EvalSpec):
    """The settings of evaluation for `train_and_evaluate`.

    Args:
      input_fn: returns the evaluation data.
      steps: the largest number of batches that a worker takes in one evaluation; None: all of its data.
      name: a name for these evaluations, if there are several on different data.
      hooks: hooks that run during evaluation.
      exporters: one or several `lockstep.estimator.Exporter`s.
      start_delay_secs: the seconds that a task 'evaluator' waits before its first evaluation.
      throttle_secs: the least number of seconds between the starts of two evaluations.

    Raises:
      TypeError: an argument is of another type.
      ValueError: a number is out of range, or two exporters have the same name.
    """

    __slots__ = ()

    def __new__(
        cls,
        input_fn: Callable[..., Any],
        steps: int | None = 100,
        name: str | None = None,
        hooks: Sequence[Any] | None = None,
        exporters: Any = None,
        start_delay_secs: float = 120,
        throttle_secs: float = 600,
    ) -> EvalSpec:
        _check_callable("EvalSpec", "input_fn", input_fn)
        arguments.integer("EvalSpec", "steps", steps, 1)
        if name is not None:
            arguments.text("EvalSpec", "name", name)
        for what, seconds in (("start_delay_secs", start_delay_secs), ("throttle_secs", throttle_secs)):
            _check_duration("EvalSpec", what, seconds, "seconds")
        exporters = [exporters] if hasattr(exporters, "name") or isinstance(exporters, str) else exporters
        exporters = tuple(
            arguments.listed("EvalSpec", "exporters", exporters, lambda e: hasattr(e, "name"), "exporters")
        )
        names = [exporter.name for exporter in exporters]
        if len(set(names)) != len(names):
            raise ValueError(f"EvalSpec: exporters are named {names}, wanted different names")
        checked = checked_hooks("EvalSpec: hooks", hooks)
        return super().__new__(cls, input_fn, steps, name, checked, exporters, start_delay_secs, throttle_secs)


def _check_callable(owner: str, name: str, function: Any) -> None:
    if not callable(function):
        raise TypeError(f"{owner}: {name} is {function!r}, wanted a function")


def _check_duration(owner: str, name: str, value: Any, unit: str) -> None:
    arguments.number(owner, name, value)
    if not value >= 0:
        raise ValueError(f"{owner}: {name} is {value}, wanted 0 or more {unit}")


# Other arguments of TensorFlow's RunConfig. They must be None, because this project distributes the training.
_DISTRIBUTION_ARGUMENTS = (
    "train_distribute",
    "eval_distribute",
    "experimental_distribute",
    "experimental_max_worker_delay_secs",
    "session_creation_timeout_secs",
    "protocol",
)
_UNSET = object()


def _check_distribution(arguments_of_tensorflow: Mapping[str, Any]) -> None:
    """Raises an error if an argument is none of TensorFlow's for distribution, or is not None."""
    for name, value in arguments_of_tensorflow.items():
        if name not in _DISTRIBUTION_ARGUMENTS:
            raise TypeError(f"RunConfig: unknown argument {name!r}")
        if value is not None:
            raise ValueError(f"RunConfig: {name} is {value!r}, wanted None: this library distributes the training")


def _check_increments(periods: tuple[float | None, int | None], saves_full: bool) -> None:
    """Raises ValueError unless at most one period of incremental checkpoints is given, beside full checkpoints."""
    if None not in periods or (periods != (None, None) and not saves_full):
        raise ValueError(
            f"RunConfig: save_incremental_checkpoint_secs and _steps are {periods}, wanted one of them, and "
            "full checkpoints beside it"
        )


class RunConfig:
    """The configuration of an estimator.

    Args:
      model_dir: the directory of checkpoints and summaries.
      tf_random_seed: the seed of the graphs that are built.
      save_summary_steps: steps between summaries; None or 0: no summaries.
      save_checkpoints_steps: steps between checkpoints.
      save_checkpoints_secs: seconds between checkpoints, by worker 0's clock. If neither this nor the period in steps
        is given, it is 600. If both are None, no checkpoints are saved.
      save_incremental_checkpoint_secs: seconds between incremental checkpoints, which have the changes of dynamic
        tables (docs/checkpoint_format.md); None: no incremental checkpoints. Training continues from them.
        TensorFlow's class does not have this argument.
      save_incremental_checkpoint_steps: the same period in steps; at most one of the two is given.
      session_config: a `tf.compat.v1.ConfigProto`.
      keep_checkpoint_max: the number of checkpoints to keep; None or 0: all.
      keep_checkpoint_every_n_hours: in addition, keeps one checkpoint per this number of hours.
      log_step_count_steps: steps between lines of the log.
      device_fn: a function from operations to devices; None: the program's own devices.
      **of_tensorflow: TensorFlow's other arguments (`train_distribute`, `protocol`, ...), which must be None.

    Raises:
      TypeError: an argument is unknown or of another type.
      ValueError: a number is negative; both periods for checkpoints, or for incremental ones, are given; incremental
        checkpoints are requested without full ones; or one of TensorFlow's distribution arguments is not None.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        tf_random_seed: int | None = 1,
        save_summary_steps: int | None = 100,
        save_checkpoints_steps: Any = _UNSET,
        save_checkpoints_secs: Any = _UNSET,
        session_config: Any = None,
        keep_checkpoint_max: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000,
        log_step_count_steps: int | None = 100,
        device_fn: Callable[..., Any] | None = None,
        save_incremental_checkpoint_secs: float | None = None,
        save_incremental_checkpoint_steps: int | None = None,
        **of_tensorflow: Any,
    ) -> None:
        _check_distribution(of_tensorflow)
        if save_checkpoints_steps is _UNSET and save_checkpoints_secs is _UNSET:
            save_checkpoints_secs = 600
        steps = None if save_checkpoints_steps is _UNSET else save_checkpoints_steps
        secs = None if save_checkpoints_secs is _UNSET else save_checkpoints_secs
        if steps is not None and secs is not None:
            raise ValueError(
                f"RunConfig: save_checkpoints_steps is {steps} and save_checkpoints_secs is {secs}, wanted one of them"
            )
        increments = (save_incremental_checkpoint_secs, save_incremental_checkpoint_steps)
        _check_increments(increments, saves_full=steps is not None or secs is not None)
        for name, number in (
            ("tf_random_seed", tf_random_seed),
            ("save_summary_steps", save_summary_steps),
            ("save_checkpoints_steps", steps),
            ("save_incremental_checkpoint_steps", save_incremental_checkpoint_steps),
            ("keep_checkpoint_max", keep_checkpoint_max),
            ("log_step_count_steps", log_step_count_steps),
        ):
            arguments.integer("RunConfig", name, number, 0)
        for name, duration, unit in (
            ("save_checkpoints_secs", secs, "seconds"),
            ("save_incremental_checkpoint_secs", save_incremental_checkpoint_secs, "seconds"),
            ("keep_checkpoint_every_n_hours", keep_checkpoint_every_n_hours, "hours"),
        ):
            if duration is not None:
                _check_duration("RunConfig", name, duration, unit)
        if device_fn is not None:
            _check_callable("RunConfig", "device_fn", device_fn)
        if session_config is not None and not isinstance(session_config, _tf1.ConfigProto):
            raise TypeError(f"RunConfig: session_config is {session_config!r}, wanted a tf.compat.v1.ConfigProto")
        self.save_incremental_checkpoint_secs, self.save_incremental_checkpoint_steps = increments
        self.model_dir = None if model_dir is None else os.fspath(model_dir)
        self.tf_random_seed = tf_random_seed
        self.save_summary_steps = save_summary_steps
        self.save_checkpoints_steps = steps
        self.save_checkpoints_secs = secs
        self.session_config = session_config
        self.keep_checkpoint_max = keep_checkpoint_max
        self.keep_checkpoint_every_n_hours = keep_checkpoint_every_n_hours
        self.log_step_count_steps = log_step_count_steps
        self.device_fn = device_fn

    @classmethod
    def build(cls, prototype: Any = None, **kwargs: Any) -> RunConfig:
        """Returns a configuration for a worker of a job.

        Args:
          prototype: a RunConfig of this library or of TensorFlow; it is not changed. None makes a new one.
          **kwargs: the arguments that differ from the prototype.

        Raises:
          TypeError, ValueError: as in `RunConfig`.
        """
        if prototype is None:
            return cls(**kwargs)
        same = {name: getattr(prototype, name) for name in _FIELDS}
        same |= {name: getattr(prototype, name, None) for name in _OWN_FIELDS}
        for name in ("save_checkpoints_steps", "save_checkpoints_secs"):
            if kwargs.get(name) is not None:
                same.update(save_checkpoints_steps=None, save_checkpoints_secs=None)
        of_tensorflow = {name: getattr(prototype, f"_{name}", None) for name in ("train_distribute", "eval_distribute")}
        return cls(**{**same, **of_tensorflow, **kwargs})

    def replace(self, **kwargs: Any) -> RunConfig:
        """Returns a copy with other values."""
        return type(self).build(self, **kwargs)

    @property
    def task_type(self) -> str:
        """The task type of this process in TF_CONFIG; 'worker' without TF_CONFIG."""
        return "worker" if context.task_type == "localhost" else context.task_type

    @property
    def task_id(self) -> int:
        """The task index of this process in TF_CONFIG."""
        return context.task_id

    @property
    def cluster_spec(self) -> Any:
        """The cluster in TF_CONFIG; empty without TF_CONFIG."""
        return context.cluster_spec or tf.train.ClusterSpec({})

    @property
    def is_chief(self) -> bool:
        """True on every worker, because each initializes and restores its own part. See also `hb.context.is_chief`."""
        return True

    @property
    def num_worker_replicas(self) -> int:
        """The number of workers that train."""
        return context.world_size

    @property
    def num_ps_replicas(self) -> int:
        """Always 0, because training is synchronous and needs no parameter servers."""
        return 0

    @property
    def global_id_in_cluster(self) -> int:
        """The worker's rank."""
        return context.rank

    @property
    def master(self) -> str:
        """The target of sessions, which run in this process."""
        return context.target

    evaluation_master = master


_FIELDS = (
    "model_dir",
    "tf_random_seed",
    "save_summary_steps",
    "save_checkpoints_steps",
    "save_checkpoints_secs",
    "session_config",
    "keep_checkpoint_max",
    "keep_checkpoint_every_n_hours",
    "log_step_count_steps",
    "device_fn",
)
# Fields that TensorFlow's RunConfig does not have.
_OWN_FIELDS = ("save_incremental_checkpoint_secs", "save_incremental_checkpoint_steps")
