"""Models with Keras' `compile`, `fit` and `evaluate` in graphs of TensorFlow 1, on all workers of a job.

They follow HybridBackend's `hb.keras.Model`: the model is a function of tensors, written with any layers or variables.
Optimizers come from `tf.compat.v1.train`, and weights are in checkpoints. Keras itself is not needed.

All operations are created in the program's default graph, which contains its layers. `fit` builds the steps of training
and of validation, and opens a session in which it runs over the data (`passes.py`), epoch by epoch:

1. The iterator for training restarts (unless `steps_per_epoch` is given), and the metrics are reset.
2. Steps run until the data ends, on all workers together, or until `steps_per_epoch` of them are done.
3. Validation runs with the same variables.
4. A checkpoint is saved, in which all workers take part.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import variable_scope

from lockstep._src.collectives import agreement
from lockstep._src.engine.context import context
from lockstep._src.engine.options import OptionValues
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception
from lockstep._src.keras.models.graph_parts import (
    Best,
    Callbacks,
    Compiled,
    History,
    batches_of,
    loading,
    no_data,
    report,
    whole_shape,
)
from lockstep._src.keras.models.passes import Loss, Pass, feeding, measured
from lockstep._src.saving import latest, saved_models
from lockstep._src.scope import hooks, loaded_keras_2, scope
from lockstep._src.sessions.session_config import get_session_config

_tf1 = tf.compat.v1
_keys = _tf1.GraphKeys
_log = logging.getLogger("lockstep")


class Model:
    """A model of a graph of TensorFlow 1: a subclass with `call(inputs)`, or the tensors `inputs` and `outputs`.

    All workers must call every method together, except `export_saved_model`, `save` and `summary`. A scope around the
    calls is not needed.

    Args:
      inputs: for a model of tensors: a tensor or a structure of tensors, such as an iterator's features.
      outputs: the tensor that is computed from them. Give both or neither.
      name: the name for `summary`.
      train_drop_remainder: True: an epoch ends when the first worker has no more data. False: it ends when no worker
        has data. None: the option `data_sync_drop_remainder` decides.
      eval_drop_remainder: accepted without effect: all data is evaluated.
      predict_drop_remainder: accepted without effect: all data is predicted.

    Raises:
      ValueError: only one of `inputs` and `outputs` is given.
    """

    def __init__(
        self,
        inputs: Any = None,
        outputs: Any = None,
        name: str | None = None,
        *,
        train_drop_remainder: bool | None = None,
        eval_drop_remainder: bool = False,
        predict_drop_remainder: bool = False,
    ) -> None:
        del eval_drop_remainder, predict_drop_remainder
        if (inputs is None) != (outputs is None):
            raise ValueError("Model: got one of inputs and outputs, wanted both, or a subclass with call()")
        if isinstance(outputs, (list, tuple)) and len(outputs) == 1:
            (outputs,) = outputs
        self.inputs, self.outputs = inputs, outputs
        self.name = name or type(self).__name__.lower()
        self.stop_training = False
        self._options: OptionValues = {"mode": "train"}
        if train_drop_remainder is not None:
            self._options["data_sync_drop_remainder"] = train_drop_remainder
        self._compiled: Compiled | None = None
        self._weights: tuple[str, str | None, bool] | None = None
        self._checkpoint_dir: str | None = None
        self._default_names: tuple[tf.Graph, dict[str, int]] | None = None

    def call(self, inputs: Any) -> Any:
        """Returns the outputs for a batch of inputs; to be overridden. An override may also take `training`."""
        raise NotImplementedError(f"{type(self).__name__}.call")

    def __call__(self, inputs: Any, training: bool | None = None, **kwargs: Any) -> Any:
        """Returns the outputs for a batch of inputs. Further calls in the same graph use the same variables."""
        if self.outputs is not None:
            raise NotImplementedError(f"{self.name}: a model of tensors cannot be called; write a subclass with call()")
        parameters = inspect.signature(self.call).parameters.values()
        if any(p.name == "training" or p.kind is p.VAR_KEYWORD for p in parameters):
            kwargs["training"] = training
        return self.call(inputs, **kwargs)

    def compile(
        self,
        optimizer: Any = None,
        loss: Any = None,
        metrics: Sequence[Any] | None = None,
        *,
        target_tensors: Any = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        **of_keras: Any,
    ) -> None:
        """Sets how the model is trained.

        Args:
          optimizer: an optimizer of `tf.compat.v1.train`.
          loss: a function `loss(labels, outputs)`, whose mean over a batch is the loss, or the name of a loss of Keras.
          metrics: names ('auc', 'accuracy', or a loss's name), functions like `loss`, or metrics of Keras 2.
          target_tensors: the labels, for a model of tensors.
          clipnorm: clips each gradient, averaged over all workers, to this norm.
          clipvalue: clips each element of the averaged gradients.
          **of_keras: Keras' other arguments, which must be None.

        Raises:
          TypeError: the optimizer is not one of `tf.compat.v1.train`.
          ValueError: a bound for clipping is negative, or there is no loss.
          NotImplementedError: another argument of Keras is given.
        """
        given = [name for name, value in of_keras.items() if value is not None]
        if given:
            raise NotImplementedError(
                f"compile: {', '.join(given)} is not implemented in graphs of TensorFlow 1; leave it out"
            )
        if optimizer is not None and not isinstance(optimizer, _tf1.train.Optimizer):
            raise TypeError(f"compile: optimizer is {optimizer!r}, wanted one of tf.compat.v1.train")
        if loss is None:
            raise ValueError("compile: loss is None, wanted a function of labels and outputs, or its name")
        for name, bound in (("clipnorm", clipnorm), ("clipvalue", clipvalue)):
            if bound is not None and bound < 0:
                raise ValueError(f"compile: {name} is {bound}, wanted 0 or more")
        if isinstance(target_tensors, (list, tuple)) and len(target_tensors) == 1:
            (target_tensors,) = target_tensors
        self._compiled = Compiled(optimizer, Loss(loss), list(metrics or ()), target_tensors, clipnorm, clipvalue)

    def load_weights(self, checkpoint_dir: str, scope: str | None = None, skip_mismatched: bool = True) -> None:
        """Initializes variables from a checkpoint, by name, unless the model's own checkpoint directory has one.

        Args:
          checkpoint_dir: the directory of the checkpoint, or the checkpoint's prefix.
          scope: if given, only variables whose names begin with this text are loaded.
          skip_mismatched: whether to skip variables that the checkpoint lacks or has in another shape, with a warning.

        Raises:
          ValueError: no checkpoint exists. With `skip_mismatched=False`, `fit`, `evaluate` and `predict` raise it
            later if the checkpoint lacks variables.
        """
        path = latest.latest_checkpoint(checkpoint_dir) or os.fspath(checkpoint_dir)
        if not tf.io.gfile.exists(f"{path}.index"):
            raise ValueError(f"load_weights: found no checkpoint in {checkpoint_dir!r}")
        self._weights = (path, scope, skip_mismatched)

    # Training.

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = 1,
        callbacks: Sequence[Any] | None = None,
        validation_data: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        *,
        checkpoint_dir: str | None = None,
        keep_checkpoint_max: int | None = None,
        keep_checkpoint_every_n_hours: float | None = None,
        monitor: str = "val_loss",
        save_best_only: bool = False,
        mode: str = "auto",
    ) -> History:
        """Trains on all workers, and continues from the latest checkpoint in `checkpoint_dir` if there is one.

        Args:
          x: a dataset of this worker's batches of (features, labels); None for a model of tensors.
          y: the labels, for a model of tensors; None: the `target_tensors`.
          batch_size: accepted without effect: datasets have batches.
          epochs: the number of the last epoch.
          verbose: 0: no line in the log for each epoch.
          callbacks: callbacks of Keras. They are called for training, epochs and batches, and may set
            `model.stop_training`. If any worker's callback does, training ends on all workers after the epoch.
          validation_data: a dataset of batches of (features, labels), which is evaluated after each epoch.
          initial_epoch: the number of epochs that count as done.
          steps_per_epoch: the steps of an epoch; the next epoch continues in the data. None: all of the data.
          validation_steps: the largest number of batches that a worker takes; None: all of them.
          checkpoint_dir: where a checkpoint is saved after each epoch; None: a temporary directory.
          keep_checkpoint_max: how many checkpoints are kept; None: 5.
          keep_checkpoint_every_n_hours: also keeps one checkpoint of each period of this length.
          monitor: the value that decides whether an epoch was the best. If there is no value of this name, each epoch
            is saved, with a warning.
          save_best_only: saves only after epochs that were better than all before, and keeps one checkpoint.
          mode: 'max' if a larger `monitor` is better, 'min' if a smaller one is; 'auto': according to its name.

        Returns:
          The values of each epoch, over the data of all workers.

        Raises:
          ValueError: an argument is wrong, or no worker has data.
        """
        del batch_size
        compiled = self._checked("fit", x, y)
        if compiled.optimizer is None:
            raise ValueError("fit: the model has no optimizer; give one to compile()")
        best = Best(monitor, mode) if save_best_only else None
        directory = self._directory(checkpoint_dir)
        with scope(**self._options), self._building():
            training, saved = self._training(compiled, x, y)
            validation = None
            if validation_data is not None:
                validation = self._evaluation(compiled, validation_data, validation_steps, "validation")
            saver = _saver(1 if save_best_only else keep_checkpoint_max, keep_checkpoint_every_n_hours)
            history = History()
            calls = Callbacks(self, callbacks or (), {"epochs": epochs, "steps": steps_per_epoch, "verbose": verbose})
            step = _tf1.train.get_global_step()

            def train(session: Any) -> None:
                for epoch in range(initial_epoch, epochs):
                    calls.tell("on_epoch_begin", epoch)
                    restart = steps_per_epoch is None or not history.epoch
                    values = training.run(session, steps_per_epoch, restart, calls.batch)
                    if values is None:
                        no_data("fit", history)
                        break
                    if validation is not None:
                        values |= _validated(validation, session)
                    history.append(epoch, values)
                    if verbose:
                        report(f"epoch {epoch + 1}/{epochs}", values)
                    if best is None or best.improves(values):
                        saver.save(session, os.path.join(directory, "model.ckpt"), global_step=session.run(step))
                    calls.tell("on_epoch_end", epoch, values)
                    if agreement.any_worker(bool(self.stop_training), "stop_training"):
                        break

            calls.tell("on_train_begin")
            self._run(train, directory, saver, saved)
            calls.tell("on_train_end")
        return history

    def _training(self, compiled: Compiled, x: Any, y: Any) -> tuple[Pass, list[tf.Variable]]:
        """Builds a step of training; returns it and the variables of the model."""
        step = _tf1.train.get_or_create_global_step()
        updates_before = set(_tf1.get_collection(_keys.UPDATE_OPS))
        losses_before = {id(loss) for loss in _tf1.get_collection(_keys.REGULARIZATION_LOSSES)}
        others = set(_tf1.global_variables())
        if self.outputs is not None:
            restart, features, outputs = None, self.inputs, self.outputs
            labels = compiled.target if y is None else y
            others = {step}
        else:
            restart, features, labels = batches_of(x, "fit")
            outputs = self._outputs(features, training=True)
            others = {v for v in others if v is step}
        variables = [v for v in _tf1.global_variables() if v not in others]
        loss = compiled.loss(labels, outputs)
        regularization = [t for t in _tf1.get_collection(_keys.REGULARIZATION_LOSSES) if id(t) not in losses_before]
        total = tf.add_n([loss, *regularization]) if regularization else loss
        measures = measured(features, labels, outputs, total, compiled.metrics)
        updates = [op for op in _tf1.get_collection(_keys.UPDATE_OPS) if op not in updates_before]
        with tf.control_dependencies(updates):
            gradients = compiled.optimizer.compute_gradients(total)
        train_op = compiled.optimizer.apply_gradients(compiled.clipped(gradients), global_step=step)
        return Pass(restart, measures, along={"train": train_op, "loss": total}), variables

    # Evaluation and prediction.

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = 1,
        steps: int | None = None,
        *,
        checkpoint_dir: str | None = None,
        return_dict: bool = False,
    ) -> Any:
        """Evaluates on the data of all workers.

        Args:
          x: a dataset of this worker's batches of (features, labels). None: a model of tensors continues in its own
            data.
          y: the labels, for a model of tensors; None: the `target_tensors`.
          batch_size: accepted without effect.
          verbose: 0: no line in the log.
          steps: the largest number of batches that a worker takes; None: all of them.
          checkpoint_dir: the directory of the checkpoint; None: the directory of `fit`, else of `load_weights`.
          return_dict: whether to return a dict of name to value.

        Returns:
          The loss, or a list of the loss and the metrics, as Keras does; the same on all workers.

        Raises:
          ValueError: there is no checkpoint, or no worker has data.
        """
        del batch_size
        compiled = self._checked("evaluate", x, y)
        with scope(mode="eval"), self._building():
            evaluation = self._evaluation(compiled, x, steps, "evaluation", y)
            found = self._run(evaluation.run, self._directory_of_weights("evaluate", checkpoint_dir))
        values = found or no_data("evaluate", History())
        if verbose:
            report("evaluation", values)
        if return_dict:
            return values
        listed = list(values.values())
        return listed if compiled.metrics else listed[0]

    def _evaluation(self, compiled: Compiled, x: Any, steps: int | None, name: str, y: Any = None) -> Pass:
        with context.scope(mode="eval"), tf.name_scope(name):
            if self.outputs is None:
                restart, features, labels = batches_of(x, name)
                outputs = self._outputs(features, training=False)
                return Pass(restart, measured(features, labels, outputs, compiled.loss, compiled.metrics), steps)
            labels = compiled.target if y is None else y
            measures = measured(self.inputs, labels, self.outputs, compiled.loss, compiled.metrics)
            if x is None:
                return Pass(None, measures, steps)
            restart, *batch = batches_of(x, name)
            return Pass(restart, measures, steps, feeds=feeding((self.inputs, labels), self.outputs, tuple(batch)))

    def predict(
        self, x: Any, batch_size: int | None = None, steps: int | None = None, *, checkpoint_dir: str | None = None
    ) -> np.ndarray:
        """Returns the outputs for this worker's data; all workers must call it together.

        Args:
          x: a dataset of this worker's batches of features, or of (features, labels).
          batch_size: accepted without effect.
          steps: the largest number of batches that a worker takes; None: all of them.
          checkpoint_dir: as in `evaluate`.

        Raises:
          ValueError: there is no checkpoint, a batch does not fit the model, or no worker has data.
        """
        del batch_size
        with scope(mode="eval"), self._building(), tf.name_scope("prediction"):
            restart, features, _ = batches_of(x, "predict", labelled=False)
            if self.outputs is None:
                predicted, feeds = self._outputs(features, training=False), None
            else:
                predicted, feeds = self.outputs, feeding(self.inputs, self.outputs, features)
            prediction = Pass(restart, None, steps, along={"outputs": predicted}, feeds=feeds)
            directory = self._directory_of_weights("predict", checkpoint_dir)
            found = self._run(lambda session: [r["outputs"] for r in prediction.batches(session)], directory)
        return np.concatenate(found or no_data("predict", History()))

    # Saving.

    def export_saved_model(
        self,
        saved_model_path: str,
        signature_def_fn: Callable[[], Any],
        checkpoint_path: str | None = None,
        custom_objects: Any = None,
        as_text: bool = False,
    ) -> str | None:
        """Writes a SavedModel on worker 0, like `hb.train.export`.

        Args:
          saved_model_path: the directory in which a new directory is created.
          signature_def_fn: builds the model in a new graph, and returns its signature.
          checkpoint_path: the prefix of the checkpoint; None: the latest one in `fit`'s directory.
          custom_objects: files to copy: path inside `assets.extra` -> path of the source.
          as_text: whether to write the graph as text.

        Returns:
          The directory of the SavedModel on worker 0; None on other workers, which return at once.

        Raises:
          ValueError: there is no checkpoint, or it does not fit the model.
        """
        if context.rank != 0:
            return None
        if checkpoint_path is None and self._checkpoint_dir is not None:
            checkpoint_path = latest.latest_checkpoint(self._checkpoint_dir)
        return saved_models.export(
            saved_model_path, checkpoint_path, signature_def_fn, assets_extra=custom_objects, as_text=as_text
        )

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Raises NotImplementedError: weights are in checkpoints, and `export_saved_model` writes SavedModels."""
        raise NotImplementedError("Model.save: only SavedModels are written; use export_saved_model")

    def summary(self, print_fn: Callable[[str], None] = print) -> None:
        """Prints the trainable variables and their sizes."""
        variables = _tf1.trainable_variables()
        print_fn(f"Model: {self.name}")
        for v in variables:
            print_fn(f"  {v.op.name:60} {whole_shape(v)}")
        print_fn(f"Trainable parameters: {sum(int(np.prod(whole_shape(v))) for v in variables):,}")

    # Graphs and sessions.

    def _checked(self, what: str, x: Any, y: Any) -> Compiled:
        if self._compiled is None:
            raise RuntimeError(f"{what}: the model is not compiled; call compile() first")
        of_tensors = self.outputs is not None
        if of_tensors and what == "fit" and x is not None:
            raise NotImplementedError("fit: a model of tensors trains on the data of its tensors; x has to be None")
        if not of_tensors and y is not None:
            raise ValueError(f"{what}: y is given, wanted a dataset x of features and labels")
        if of_tensors and y is None and self._compiled.target is None:
            raise ValueError(f"{what}: a model of tensors needs y, or target_tensors of compile()")
        return self._compiled

    @contextlib.contextmanager
    def _building(self) -> Iterator[None]:
        """Makes the program's graph accept more operations, and a repeated call of the model reuse its variables."""
        graph = _tf1.get_default_graph()
        # An earlier session has finalized the graph; the next session is a new one.
        graph._unsafe_unfinalize()
        reuse = _tf1.variable_scope(_tf1.get_variable_scope(), reuse=_tf1.AUTO_REUSE, auxiliary_name_scope=False)
        with reuse:
            yield

    def _outputs(self, features: Any, training: bool) -> Any:
        """Returns the outputs; their variables have the same names in each call."""
        store = variable_scope.get_variable_scope_store()
        graph = _tf1.get_default_graph()
        if self._default_names is None or self._default_names[0] is not graph:
            self._default_names = (graph, dict(store.variable_scopes_count))
            return self(features, training=training)
        # TensorFlow numbers the variable scopes; the numbers start again where they were before the first call.
        counts, store.variable_scopes_count = store.variable_scopes_count, dict(self._default_names[1])
        try:
            return self(features, training=training)
        finally:
            store.variable_scopes_count = counts

    def _directory(self, checkpoint_dir: str | None) -> str:
        if checkpoint_dir is None:
            checkpoint_dir = agreement.from_chief(tempfile.mkdtemp() if context.rank == 0 else None, "checkpoint_dir")
            _log.warning("fit: no checkpoint_dir was given; checkpoints are saved in %s", checkpoint_dir)
        self._checkpoint_dir = os.fspath(checkpoint_dir)
        return self._checkpoint_dir

    def _directory_of_weights(self, what: str, checkpoint_dir: str | None) -> str | None:
        directory = checkpoint_dir or self._checkpoint_dir
        found = latest.latest_checkpoint(directory) is not None
        if not found and self._weights is None:
            raise ValueError(f"{what}: found no checkpoint in {directory!r}; train first, or load_weights()")
        return directory if found else None

    def _run(
        self,
        work: Callable[[Any], Any],
        directory: str | None,
        saver: Any = None,
        variables: Sequence[tf.Variable] | None = None,
    ) -> Any:
        """Calls `work` with a session whose variables are restored from the latest checkpoint in `directory`."""
        init_fn = None
        if self._weights is not None:
            init_fn = loading(*self._weights, variables if variables is not None else _tf1.global_variables())
        creator = _tf1.train.ChiefSessionCreator(
            scaffold=_tf1.train.Scaffold(saver=saver or _tf1.train.Saver(allow_empty=True), init_fn=init_fn),
            config=get_session_config(),
            checkpoint_filename_with_path=latest.agreed_checkpoint(directory, "checkpoint"),
        )
        with _tf1.train.MonitoredSession(creator) as session:
            return session.run_step_fn(lambda step_context: work(step_context.session))


def _saver(keep: int | None, every_n_hours: float | None) -> Any:
    """Returns a saver that keeps 5 checkpoints by default, and one of each period of hours."""
    return _tf1.train.Saver(
        max_to_keep=5 if keep is None else keep, keep_checkpoint_every_n_hours=every_n_hours or 10000
    )


def _validated(validation: Pass, session: Any) -> dict[str, Any]:
    """Returns the values of a validation by the names that Keras gives them."""
    found = validation.run(session) or no_data("fit: validation_data", History())
    return {f"val_{name}": value for name, value in found.items()}


def _intercept_models(interception: Interception) -> None:
    """Replaces the `Model` of Keras 2 by this library's, in graphs of TensorFlow 1."""
    if loaded_keras_2() is not None and not tf.executing_eagerly():
        interception.replace(symbols.KERAS_2_MODEL, lambda _: Model)


hooks.add(_intercept_models)
