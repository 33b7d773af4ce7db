"""Tests of the decisions about the places of tables."""

from __future__ import annotations

import pytest

from lockstep._src.engine.placements import Wish
from lockstep._src.tables.placement import costs
from lockstep._src.tables.placement.planner import Planner


def place(planner, name, rows, wish, width=16):
    return planner.place(name, rows, width, width * 4, wish)


@pytest.mark.parametrize(
    ("wish", "placement", "block", "first"),
    [
        (Wish("rows"), "rows", 1, 0),
        (Wish("rows", 61), "rows:61", 61, 0),
        (Wish("replicated"), "replicated", 1, 0),
        (Wish("worker"), "worker:0", 1000, 0),
        (Wish("worker", 2), "worker:2", 1000, 2),
        (Wish("auto"), "rows", 1, 0),
    ],
)
def test_a_table_is_placed_as_the_program_said(wish, placement, block, first):
    placed = place(Planner(3), "user", 1000, wish)
    assert (placed.placement, placed.block, placed.first) == (placement, block, first)


def test_whole_tables_go_to_the_worker_with_the_least_work():
    planner = Planner(3)
    ids = {"a": 100, "b": 10, "c": 10, "d": 10, "e": 500, "f": 1}
    placed = {name: place(planner, name, 10_000, Wish("worker", ids=many)).first for name, many in ids.items()}
    assert placed == {"a": 0, "b": 1, "c": 2, "d": 1, "e": 2, "f": 1}


def test_tables_of_the_same_name_and_size_keep_their_place():
    planner = Planner(2)
    first = place(planner, "user", 50, Wish("worker"))
    place(planner, "item", 50, Wish("worker"))
    assert place(planner, "user", 50, Wish("worker")) is first
    assert place(planner, "user", 50, Wish("auto")) is first
    assert place(planner, "user", 50, Wish("worker", 1)).first == 1, "the program said another place"
    assert place(planner, "user", 60, Wish("rows")).kind == "rows", "another table"
    assert len(planner.tables) == 2


def test_auto_replicates_tiny_tables_and_deals_large_ones_from_different_workers_on():
    planner = Planner(2)
    assert place(planner, "tiny", 5, Wish("auto")).kind == "replicated"
    assert [place(planner, name, 10**6, Wish("auto")).first for name in "abcd"] == [0, 1, 0, 1]


def test_auto_puts_a_table_with_few_rows_on_one_worker_if_copies_cost_more():
    planner = Planner(64)
    placed = place(planner, "wide", 100, Wish("auto"), width=4096)
    assert placed.kind == "worker"


def test_auto_replicates_at_most_16_mib():
    planner = Planner(2)
    placed = [place(planner, f"t{i}", 1 << 15, Wish("auto", ids=1)) for i in range(9)]
    assert [table.kind for table in placed] == ["replicated"] * 8 + ["rows"], "each has 2 MiB"


def test_one_worker_has_whole_tables():
    planner = Planner(1)
    for kind in ("rows", "worker", "auto"):
        placed = place(planner, kind, 10, Wish(kind))
        assert (placed.kind, placed.rows_of(0, 1)) == ("rows", 10)


def test_a_worker_that_the_job_has_not_is_refused():
    message = r"table 'user': got the placement 'worker:2', but the job has 2 worker\(s\)"
    with pytest.raises(ValueError, match=message):
        place(Planner(2), "user", 10, Wish("worker", 2))


def test_distinct_ids_are_fewer_than_ids_and_rows():
    assert costs.expected_distinct(10, 10**9) == pytest.approx(10, rel=1e-6)
    assert costs.expected_distinct(10**9, 10) == pytest.approx(10)
    assert costs.expected_distinct(5, 0) == 0


def test_rows_of_all_workers_are_those_of_the_table():
    for wish in (Wish("rows"), Wish("rows", 3), Wish("worker", 1)):
        placed = place(Planner(3), "user", 100, wish)
        assert sum(placed.rows_of(rank, 3) for rank in range(3)) == 100
        served = [placed.served_by(rank, 3) for rank in range(3)]
        assert sum(served) == pytest.approx(3 * costs.expected_distinct(placed.ids, 100))
