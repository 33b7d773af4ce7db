"""Groups of gradients that are sent together: buckets of about equal size, or groups that a program defines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.collectives.lanes import by_type
from lockstep._src.engine import host_memory
from lockstep._src.gradients.variable_sets import key


def in_buckets(shared: Sequence[int], gradients: Sequence[Any], number: int) -> list[list[int]]:
    """Divides dense gradients into runs of about equal bytes, in backward order; a gradient of slices is its own run.

    A bucket is sent while the rest of the backward pass still computes.

    Args:
      shared: the places of the gradients to send.
      gradients: in the order of the forward pass, the same on all ranks.
      number: the number of buckets of a type, at least 1; may be larger than the number of gradients.

    Returns:
      Lists of places: first the places of slices, then buckets. A bucket has only one type, since it is reduced as one.
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
            # A gradient belongs to the bucket that contains its middle.
            if run and filled + size / 2 > limit * (made + 1):
                buckets.append(run)
                run = []
                made += 1
            run.append(i)
            filled += size
        if run:
            buckets.append(run)
    # A bucket is ready when its earliest layer is; buckets of several types alternate.
    return slices + sorted(buckets, key=min, reverse=True)


def _bytes(tensor: tf.Tensor) -> int:
    # A gradient of unknown shape counts as one element. It only shifts the borders of buckets, on all workers alike.
    return (tensor.shape.num_elements() or 1) * tensor.dtype.size


def by_place(group: list[int], variables: Sequence[Any]) -> list[list[int]]:
    """Divides a group by the memory of the variables, so that no gradient is copied to a GPU only to be exchanged.

    Args:
      group: places of gradients.
      variables: one for each gradient of this rank.
    """
    if not host_memory.has_gpu():
        return [group]
    on_host = [i for i in group if is_on_host(variables[i])]
    elsewhere = [i for i in group if i not in on_host]
    return [part for part in (elsewhere, on_host) if part]


def is_on_host(variable: Any) -> bool:
    """Returns whether a variable is in the host's memory."""
    return host_memory.is_on_host(getattr(variable, "_value", variable).device)


def in_groups(
    shared: Sequence[int],
    gradients: Sequence[Any],
    variables: Sequence[Any],
    groups: int | Sequence[Sequence[Any]] | None,
) -> list[list[int]]:
    """Divides gradients into groups; each group is sent when all of its gradients are ready.

    Args:
      shared: the places of the gradients to send.
      gradients: the gradients of this rank.
      variables: one for each gradient.
      groups: the number of groups, or lists of variables; each other variable is a group of its own. None: in a graph
        each gradient is a group. Eagerly all are one group, as all are ready, and each call from Python has a cost.

    Returns:
      Lists of places: for each group the places of dense gradients, then of slices.
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
