"""`lockstep.plan()`: what each worker has of the tables, and how much of a step's work, expected and measured."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

import numpy as np

from lockstep._src.collectives import statistics
from lockstep._src.engine.context import context
from lockstep._src.tables.placement import costs
from lockstep._src.tables.placement.planner import PlacedTable, planner

_log = logging.getLogger("lockstep")

# A worker whose work is above the mean by more than this part is worth a warning.
_IMBALANCE = 0.2
# The block that is proposed for tables by rows whose ids are not spread: a prime number, so that ids with any regular
# distance are.
_BLOCK = 61
# The number of tables that a printed plan lists.
_LISTED = 30


@dataclasses.dataclass(frozen=True)
class TablePlan:
    """A table and what the workers do with it. All lists are by rank.

    Attributes:
      name: the table's name, as in checkpoints.
      placement: as the option `placement` has it; 'keys' for dynamic tables.
      total_rows: its rows; of a dynamic table its keys.
      width: the numbers of a row; None: not known (dynamic tables).
      rows: the rows that each worker holds, [W].
      bytes: their bytes with the optimizer's slots, [W].
      ids: the ids that each worker looks up in a step, [W].
      distinct_ids: the distinct ones, [W].
      served: the rows that each worker reads for all workers in a step, [W].
      work: the work of each worker in a step, in estimated nanoseconds, [W].
      is_counted: whether ids and rows were counted; no: they are expectations.
    """

    name: str
    placement: str
    total_rows: int
    width: int | None
    rows: Sequence[int]
    bytes: Sequence[int]
    ids: Sequence[float]
    distinct_ids: Sequence[float]
    served: Sequence[float]
    work: Sequence[float]
    is_counted: bool = True


@dataclasses.dataclass(frozen=True)
class WorkerPlan:
    """A worker's part of all tables.

    Attributes:
      rank: the worker.
      rows: the rows that it holds.
      bytes: their bytes, with the optimizer's slots.
      ids: the ids that it looks up in a step.
      served: the rows that it reads for all workers in a step.
      share: its part of the work of all workers, 0 to 1.
      wait_s: the seconds of a step in which it waited for others; None: not measured.
    """

    rank: int
    rows: int
    bytes: int
    ids: float
    served: float
    share: float
    wait_s: float | None


class Plan:
    """Where the rows of all tables are, and the work of each worker. `str` has it as text.

    Args:
      tables: the tables.
      waits: see `WorkerPlan.wait_s`, by rank.
      steps: see below.

    Attributes:
      tables: a `TablePlan` for each table, the largest first.
      workers: a `WorkerPlan` for each worker.
      steps: the training steps over which ids and rows were counted; 0: they are expectations.
      imbalance: how much the busiest worker's work is above the mean: 0.2 is 20 %.
      proposal: other placements by table name, for the option `placement`; empty if nothing better was found.
      proposed_imbalance: the imbalance that is expected with them.
    """

    def __init__(self, tables: Sequence[TablePlan], waits: Sequence[float | None], steps: int) -> None:
        self.tables = sorted(tables, key=lambda table: (-sum(table.bytes), table.name))
        self.steps = steps
        work = _sums([table.work for table in tables], len(waits))
        total = sum(work)
        self.workers = [
            WorkerPlan(
                rank,
                sum(table.rows[rank] for table in tables),
                sum(table.bytes[rank] for table in tables),
                sum(table.ids[rank] for table in tables),
                sum(table.served[rank] for table in tables),
                work[rank] / total if total else 1 / len(waits),
                waits[rank],
            )
            for rank in range(len(waits))
        ]
        self.imbalance = _imbalance(work)
        self.proposal, self.proposed_imbalance = _propose(self.tables, work)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the placements, also the proposed ones, and the ids of each table as a JSON file.

        `lockstep.scope(placement=path)` takes it. Checkpoints fit any placement. Only worker 0 writes.

        Args:
          path: the file; its name has to end with '.json'.

        Raises:
          ValueError: the name of the file has another end.
          OSError: the file can't be written.
        """
        if not os.fspath(path).endswith(".json"):
            raise ValueError(f"plan: save: got {os.fspath(path)!r}, wanted a name that ends with '.json'")
        if statistics.place()[0] != 0:
            return
        tables = {
            table.name: {
                "placement": self.proposal.get(table.name, table.placement),
                "ids": round(sum(table.ids) / len(table.ids), 1),
            }
            for table in self.tables
            if table.placement != "keys"
        }
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"workers": len(self.workers), "tables": tables}, file, indent=1)
            file.write("\n")

    def __repr__(self) -> str:
        return f"<Plan: {len(self.tables)} tables, {len(self.workers)} workers, imbalance {self.imbalance:.0%}>"

    def __str__(self) -> str:
        source = f"counted over {self.steps} steps" if self.steps else "expected"
        lines = [f"{len(self.tables)} tables on {len(self.workers)} worker(s); ids and work of a step are {source}", ""]
        names = [table.name for table in self.tables[:_LISTED]]
        wide = max([5, *map(len, names)])
        head = f"{'rows':>11}  {'width':>5}  {'placement':12}  {'bytes':>9}  {'ids/step':>9}  {'distinct':>8}"
        lines.append(f"{'table':{wide}}  {head}")
        for table in self.tables[:_LISTED]:
            about = "~" if self.steps and not table.is_counted else ""
            ids, distinct = (f"{about}{sum(counts):,.0f}" for counts in (table.ids, table.distinct_ids))
            lines.append(
                f"{table.name:{wide}}  {table.total_rows:>11,}  {table.width or '':>5}  {table.placement:12}  "
                f"{_bytes(sum(table.bytes)):>9}  {ids:>9}  {distinct:>8}"
            )
        if len(self.tables) > _LISTED:
            lines.append(f"... and {len(self.tables) - _LISTED} smaller tables")
        waits = any(worker.wait_s is not None for worker in self.workers)
        lines += ["", "worker         rows      bytes   ids/step  rows served  share of time" + "  waits/step" * waits]
        for worker in self.workers:
            line = (
                f"{worker.rank:>6}  {worker.rows:>11,}  {_bytes(worker.bytes):>9}  {worker.ids:>9,.0f}  "
                f"{worker.served:>11,.0f}  {worker.share:>13.1%}"
            )
            lines.append(line if worker.wait_s is None else f"{line}  {worker.wait_s * 1e3:>7.1f} ms")
        lines += ["", self.balance()]
        return "\n".join(lines)

    def balance(self) -> str:
        """Returns a sentence about the balance, and the proposal if there is one."""
        busiest = max(self.workers, key=lambda worker: worker.share)
        if self.imbalance <= _IMBALANCE:
            return f"The work is balanced: worker {busiest.rank} has {self.imbalance:.1%} more than the mean."
        text = (
            f"The work is not balanced: worker {busiest.rank} has {busiest.share:.0%} of it, {self.imbalance:.0%} more "
            "than the mean."
        )
        if not self.proposal:
            return text
        placements = {table.name: table.placement for table in self.tables}
        changes = [f"  {name}: {placements[name]} -> {placement}" for name, placement in self.proposal.items()]
        more = [f"  ... and {len(changes) - _LISTED} others"] if len(changes) > _LISTED else []
        return "\n".join(
            [
                f"{text} Proposal, with an expected imbalance of {self.proposed_imbalance:.0%}:",
                *changes[:_LISTED],
                *more,
                "Save it with lockstep.plan().save('plan.json'), and start again with placement='plan.json' (or "
                "LOCKSTEP_PLACEMENT=plan.json); checkpoints fit.",
            ]
        )


