"""Tests of the table against the installed TensorFlow and Keras, and against the symbols that scopes replace."""

import dataclasses
import importlib
import sys
import threading

import keras
import pytest
import tensorflow as tf

from lockstep import context, scope
from lockstep._src.hooks import symbols
from lockstep._src.hooks.hook import ABSENT, VERSIONS, HookError
from lockstep.testing import call_workers
from lockstep.testing.replaced import HAS_KERAS_3, HAS_KERAS_RS, Snapshot, installed_hooks

AS_LISTED = [], []


@pytest.mark.parametrize("hook", installed_hooks(), ids=lambda hook: f"{hook.symbol} {[p.name for p in hook.why]}")
def test_a_symbol_exists_in_all_its_places_with_the_signature_that_is_relied_on(hook):
    hook.check()
    if hook.signature == ABSENT:
        return
    values = [getattr(owner, name) for owner, name in hook.places()]
    assert all(value is values[0] for value in values), "the places hold several objects"


def test_the_installed_versions_are_those_that_the_table_is_tested_with():
    assert tf.__version__ in VERSIONS["TensorFlow"]
    assert keras.__version__ in VERSIONS[f"Keras {keras.__version__[0]}"]
    if "tf_keras" in sys.modules:
        assert sys.modules["tf_keras"].__version__ in VERSIONS["Keras 2"]
    if HAS_KERAS_RS:
        assert importlib.import_module("keras_rs").__version__ in VERSIONS["Keras RS"]


def test_no_symbol_has_two_rows_for_one_period_but_those_that_are_replaced_twice():
    pairs = [(hook.symbol, period.name) for hook in symbols.TABLE for period in hook.why]
    twice = {symbol.rpartition(".")[2] for symbol, _ in {pair for pair in pairs if pairs.count(pair) > 1}}
    # Two hooks use these: one gives callbacks' errors other classes, another stops all workers together.
    assert twice == {"on_train_batch_end", "on_test_batch_end", "on_predict_batch_end"}


def load_lazily_loaded_modules():
    """Enters a scope once, since some of TensorFlow's modules load others when they are first used."""
    keras.Model, tf.compat.v1.keras.models.Model  # noqa: B018
    if HAS_KERAS_RS:
        importlib.import_module("keras_rs")
    with scope():
        pass


def in_scopes():
    """Returns the differences between scopes and the table, and the symbols that are still replaced after them."""
    load_lazily_loaded_modules()
    only = [""]
    if context.world_size > 1:
        only += ["several workers"] if context.is_chief else ["several workers", "workers other than 0"]
    before = Snapshot()
    with scope():
        outer = before.differences("scope", only=only)
        with scope(grad_nbuckets=2):
            inner = before.differences("scope", only=only)
        inner_has_ended = before.differences("scope", only=only)
    return outer, inner, inner_has_ended, before.replaced()


@pytest.mark.workers
@pytest.mark.parametrize("workers", [1, 2])
def test_scopes_replace_what_the_table_lists_until_the_last_one_ends(workers):
    for result in call_workers(in_scopes, workers, timeout_s=120):
        assert result == (AS_LISTED, AS_LISTED, AS_LISTED, {})


def in_graphs_of_keras_2():
    load_lazily_loaded_modules()
    before = Snapshot()
    places = symbols.KERAS_2_MODEL.places()
    own = [getattr(owner, name) for owner, name in places]
    with tf.Graph().as_default(), scope():
        inside = [getattr(owner, name).__module__ for owner, name in places]
    return inside, [getattr(owner, name) for owner, name in places] == own, before.replaced()


@pytest.mark.workers
@pytest.mark.skipif(HAS_KERAS_3, reason="scopes look for Keras 3 first")
def test_in_graphs_the_models_of_keras_2_are_replaced_as_well():
    [result] = call_workers(in_graphs_of_keras_2, 1, timeout_s=120)
    assert result == (["lockstep._src.keras.models.graph_model"] * 2, True, {})


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


@pytest.mark.workers
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
    one_is_open = before.differences("scope", "seed")
    leave.set()
    thread.join(60)
    return one_is_open, found, before.replaced()


@pytest.mark.workers
def test_scopes_of_two_threads_overlap():
    assert call_workers(in_scopes_of_threads, 1, timeout_s=120) == [(AS_LISTED, [2], {})]
