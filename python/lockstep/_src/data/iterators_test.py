import itertools

import pytest
import tensorflow as tf

from lockstep.data import Iterator, SyncReplicasDataset


def _elements(dataset, count):
    return [
        (int(stop), tf.nest.map_structure(lambda t: t.numpy().tolist(), element))
        for stop, element in itertools.islice(dataset, count)
    ]


def test_the_last_element_is_marked_and_empty_ones_follow():
    dataset = tf.data.Dataset.range(5).batch(2)
    assert _elements(SyncReplicasDataset(dataset), 5) == [(0, [0, 1]), (0, [2, 3]), (1, [4]), (1, []), (1, [])]
    assert _elements(SyncReplicasDataset(dataset.take(0)), 2) == [(1, []), (1, [])]
    several = dataset.map(lambda i: (i, {"x": tf.cast(i, tf.float32)[:, None]}))
    assert _elements(SyncReplicasDataset(several), 4)[2:] == [(1, ([4], {"x": [[4.0]]})), (1, ([], {"x": []}))]
    ragged = dataset.map(tf.ragged.range)
    assert [element.to_list() for _, element in itertools.islice(SyncReplicasDataset(ragged), 4)] == [
        [[], [0]],
        [[0, 1], [0, 1, 2]],
        [[0, 1, 2, 3]],
        [],
    ]
    assert SyncReplicasDataset(dataset, 2, 0) is dataset
    with pytest.raises(ValueError, match="world is 2 and rank is None, wanted both or none"):
        SyncReplicasDataset(dataset, 2)


# Promise (hybridbackend.md): `hb.data.Iterator` takes an element in the run that asks for it (HybridBackend: an
# iterator's prefetching threads race for elements).
def test_an_iterator_returns_all_elements_of_its_inputs():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        source = tf.compat.v1.data.make_one_shot_iterator(tf.data.Dataset.range(4))
        iterator = Iterator(source, capacity=2)
        pair = [iterator.get_next(), iterator.get_next()]
        assert sorted(session.run(pair) + session.run(pair)) == [0, 1, 2, 3]
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(pair)
        assert session.run(Iterator({"x": tf.constant(3)}).get_next()) == {"x": 3}
        with pytest.raises(ValueError, match="capacity is 0, wanted 1 or more"):
            Iterator(source, capacity=0)
        with pytest.raises(ValueError, match="ignored_exception_types is .* wanted None"):
            Iterator(source, ignored_exception_types=[tf.errors.DataLossError])
