"""Gradients that travel together: buckets of about equal size, or groups that a program names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.collectives.lanes import by_type
from lockstep._src.gradients.variable_sets import key


def in_buckets(shared: Sequence[int], gradients: Sequence[Any], number: int) -> list[list[int]]:
    """Cuts dense gradients into runs of about equal bytes, in backward order; each of the slices is alone.

    A bucket travels while the rest of the backward pass still computes.

    Args:
      shared: the places of those that travel.
      gradients: in the order of the forward pass, the same on all ranks.
      number: of buckets of a type, at least 1; may be more than there are gradients.

    Returns:
      Places: those of slices, and then buckets, each of one type, since it is reduced as one.
    """
    slices = [[i] for i in shared if isinstance(gradients[i], tf.IndexedSlices)]
    backward = [i for i in reversed(shared) if not isinstance(gradients[i], tf.IndexedSlices)]
    buckets: list[list[int]] = []
    for places in by_type([gradients[i] for i in backward]):
        indices = [backward[place] for place in places]
        sizes = [_bytes(gradients[i]) for i in indices]
        limit = sum(sizes) / number
        run: list[int] = []
        filled = 0.0
        made = 0
        for i, size in zip(indices, sizes, strict=True):
            # A gradient belongs to the bucket in which its middle lies.
            if run and filled + size / 2 > limit * (made + 1):
                buckets.append(run)
                run = []
                made += 1
            run.append(i)
            filled += size
        if run:
            buckets.append(run)
    # Ready when the earliest layer in it is: those of several types take turns.
    return slices + sorted(buckets, key=min, reverse=True)


def _bytes(tensor: tf.Tensor) -> int:
    # A gradient of unknown shape counts as one element: it only shifts where buckets are cut, the same on every worker.
    return (tensor.shape.num_elements() or 1) * tensor.dtype.size


def in_groups(
    shared: Sequence[int],
    gradients: Sequence[Any],
    variables: Sequence[Any],
    groups: int | Sequence[Sequence[Any]] | None,
) -> list[list[int]]:
    """Divides gradients into groups, each of which travels when all of it is there.

    Args:
      shared: the places of those that travel.
      gradients: of this rank.
      variables: one for each gradient.
      groups: how many groups, or lists of variables, where others are a group each. None: in a graph each is a group;
        eagerly all are one, because a call from Python costs more than to wait for what is there already.

    Returns:
      Places: of each group the dense ones, and behind them the slices.
    """
    parts = []
    for group in _groups(list(shared), variables, groups):
        parts.append([i for i in group if not isinstance(gradients[i], tf.IndexedSlices)])
        parts.append([i for i in group if isinstance(gradients[i], tf.IndexedSlices)])
    return [part for part in parts if part]


def _groups(shared: list[int], variables: Sequence[Any], groups: Any) -> list[list[int]]:
    if groups is None:
        return [shared] if tf.executing_eagerly() else [[i] for i in shared]
    if isinstance(groups, int):
        number = min(groups, len(shared))
        bounds = [len(shared) * n // number for n in range(number + 1)] if number else [0]
        return [shared[begin:end] for begin, end in zip(bounds, bounds[1:], strict=False)]
    group_of = {key(v): n for n, group in enumerate(groups) for v in group}
    by_group: dict[Any, list[int]] = {}
    for i in shared:
        by_group.setdefault(group_of.get(key(variables[i]), ("alone", i)), []).append(i)
    return list(by_group.values())
