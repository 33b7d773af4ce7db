"""Fused pooled lookups of one worker, against plain TensorFlow on an ordinary variable with the same rows.

workers_test.py does the same in jobs of several workers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.collectives.statistics import stats
from lockstep._src.engine import library
from lockstep._src.scope import scope
from lockstep._src.tables import dynamic, pooling, sharded
from lockstep._src.tables.features.group_lookup import group_embedding_lookup_sparse
from lockstep._src.tables.pooling import fused

tf1 = tf.compat.v1
ROWS, DIM = 12, 6
BATCH = [[3, 3, 7], [], [0], [11, 3, 0, 7, 7], [], [5, 5]]
VALUES = np.random.default_rng(1).normal(size=(ROWS, DIM)).astype(np.float32)
KINDS = ("sharded", "dynamic", "replicated")


def _table(kind: str, dtype: tf.DType = tf.float32, **more):
    if kind == "sharded":
        with sharded.sharding_scope(sharded.ShardingRules()):
            return tf.Variable(tf.cast(VALUES, dtype), name="table")
    if kind == "replicated":
        with scope():
            return tf.Variable(tf.cast(VALUES, dtype), name="table")
    table = dynamic.DynamicVariable("table", DIM, dtype=dtype, **more)
    table.insert(tf.range(ROWS, dtype=table.key_dtype), tf.constant(VALUES))
    return table


def _ids(batch=BATCH, dtype=tf.int64):
    return tf.ragged.constant(batch, dtype=dtype, row_splits_dtype=tf.int64)


def _weights(ids: tf.RaggedTensor) -> tf.RaggedTensor:
    drawn = np.random.default_rng(2).uniform(0.5, 2, size=ids.flat_values.shape[0])
    return ids.with_flat_values(tf.constant(drawn, tf.float32))


@pytest.mark.pairwise
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weights", ["ones", "weights"])
@pytest.mark.parametrize("form", ["sparse", "ragged"])
@pytest.mark.parametrize("max_norm", [None, 1.5])
def test_a_lookup_and_its_gradients_equal_plain_tensorflow(kind, combiner, weights, form, max_norm):
    ids = _ids()
    weights = _weights(ids) if weights == "weights" else None
    upstream = tf.constant(np.random.default_rng(3).normal(size=(len(BATCH), DIM)), tf.float32)
    plain = tf.Variable(VALUES)
    table = _table(kind)
    wanted, of_rows, of_weights = _of_tensorflow(plain, ids, weights, combiner, max_norm, upstream)

    given = [ids, weights] if form == "ragged" else [None if one is None else one.to_sparse() for one in (ids, weights)]
    with tf.GradientTape() as tape:
        if weights is not None:
            tape.watch(given[1].values)
        got = tf.nn.embedding_lookup_sparse(table, *given, combiner=combiner, max_norm=max_norm)
        loss = tf.reduce_sum(got * upstream[: got.shape[0]])
    grads = tape.gradient(loss, [table] + ([] if weights is None else [given[1].values]))
    assert got.shape[0] == len(BATCH)
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(_dense(table, grads[0]), of_rows, rtol=1e-6, atol=1e-6)
    if weights is not None:
        np.testing.assert_allclose(grads[1], of_weights, rtol=1e-5, atol=1e-6)


def _of_tensorflow(plain, ids, weights, combiner, max_norm, upstream):
    values = None if weights is None else tf.identity(weights.flat_values)
    with tf.GradientTape() as tape:
        if weights is not None:
            tape.watch(values)
            weights = weights.with_flat_values(values)
        got = tf.nn.embedding_lookup_sparse(
            plain,
            ids.to_sparse(),
            None if weights is None else weights.to_sparse(),
            combiner=combiner,
            max_norm=max_norm,
        )
        loss = tf.reduce_sum(got * upstream[: got.shape[0]])
    grads = tape.gradient(loss, [plain] + ([] if values is None else [values]))
    return got, tf.convert_to_tensor(grads[0]), None if values is None else grads[1]


def _dense(table, grad: tf.IndexedSlices) -> np.ndarray:
    """Returns the gradient of each id; a dynamic table's slices have numbers of rows, in the order of insertion."""
    dense = np.zeros((ROWS, DIM), np.float32)
    np.add.at(dense, grad.indices.numpy(), tf.cast(grad.values, tf.float32).numpy())
    assert len(set(grad.indices.numpy().tolist())) == grad.indices.shape[0], "a row is summed once"
    return dense


