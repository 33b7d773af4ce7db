"""Tests of the exchange of gradients over a lane that records its calls."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.collectives.lanes import AllRanks
from lockstep._src.engine import apart
from lockstep._src.gradients import provenance
from lockstep._src.gradients.exchange import GradientExchange
from lockstep._src.gradients.provenance import Origin
from lockstep._src.gradients.settings import Exchange

RANKS = 4


class Lane:
    """A lane whose ranks all have the same values."""

    reaches_all = False

    def __init__(self, takes_part=True):
        self.calls = []
        self._takes_part = takes_part

    def is_alone(self):
        return False

    def takes_part(self):
        return self._takes_part

    def check(self, caller):
        pass

    def scope_of(self, caller):
        return f"{caller}/"

    def name_of(self, scope, variable, number):
        return f"{scope}{number}"

    def agree(self, describe, scope):
        self.calls.append(("agree", describe()[:2]))
        return []

    def allreduce(self, tensors, names, reduction, bucket, predivide_factor):
        self.calls.append((reduction, bucket, list(names)))
        return [tensor * RANKS if reduction == "sum" else tf.identity(tensor) for tensor in tensors]

    def allgather(self, tensors, names):
        self.calls.append(("gather", list(names)))
        return [tf.concat([tensor] * RANKS, 0) for tensor in tensors]

    def divided(self, values):
        return [value / RANKS for value in values]


class Half:
    """A compressor to float16."""

    def compress(self, tensor):
        return tf.cast(tensor, tf.float16), tensor.dtype

    def decompress(self, tensor, dtype):
        assert tensor.dtype == tf.float16
        return tf.cast(tensor, dtype)


def made(takes_part=True, ranks=None, **how):
    exchange = GradientExchange(Exchange(ranks=ranks or object(), **how), "x")
    exchange.lane = Lane(takes_part)
    return exchange, [tf.Variable(tf.zeros([3])) for _ in range(4)]


def gradient(value):
    return tf.fill([3], float(value))


def slices(value):
    return tf.IndexedSlices(tf.fill([2, 3], float(value)), tf.constant([0, 1]), tf.constant([5, 3]))


def first(gradients):
    return [
        None if g is None else float(tf.convert_to_tensor(getattr(g, "values", g)).numpy().flat[0]) for g in gradients
    ]


def test_dense_gradients_are_reduced_and_slices_gathered_and_divided():
    exchange, variables = made()
    result = exchange.exchange([gradient(1), None, slices(2), gradient(3)], variables)
    assert first(result) == [1, None, 0.5, 3]
    assert result[2].values.shape == [2 * RANKS, 3] and result[2].indices.shape == [2 * RANKS]
    assert exchange.lane.calls == [
        ("agree", [4, 3]),
        ("mean", 0, ["x/0", "x/2"]),
        ("gather", ["x/1_values"]),
        ("gather", ["x/1_indices"]),
    ]


def test_local_gradients_stay_and_get_the_same_mean():
    exchange, variables = made(reduction="sum")
    exchange.local.add(variables[1])
    assert first(exchange.exchange([gradient(1), gradient(2)], variables[:2])) == [4, 0.5]
    exchange, variables = made(scale_local=False)
    exchange.local.add(variables[1])
    assert first(exchange.exchange([gradient(1), gradient(2)], variables[:2])) == [1, 2]
    assert exchange.lane.calls == [("agree", [1, 1]), ("mean", 0, ["x/0"])]


# Promise (sok.md): Horovod's tapes and optimizers train tables as one process does; broadcasts leave tables unchanged.
@pytest.mark.parametrize(
    ("how", "expected"),
    [({}, 0.5), ({"sparse_as_dense": True}, 0.5), ({"reduction": "sum"}, 2), ({"scale_local": False}, 2)],
)
def test_sums_of_tables_stay_and_are_divided_for_a_mean(how, expected):
    exchange, variables = made(ranks=AllRanks(), **how)
    variables[1].sums_gradients = True
    result = exchange.exchange([gradient(1), slices(2)], variables[:2])
    assert first(result)[1] == expected and isinstance(result[1], tf.IndexedSlices)
    assert exchange.lane.calls == [("agree", [1, 1]), (exchange.how.reduction, 0, ["x/0"])]
    with apart.open_scope():  # where lookups give means
        assert first(exchange.exchange([slices(2)], variables[1:2])) == [2]


def test_a_process_outside_of_the_ranks_keeps_its_gradients():
    exchange, variables = made(takes_part=False)
    assert first(exchange.exchange([gradient(1), slices(2)], variables[:2])) == [1, 2]
    assert exchange.lane.calls == []


def test_groups_are_calls_of_their_own_and_compression_is_undone():
    exchange, variables = made(groups=2, compression=Half(), sparse_as_dense=True)
    result = exchange.exchange([slices(1), gradient(1 / 3), gradient(2), gradient(3)], variables)
    assert [g.dtype for g in result] == [tf.float32] * 4
    assert result[1].numpy()[0] == np.float32(np.float16(1 / 3))
    assert exchange.lane.calls[1:] == [("mean", 0, ["x/0", "x/1"]), ("mean", 1, ["x/2", "x/3"])]


def test_only_the_given_places_are_exchanged():
    exchange, variables = made(reduction="sum")
    gradients = [gradient(n) for n in range(4)]
    result = exchange.exchange(gradients, variables, [1, 3])
    assert first(result) == [0, 4, 2, 12]
    assert result[0] is gradients[0] and exchange.lane.calls[0] == ("agree", [2, 2])
    exchange.lane.calls.clear()
    assert first(exchange.exchange(gradients, variables, [])) == [0, 1, 2, 3]
    assert exchange.lane.calls == []


def test_results_are_marked_and_the_given_tensors_are_not():
    exchange, variables = made()
    exchange.local.add(variables[1])
    given = [gradient(1), gradient(2)]
    with provenance.Watch() as inside:
        result = exchange.exchange(given, variables[:2])
    assert inside.has_exchanged
    assert {provenance.origin(g, set()) for g in result} == {Origin.EXCHANGED}
    assert {provenance.origin(g, set()) for g in given} == {Origin.LOCAL}
    assert exchange.unexchanged(result, variables[:2]) == []
    assert exchange.unexchanged([result[0], given[1], None], variables[:3]) == [1, 2]


def test_what_cannot_be_told_is_an_error_where_it_makes_a_difference():
    exchange, variables = made(reduction="sum")
    changed = exchange.exchange([gradient(1)], variables[:1])[0] * 1.0
    provenance.delivered_by_tapes.add(variables[:1])
    with pytest.raises(ValueError, match="may have been exchanged"):
        exchange.unexchanged([changed], variables[:1])
    exchange, _ = made()
    assert exchange.unexchanged([changed], variables[:1]) == [0]


def test_slices_have_no_maximum():
    exchange, variables = made(reduction="max")
    with pytest.raises(NotImplementedError, match="sparse_as_dense"):
        exchange.exchange([slices(1)], variables[:1])
