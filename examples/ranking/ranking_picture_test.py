"""The picture of a run: its points are where the values say, and it is well-formed with any values."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

import picture

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

SVG = "{http://www.w3.org/2000/svg}"


def _lines(path) -> list[np.ndarray]:
    """Returns the points [n, 2] of each line of a picture."""
    lines = ElementTree.parse(path).iter(f"{SVG}polyline")
    return [np.array([place.split(",") for place in line.get("points").split()], float) for line in lines]


def test_points_are_placed_by_their_steps_and_values(tmp_path):
    losses, aucs = [(1, 0.8), (2, 0.4), (5, 0.6)], [(2, 0.5), (5, 0.75)]
    picture.save(tmp_path / "run" / "training.svg", "a < b", {"loss": losses, "AUC": aucs})
    first, second = _lines(tmp_path / "run" / "training.svg")
    # Steps grow to the right by equal parts, and the same step is at the same place in both panels.
    np.testing.assert_allclose(np.diff(first[:, 0]) / (first[2, 0] - first[0, 0]), [0.25, 0.75], atol=1e-3)
    np.testing.assert_array_equal(second[:, 0], first[1:, 0])
    # Values grow upwards, where y is less.
    np.testing.assert_allclose((first[1, 1] - first[2, 1]) / (first[1, 1] - first[0, 1]), 0.5, atol=1e-3)
    assert second[1, 1] < second[0, 1]


def test_many_points_become_means_and_no_step_is_lost(tmp_path):
    values = np.arange(1, 9_001)
    picture.save(tmp_path / "training.svg", "many", {"loss": [(s, s) for s in values]})
    (line,) = _lines(tmp_path / "training.svg")
    assert len(line) == 300
    # Each point is the mean of 30 steps, so all of them have the same distance.
    np.testing.assert_allclose(
        np.diff(line, axis=0), np.broadcast_to(np.diff(line, axis=0).mean(axis=0), (299, 2)), atol=0.11
    )


@pytest.mark.parametrize("points", [[], [(1, float("nan"))], [(7, 0.5)], [(1, 0.5), (2, 0.5)]])
def test_few_equal_or_missing_values_give_a_picture(tmp_path, points):
    picture.save(tmp_path / "training.svg", "few", {"loss": points})
    assert all(np.isfinite(line).all() for line in _lines(tmp_path / "training.svg"))
    text = "".join(ElementTree.parse(tmp_path / "training.svg").getroot().itertext())
    assert ("nothing was measured" in text) == (not np.isfinite([v for _, v in points]).any())
