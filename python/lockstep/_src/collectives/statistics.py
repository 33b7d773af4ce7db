"""Statistics of this process, from the counters of the engine: what it has exchanged and looked up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal, cast, overload

from lockstep._src.collectives import agreement, named_job
from lockstep._src.engine import library
from lockstep._src.engine.context import context

_NS = 1e-9
# The time from which `seconds` counts; the engine's clock is the same.
_loaded_ns = time.monotonic_ns()

# Counters of a table; differences are taken of them.
_TABLE_COUNTERS = ("lookups", "ids", "compared_ids", "distinct_ids", "served_rows", "inserted_keys")


class Stats(dict[str, Any]):
    """The statistics of one worker, a dict; `stats` describes its keys.

    Args:
      totals: the values since the start of the process.
      since: the result from which the values count; None: from the start.
    """

    def __init__(self, totals: dict[str, Any], since: Stats | None = None) -> None:
        super().__init__(totals if since is None else _difference(totals, since.totals))
        self.totals: dict[str, Any] = totals


@overload
def stats(since: Stats | None = None, *, all_ranks: Literal[False] = False) -> Stats: ...
@overload
def stats(since: Stats | None = None, *, all_ranks: Literal[True]) -> list[dict[str, Any]]: ...
@overload
def stats(since: Stats | None = None, *, all_ranks: bool) -> Stats | list[dict[str, Any]]: ...
def stats(since: Stats | None = None, *, all_ranks: bool = False) -> Stats | list[dict[str, Any]]:
    """Returns what this worker has exchanged and looked up.

    The counters are always on. They cover the collectives of scopes and of Horovod's interface.

    Args:
      since: an earlier result of this function; the counters then start there. None: at the start of the process.
      all_ranks: returns the results of all workers, by rank. All workers must then call this together, at the same
        place between their other collectives.

    Returns:
      A dict, or with `all_ranks` a list of dicts:

      | key | value |
      | --- | --- |
      | `rank`, `size` | the worker's rank, and the number of workers |
      | `seconds` | the time that the counters cover |
      | `steps` | training steps that have ended |
      | `collectives` | exchanges; lookups of several tables may share one |
      | `sent_bytes`, `received_bytes` | their payload: tensors that this worker gave to others, and got |
      | `exchange_s` | seconds in exchanges, with waits and copies |
      | `wait_s` | the part of them in which other workers had not come yet |
      | `waited_for_s` | seconds by the rank for which this worker waited, [R] |
      | `ids` | ids and keys that this worker looked up |
      | `compared_ids` | the ids among them in lookups that drop duplicates |
      | `distinct_ids` | the distinct ones of each such lookup, which were sent to their owners |
      | `unique_id_ratio` | distinct ids per compared id; None: there was no such lookup |
      | `tables` | a dict of tables by name |

      A table is a dict with `lookups`, `ids`, `compared_ids`, `distinct_ids` and `unique_id_ratio` as above, and:

      | key | value |
      | --- | --- |
      | `served_rows` | rows of this worker's part that were read, for all workers |
      | `inserted_keys` | keys that a dynamic table has taken in |
      | `rows`, `bytes` | the present size of this worker's part; of a dynamic table with slots and index |

    Raises:
      TypeError: `since` is not a result of this function.
      tf.errors.OpError: with `all_ranks`, the exchange failed.
    """
    if since is not None and not isinstance(since, Stats):
        raise TypeError(f"stats: since: got {type(since).__name__}, wanted an earlier result of stats()")
    mine = Stats(_totals(), since)
    if not all_ranks:
        return mine
    # The exchange itself comes after the counters were read.
    if named_job.is_started():
        return named_job.gather_values(dict(mine), "stats")
    return agreement.gather_values(dict(mine), "stats")


def place() -> tuple[int, int]:
    """Returns rank and number of workers of the job: of the named one if this process is in one."""
    if named_job.is_started():
        return named_job.rank(), named_job.size()
    return context.rank, context.world_size


def _totals() -> dict[str, Any]:
    counted = library.counters()
    rank, size = place()
    lanes = counted["lanes"]
    # In a process set, ranks have other numbers.
    whole = [lane for lane in lanes if lane["size"] == size and lane["rank"] == rank]
    tables = {table.pop("name"): table for table in counted["tables"]}
    totals = {
        "rank": rank,
        "size": size,
        "seconds": (counted["ns"] - _loaded_ns) * _NS,
        "steps": counted["steps"],
        "collectives": sum(lane["collectives"] for lane in lanes),
        "sent_bytes": sum(lane["sent_bytes"] for lane in lanes),
        "received_bytes": sum(lane["received_bytes"] for lane in lanes),
        "exchange_s": sum(lane["exchange_ns"] for lane in lanes) * _NS,
        "wait_s": sum(lane["wait_ns"] for lane in lanes) * _NS,
        "waited_for_s": [sum(lane["waited_for_ns"][peer] for lane in whole) * _NS for peer in range(size)],
        "tables": tables,
    }
    return _with_ratios(totals)


def _difference(totals: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    counters = ("seconds", "steps", "collectives", "sent_bytes", "received_bytes", "exchange_s", "wait_s")
    waited = before["waited_for_s"]
    if len(waited) != totals["size"]:  # an elastic job has another size now
        waited = [0.0] * totals["size"]
    tables = {}
    for name, table in totals["tables"].items():
        earlier = before["tables"].get(name, {})
        tables[name] = {**table, **{key: table[key] - earlier.get(key, 0) for key in _TABLE_COUNTERS}}
    return _with_ratios(
        {
            **totals,
            **{key: totals[key] - before[key] for key in counters},
            "waited_for_s": [now - then for now, then in zip(totals["waited_for_s"], waited, strict=True)],
            "tables": tables,
        }
    )


def _with_ratios(totals: dict[str, Any]) -> dict[str, Any]:
    """Returns the values with the sums over tables and the ratios."""
    tables = {
        name: {**table, "unique_id_ratio": ratio(table["distinct_ids"], table["compared_ids"])}
        for name, table in totals["tables"].items()
    }
    sums = {key: sum(table[key] for table in tables.values()) for key in ("ids", "compared_ids", "distinct_ids")}
    return {**totals, **sums, "unique_id_ratio": ratio(sums["distinct_ids"], sums["compared_ids"]), "tables": tables}


def ratio(part: float, whole: float) -> float | None:
    """Returns the quotient; None without a whole."""
    return part / whole if whole else None


def scalars(workers: list[dict[str, Any]], examples: float | None = None) -> dict[str, float]:
    """Returns values for plots, by tag, from the statistics of all workers over the same steps.

    Args:
      workers: the statistics, by rank.
      examples: the number of examples of all workers; None: not known.

    Returns:
      The values of docs/timeline.md, section "TensorBoard". Values that are not known are left out.
    """
    seconds = max(worker["seconds"] for worker in workers)
    steps = max(worker["steps"] for worker in workers)
    found: dict[str, float | None] = {
        "steps_per_second": ratio(steps, seconds),
        "examples_per_second": None if examples is None else ratio(examples, seconds),
        "exchange_seconds_per_step": ratio(_mean(workers, "exchange_s"), steps),
        "wait_seconds_per_step": ratio(_mean(workers, "wait_s"), steps),
        "unique_id_ratio": ratio(_sum(workers, "distinct_ids"), _sum(workers, "compared_ids")),
    }
    for name in sorted({name for worker in workers for name in worker["tables"]}):
        parts = [worker["tables"][name] for worker in workers if name in worker["tables"]]
        found[f"table_rows/{name}"] = _sum(parts, "rows")
        found[f"table_bytes/{name}"] = _sum(parts, "bytes")
        found[f"table_unique_id_ratio/{name}"] = ratio(_sum(parts, "distinct_ids"), _sum(parts, "compared_ids"))
    for rank, worker in enumerate(workers):
        waited_for = sum(other["waited_for_s"][rank] for other in workers)
        served = sum(table["served_rows"] for table in worker["tables"].values())
        found[f"rank_wait_seconds_per_step/{rank}"] = ratio(worker["wait_s"], steps)
        found[f"rank_waited_for_seconds_per_step/{rank}"] = ratio(waited_for, steps)
        found[f"rank_received_bytes_per_step/{rank}"] = ratio(worker["received_bytes"], steps)
        found[f"rank_served_rows_per_step/{rank}"] = ratio(served, steps)
    return {f"lockstep/{tag}": float(value) for tag, value in found.items() if value is not None}


def _sum(parts: list[dict[str, Any]], key: str) -> float:
    return cast(float, sum(part[key] for part in parts))


def _mean(parts: list[dict[str, Any]], key: str) -> float:
    return _sum(parts, key) / len(parts)


_watchers: list[Callable[[list[dict[str, Any]]], None]] = []


def watch_periods(watcher: Callable[[list[dict[str, Any]]], None]) -> None:
    """Makes worker 0 call `watcher` at the end of each period of any `Periods`, with all workers' statistics."""
    _watchers.append(watcher)