def _ops(function) -> set[str]:
    """Returns the types of the operations of a function without arguments."""
    graph = tf.function(function).get_concrete_function().graph
    return {op.type for op in graph.get_operations()}


class _About(NamedTuple):
    """The properties of a table that errors of a lookup need."""

    logical_name: str = "user"
    has_route: bool = False


FUSED = {"LockstepDistinct", "LockstepPool"}


@pytest.mark.pairwise
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["sparse", "ragged"])
@pytest.mark.parametrize("api", ["v2", "v1", "safe v2", "safe v1", "group", "list"])
def test_all_functions_are_fused_in_a_scope_and_none_without_the_option(kind, form, api):
    table, ids = _table(kind), _ids()
    ids = ids.to_sparse() if form == "sparse" else ids
    lookup = {
        "v2": lambda: tf.nn.embedding_lookup_sparse(table, ids, None),
        "v1": lambda: tf1.nn.embedding_lookup_sparse(table, ids, None, combiner="mean"),
        "safe v2": lambda: tf.nn.safe_embedding_lookup_sparse(table, ids),
        "safe v1": lambda: tf1.nn.safe_embedding_lookup_sparse(table, ids),
        "group": lambda: group_embedding_lookup_sparse([table], [ids], "mean")[0],
        "list": lambda: tf.nn.embedding_lookup_sparse([table], ids, None),
    }[api]
    with scope():
        # A replicated table does not change functions: replicated_test.py has its graphs.
        assert _ops(lookup) & FUSED == (set() if kind == "replicated" else FUSED)
        wanted = lookup()
    with scope(fused_lookups=False):
        assert not _ops(lookup) & FUSED
        np.testing.assert_allclose(wanted, lookup(), rtol=1e-6, atol=1e-6)


