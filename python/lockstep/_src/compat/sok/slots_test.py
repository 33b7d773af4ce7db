"""Tests of the slots of optimizers that learn all their variables when they are built."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.compat.sok import job, optimizers, slots, variables
from lockstep._src.compat.sok.dump_test import BUILT_ONCE, make_optimizer


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.setattr(job, "_tool", "single")


def tables():
    return [variables.make(np.zeros([rows, 2], np.float32), name=f"of_{rows}") for rows in (3, 4, 5)]


MAKERS = {
    **BUILT_ONCE,
    "legacy": lambda: make_optimizer().optimizer,
    "TensorFlow 1": lambda: tf.compat.v1.train.AdamOptimizer(0.1),
}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_each_of_several_variables_gets_slots_of_its_shape(kind, is_wrapped):
    made = tables()
    optimizer = optimizers.wrap(MAKERS[kind]()) if is_wrapped else MAKERS[kind]()
    assert not any(slots.has(optimizer, table) for table in made)
    slots.ensure(optimizer, made)
    slots.ensure(optimizer, made[1:])  # changes nothing
    for table in made:
        for name in ("m", "v"):
            slots.write(optimizer, table, name, np.array([1]), np.array([[1.0, 2.0]]))
            wanted = np.zeros(table.shape)
            wanted[1] = [1, 2]
            np.testing.assert_array_equal(slots.read(optimizer, table, name), wanted)


@pytest.mark.parametrize("kind", BUILT_ONCE)
def test_variable_that_comes_after_the_build_is_an_error(kind):
    optimizer, made = BUILT_ONCE[kind](), tables()
    slots.ensure(optimizer, made[:1])
    with pytest.raises(ValueError, match="got Adam that was built without 'of_4:0', 'of_5:0', wanted one that is not"):
        slots.ensure(optimizer, made)
    assert [slots.has(optimizer, table) for table in made] == [True, False, False]
    with pytest.raises(KeyError, match="m"):
        slots.write(optimizer, made[1], "m", np.array([1]), np.zeros([1, 2]))
