"""The scope in which a TensorFlow program trains on all workers of the job.

The outermost scope replaces the following in the whole process, and restores it on exit:

| symbols | replacement |
| --- | --- |
| optimizers' `compute_gradients`, `apply_gradients` | exchange gradients (`gradients/tensorflow1_optimizers.py`) |
| updates by `tf.IndexedSlices`, of TensorFlow 1, Keras 2 and Keras 3 | one fused operation each (`tables/updates/`) |
| creation of variables | sharded if `sharding=True` (`tables/sharded/`), else replicated (`replicas/replicated.py`) |
| `variables_initializer` | gives worker 0's values to variables that were made outside (`replicas/replicated.py`) |
| `assign`, `assign_add`, `assign_sub` | equal values on all workers (`replicas/assignments.py`) |
| scatters to sharded tables | refuse ids where rows of the shard are meant (`tables/sharded/scatters.py`) |
| `tf.gradients`, `tf.GradientTape.gradient` | return one slice for each row (`tables/sharded/seen_gradients.py`) |
| `global_norm`, `clip_by_global_norm`, `clip_by_norm`, loss scales | include all shards (`gradients/norms.py`) |
| losses of `tf.compat.v1.losses` with weights | count by their divisors (`gradients/loss_divisors.py`) |
| `tf.nn.moments`, moving averages | cover the batches of all workers (`replicas/batch_statistics.py`) |
| `Saver` | saves and restores for the job (`saving/checkpoint.py`) |
| `MonitoredTrainingSession` | runs its hooks and saves on all workers together (`sessions/session.py`) |
| iterators of datasets | end on all workers together (`data/sync.py`) |
| Keras 3 | trains, evaluates, predicts and saves for the job (`keras/hooks/`) |
| `Model` of Keras 2, in a graph of TensorFlow 1 | is replaced by this library's (`keras/models/graph_model.py`) |

`hooks/symbols.py` lists each symbol that is replaced. Inner scopes change only options.
"""

from __future__ import annotations

import contextlib
import random
import sys
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from lockstep._src.data import sync
from lockstep._src.engine import apart
from lockstep._src.engine.context import context
from lockstep._src.engine.options import OptionValues, takes_options
from lockstep._src.gradients import loss_divisors, norms, tensorflow1_optimizers
from lockstep._src.hooks import symbols
from lockstep._src.hooks.hook_set import HookSet
from lockstep._src.hooks.interception import Interception, around
from lockstep._src.replicas import assignments, batch_statistics, replicated
from lockstep._src.saving import checkpoint
from lockstep._src.sessions import session
from lockstep._src.tables import pooling, sharded, updates
from lockstep._src.tables.placement import plan
from lockstep._src.tables.sharded import counts
from lockstep._src.tables.updates import keras2

if TYPE_CHECKING:
    from typing_extensions import Unpack


@takes_options
@contextlib.contextmanager
def scope(**options: Unpack[OptionValues]) -> Iterator[None]:
    """Opens a scope: a model that is built inside trains on all workers of the job. Also usable as a decorator.

    The first scope connects to the other workers, unless the process is already connected.

    The arguments are options of the job; they apply while the scope is open. `sharding=True` shards trainable variables
    that are made inside by rows.

    Args:
      {options}

    Raises:
      AttributeError: an option does not exist; nothing is changed.
      TypeError, ValueError: an option's value is of a wrong type or out of range; nothing is changed.
    """
    ctx = context
    with ctx.scope(**options):
        ctx.ensure_initialized()
        with _seeded(options.get("seed")), hooks.held(), apart.open_scope():
            yield


@takes_options
def embedding_scope(**options: Unpack[OptionValues]) -> contextlib.AbstractContextManager[None]:
    """Opens a `scope` whose variables are sharded: `scope(sharding=True, **options)`.

    It stands only around the tables. The rest of the model, and its training, belong in a `scope` around it.

    Args:
      {options}
    """
    given: OptionValues = {"sharding": True, **options}
    return scope(**given)


@contextlib.contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """Sets the seed of Python, of NumPy, of the current graph, and of the graphs that are made inside the block."""
    if seed is None:
        yield
        return
    random.seed(seed)
    np.random.seed(seed)
    tf.compat.v1.set_random_seed(seed)

    def init(original: Callable[..., None], graph: tf.Graph) -> None:
        original(graph)
        graph.seed = seed

    with Interception(symbols.SEED) as interception:
        interception.replace(symbols.GRAPH_INIT, around(init))
        yield


def _intercept(interception: Interception) -> None:
    tensorflow1_optimizers.intercept_optimizers(interception)
    updates.intercept_updates(interception)
    checkpoint.intercept_savers(interception)
    session.intercept_sessions(interception)
    sync.intercept_iterators(interception)
    sharded.intercept_gradients(interception)
    norms.intercept_norms(interception)
    loss_divisors.intercept_losses(interception)
    batch_statistics.intercept_batch_statistics(interception)
    sharded.intercept_creation(
        interception, replicated=pooling.fusing(replicated.create), in_functions=replicated.create_in_function
    )
    replicated.intercept_initializers(interception)
    sharded.intercept_scatters(interception)
    pooling.intercept_pooling(interception)
    assignments.intercept_assignments(interception)
    _intercept_keras(interception)


def _has_keras_3() -> bool:
    """Returns whether the program has loaded Keras 3 with TensorFlow as its backend."""
    keras: Any = sys.modules.get("keras")
    version = getattr(keras, "__version__", "0")
    return int(version.split(".")[0]) >= 3 and keras.backend.backend() == "tensorflow"


def loaded_keras_2() -> types.ModuleType | None:
    """Returns Keras 2, if the program has loaded it and no Keras 3."""
    if _has_keras_3():
        return None
    keras = sys.modules.get("tf_keras") or sys.modules.get("keras")
    return keras if getattr(keras, "__version__", "0").startswith("2.") else None


def _intercept_keras(interception: Interception) -> None:
    if _has_keras_3():
        # These modules import Keras, which is not installed with every TensorFlow.
        from lockstep._src.keras.hooks import best_weights as keras_best_weights
        from lockstep._src.keras.hooks import callbacks as keras_callbacks
        from lockstep._src.keras.hooks import model_files as keras_saving
        from lockstep._src.keras.hooks import table_optimizers as keras_table_optimizers
        from lockstep._src.keras.hooks import training as keras_training
        from lockstep._src.keras.hooks import variables as keras_variables
        from lockstep._src.tables.updates import keras3 as keras_updates

        keras_variables.intercept_variables(interception)
        keras_training.intercept_training(interception)
        keras_saving.intercept_saving(interception)
        keras_callbacks.intercept_callbacks(interception)
        keras_best_weights.intercept_best_weights(interception)
        keras_table_optimizers.intercept_table_optimizers(interception)
        keras_updates.intercept_updates(interception)
    elif (keras_2 := loaded_keras_2()) is not None:
        from lockstep._src.keras.hooks import model_files2

        keras2.intercept_updates(interception, keras_2)
        counts.intercept_counts(interception, [hook.of(keras_2.__name__) for hook in symbols.KERAS_2_COUNTS])
        model_files2.intercept_saving(interception, keras_2)


# These symbols are replaced while any scope is open. Modules of higher layers add theirs, such as Keras 2's `Model`.
hooks = HookSet(symbols.SCOPE, _intercept)
plan.watch_balance()
