"""MovieLens text: joined, ordered by time, and converted."""

from __future__ import annotations

import numpy as np
import pytest

import movielens
import reader
from schema import EVAL, LABEL, TRAIN


def test_movielens_rows_are_joined_and_the_last_tenth_by_time_is_held_out(ratings, tmp_path):
    schema = movielens.convert(ratings, tmp_path / "out")
    assert (schema.train_rows, schema.eval_rows) == (18, 2)
    assert schema.categorical == {"user": 8, "item": 10, "hour": 24, "gender": 2, "occupation": 2, "zip": 2}
    rows = reader.head(tmp_path / "out", EVAL, 10)
    # Hour 18: user 2 rated film 4 with 18 mod 5 + 1 = 4 stars. Hour 19: user 7 rated film 9 with 5.
    for name, values in {
        LABEL: [1, 1],
        "user": [2, 7],
        "item": [4, 9],
        "hour": [18, 19],
        "gender": [0, 1],
        "occupation": [0, 1],
        "zip": [1, 0],
        "genres": [1, 18],
        "genres/splits": [0, 0, 2],
    }.items():
        np.testing.assert_array_equal(rows[name], values, err_msg=name)
    np.testing.assert_allclose(rows["age"], [0.53, 0.24], rtol=1e-6)
    training = reader.head(tmp_path / "out", TRAIN, 100)
    assert sorted(training["hour"]) == list(range(18)), "every earlier rating trains"
    assert list(training["hour"]) != list(range(18)), "in shuffled order"
    np.testing.assert_array_equal(training[LABEL], training["hour"] % 5 >= 3)


def test_movielens_as_published_has_no_headers(ratings, tmp_path):
    expected = movielens.read_columns(ratings)
    for name in movielens.FILES:
        lines = (ratings / name).read_text("latin-1").split("\n")[1:]
        (ratings / name).write_text("\n".join(lines).replace("|", "\t" if name == "u.data" else "|"), "latin-1")
    columns, rows = movielens.read_columns(ratings)
    assert rows == expected[1]
    for name, column in columns.items():
        assert list(column) == list(expected[0][name]), name


def test_a_rating_of_an_unknown_film_is_named(ratings, tmp_path):
    with (ratings / "u.data").open("a") as file:
        file.write("7|12|3|1\n")
    with pytest.raises(ValueError, match="item 12, which u.item lacks"):
        movielens.convert(ratings, tmp_path / "out")
