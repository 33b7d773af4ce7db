"""Stop requests of Keras 3 callbacks: `fit`, `evaluate` and `predict` end after the same batch on all workers.

Callbacks end a pass over data by `model.stop_training` (`stop_evaluating`, `stop_predicting`), which Keras reads after
each batch and after each epoch. A worker's request is cleared before Keras reads it. It is then sent with the exchange
that precedes the next batch, and all workers skip this batch. After an epoch there is a separate exchange.

If only one worker begins such a pass, it waits for the others in vain, and gets an error that names the call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lockstep._src.collectives import ordered
from lockstep._src.engine import steps
from lockstep._src.engine.context import context
from lockstep._src.engine.options import OptionValues
from lockstep._src.keras.hooks import called_alone, uneven

# Method of a model -> the attribute by which callbacks end it.
ATTRIBUTES = {"fit": "stop_training", "evaluate": "stop_evaluating", "predict": "stop_predicting"}


class Pass:
    """A call of a model's `fit`, `evaluate` or `predict`.

    Args:
      model: the model.
      attribute: the attribute that callbacks set, see `ATTRIBUTES`.

    Attributes:
      asked: whether this worker's callbacks have asked for the end.
      has_begun: whether all workers have agreed on a batch.
    """

    def __init__(self, model: Any, attribute: str) -> None:
        self._model = model
        self._attribute = attribute
        self.asked = self.has_begun = False

    def take_back(self) -> None:
        """Records a request of this worker's callbacks, and clears it before Keras reads it."""
        if getattr(self._model, self._attribute, False):
            setattr(self._model, self._attribute, False)
            self.asked = True

    def agree(self, anyone_asked: bool) -> None:
        """Passes the agreement of all workers to Keras."""
        self.asked, self.has_begun = False, True
        if anyone_asked:
            setattr(self._model, self._attribute, True)


class Passes(threading.local):
    """The current passes of this thread; an evaluation may run inside of training."""

    def __init__(self) -> None:
        self.innermost: Pass | None = None
        self._batches = steps.Batches()

    def begin(self, name: str) -> Callable[..., Any]:
        """Returns a model's `fit`, `evaluate` or `predict`; the latter two process all data of all workers."""
        options: OptionValues = {} if name == "fit" else {"mode": "eval"}
        advice = _advice(name)

        def run(method: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
            this = Pass(model, ATTRIBUTES[name])
            outer, self.innermost = self.innermost, this
            try:
                with context.scope(**options), called_alone.refused(f"{name}()", advice, lambda: this.has_begun):
                    return method(model, *args, **kwargs)
            finally:
                self.innermost = outer

        return run

    def end_batch(self, tell: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Informs all callbacks about the end of a batch, and keeps their requests."""
        tell(*args, **kwargs)
        if self.innermost is not None:
            self.innermost.take_back()

    def end_train_batch(self, tell: Callable[..., Any], callbacks: Any, batch: int, *args: Any, **kwargs: Any) -> Any:
        """Does the same in training, and marks the steps unless a callback has done so."""
        count, marked = self._batches.since_last(batch), steps.marked()
        self.end_batch(tell, callbacks, batch, *args, **kwargs)
        for _ in range(count if steps.marked() == marked else 0):
            steps.end_step()

    def end_epoch(self, tell: Callable[..., Any], callbacks: Any, *args: Any, **kwargs: Any) -> Any:
        """Informs all callbacks about the end of an epoch; all workers agree on their requests."""
        uneven.show_true_count(callbacks)
        self.end_batch(tell, callbacks, *args, **kwargs)
        if self.innermost is not None:
            asked = tf.constant(int(self.innermost.asked))
            self.innermost.agree(bool(ordered.allreduce(asked, op="max", name="stop_training").numpy()))


def _advice(name: str) -> str:
    alone = "" if name == "fit" else (
        f". To {name} on one rank only, leave the scope before, if the model has no sharded tables; otherwise export "
        "the model on all ranks, and load the export on one"
    )  # fmt: skip
    return f"all ranks take their batches together. Call {name}() on all ranks, each with rows of its own{alone}"
