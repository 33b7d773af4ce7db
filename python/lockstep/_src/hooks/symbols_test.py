"""The table, beside the TensorFlow and Keras that are installed, and beside what scopes and jobs really replace."""

import dataclasses
import importlib
import importlib.util
import threading

import keras
import pytest
import tensorflow as tf

from lockstep import scope
from lockstep._src.hooks import symbols
from lockstep._src.hooks.hook import ABSENT, Hook, HookError
from lockstep._src.hooks.interception import all_subclasses
from lockstep.testing import call_workers
from lockstep.testing.replaced import Snapshot

_HAS_KERAS_3 = keras.__version__.startswith("3.")
# Keras 2 is in the package `keras` of older TensorFlows.
_KERAS_2 = None if _HAS_KERAS_3 and importlib.util.find_spec("tf_keras") is None else "tf_keras"
_KERAS_2 = _KERAS_2 if _HAS_KERAS_3 else "keras"
_HERE = [
    hook
    for hook in symbols.TABLE
    if hook.library == "TensorFlow"
    or (hook.library == "Keras 3" and _HAS_KERAS_3)
    or (hook.library == "Keras 2" and _KERAS_2 is not None)
]


def found(hook: Hook) -> Hook:
    """Returns a row that names the package of Keras 2 that is installed."""
    return hook.of(_KERAS_2) if hook.library == "Keras 2" else hook


@pytest.mark.parametrize("hook", _HERE, ids=lambda hook: f"{hook.symbol}-{'-'.join(p.name for p in hook.why)}")
def test_a_symbol_exists_in_all_its_places_with_the_signature_that_is_relied_on(hook):
    hook = found(hook)
    hook.check()
    if hook.signature == ABSENT:
        return
    values = [getattr(owner, name) for owner, name in hook.places()]
    assert all(value is values[0] for value in values), "the places hold several objects"


def test_no_symbol_has_two_rows_for_one_period_but_those_that_are_replaced_twice():
    pairs = [(hook.symbol, period.name) for hook in symbols.TABLE for period in hook.why]
    twice = {symbol.rpartition(".")[2] for symbol, _ in {pair for pair in pairs if pairs.count(pair) > 1}}
    # Callbacks' errors are renamed, and all workers stop together.
    assert twice == {"on_train_batch_end", "on_test_batch_end", "on_predict_batch_end"}


def expected(period, only=("",)):
    """Returns the places of the rows of a period, as a snapshot has them.

    Args:
      period: the period.
      only: the conditions of rows that hold.
    """
    places = {}
    for hook in symbols.TABLE:
        if period not in hook.why or hook.only not in only or hook.library == _not_in_scopes():
            continue
        hook = found(hook)
        owners = [(owner, name) for owner, name in hook.places()]
        if hook.subclasses:
            classes = all_subclasses(owners[0][0])
            owners += [(cls, hook.name) for cls in classes if hook.name in vars(cls) and _is_of_library(cls)]
        places.update({(id(owner), name): f"{owner.__name__}.{name}" for owner, name in owners})
    return places


def _not_in_scopes():
    """Returns the Keras that scopes leave alone: they look for Keras 3 first."""
    return "Keras 2" if _HAS_KERAS_3 else "Keras 3"


def _is_of_library(cls):
    return cls.__module__.partition(".")[0] in ("tensorflow", "keras", "tf_keras")


def differences(period, before, only=("",)):
    """Returns what is replaced and in no row, and the other way round; two empty lists where the table is true."""
    replaced, rows = before.replaced(), expected(period, only)
    unlisted = sorted(replaced[place] for place in replaced.keys() - rows.keys())
    untouched = sorted(rows[place] for place in rows.keys() - replaced.keys())
    return unlisted, untouched


def load_lazily_loaded_modules():
    """Enters a scope once, since some of TensorFlow's modules load others when they are first used."""
    keras.Model, tf.compat.v1.keras.models.Model  # noqa: B018
    with scope():
        pass


def in_scopes():
    """Returns what scopes replace that is in no row, and so on; and what is still replaced after them."""
    load_lazily_loaded_modules()
    from lockstep._src.engine.context import context

    only = [""]
    if context.world_size > 1:
        only += ["several workers"] if context.is_chief else ["several workers", "workers other than 0"]
    before = Snapshot()
    with scope():
        outer = differences(symbols.SCOPE, before, only)
        with scope(grad_nbuckets=2):
            inner = differences(symbols.SCOPE, before, only)
        left_inner = differences(symbols.SCOPE, before, only)
    return outer, inner, left_inner, before.replaced()


@pytest.mark.parametrize("workers", [1, 2])
def test_scopes_replace_what_the_table_lists_until_the_last_one_ends(workers):
    nothing = [], []
    for result in call_workers(in_scopes, workers, timeout_s=120):
        assert result == (nothing, nothing, nothing, {})


def in_graphs_of_keras_2():
    load_lazily_loaded_modules()
    before = Snapshot()
    with tf.Graph().as_default(), scope():
        inside = differences(symbols.SCOPE, before, ["", "Keras 2, outside of eager mode"])
    return inside, before.replaced()


@pytest.mark.skipif(_HAS_KERAS_3, reason="scopes look for Keras 3 first")
def test_in_graphs_the_models_of_keras_2_are_replaced_as_well():
    assert call_workers(in_graphs_of_keras_2, 1, timeout_s=120) == [(([], []), {})]


def in_scopes_that_fail():
    load_lazily_loaded_modules()
    before = Snapshot()
    with pytest.raises(ZeroDivisionError), scope(seed=1), scope():
        raise ZeroDivisionError
    after_an_error = before.replaced()

    symbols.MOMENTS = dataclasses.replace(symbols.MOMENTS, signature="(x, no_such_argument)")
    with pytest.raises(HookError) as error, scope():
        pass
    return after_an_error, str(error.value), before.replaced()


def test_scopes_that_fail_restore_all_symbols():
    [(after_an_error, refusal, after_the_refusal)] = call_workers(in_scopes_that_fail, 1, timeout_s=120)
    assert after_an_error == {} == after_the_refusal
    assert refusal.startswith(
        "cannot replace tensorflow.python.ops.nn_impl:moments: wanted (x, no_such_argument), found (x, axes, "
    )


def in_scopes_of_threads():
    load_lazily_loaded_modules()
    before = Snapshot()
    entered, leave = threading.Event(), threading.Event()
    found = []

    def other():
        with scope(seed=2):
            entered.set()
            leave.wait(60)
            found.append(tf.Graph().seed)

    thread = threading.Thread(target=other)
    with scope(seed=1):
        thread.start()
        entered.wait(60)
    one_is_left = differences(symbols.SCOPE, before)
    leave.set()
    thread.join(60)
    return one_is_left, found, before.replaced()


def test_scopes_of_two_threads_overlap():
    [(one_is_left, seeds, after)] = call_workers(in_scopes_of_threads, 1, timeout_s=120)
    assert one_is_left == (["tensorflow.python.framework.ops.Graph.__init__"], []), "its seed's hook, and no other"
    assert seeds == [2] and after == {}
