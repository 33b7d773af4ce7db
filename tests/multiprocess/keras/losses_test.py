"""Scaled losses and losses with masks: several workers compute what plain TensorFlow computes on all rows."""

import numpy as np
import pytest
import tensorflow as tf

from lockstep.testing import call_workers
from tests.multiprocess.keras import losses_worker as worker

needs_keras3 = pytest.mark.skipif(
    not getattr(tf.keras, "__version__", "2").startswith("3"), reason="TensorFlow before 2.16 has no Keras 3"
)


def _assert_equal(function, sizes):
    (expected,) = call_workers(function, 1, True, timeout_s=100)
    for size in sizes:
        for rank, found in enumerate(call_workers(function, size, timeout_s=100)):
            for name, values in expected.items():
                where = f"{name}, rank {rank} of {size}"
                for got, wanted in zip(found[name], values, strict=True):
                    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=1e-6, err_msg=where)


# Promise (keras.md): a loss scale that grows or shrinks trains as in plain Keras, also if one worker's gradient is not
# finite.
@needs_keras3
def test_loss_scales_that_change_train_as_plain_keras_and_all_workers_skip_the_same_steps():
    _assert_equal(worker.scaled, [1, 2])


# Promise (keras.md): losses count by what they are divided by: masks, `mean_with_sample_weight`, weights of TensorFlow
# 1.
@needs_keras3
def test_losses_with_masks_and_weights_count_by_what_they_are_divided_by():
    _assert_equal(worker.masked, [2])


# Promise (keras.md): losses count by what they are divided by: masks, `mean_with_sample_weight`, weights of TensorFlow
# 1.
@needs_keras3
def test_a_masked_loss_counts_by_its_divisor_in_a_train_step_with_and_without_scale_loss():
    _assert_equal(worker.own_steps, [2])


# Promise (keras.md): losses count by what they are divided by: masks, `mean_with_sample_weight`, weights of TensorFlow
# 1.
@needs_keras3
def test_a_masked_loss_counts_by_its_divisor_in_a_loop_of_the_programs_own():
    _assert_equal(worker.own_loop, [2])


# Promise (keras.md): losses count by what they are divided by: masks, `mean_with_sample_weight`, weights of TensorFlow
# 1.
def test_weighted_losses_of_tensorflow_1_count_by_what_they_are_divided_by():
    _assert_equal(worker.tensorflow1, [2])


# Promise (keras.md): losses count by what they are divided by: masks, `mean_with_sample_weight`, weights of TensorFlow
# 1.
def test_losses_of_tensorflow_1_of_some_of_the_rows_count_by_these_rows():
    _assert_equal(worker.tensorflow1_rows, [2])


# Promise (keras.md): a loss of one number for a batch is warned of, and one with weights beside other iterators.
def test_a_weighted_loss_in_a_step_with_other_iterators_is_warned_of_by_name():
    assert call_workers(worker.iterators, 2, timeout_s=100) == [[[], [True], []], [[], [], []]]


# Promise (keras.md): a loss of one number for a batch is warned of, and one with weights beside other iterators.
@needs_keras3
def test_a_loss_of_one_number_for_a_batch_is_warned_of_once():
    """Losses of Keras are means over the rows if outputs are [rows]; only the program's own are unknown."""
    assert call_workers(worker.unknown, 2, timeout_s=100) == [[0, 0, 0, 0, 1, 0], [0] * 6]