def plan(since: statistics.Stats | None = None, file: TextIO | None = sys.stdout) -> Plan:
    """Prints on worker 0 where the rows of tables are, and each worker's part of the work; also returns it.

    Before the first step, ids are those that were said (option `placement`), or as many as the option `batch_size`.
    After it, they are counted. All workers of the job call this together, at the same place between their other
    collectives. If the work of one worker is more than 20 % above the mean, the plan reports it, and proposes other
    places.

    Args:
      since: an earlier result of `lockstep.stats()`; ids and rows are counted from there. None: from the start.
      file: where worker 0 prints; None: nowhere, and an imbalance is a warning of the logger 'lockstep'.

    Returns:
      The plan; the same on all workers.

    Raises:
      TypeError: `since` is not a result of `lockstep.stats()`.
      tf.errors.OpError: the exchange of the counters failed.
    """
    context.ensure_initialized()
    made = plan_of(statistics.stats(since, all_ranks=True))
    if statistics.place()[0] == 0:
        if file is None:
            warn(made)
        else:
            print(made, file=file, flush=True)
    return made


def plan_of(workers: Sequence[dict[str, Any]]) -> Plan:
    """Returns the plan, from the statistics of all workers (`lockstep.stats`) by rank."""
    size = len(workers)
    steps = max(worker["steps"] for worker in workers)
    counted = any(table["lookups"] for worker in workers for table in worker["tables"].values())
    # Programs without a session or model of Keras count no steps. A table is then looked up once per step.
    lookups = max((table["lookups"] for worker in workers for table in worker["tables"].values()), default=0)
    steps = (steps or lookups) if counted else 0
    placed = planner().tables
    tables = [_of_table(table, workers, steps) for table in placed.values() if len(table.variables)]
    others = dict.fromkeys(name for worker in workers for name in worker["tables"] if name not in placed)
    tables += [_of_keys(name, workers, steps) for name in others]
    waits = [worker["wait_s"] / steps if steps and size > 1 else None for worker in workers]
    return Plan(tables, waits, steps)


