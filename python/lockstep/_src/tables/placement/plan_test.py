"""Tests of plans, from given statistics."""

from __future__ import annotations

import json
import logging

import pytest

from lockstep._src.engine.placements import Wish
from lockstep._src.tables.placement import planner
from lockstep._src.tables.placement.plan import Plan, TablePlan, plan_of, warn


def table(name, placement, work, rows=1000):
    """Returns a table whose workers have this work."""
    size = len(work)
    return TablePlan(
        name, placement, rows, 4, [rows // size] * size, [16 * rows] * size, [9.0] * size, work, work, work
    )


def plan(*tables, steps=10):
    return Plan(tables, [0.001] * len(tables[0].work), steps)


def test_shares_and_imbalance_follow_the_work():
    made = plan(table("a", "rows", [3.0, 1.0]), table("b", "rows", [1.0, 1.0]))
    assert [worker.share for worker in made.workers] == pytest.approx([2 / 3, 1 / 3])
    assert made.imbalance == pytest.approx(1 / 3)


def test_a_large_whole_table_is_proposed_to_be_dealt_by_rows():
    made = plan(table("a", "worker:0", [10.0, 1.0]), table("b", "rows", [1.0, 1.0]))
    assert made.proposal == {"a": "rows"}
    assert made.proposed_imbalance == pytest.approx(0)


def test_small_whole_tables_are_proposed_for_idle_workers():
    tables = [
        table(name, "worker:0", [work + 1.0, 1.0], rows=3) for name, work in {"a": 4.0, "b": 3.0, "c": 1.0}.items()
    ]
    made = plan(*tables)
    assert made.proposal == {"b": "worker:1", "c": "worker:1"}
    assert made.proposed_imbalance == pytest.approx(0)


def test_tables_whose_ids_one_worker_serves_are_proposed_in_blocks():
    made = plan(table("a", "rows", [10.0, 1.0]))
    assert made.proposal == {"a": "rows:61"}


def test_nothing_is_proposed_without_a_better_place():
    made = plan(table("a", "rows", [10.0, 1.0], rows=50), table("b", "keys", [3.0, 1.0]))
    assert made.proposal == {}
    assert "worker 0 has 87% of it, 73% more than the mean." in str(made)
    assert "Proposal" not in str(made)


def test_the_text_has_tables_workers_and_the_proposal():
    assert str(plan(table("user", "worker:0", [10.0, 1.0]), table("item", "rows", [1.0, 1.0]))) == (
        """2 tables on 2 worker(s); ids and work of a step are counted over 10 steps

table         rows  width  placement         bytes   ids/step  distinct
item         1,000      4  rows           31.2 KiB         18         2
user         1,000      4  worker:0       31.2 KiB         18        11

worker         rows      bytes   ids/step  rows served  share of time  waits/step
     0        1,000   31.2 KiB         18           11          84.6%      1.0 ms
     1        1,000   31.2 KiB         18            2          15.4%      1.0 ms

The work is not balanced: worker 0 has 85% of it, 69% more than the mean. Proposal, with an expected imbalance of 0%:
  user: worker:0 -> rows
Save it with lockstep.plan().save('plan.json'), and start again with placement='plan.json' (or """
        "LOCKSTEP_PLACEMENT=plan.json); checkpoints fit."
    )


def test_a_plan_of_many_tables_lists_the_largest():
    text = str(plan(*(table(f"t{i}", "rows", [1.0, 1.0], rows=i) for i in range(100))))
    assert "t99 " in text and "t10 " not in text and "... and 70 smaller tables" in text


def test_a_saved_plan_has_the_proposed_placements(tmp_path):
    made = plan(
        table("user", "worker:0", [10.0, 1.0]), table("item", "rows", [1.0, 1.0]), table("k", "keys", [1.0, 1.0])
    )
    made.save(tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text()) == {
        "workers": 2,
        "tables": {"user": {"placement": "rows", "ids": 9.0}, "item": {"placement": "rows", "ids": 9.0}},
    }
    with pytest.raises(ValueError, match="got 'plan', wanted a name that ends with '.json'"):
        made.save("plan")


def test_a_table_whose_graph_is_gone_is_not_taken_for_keys(monkeypatch):
    monkeypatch.setattr(planner, "_planner", planner.Planner(1))
    planner.planner().place("of a graph before", 10, 4, 16, Wish("rows"))
    counted = {"lookups": 1, "ids": 3, "distinct_ids": 2, "served_rows": 2, "rows": 5, "bytes": 80}
    worker = {"steps": 1, "wait_s": 0.0, "tables": {"of a graph before": counted, "keys": counted}}
    assert [table.name for table in plan_of([worker]).tables] == ["keys"]


def test_an_imbalance_is_a_warning_once(caplog):
    with caplog.at_level(logging.WARNING, "lockstep"):
        for _ in range(2):
            warn(plan(table("seldom", "worker:1", [1.0, 10.0]), table("b", "rows", [1.0, 1.0])))
        warn(plan(table("a", "rows", [1.1, 1.0])))
    (record,) = caplog.records
    assert "worker 1 has 85% of it" in record.message and "seldom: worker:1 -> rows" in record.message