@pytest.mark.pairwise
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_of_16_bits_are_added_in_float32(kind, dtype, weighted):
    ids, table = _ids(), _table(kind, dtype)
    weights = _weights(ids) if weighted else None
    with tf.GradientTape() as tape:
        got = tf.nn.embedding_lookup_sparse(table, ids, weights, combiner="sum")
        loss = tf.reduce_sum(tf.cast(got, tf.float32))
    assert got.dtype == dtype
    rounded = tf.cast(tf.cast(VALUES, dtype), tf.float32)
    wanted = tf.nn.embedding_lookup_sparse(rounded, ids, weights, combiner="sum")
    np.testing.assert_array_equal(tf.cast(got, tf.float32), tf.cast(tf.cast(wanted, dtype), tf.float32))
    of_rows = _of_tensorflow(tf.Variable(VALUES), ids, weights, "sum", None, tf.ones([len(BATCH), DIM]))[1]
    np.testing.assert_allclose(_dense(table, tape.gradient(loss, table)), of_rows, rtol=1e-2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_fused", [True, False])
def test_weights_may_have_another_form_than_ids(kind, is_fused):
    ids, table = _ids(), _table(kind)
    weights = _weights(ids)
    wanted = pooling.lookup_pooled(table, ids, weights, "sum")
    with scope(fused_lookups=is_fused):
        for given in ((ids.to_sparse(), weights), (ids, weights.to_sparse())):
            np.testing.assert_allclose(pooling.lookup_pooled(table, *given, "sum"), wanted, rtol=1e-6, atol=1e-6)
            got = group_embedding_lookup_sparse([table], given[:1], "sum", given[1:])[0]
            np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


def test_ragged_ids_with_a_uniform_dimension_are_examples_of_examples():
    ids = tf.RaggedTensor.from_row_lengths(tf.constant([[1, 2], [3, 4], [5, 5]], tf.int64), [2, 1])
    got = pooling.lookup_pooled(_table("sharded"), ids, None, "sum")
    wanted = [[VALUES[1] + VALUES[2], VALUES[3] + VALUES[4]], [2 * VALUES[5], np.zeros(DIM)]]
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_splits_of_32_bits(kind):
    ids = tf.ragged.constant(BATCH, dtype=tf.int32, row_splits_dtype=tf.int32)
    wanted = pooling.lookup_pooled(_table(kind), _ids(), None, "mean")
    np.testing.assert_array_equal(pooling.lookup_pooled(_table(kind), ids, None, "mean"), wanted)
    np.testing.assert_array_equal(tf.nn.embedding_lookup_sparse(_table(kind), ids, None), wanted)


def test_an_evaluation_leaves_a_dynamic_table_alone():
    table = _table("dynamic")
    with dynamic.evaluating():
        got = pooling.lookup_pooled(table, _ids([[1, 99], []]), None, "sum")
    np.testing.assert_allclose(got, [VALUES[1], np.zeros(DIM)], rtol=1e-6)
    assert int(table.total_count()) == ROWS


@pytest.mark.parametrize("api", [tf.nn.safe_embedding_lookup_sparse, tf1.nn.safe_embedding_lookup_sparse])
def test_examples_without_ids_are_no_key_of_a_dynamic_table(api):
    table = dynamic.DynamicVariable("table", DIM)
    ids = _ids([[5], [], [-3]])
    got = [api(table, ids.to_sparse()), tf.nn.safe_embedding_lookup_sparse(table, ids)]
    np.testing.assert_array_equal(*got)
    assert table.export().keys.numpy().tolist() == [5]


@pytest.mark.parametrize("kind", KINDS)
def test_a_gather_of_distinct_rows_has_a_gradient(kind):
    table, ids = _table(kind), tf.constant([4, 2, 4], tf.int64)
    with tf.GradientTape() as tape:
        found = table.distinct_rows(ids)
        loss = tf.reduce_sum(tf.gather(found.rows, found.places) * [[1.0], [10.0], [100.0]])
    dense = np.zeros((ROWS, DIM), np.float32)
    grad = tape.gradient(loss, table)
    np.add.at(dense, grad.indices.numpy(), grad.values.numpy())
    np.testing.assert_array_equal(
        dense[:, 0], np.where(np.arange(ROWS) == 4, 101, np.where(np.arange(ROWS) == 2, 10, 0))
    )


@pytest.mark.parametrize("kind", KINDS)
def test_rows_after_the_last_example_with_ids_are_omitted_as_in_tensorflow(kind):
    table, ids = _table(kind), _ids([[], [1, 2], [], []])
    for form in (ids, ids.to_sparse()):
        got = tf.nn.embedding_lookup_sparse(table, form, None, combiner="sum")
        np.testing.assert_allclose(got, [np.zeros(DIM), VALUES[1] + VALUES[2]], rtol=1e-6)
        assert pooling.lookup_pooled(table, form, None, "sum").shape == [4, DIM]
    for form in (_ids([[], []]), _ids([[], []]).to_sparse()):
        assert tf.nn.embedding_lookup_sparse(table, form, None).shape == [0, DIM]
        np.testing.assert_array_equal(pooling.lookup_pooled(table, form, None, "mean"), np.zeros([2, DIM]))


@pytest.mark.parametrize("kind", ["sharded", "replicated"])
@pytest.mark.parametrize("default_id", [None, 4])
@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_a_safe_lookup_equals_plain_tensorflow(kind, default_id, combiner):
    """Ids of three dimensions; some are below 0, some weights are not positive, some examples have no ids."""
    places = [[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 1, 0], [1, 1, 2], [1, 2, 0]]
    ids = tf.SparseTensor(places, tf.constant([3, -1, -7, 5, 3, 7], tf.int64), [2, 3, 4])
    weights = tf.constant([0.5, 1, 1, -1, 2, 1])
    for given in (None, weights):
        results, grads = [], []
        for table in (_table(kind), tf.Variable(VALUES)):
            with tf.GradientTape() as tape:
                tape.watch(weights)
                got = tf.nn.safe_embedding_lookup_sparse(
                    table,
                    ids,
                    None if given is None else ids.with_values(given),
                    combiner=combiner,
                    default_id=default_id,
                )
                loss = tf.reduce_sum(got**2)
            results.append(got)
            grads.append(tape.gradient(loss, [table] + ([] if given is None else [given])))
        assert results[0].shape == [2, 3, DIM]
        np.testing.assert_allclose(*results, rtol=1e-6, atol=1e-6)
        of_rows, of_rows_wanted = ([one[0].indices, tf.convert_to_tensor(one[0])] for one in grads)
        # With optimizers such as FTRL, a gradient of zero has an effect.
        assert set(of_rows[0].numpy()) == set(of_rows_wanted[0].numpy())
        np.testing.assert_allclose(_dense(table, grads[0][0]), of_rows_wanted[1], rtol=1e-5, atol=1e-6)
        if given is not None:
            np.testing.assert_allclose(*(tf.convert_to_tensor(one[1]) for one in grads), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("examples", [0, 4])
def test_a_batch_without_any_id_is_looked_up(kind, weighted, examples):
    """Its ids and weights are empty tensors, which are not the same as no weights."""
    plain = tf.Variable(VALUES)
    places, values = tf.zeros([0, 2], tf.int64), tf.zeros([0], tf.int64)
    ids = tf.SparseTensor(places, values, [examples, 3])
    weights = ids.with_values(tf.zeros([0])) if weighted else None
    forms = [(ids, weights), [None if one is None else tf.RaggedTensor.from_sparse(one) for one in (ids, weights)]]
    for form in forms:
        for combiner in fused.COMBINERS:
            table = _table(kind)
            for lookup in (tf.nn.embedding_lookup_sparse, tf.nn.safe_embedding_lookup_sparse):
                with tf.GradientTape() as tape:
                    got = lookup(table, *form, combiner=combiner)
                    loss = tf.reduce_sum(got)
                np.testing.assert_array_equal(got, lookup(plain, ids, weights, combiner=combiner))
                grad = tape.gradient(loss, table)
                np.testing.assert_array_equal(_dense(table, grad), np.zeros((ROWS, DIM)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_safe_lookup_of_ragged_ids_equals_that_of_sparse_ids(kind):
    ids = _ids([[3, -1, 5], [], [-2], [7, 7], []])
    weights = ids.with_flat_values(tf.constant([0.5, 1, -1, 1, 2, 1]))
    for combiner in fused.COMBINERS:
        for given in (None, weights):
            forms = [[ids, given], [ids.to_sparse(), None if given is None else given.to_sparse()]]
            results = [tf.nn.safe_embedding_lookup_sparse(_table(kind), *form, combiner=combiner) for form in forms]
            wanted = tf.nn.safe_embedding_lookup_sparse(tf.Variable(VALUES), *forms[1], combiner=combiner)
            for result in results:
                np.testing.assert_allclose(result, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64, tf.string])
@pytest.mark.parametrize("weights_dtype", [None, tf.float16, tf.float32, tf.float64])
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("fill", [False, True])
def test_valid_ids_are_those_of_a_loop(dtype, weights_dtype, positive, fill):
    random = np.random.default_rng([dtype.as_datatype_enum, positive, fill])
    for least, examples in ((-4, 20), (1, 20), (-4, 0), (1, 0)):  # with and without invalid ids, and without any
        lengths = random.integers(0 if least < 0 or not fill else 1, 5, examples)
        numbers = random.integers(least, 9, lengths.sum())
        weighed = random.integers(least, 9, lengths.sum()) / 2
        given = tf.as_string(numbers) if dtype == tf.string else tf.constant(numbers, dtype)
        weights = None if weights_dtype is None else tf.constant(weighed, weights_dtype)
        splits = np.append(0, np.cumsum(lengths))
        is_valid = (numbers >= 0) | (dtype == tf.string)
        if positive and weights is not None:
            is_valid &= weighed > 0
        valid_splits = np.append(0, np.cumsum(is_valid))[splits]
        is_filled = fill and (valid_splits[1:] == valid_splits[:-1]).any()
        filling = [] if not is_filled else [b""] if dtype == tf.string else [0]

        ids = fused.Pooled(given, fused.Examples(tf.constant(splits)), weights)
        kept = fused.valid_ids(ids, _About(), positive_weights=positive, fill=fill)
        got = kept.ids, kept.examples.splits, kept.weights
        assert got[0].numpy().tolist() == given.numpy()[is_valid].tolist() + filling
        np.testing.assert_array_equal(got[1], valid_splits)
        if weights is not None:
            np.testing.assert_array_equal(got[2], weighed[is_valid])
        if examples and is_valid.all() and not is_filled and dtype != tf.string:
            assert np.shares_memory(got[0]._numpy(), given._numpy()), "ids are not copied"


@pytest.mark.parametrize("drops", [True, False])
def test_ids_that_do_not_fit_their_splits_are_refused(drops):
    def keep(ids, splits, weights, about):
        given = fused.Pooled(ids, fused.Examples(tf.constant(splits, tf.int64)), weights)
        return fused.valid_ids(given, about, positive_weights=True, fill=True) if drops else fused.checked(given, about)

    ids = tf.constant([1, 2])
    for splits, weights, message in (
        ([0, 3], None, "table 'user': splits begin with 0 and end with 3, wanted 0 and the number of ids, 2"),
        ([0, 2], tf.ones([3]), "table 'user': got 3 weights for 2 ids, wanted one for each"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            keep(ids, splits, weights, _About())
        # Before a route, the error goes along.
        kept = keep(ids, splits, weights, _About(has_route=True))
        assert kept.examples.problem.numpy().decode() == message
        assert kept.ids.shape == [0] and kept.examples.splits.numpy().tolist() == [0, 0]
        again = fused.checked(kept, _About(has_route=True))
        assert again.examples.problem.numpy().decode() == message
    kept = keep(ids, [0, 2], None, _About(has_route=True))
    assert kept.examples.problem.numpy() == b"" and kept.ids.numpy().tolist() == [1, 2]


def test_a_table_of_strings():
    keys = tf.constant([b"a", b"b", b"c"])
    table = dynamic.DynamicVariable("table", DIM, tf.string)
    table.insert(keys, tf.constant(VALUES[:3]))
    ids = tf.RaggedTensor.from_row_lengths(tf.gather(keys, [1, 1, 2, 0]), [3, 0, 1])
    got = pooling.lookup_pooled(table, ids, None, "sum")
    np.testing.assert_allclose(got, [2 * VALUES[1] + VALUES[2], np.zeros(DIM), VALUES[0]], rtol=1e-6)


def test_each_id_counts_for_a_dynamic_table():
    option = dynamic.EmbeddingVariableOption(filter_option=dynamic.CounterFilter(3), evict_option=None)
    table = dynamic.DynamicVariable("table", DIM, option=option, initializer=1.0)
    ids = _ids([[5, 5], [5, 6]])
    first = tf.nn.embedding_lookup_sparse(table, ids, None, combiner="sum")
    assert int(table.total_count()) == 1, "key 5 was seen three times, and is admitted"
    np.testing.assert_array_equal(first, [[2.0] * DIM, [1.0] * DIM])


@pytest.mark.parametrize("key_dtype", [tf.int64, tf.string])
@pytest.mark.parametrize("training", [True, False])
def test_a_dynamic_table_counts_a_lookup_once(key_dtype, training):
    name = f"counted_{key_dtype.name}_{training}"
    table = dynamic.DynamicVariable(name, DIM, key_dtype)
    keys = tf.constant([7, 5, 7, 7], tf.int64)
    ids = tf.RaggedTensor.from_row_lengths(tf.as_string(keys) if key_dtype == tf.string else keys, [2, 2])
    wanted = {"lookups": 1, "ids": 4, "compared_ids": 4, "distinct_ids": 2, "served_rows": 2}
    with dynamic.evaluating(not training):
        before = stats()
        tf.nn.embedding_lookup_sparse(table, ids, None)
        counted = stats(since=before)["tables"][name]
        assert {key: counted[key] for key in wanted} == wanted
        before = stats()
        tf.nn.embedding_lookup(table, ids.values)
        counted = stats(since=before)["tables"][name]
        assert (counted["lookups"], counted["ids"], counted["served_rows"]) == (1, 4, 4)


def test_gradients_of_gradients():
    ids, table, weights = _ids(), _table("sharded"), tf.Variable(_weights(_ids()).flat_values)
    plain = tf.Variable(VALUES)
    results = []
    for rows, params in ((lambda: table, table), (lambda: plain, plain)):
        with tf.GradientTape() as outer:
            with tf.GradientTape(persistent=True) as inner:
                found = tf.nn.embedding_lookup_sparse(rows(), ids, ids.with_flat_values(weights), combiner="mean")
                loss = tf.reduce_sum(tf.square(found))
            grad = tf.convert_to_tensor(inner.gradient(loss, params))
            of_weights = inner.gradient(loss, weights)
            norm = tf.reduce_sum(grad**4) + tf.reduce_sum(of_weights**2)
        results.append([tf.convert_to_tensor(one) for one in outer.gradient(norm, [params, weights])])
    for got, wanted in zip(*results, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("form", ["sparse", "ragged"])
def test_an_id_out_of_range_is_named(form):
    ids = _ids([[3], [ROWS]])
    wanted = rf"table 'table.*': id {ROWS} at position 1 .*\[0, {ROWS}\)"
    with pytest.raises(tf.errors.InvalidArgumentError, match=wanted):
        tf.nn.embedding_lookup_sparse(_table("sharded"), ids.to_sparse() if form == "sparse" else ids, None)


def test_ids_that_are_not_sorted_by_example_are_refused():
    ids = tf.SparseTensor([[1, 0], [0, 0]], tf.constant([1, 2], tf.int64), [2, 1])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="table 'table.*': id 1 belongs to example 0, but the id before it to"
    ):
        tf.nn.embedding_lookup_sparse(_table("sharded"), ids, None)


def test_weights_for_other_ids_are_refused():
    ids = _ids([[1, 2], [3]])
    weights = tf.RaggedTensor.from_row_lengths(tf.ones([2]), [1, 1])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"table 'table.*': weights are float\[2\], wanted float for 3 ids"
    ):
        tf.nn.embedding_lookup_sparse(_table("sharded"), ids, weights)


@pytest.mark.parametrize(
    ("splits", "places", "message"),
    [
        ([0, 3], [0, 1], "end with 3, wanted 0 and the number of ids, 2"),
        ([0, 2, 1, 2], [0, 1], r"splits\[2\] is 1 after 2"),
        ([0, 2], [0, 4], r"places\[1\] is 4, wanted one of 4 rows"),
        ([0, 2], [0, -1], r"places\[1\] is -1"),
        ([], [], "got no splits"),
    ],
)
def test_inputs_of_a_rewritten_graph_are_checked(splits, places, message):
    rows, places, splits = tf.zeros([4, 2]), tf.constant(places, tf.int32), tf.constant(splits, tf.int64)
    attributes = {"combiners": ["sum"], "weighted": [False], "tables": ["user"]}
    message = f"table 'user': .*{message}"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        library.ops.lockstep_pool([rows], [places], [splits], [], **attributes)
    grad = tf.zeros([max(0, splits.shape[0] - 1), 2])
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        library.ops.lockstep_pool_gradient(
            [grad], [tf.constant([4, 2], tf.int64)], [places], [splits], [], **attributes
        )


def test_shapes_of_a_rewritten_graph_are_checked():
    splits, places = tf.constant([0, 0, 0], tf.int64), tf.zeros([0], tf.int32)
    attributes = {"combiners": ["sum"], "weighted": [False], "tables": ["user"]}
    for shape in ([1 << 62, 1 << 62], [-1, 2], [0, 1 << 62]):
        with pytest.raises(tf.errors.InvalidArgumentError):
            library.ops.lockstep_pool_gradient(
                [tf.zeros([2, 2])], [tf.constant(shape, tf.int64)], [places], [splits], [], **attributes
            )
    for last in ((1 << 31) - 1, 1 << 40, (1 << 63) - 1):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"table 'user': got \d+ examples, wanted"):
            library.ops.lockstep_splits(tf.constant([[last, 0]], tf.int64), [], table="user")
    with pytest.raises(tf.errors.InvalidArgumentError, match="got -1 examples"):
        library.ops.lockstep_splits(tf.zeros([0, 2], tf.int64), [tf.constant(-1, tf.int64)], table="user")


def test_wrong_arguments_raise_tensorflows_errors():
    table, ids = _table("sharded"), _ids()
    with pytest.raises(ValueError, match="combiner must be one of"):
        tf.nn.embedding_lookup_sparse(table, ids, None, combiner="max")
    with pytest.raises(TypeError):
        tf.nn.embedding_lookup_sparse(table, ids, ids.to_sparse())
    with pytest.raises(TypeError, match="sp_ids must be SparseTensor"):
        tf.nn.embedding_lookup_sparse(table, tf.constant([[1]]), None)