@functools.lru_cache(maxsize=64)
def _warn_once(text: str) -> None:
    _log.warning("%s", text)


def warn(made: Plan) -> None:
    """Warns of a plan whose work is not balanced, once for the same plan."""
    if made.imbalance > _IMBALANCE:
        _warn_once(made.balance())


def watch_balance() -> None:
    """Makes the job warn of an imbalance wherever it gathers its statistics (StatsHook, StatsCallback)."""
    statistics.watch_periods(lambda workers: warn(plan_of(workers)))


def _of_table(table: PlacedTable, workers: Sequence[dict[str, Any]], steps: int) -> TablePlan:
    size, ranks = len(workers), range(len(workers))
    row_bytes = table.size.row_bytes + table.slots
    rows = [table.rows_of(rank, size) for rank in ranks]
    counted = [worker["tables"].get(table.name) for worker in workers]
    is_counted = bool(steps) and any(part is not None and part["lookups"] for part in counted)
    if is_counted:
        ids, distinct, served = _counted(counted, steps)
    else:
        ids = [table.ids] * size
        distinct = [costs.expected_distinct(table.ids, table.size.rows)] * size
        served = [table.served_by(rank, size) for rank in ranks]
    work = [
        costs.asking(table.size, ids[rank], distinct[rank])
        + costs.serving(table.size, sum(distinct) if table.kind == "replicated" else served[rank])
        for rank in ranks
    ]
    return TablePlan(
        table.name,
        table.placement,
        table.size.rows,
        table.width,
        rows,
        [row_bytes * count for count in rows],
        ids,
        distinct,
        served,
        work,
        is_counted,
    )


def _of_keys(name: str, workers: Sequence[dict[str, Any]], steps: int) -> TablePlan:
    counted = [worker["tables"].get(name) for worker in workers]
    rows = [part["rows"] if part else 0 for part in counted]
    sizes = [part["bytes"] if part else 0 for part in counted]
    ids, distinct, served = _counted(counted, steps)
    size = costs.Size(sum(rows), sum(sizes) // max(1, sum(rows)))
    work = [costs.asking(size, i, d) + costs.serving(size, s) for i, d, s in zip(ids, distinct, served, strict=True)]
    return TablePlan(name, "keys", sum(rows), None, rows, sizes, ids, distinct, served, work)


def _counted(parts: Sequence[dict[str, Any] | None], steps: int) -> tuple[list[float], list[float], list[float]]:
    """Returns ids, distinct ids and served rows of each worker in a step."""
    keys = ("ids", "distinct_ids", "served_rows")
    ids, distinct, served = ([(part[key] if part else 0) / max(1, steps) for part in parts] for key in keys)
    return ids, [d or i for d, i in zip(distinct, ids, strict=True)], served


def _propose(tables: Sequence[TablePlan], work: Sequence[float]) -> tuple[dict[str, str], float]:
    """Returns placements that balance the work better, and the imbalance that is expected with them.

    A whole table with rows for all workers is dealt by rows. A table by rows that one worker serves far more than
    others is dealt in blocks. Then the remaining whole tables go, the most work first, to the idlest worker each.
    """
    if _imbalance(work) <= _IMBALANCE:
        return {}, _imbalance(work)
    size = len(work)
    proposal: dict[str, str] = {}
    rest = np.zeros(size)
    whole: list[tuple[float, TablePlan]] = []
    for table in tables:
        mean = sum(table.work) / size
        is_skewed = mean > 0 and max(table.work) / mean - 1 > _IMBALANCE
        if table.placement.startswith("worker"):
            if table.total_rows >= 2 * size:
                proposal[table.name] = "rows"
                rest += mean
            else:
                asked = min(table.work)
                rest += asked
                whole.append((sum(table.work) - size * asked, table))
        elif table.placement == "rows" and is_skewed and table.total_rows >= 2 * size * _BLOCK:
            proposal[table.name] = f"rows:{_BLOCK}"
            rest += mean
        else:
            rest += np.asarray(table.work)
    for served, table in sorted(whole, key=lambda pair: (-pair[0], pair[1].name)):
        rank = int(rest.argmin())
        rest[rank] += served
        if table.placement != f"worker:{rank}":
            proposal[table.name] = f"worker:{rank}"
    expected = _imbalance(rest.tolist())
    return (proposal, expected) if expected < _imbalance(work) - 0.01 else ({}, _imbalance(work))


def _imbalance(work: Sequence[float]) -> float:
    total = sum(work)
    return max(work) * len(work) / total - 1 if total else 0.0


def _sums(lists: Sequence[Sequence[float]], size: int) -> list[float]:
    return [sum(values[rank] for values in lists) for rank in range(size)]


def _bytes(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"
