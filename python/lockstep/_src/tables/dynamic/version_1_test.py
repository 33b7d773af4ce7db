"""Tests of lookups in programs that begin with `tf.compat.v1.disable_v2_behavior()`.

With that behavior, elements of a shape are objects instead of numbers, and branches and loops are operations of the
graph. A worker calls tests of other files with it. Here are the tests that run in graphs; `workers_test.py` and
`tables/sharded/table_test.py` have jobs of several workers with that behavior.
"""

from __future__ import annotations

import functools
import traceback

import pytest
import tensorflow as tf

from lockstep._src.tables.dynamic import control_flow_test, tensorflow1_adapter_test
from lockstep._src.tables.features import columns_test, group_lookup_test
from lockstep.testing import call_workers

pytestmark = pytest.mark.workers

_branches = control_flow_test.test_lookups_in_branches_train_what_they_train_of_a_variable
_columns = columns_test.test_a_table_that_grows_is_read_and_trained_as_one_with_a_vocabulary
_optimizers = tensorflow1_adapter_test.test_any_optimizer_trains_it_as_it_trains_a_variable
# A test and its arguments.
TESTS = [
    *((_branches, 1, where) for where in control_flow_test.BRANCHES),
    *((_branches, 2, where) for where in ("pooled", "case")),
    *((control_flow_test.test_lookups_in_loops_say_where_they_should_be, 1, loop) for loop in control_flow_test.LOOPS),
    (group_lookup_test.test_each_table_is_combined_in_its_own_way, True, True),
    (group_lookup_test.test_ragged_ids_one_combiner_for_all_and_none_for_the_mean,),
    (group_lookup_test.test_a_batch_without_any_ids_is_zeros,),
    (group_lookup_test.test_sequences_keep_their_rows,),
    (group_lookup_test.test_dense_ids_train_ordinary_variables,),
    *((_columns, layout, columns_test.WORDS) for layout in columns_test.LAYOUTS),
    (columns_test.test_minus_one_and_the_empty_string_of_dense_features_are_no_values,),
    (columns_test.test_sequences_keep_the_rows_of_an_example,),
    *((_optimizers, name) for name in ("Adagrad", "of a user")),
]
NAMES = [
    " ".join([test.__name__, *(str(a) for a in arguments if isinstance(a, (int, str)))]) for test, *arguments in TESTS
]


def call_tests():
    """Returns the error of each test, None if it passes."""
    tf.compat.v1.disable_v2_behavior()
    errors = []
    for test, *arguments in TESTS:
        try:
            test(*arguments)
        except Exception:
            errors.append(traceback.format_exc())
        else:
            errors.append(None)
    return errors


@functools.cache
def errors_on_a_worker():
    return call_workers(call_tests, 1, timeout_s=240)[0]


@pytest.mark.parametrize("number", range(len(TESTS)), ids=NAMES)
def test_it_holds_with_the_behavior_of_version_1(number):
    error = errors_on_a_worker()[number]
    assert error is None, error
