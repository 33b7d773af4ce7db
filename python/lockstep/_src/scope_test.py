"""The scope on one worker. For several workers see tests/multiprocess/scope/scope_test.py."""

import random
import sys
import types

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src import scope as module
from lockstep._src.engine.context import context
from lockstep._src.hooks import symbols
from lockstep._src.scope import embedding_scope, scope
from lockstep._src.tables import sharded

tf1 = tf.compat.v1
RESTORED = {
    "Optimizer.compute_gradients": lambda: tf1.train.Optimizer.compute_gradients,
    "MonitoredTrainingSession": lambda: tf1.train.MonitoredTrainingSession,
    "Saver": lambda: tf1.train.Saver.save,
    "make_one_shot_iterator": lambda: tf1.data.make_one_shot_iterator,
    "clip_by_norm": lambda: tf.clip_by_norm,
}


@pytest.mark.parametrize(
    "symbol", ["Optimizer.compute_gradients", "MonitoredTrainingSession", "make_one_shot_iterator"]
)
def test_symbols_are_replaced_by_the_outermost_scope_and_restored_at_its_end(symbol):
    find = RESTORED[symbol]
    before = find()
    with scope():
        outer = find()
        with scope():
            assert find() is outer
        assert find() is outer
    assert outer is not before and find() is before


@pytest.mark.parametrize("symbol", RESTORED)
def test_symbols_are_restored_after_an_error(symbol):
    before = RESTORED[symbol]()
    with pytest.raises(ZeroDivisionError), scope():
        raise ZeroDivisionError
    assert RESTORED[symbol]() is before


def test_options_apply_while_the_scope_is_open():
    before = context.options.grad_nbuckets
    with scope(grad_nbuckets=3):
        with scope(grad_nbuckets=5, batch_size=7):
            assert (context.options.grad_nbuckets, context.options.batch_size) == (5, 7)
        assert context.options.grad_nbuckets == 3
    assert context.options.grad_nbuckets == before


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"buckets": 3}, AttributeError, "unknown option 'buckets'"),
        ({"grad_nbuckets": [3]}, TypeError, "grad_nbuckets"),
        ({"grad_nbuckets": -1}, ValueError, "grad_nbuckets"),
    ],
    ids=["unknown", "type", "range"],
)
@pytest.mark.parametrize("make", [scope, embedding_scope])
def test_a_wrong_option_is_refused_and_changes_nothing(make, options, error, message):
    before = context.options, tf1.train.Optimizer.compute_gradients
    with pytest.raises(error, match=message), make(batch_size=7, **options):
        pass
    assert (context.options, tf1.train.Optimizer.compute_gradients) == before


@pytest.mark.parametrize(
    ("make", "options", "expected"),
    [(scope, {}, False), (scope, {"sharding": True}, True), (embedding_scope, {}, True)],
    ids=["scope", "sharding", "embedding_scope"],
)
def test_variables_are_sharded_in_an_embedding_scope(make, options, expected):
    with tf.Graph().as_default(), scope(), make(**options):
        table, step = tf1.get_variable("table", [4, 2]), tf1.train.get_or_create_global_step()
    assert sharded.is_sharded(table) == expected and not sharded.is_sharded(step)


def test_a_scope_is_also_a_decorator():
    @scope(batch_size=7)
    def size():
        return context.options.batch_size

    assert [size(), size()] == [7, 7] and context.options.batch_size != 7


def drawn(seed):
    """Returns random numbers of Python, NumPy, the graph around the scope, and a graph that is made in it."""
    with tf.Graph().as_default(), tf1.Session() as session, scope(seed=seed):
        numbers = [random.random(), np.random.rand(), session.run(tf.random.uniform([]))]
        with tf.Graph().as_default() as graph, tf1.Session() as inner:
            return [*numbers, inner.run(tf.random.uniform([]))], graph.seed


def test_a_seed_gives_all_generators_the_same_numbers_again():
    (first, seed), (second, _), (other, _) = drawn(7), drawn(7), drawn(8)
    assert first == second and seed == 7
    assert all(a != b for a, b in zip(first, other, strict=True))


def test_graphs_have_no_seed_after_the_scope_or_without_one():
    with scope(seed=7), scope():
        assert tf.Graph().seed == 7
    assert tf.Graph().seed is None
    with scope():
        assert tf.Graph().seed is None


def keras_of(version):
    return types.SimpleNamespace(
        __version__=version, backend=types.SimpleNamespace(backend=lambda: version.partition("+")[2] or "tensorflow")
    )


@pytest.mark.parametrize(
    ("modules", "is_3", "found"),
    [
        ({}, False, None),
        ({"keras": "3.5.0"}, True, None),
        ({"keras": "3.5.0+jax"}, False, None),
        ({"keras": "2.15.0"}, False, "keras"),
        ({"keras": "3.5.0", "tf_keras": "2.18.0"}, True, None),
        ({"keras": "3.5.0+jax", "tf_keras": "2.18.0"}, False, "tf_keras"),
    ],
    ids=["none", "3", "3 on JAX", "2", "3 and 2", "3 on JAX and 2"],
)
def test_the_version_of_keras_is_that_of_the_loaded_module(monkeypatch, modules, is_3, found):
    loaded = {name: keras_of(version) for name, version in modules.items()}
    for name in ("keras", "tf_keras"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name, keras in loaded.items():
        monkeypatch.setitem(sys.modules, name, keras)
    assert module._has_keras_3() == is_3
    assert module.loaded_keras_2() is loaded.get(found)


def test_later_hooks_are_installed_in_an_open_scope_and_with_each_next_one(monkeypatch):
    monkeypatch.setattr(module.hooks, "_installs", [*module.hooks._installs])
    installed = []
    install = installed.append
    with scope():
        module.hooks.add(install)
        module.hooks.add(install)
        assert len(installed) == 1
    with scope():
        assert len(installed) == 2
    assert symbols.SCOPE in symbols.PERIODS
