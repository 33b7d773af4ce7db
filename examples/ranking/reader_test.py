"""Prepared data, read back in order, and the exact AUC."""

from __future__ import annotations

import numpy as np
import pytest

import reader
from schema import LABEL, TRAIN


def test_batches_reach_over_row_groups_and_files(made_criteo):
    options, made = made_criteo
    whole = reader.head(made, TRAIN, options.train_rows)
    parts = list(reader.batches(made, TRAIN, 30_000))
    assert [len(part[LABEL]) for part in parts] == [30_000] * 6 + [20_000]
    for name, column in whole.items():
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), column)
    assert len(list(reader.batches(made, TRAIN, 30_000, drop_remainder=True))) == 6


def test_exact_auc_counts_pairs():
    rng = np.random.default_rng(1)
    labels, scores = rng.integers(0, 2, 60), rng.integers(0, 9, 60) / 8
    pairs = [(p, n) for p in scores[labels == 1] for n in scores[labels == 0]]
    expected = np.mean([1.0 if p > n else 0.5 if p == n else 0.0 for p, n in pairs])
    assert reader.exact_auc(labels, scores) == pytest.approx(expected)
    with pytest.raises(ValueError, match="both labels"):
        reader.exact_auc(np.ones(3), np.ones(3))
