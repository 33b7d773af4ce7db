"""Tests of LockstepRestoreReplicated, which reads whole variables and increments of them, against numpy."""

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.library import ops

ROWS, DIM = 9, 2
PRESENT = np.arange(ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM)
# The changed rows of an increment.
IDS, VALUES = np.array([1, 8, 3]), -np.arange(6, dtype=np.float32).reshape(3, DIM)


@pytest.fixture(name="prefix")
def _prefix(tmp_path):
    return str(tmp_path / "model")


def write(prefix, **tensors):
    """Writes a checkpoint, in whose names of tensors "-" stands for "_"."""
    names = [name.replace("_", "-") for name in tensors]
    values = [tf.constant(value) for value in tensors.values()]
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), tensors=values)


def restore(prefix, present=PRESENT, total=ROWS, first=0, name="table"):
    (restored,) = ops.lockstep_restore_replicated(
        prefix, [tf.constant(present)], names=[name], totals=[total], firsts=[first]
    )
    return restored.numpy()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int64", "uint16"])
@pytest.mark.parametrize(("first", "rows"), [(0, ROWS), (4, 3), (9, 0)])
def test_rows_of_a_whole_variable_are_read(prefix, dtype, first, rows):
    whole = (PRESENT + 5).astype(dtype)
    write(prefix, table=whole)
    got = restore(prefix, np.zeros([rows, DIM], dtype), first=first)
    np.testing.assert_array_equal(got, whole[first : first + rows])


@pytest.mark.parametrize(("first", "rows"), [(0, ROWS), (2, 5), (4, 2)])
def test_the_rows_of_an_increment_replace_those_that_are_there(prefix, first, rows):
    write(prefix, table_changed_ids=IDS, table_changed_values=VALUES)
    wanted = PRESENT.copy()
    wanted[IDS] = VALUES
    before = PRESENT.copy()
    got = restore(prefix, before[first : first + rows], first=first)
    np.testing.assert_array_equal(got, wanted[first : first + rows])
    np.testing.assert_array_equal(before, PRESENT)


def test_several_variables_are_read_at_once(prefix):
    write(prefix, a=PRESENT, b=np.arange(3))
    got = ops.lockstep_restore_replicated(
        prefix, [tf.zeros([ROWS, DIM]), tf.zeros([3], tf.int64)], names=["a", "b"], totals=[ROWS, 3], firsts=[0, 0]
    )
    np.testing.assert_array_equal(got[0], PRESENT)
    np.testing.assert_array_equal(got[1], np.arange(3))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            {"table": PRESENT[:, :1]},
            r"variable 'table': tensor 'table' is float\[9,1\] in the checkpoint, wanted float",
        ),
        ({"table": PRESENT.astype(np.float64)}, "variable 'table': tensor 'table' is double"),
        ({"table_changed_ids": [1, ROWS], "table_changed_values": VALUES[:2]}, r"has the id 9, wanted one in \[0, 9\)"),
        ({"table_changed_ids": [1, -1], "table_changed_values": VALUES[:2]}, r"has the id -1, wanted one in \[0, 9\)"),
        ({"table_changed_ids": [[1]], "table_changed_values": VALUES[:1]}, "wanted a list of ids"),
        ({"table_changed_ids": IDS, "table_changed_values": VALUES[:2]}, "'table-changed-values' is float"),
    ],
)
def test_tensors_that_do_not_fit_are_named(prefix, tensors, message):
    write(prefix, **{name: np.array(value) for name, value in tensors.items()})
    with pytest.raises(tf.errors.OpError, match=f"checkpoint {prefix}: .*{message}"):
        restore(prefix)


def test_missing_tensors_and_files_are_named(prefix):
    with pytest.raises(tf.errors.NotFoundError, match=f"checkpoint {prefix}: "):
        restore(prefix)
    write(prefix, table=PRESENT)
    with pytest.raises(tf.errors.NotFoundError, match="variable 'other': .*'other' not found"):
        restore(prefix, name="other")


def test_rows_outside_of_the_variable_are_refused(prefix):
    write(prefix, table=PRESENT)
    for changes in ({"first": 1}, {"first": -1}, {"present": np.float32(1)}):
        with pytest.raises(tf.errors.InvalidArgumentError, match="variable 'table': its value has the shape"):
            restore(prefix, **changes)
    with pytest.raises(tf.errors.InvalidArgumentError, match="the lists of arguments have different lengths"):
        ops.lockstep_restore_replicated(prefix, [PRESENT], names=["table"], totals=[ROWS, 1], firsts=[0])
