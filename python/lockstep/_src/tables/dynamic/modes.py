"""Lookups that train, and those that do not.

A lookup in training takes new keys in, counts keys, and has a gradient. It gives a new key the row that the key begins
with, and a key that a filter has not admitted the default row.

Other lookups leave no trace: those of evaluation, of prediction and of an exported model. They give a key its row. All
keys without a row read the default row: keys that training has never seen, that are not admitted yet, or that were
evicted. Each element of the default row is `default_value_no_permission` of the table's options, 0 by default. A table
without a filter whose rows begin with a constant has this constant in its place.

A lookup is one of evaluation where any of these holds, when it is built (in a graph or a `tf.function`) or made:

- it is inside of `evaluating()`;
- the context's option `mode` is 'eval' or 'infer': so in `EvaluationHook`, and in `evaluate`, `predict` and exports of
  estimators;
- a layer of Keras 3 is being called, and not for training: in `evaluate` and `predict` of a model, or with
  `training=False`. Called without saying so it trains where a `tf.GradientTape` records;
- the table is not trainable, or belongs to a layer that is not.

All others are lookups in training.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

from tensorflow.python.eager import record as tape

from lockstep._src.engine.context import context


class _Evaluating(threading.local):
    here = False


_evaluating = _Evaluating()


@contextlib.contextmanager
def evaluating(here: bool = True) -> Iterator[None]:
    """Inside, lookups in dynamic tables leave no trace, and have no gradient; `False` puts that off again."""
    before, _evaluating.here = _evaluating.here, here
    try:
        yield
    finally:
        _evaluating.here = before


def is_training() -> bool:
    """Whether a lookup that is made now is one of training."""
    if _evaluating.here or context.options.mode != "train":
        return False
    called_for = _keras_call_is_for()
    return called_for is None or called_for


def _keras_call_is_for() -> bool | None:
    """Whether the layer of Keras 3 that is being called is called for training; None where none is."""
    layer = sys.modules.get("keras.src.layers.layer")
    state = sys.modules.get("keras.src.backend.common.global_state")
    if layer is None or state is None:
        return None
    call = state.get_global_attribute("current_call_ctx")
    if call is None:
        return None
    training = getattr(call, "training", None)
    return tape.could_possibly_record() if training is None else bool(training)
