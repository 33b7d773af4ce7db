"""Iterators in a scope on one worker. For several workers see tests/multiprocess/scope/scope_worker.py."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from lockstep._src.data import iterators
from lockstep._src.data.ending_test import run_to_the_end
from lockstep._src.data.frames import DataFrame
from lockstep._src.data.lookahead import lookahead
from lockstep._src.data.sync import SyncIterator
from lockstep._src.data.tabular import FrameDataset
from lockstep._src.engine.context import context
from lockstep._src.scope import scope

pytestmark = pytest.mark.oldest

tf1 = tf.compat.v1


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def elements(number, tensor):
    """Returns the elements that a plain session gets."""
    with tf1.Session() as session:
        return [session.run(tensor) for _ in range(number)]


def test_an_empty_batch_needs_elements_of_known_rank():
    context.ensure_initialized()
    iterator = tf1.data.Iterator.from_structure(tf.float32)
    with context.scope(data_batch_count=2):
        SyncIterator(iterator, drop_remainder=True).get_next()
        with pytest.raises(ValueError, match="known rank.*output_shapes"):
            SyncIterator(iterator, drop_remainder=False).get_next()


@pytest.mark.parametrize("ahead", [1, 3])
def test_lookahead_counts_the_elements_that_follow_and_changes_none(ahead):
    columns = {"number": tf.constant([1, 2, 3, 4, 5]), "text": tf.constant(list("abcde")), "pair": (tf.eye(5), ())}
    dataset = (
        tf.data.Dataset.from_tensor_slices(columns)
        .batch(2)
        .map(
            lambda x: {
                **x,
                "sparse": tf.sparse.from_dense(x["number"]),
                "ragged": tf.RaggedTensor.from_tensor(x["pair"][0]),
            }
        )
    )
    plain = tf1.data.make_one_shot_iterator(dataset).get_next()
    looked, following = tf1.data.make_one_shot_iterator(lookahead(dataset, ahead)).get_next()
    tensors = [tf.nest.flatten(element, expand_composites=True) for element in (plain, looked)]
    results = elements(3, [following, *tensors])
    assert [int(count) for count, _, _ in results] == [min(ahead, n) for n in (2, 1, 0)]
    for _, wanted, got in results:
        np.testing.assert_equal(got, wanted)


def test_an_optional_has_an_element_of_the_dataset():
    with scope():
        optional = tf1.data.make_one_shot_iterator(tf.data.Dataset.range(1)).get_next_as_optional()
        has, value = optional.has_value(), optional.get_value()
        assert value.dtype == tf.int64
        with tf1.Session() as session:
            assert session.run([has, value]) == [True, 0]
            assert not session.run(has)


@pytest.mark.parametrize("where", [scope, lambda: context.scope()], ids=["scope", "outside"])
def test_make_iterator_looks_ahead_once_in_a_scope_and_outside(where):
    with where():
        x = iterators.make_iterator(tf.data.Dataset.range(3)).get_next("next")
        assert elements(3, x) == [0, 1, 2]


@pytest.mark.parametrize("taken", [0, 1, 4, 5])
def test_the_position_is_saved_with_what_was_read_ahead(tmp_path, taken):
    with scope():
        iterator = tf1.data.make_initializable_iterator(tf.data.Dataset.range(10).batch(2).map(tf.strings.as_string))
        x = iterator.get_next()
        saver = tf1.train.Saver([tf.data.experimental.make_saveable_from_iterator(iterator)])
        with tf1.Session() as session:
            session.run(iterator.initializer)
            seen = [session.run(x).tolist() for _ in range(taken)]
            path = saver.save(session, str(tmp_path / "position"))
        with tf1.Session() as session:
            session.run(iterator.initializer)
            saver.restore(session, path)
            with pytest.raises(tf.errors.OutOfRangeError):
                while True:
                    seen.append(session.run(x).tolist())
    assert seen == [[b"%d" % i, b"%d" % (i + 1)] for i in range(0, 10, 2)]


# Promise (hybridbackend.md): each is taken once (HybridBackend, a wrong result: two `get_next()` of an iterator lose
# batches).
def test_elements_that_are_taken_in_two_places_are_each_taken_once():
    with scope():
        iterator = tf1.data.make_one_shot_iterator(tf.data.Dataset.range(10).batch(2))
        places = [iterator.get_next(), iterator.get_next()]
        seen = []
        with tf1.train.MonitoredTrainingSession("") as session:
            while not session.should_stop():
                seen += session.run(places[len(seen) % 4 // 2]).tolist()
    assert seen == list(range(10))


# Promise (hybridbackend.md): they can (HybridBackend: columns of lists cannot be trained on in a scope).
def test_columns_of_lists_keep_their_structure(tmp_path):
    lists = [[1], [], [2, 3], [4, 5, 6], [7]]
    pq.write_table(pa.table({"ids": lists}), tmp_path / "lists.parquet")
    with scope():
        batch = tf1.data.make_one_shot_iterator(FrameDataset(str(tmp_path / "lists.parquet"), 2)).get_next()
        assert isinstance(batch["ids"], DataFrame.Value)
        with tf1.train.MonitoredTrainingSession("") as session:
            batches = [result["ids"].to_list() for result in run_to_the_end(session, batch)]
    assert batches == [lists[:2], lists[2:4], lists[4:]]


# Promise (hybridbackend.md): it stays unchanged (HybridBackend: the caller's list of hooks grows).
def test_the_callers_hooks_and_configuration_stay_as_they_are():
    hooks, chief_only = [tf1.train.StopAtStepHook(last_step=5)], []
    config = tf1.ConfigProto(inter_op_parallelism_threads=3)
    before = list(hooks), tf1.ConfigProto.FromString(config.SerializeToString())
    with scope():
        step = tf1.assign_add(tf1.train.get_or_create_global_step(), 1)
        x = tf1.data.make_one_shot_iterator(tf.data.Dataset.range(3)).get_next()
        arguments = {"hooks": hooks, "chief_only_hooks": chief_only, "config": config}
        with tf1.train.MonitoredTrainingSession("", **arguments) as session:
            assert len(run_to_the_end(session, [x, step])) == 3
    assert (hooks, config, chief_only) == (*before, [])


def test_exported_graphs_hold_nothing_of_iterators(graph):
    with scope(data_batch_count=2):
        tf1.data.make_one_shot_iterator(tf.data.Dataset.range(3).batch(1)).get_next()
    assert not [key for key in tf1.train.export_meta_graph(graph=graph).collection_def if "lockstep" in key]
