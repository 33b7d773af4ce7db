"""The end of a scope's sessions with the last batch, on one worker.

For several workers see tests/multiprocess/scope/scope_worker.py.
"""

import pytest
import tensorflow as tf

from lockstep._src.data import ending
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


# Promise (hybridbackend.md): a run takes only the batches that it uses (HybridBackend, a wrong result: every run takes
# a batch, also one that fetches a variable).
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


def test_an_iterator_of_which_no_run_takes_a_batch_ends_nothing():
    with scope():
        x = tf1.data.make_one_shot_iterator(tf.data.Dataset.range(2)).get_next()
        tf1.data.make_one_shot_iterator(tf.data.Dataset.range(1)).get_next()
        with tf1.train.MonitoredTrainingSession("") as session:
            assert run_to_the_end(session, x) == [0, 1]


def test_a_session_without_data_does_not_stop():
    with scope():
        one = tf.constant(1)
        with tf1.train.MonitoredTrainingSession("") as session:
            assert [session.run(one) for _ in range(3)] == [1, 1, 1]
            assert not session.should_stop()


def test_more_kinds_of_runs_than_are_remembered_end_as_few_do():
    with scope():
        x = tf1.data.make_one_shot_iterator(tf.data.Dataset.range(100)).get_next()
        fetches = [x + i for i in range(70)]
        taken = []
        with tf1.train.MonitoredTrainingSession("") as session:
            while not session.should_stop():
                taken.append(int(session.run(fetches[len(taken) % 70])))
    assert taken == [i + i % 70 for i in range(100)]


def test_fetches_and_feeds_of_a_run_are_its_callers():
    x, y = tf1.placeholder(tf.int32, [], "x"), tf.constant(1, name="y")
    with tf1.Session() as session:
        arguments = tf1.train.SessionRunArgs({"a": [y, x], "b": y.op}, {x: 3, "y:0": 4})
        run = tf1.train.SessionRunContext(arguments, session)
        assert set(ending.fetched(run)) == {x, y, y.op}
        assert ending.fed(run) == {"x:0": 3, "y:0": 4}
        assert ending.fed(tf1.train.SessionRunContext(tf1.train.SessionRunArgs(y), session)) == {}
