"""Iterators in a scope, and the end of its sessions, on one worker. For several workers see tests/multiprocess."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from lockstep._src.data import iterators
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


def run_to_the_end(session, fetches, feeds=None):
    """Returns the results of all runs until the session should stop."""
    results = []
    while not session.should_stop():
        results.append(session.run(fetches, feeds))
    return results


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


def test_the_session_stops_with_the_last_batch_and_can_still_run():
    with scope():
        x = tf1.data.make_one_shot_iterator(tf.data.Dataset.range(7).batch(3)).get_next()
        step = tf1.train.get_or_create_global_step()
        train_op = tf.group(x, tf1.assign_add(step, 1))
        with tf1.train.MonitoredTrainingSession("") as session:
            # This run takes no batch.
            assert session.run(step) == 0
            steps = len(run_to_the_end(session, train_op))
            left = int(session.run(step))
            with pytest.raises(tf.errors.OutOfRangeError):
                session.run(x)
        assert (steps, left) == (3, 3)
        assert session.should_stop()


def test_data_without_a_batch_ends_in_the_first_run():
    with scope():
        x = tf1.data.make_one_shot_iterator(tf.data.Dataset.range(0)).get_next()
        with tf1.train.MonitoredTrainingSession("") as session:
            run_to_the_end(session, x)
            pytest.fail("a run without data has to leave the session's block")
        assert session.should_stop()


def test_a_fed_batch_is_not_taken():
    with scope():
        x = tf1.data.make_one_shot_iterator(tf.data.Dataset.range(3)).get_next()
        y = x * 10
        with tf1.train.MonitoredTrainingSession("") as session:
            assert session.run(y, {x: 7}) == 70
            assert run_to_the_end(session, y) == [0, 10, 20]


def test_the_session_stops_when_the_shorter_of_two_iterators_ends():
    with scope():
        short, long = (tf1.data.make_one_shot_iterator(tf.data.Dataset.range(n)).get_next() for n in (2, 5))
        with tf1.train.MonitoredTrainingSession("") as session:
            assert run_to_the_end(session, [short, long]) == [[0, 0], [1, 1]]


@pytest.mark.parametrize("until", ["its last batch", "the error behind it"])
def test_validation_data_that_is_read_through_does_not_end_training(until):
    with scope():
        train = tf1.data.make_one_shot_iterator(tf.data.Dataset.range(4)).get_next()
        validation = tf1.data.make_initializable_iterator(tf.data.Dataset.range(2))
        valid = validation.get_next()
        validated = []
        with tf1.train.MonitoredTrainingSession("") as session:
            trained = []
            while not session.should_stop():
                trained.append(int(session.run(train)))
                session.run(validation.initializer)
                validated += [int(session.run(valid)) for _ in range(2)]
                if until == "the error behind it":
                    with pytest.raises(tf.errors.OutOfRangeError):
                        session.run(valid)
    assert trained == [0, 1, 2, 3]
    assert validated == [0, 1] * 4


@pytest.mark.parametrize("by", ["should_stop", "the error"])
def test_an_iterator_that_is_initialized_again_continues(by):
    with scope():
        iterator = tf1.data.make_initializable_iterator(tf.data.Dataset.range(3))
        x = iterator.get_next()
        with tf1.train.MonitoredTrainingSession("") as session:
            for _ in range(3):
                session.run(iterator.initializer)
                assert not session.should_stop()
                if by == "should_stop":
                    assert run_to_the_end(session, x) == [0, 1, 2]
                else:
                    assert [session.run(x) for _ in range(3)] == [0, 1, 2]
                    with pytest.raises(tf.errors.OutOfRangeError):
                        session.run(x)


def test_a_structure_is_started_over_several_datasets():
    with scope():
        datasets = [tf.data.Dataset.range(n) for n in (2, 3)]
        iterator = tf1.data.Iterator.from_structure(tf.int64, tf.TensorShape(()))
        starts = [iterator.make_initializer(dataset) for dataset in datasets]
        x = iterator.get_next()
        assert iterator.output_types == tf.int64
        with tf1.train.MonitoredTrainingSession("") as session:
            for start, count in zip(starts, (2, 3), strict=True):
                session.run(start)
                assert run_to_the_end(session, x) == list(range(count))


def test_each_handle_is_an_iterator_of_its_own():
    with scope():
        sources = [tf1.data.make_initializable_iterator(tf.data.Dataset.range(n)) for n in (2, 3)]
        handle = tf1.placeholder(tf.string, ())
        x = tf1.data.Iterator.from_string_handle(handle, tf.int64, tf.TensorShape(())).get_next()
        with tf1.train.MonitoredTrainingSession("") as session:
            short, long = session.run([source.string_handle() for source in sources])
            session.run([source.initializer for source in sources])
            assert session.run(x, {handle: long}) == 0
            assert [session.run(x, {handle: short}) for _ in range(2)] == [0, 1]
            assert run_to_the_end(session, x, {handle: long}) == [1, 2]
            session.run(sources[0].initializer)
            assert run_to_the_end(session, x, {handle: short}) == [0, 1]


def test_iterators_of_evaluation_end_no_session():
    with scope():
        train = tf1.data.make_one_shot_iterator(tf.data.Dataset.range(3)).get_next()
        with scope(mode="eval"):
            evaluated = tf1.data.make_one_shot_iterator(tf.data.Dataset.range(1)).get_next()
        with tf1.train.MonitoredTrainingSession("") as session:
            assert session.run(evaluated) == 0
            assert run_to_the_end(session, train) == [0, 1, 2]


@pytest.mark.parametrize("drop_remainder", [True, False])
def test_steps_of_several_batches_end_with_the_last_whole_or_partial_one(drop_remainder):
    with scope(data_batch_count=2, data_sync_drop_remainder=drop_remainder):
        x = tf1.data.make_one_shot_iterator(tf.data.Dataset.range(5).batch(1)).get_next()
        with tf1.train.MonitoredTrainingSession("") as session:
            taken = [[part.tolist() for part in parts] for parts in run_to_the_end(session, list(x))]
    assert taken == [[[0], [1]], [[2], [3]]] + ([] if drop_remainder else [[[4], []]])


def test_an_optional_has_an_element_of_the_dataset():
    with scope():
        optional = tf1.data.make_one_shot_iterator(tf.data.Dataset.range(1)).get_next_as_optional()
        has, value = optional.has_value(), optional.get_value()
        assert value.dtype == tf.int64
        with tf1.Session() as session:
            assert session.run([has, value]) == [True, 0]
            assert not session.run(has)


def test_make_iterator_looks_ahead_once_in_a_scope_and_outside():
    for number, where in enumerate((scope, lambda: context.scope())):
        with where():
            x = iterators.make_iterator(tf.data.Dataset.range(3)).get_next(f"next_{number}")
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


def test_elements_that_are_taken_in_two_places_are_each_taken_once():
    with scope():
        iterator = tf1.data.make_one_shot_iterator(tf.data.Dataset.range(10).batch(2))
        places = [iterator.get_next(), iterator.get_next()]
        seen = []
        with tf1.train.MonitoredTrainingSession("") as session:
            while not session.should_stop():
                seen += session.run(places[len(seen) % 4 // 2]).tolist()
    assert seen == list(range(10))


def test_columns_of_lists_keep_their_structure(tmp_path):
    lists = [[1], [], [2, 3], [4, 5, 6], [7]]
    pq.write_table(pa.table({"ids": lists}), tmp_path / "lists.parquet")
    with scope():
        batch = tf1.data.make_one_shot_iterator(FrameDataset(str(tmp_path / "lists.parquet"), 2)).get_next()
        assert isinstance(batch["ids"], DataFrame.Value)
        with tf1.train.MonitoredTrainingSession("") as session:
            batches = [result["ids"].to_list() for result in run_to_the_end(session, batch)]
    assert batches == [lists[:2], lists[2:4], lists[4:]]


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
