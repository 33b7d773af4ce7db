"""Micro-batches on one worker, compared with NumPy.

For several workers see tests/multiprocess/scope/sharded_scope_worker.py.
"""

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.data.frames import Value
from lockstep._src.data.micro_batches import MicroBatches, batches_per_step, compute_pipeline, merge_elements
from lockstep._src.engine.context import context
from lockstep._src.scope import scope

tf1 = tf.compat.v1
X = np.random.default_rng(1).normal(size=[11, 3]).astype(np.float32)


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def micro_batches(*values):
    return MicroBatches([tf.constant(value) for value in values])


def run(fetches):
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        return session.run(fetches)


@pytest.mark.parametrize(("options", "count"), [({}, 1), ({"data_batch_count": 3}, 3)], ids=["default", "three"])
@pytest.mark.parametrize("mode", ["train", "eval", "infer"])
def test_only_steps_of_training_take_several_batches(options, count, mode):
    with context.scope(mode=mode, **options):
        assert batches_per_step() == (count if mode == "train" else 1)


def test_elements_of_a_step_become_one_structure():
    element = {"x": tf.constant([1]), "list": Value(tf.constant([2]), [tf.constant([0, 1])])}
    assert merge_elements([element]) is element
    merged = merge_elements([element, element])
    assert merged["x"].values == (element["x"],) * 2
    assert isinstance(merged["list"], Value) and list(merged["list"].values) == [element["list"].values] * 2
    assert len(merged["x"]) == 2 and repr(merged["x"]).startswith("MicroBatches([<tf.Tensor")


def test_a_function_is_called_once_per_batch_with_its_part_of_each_argument():
    calls = []

    @compute_pipeline()
    def model(features, *, scale, labels):
        """Multiplies."""
        calls.append(scale)
        return {"product": features["x"] * labels * scale}

    assert (model.__name__, model.__doc__) == ("model", "Multiplies.")
    result = model({"x": micro_batches([1, 2], [3])}, scale=10, labels=micro_batches([5, 6], [7]))
    assert run(result["product"]).tolist() == [50, 120, 210]
    assert calls == [10, 10]


def test_plain_tensors_are_passed_on_in_one_call():
    calls = []
    x = tf.constant([1.0])

    @compute_pipeline()
    def model(features):
        calls.append(features)
        return features

    assert model(x) is x and len(calls) == 1


def test_results_are_merged_by_their_kind():
    lists = [[[1, 2], []], [[3, 4, 5]]]

    @compute_pipeline()
    def model(x):
        rows = tf.ragged.constant(lists[len(made)], ragged_rank=1)
        made.append(rows)
        return {
            "rows": x,
            "ragged": rows,
            "sparse": rows.to_sparse(),
            "mean": tf.reduce_mean(tf.cast(x, tf.float32)),
            "number": tf.size(x),
            "nothing": None,
            "text": "a",
        }

    made = []
    result = model(micro_batches([1, 2, 3], [8]))
    assert (result.pop("nothing"), result.pop("text")) == (None, "a")
    result["sparse"] = tf.sparse.to_dense(result["sparse"])
    values = run(result)
    assert values["rows"].tolist() == [1, 2, 3, 8]
    assert values["ragged"].to_list() == lists[0] + lists[1]
    assert values["sparse"].tolist() == [[1, 2, 0], [0, 0, 0], [3, 4, 5]]
    assert values["mean"] == (2 + 8) / 2  # these batches come from no iterator, so they have equal weights
    assert values["number"] == 3


@pytest.mark.parametrize(("count", "batch"), [(2, 3), (3, 2), (4, 3)])
def test_a_step_trains_as_one_batch_of_all_rows(count, batch):
    with scope(data_batch_count=count, data_sync_drop_remainder=False):
        dataset = tf.data.Dataset.from_tensor_slices(X).batch(batch)

        @compute_pipeline()
        def model(x):
            layer = tf1.get_variable("w", [3, 1], initializer=tf1.ones_initializer())
            return tf.reduce_mean(tf.square(x @ layer))

        loss = model(tf1.data.make_one_shot_iterator(dataset).get_next())
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        weights = tf1.trainable_variables()[0].value()
        losses = []
        with tf1.train.MonitoredTrainingSession("") as session:
            while not session.should_stop():
                losses.append(session.run([loss, train_op])[0])
            got = session.run(weights)
    w, wanted = np.ones([3, 1]), []
    for begin in range(0, len(X), count * batch):
        rows = X[begin : begin + count * batch]
        wanted.append(np.mean(np.square(rows @ w)))
        w = w - 0.1 * 2 * rows.T @ (rows @ w) / len(rows)
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    np.testing.assert_allclose(got, w, rtol=1e-5)


def test_layers_under_default_names_are_the_same_for_each_batch():
    @compute_pipeline()
    def model(x):
        for _ in range(2):
            with tf1.variable_scope(None, "layer"):
                x = x * tf1.get_variable("w", [], initializer=tf1.constant_initializer(3.0))
        return x

    assert run(model(micro_batches([1.0], [2.0]))).tolist() == [9, 18]
    assert [v.op.name for v in tf1.global_variables()] == ["layer/w", "layer_1/w"]


def test_variables_that_are_made_anew_for_the_second_batch_are_refused():
    @compute_pipeline()
    def model(x):
        return x * tf.Variable(2.0, name="again")

    with pytest.raises(ValueError, match="compute_pipeline: model made variables again_1 again for the second batch"):
        model(micro_batches([1.0], [2.0]))


def test_arguments_of_different_numbers_of_batches_are_refused():
    with pytest.raises(ValueError, match=r"compute_pipeline: model is given micro-batches of \[2, 3\]"):

        @compute_pipeline()
        def model(x, y):
            return x

        model(micro_batches([1], [2]), micro_batches([1], [2], [3]))
