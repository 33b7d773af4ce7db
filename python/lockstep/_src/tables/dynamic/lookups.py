"""Lookups of keys: in this process, or in a job on the workers that own the keys."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import tensorflow as tf

from lockstep._src.engine import library
from lockstep._src.engine.context import context
from lockstep._src.tables.dynamic import local_lookup
from lockstep._src.tables.sharded import lookup_steps


class Lookups:
    """The lookups of a table.

    Args:
      handle: the handle of the table.
      name: the name of the table.
      key_dtype: the type of its keys.
      attributes: the result of `table_options.attributes`.
      sums_gradients: whether gradients are plain sums over the workers: see `lookup_steps.combine`.
      gradients_by: the indices of a gradient's slices, "number" or "key": see `DynamicVariable.gradients_by`.
      in_job: whether lookups are in the tables of all workers; None: if there are several.
    """

    def __init__(
        self,
        handle: tf.Tensor,
        name: str,
        key_dtype: tf.DType,
        attributes: dict[str, Any],
        sums_gradients: bool = False,
        gradients_by: str = "number",
        in_job: bool | None = None,
    ) -> None:
        self._handle, self._name, self._key_dtype = handle, name, key_dtype
        self._sums_gradients, self._gradients_by = sums_gradients, gradients_by
        self._filters = attributes.get("min_frequency", 0) > 1
        # Whether it matters how often a key is seen in a lookup.
        self._counts = attributes["record_frequency"] or self._filters or attributes.get("order") == "lfu"
        self._in_job = context.world_size > 1 if in_job is None else in_job
        # Names of operations, because an operation would keep its graph alive.
        self._last: weakref.WeakKeyDictionary[tf.Graph, str] = weakref.WeakKeyDictionary()
        self._key_owner = attributes["key_owner"]

    def rows(self, keys: tf.Tensor, training: bool) -> tf.Tensor:
        """Returns rows by key.

        Args:
          keys: keys of any shape.
          training: whether keys are counted and added.

        Returns:
          [keys..., D] float32.
        """
        if not training:
            return self._read(keys)
        before = local_lookup.times_seen(keys) if self._counts else None
        route, times, served = None, None, keys
        if self._in_job:
            # Each distinct key is sent to its owner, which sends its row back.
            route = self._route(keys if before is None else before[0], self._counts)
            times, served = route.times if self._counts else None, route.local_rows
        elif before is not None:
            times = tf.math.bincount(before[1], minlength=tf.size(keys), dtype=tf.int64)
        rows = self._resolve(served, times, is_counted=route is not None)
        if route is None:
            return rows
        if before is not None:
            # All places of a distinct key have the same place among the keys that were sent.
            route = route.with_places(lambda places: tf.math.unsorted_segment_max(places, before[1], tf.size(keys)))
        return lookup_steps.combine(rows, route, self._sums_gradients)

    @property
    def in_job(self) -> bool:
        """Whether lookups are in the tables of all workers."""
        return self._in_job

    def distinct_rows(
        self, keys: tf.Tensor, training: bool, problem: tf.Tensor | None = None
    ) -> lookup_steps.DistinctRows:
        """Returns the row of each distinct key, [U, D] float32.

        Args:
          keys: see `rows`.
          training: whether keys are counted and added.
          problem: see `lookup_steps.route`; only for lookups in the tables of all workers.
        """
        counts = training and self._counts
        if self._in_job:
            route = self._route(keys, counts, problem)
        else:
            route = lookup_steps.local_route_of_keys(keys, self._name, counts=counts)
        if training:
            rows = self._resolve(route.local_rows, route.times if counts else None, is_counted=True)
        else:
            rows = library.ops.lockstep_dynamic_table_lookup(self._handle, route.local_rows, is_counted=True)
        return lookup_steps.combine_distinct(rows, route, self._sums_gradients)

    def _resolve(self, keys: tf.Tensor, times: tf.Tensor | None, *, is_counted: bool) -> tf.Tensor:
        """Returns the rows of keys of this worker in training.

        Args:
          keys: keys of any shape.
          times: how often each is looked up; None: once.
          is_counted: whether an operation before this one has counted the lookup for the table's counters.
        """
        with self._after_previous_lookup():
            rows, numbers = library.ops.lockstep_dynamic_table_resolve(
                self._handle,
                keys,
                tf.zeros([0], tf.int64) if times is None else times,
                is_counted=is_counted,
                gradients_by=self._gradients_by,
            )
        if not self._filters:
            return rows
        self._note(rows)
        # Keys that are not admitted have no gradient: it would count in norms.
        admitted = tf.reshape(numbers >= 0, tf.concat([tf.shape(keys), [1]], 0))
        return tf.where(admitted, rows, tf.stop_gradient(rows))

    def _read(self, keys: tf.Tensor) -> tf.Tensor:
        """Returns rows by key, without changing the table."""
        if not self._in_job:
            return library.ops.lockstep_dynamic_table_lookup(self._handle, keys)
        route = self._route(keys, counts=False)
        rows = library.ops.lockstep_dynamic_table_lookup(self._handle, route.local_rows, is_counted=True)
        return lookup_steps.combine(rows, route, self._sums_gradients)

    def _route(self, keys: tf.Tensor, counts: bool, problem: tf.Tensor | None = None) -> lookup_steps.Route:
        """Returns the route of keys; with `counts`, it sends along how often each key occurs."""
        placed = {"key_owner": self._key_owner, "problem": problem}
        if self._key_dtype == tf.string:
            return lookup_steps.route_strings(keys, self._name, **placed)
        return lookup_steps.route_keys(keys, self._name, counts=counts, **placed)

    def _after_previous_lookup(self) -> Any:
        """Orders lookups with a filter: they run in the order of their creation, which affects what they admit."""
        graph = tf.compat.v1.get_default_graph() if self._filters and not tf.executing_eagerly() else None
        before = None if graph is None else self._last.get(graph)
        if graph is None or before is None:
            return contextlib.nullcontext()
        return tf.control_dependencies([graph.get_operation_by_name(before)])

    def _note(self, rows: tf.Tensor) -> None:
        graph = None if tf.executing_eagerly() else rows.graph
        # In branches and loops of TensorFlow 1, a dead control edge would kill the operations that wait for it.
        if graph is not None and graph._get_control_flow_context() is None:
            self._last[graph] = rows.op.name