class Periods:
    """The statistics of all workers over periods of steps.

    Args:
      every_n_steps: the number of steps of a period.
    """

    def __init__(self, every_n_steps: int) -> None:
        self._every_n_steps = every_n_steps
        self.restart()

    def restart(self) -> None:
        """Begins a period now."""
        self._since = stats()
        self._steps = 0
        self._examples: float | None = None

    def add(self, steps: int, examples: float | None) -> dict[str, float] | None:
        """Adds steps of this worker; at the end of a period returns `scalars`, else None.

        All workers call this for the same steps, because the end of a period is an exchange.

        Args:
          steps: the number of steps.
          examples: the number of examples of this worker in them; None: not known.
        """
        self._steps += steps
        if examples is not None:
            self._examples = (self._examples or 0.0) + examples
        if self._steps < self._every_n_steps:
            return None
        workers = self._gathered()
        known = [worker["examples"] for worker in workers if worker["examples"] is not None]
        self.restart()
        for watcher in _watchers if place()[0] == 0 else ():
            watcher(workers)
        return scalars(workers, sum(known) if known else None)

    def _gathered(self) -> list[dict[str, Any]]:
        mine = {**stats(self._since), "examples": self._examples}
        if named_job.is_started():
            return named_job.gather_values(mine, "stats")
        return agreement.gather_values(mine, "stats")
