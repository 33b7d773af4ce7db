"""Tests of what a program may say about the place of tables."""

from __future__ import annotations

import json
import pathlib

import pytest

from lockstep._src.engine.options import Options
from lockstep._src.engine.placements import Wish, checked, wish_for


@pytest.mark.parametrize(
    ("value", "wish"),
    [
        ("rows", Wish("rows")),
        ("rows:61", Wish("rows", 61)),
        ("replicated", Wish("replicated")),
        ("worker", Wish("worker")),
        ("worker:3", Wish("worker", 3)),
        ("auto", Wish("auto")),
    ],
)
def test_one_value_is_for_all_tables(value, wish):
    assert wish_for("any/table", checked(value)) == wish


def test_the_first_pattern_that_matches_a_name_decides():
    placements = checked(
        {"user*": "worker", "item": {"placement": "auto", "ids": 40_000}, "tags": {"ids": 5}, "*": "replicated"}
    )
    assert wish_for("user/id", placements) == Wish("worker", None, None, True)
    assert wish_for("item", placements) == Wish("auto", None, 40_000, True)
    assert wish_for("tags", placements) == Wish("auto", None, 5, True)
    assert wish_for("other", placements) == Wish("replicated", is_for_table=True)
    assert wish_for("other", checked({"user": "worker"})) == Wish("rows"), "not named: as without the option"


def test_a_plans_file_is_read_when_the_option_is_set(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"workers": 2, "tables": {"user": {"placement": "worker:1", "ids": 7.5}}}))
    for given in (path, str(path)):
        assert wish_for("user", checked(given)) == Wish("worker", 1, 7.5, True)
    options = Options.from_environment({"LOCKSTEP_PLACEMENT": str(path)})
    path.unlink()
    assert wish_for("user", options.placement) == Wish("worker", 1, 7.5, True)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (3, TypeError, "option placement: got 3 of type int, wanted str, a mapping of table names or a path"),
        ("row", ValueError, "option placement: got 'row', wanted 'rows', 'rows:<block>', 'replicated'"),
        ("rows:0", ValueError, "got 'rows:0'"),
        ("worker:-1", ValueError, "got 'worker:-1'"),
        ({3: "rows"}, TypeError, "got 3 of type int as a table's name, wanted str"),
        ({"user": "row"}, ValueError, "option placement: table 'user': got 'row', wanted"),
        ({"user": None}, TypeError, "table 'user': got None of type NoneType, wanted"),
        ({"user": {"place": "rows"}}, ValueError, "table 'user': got 'place', wanted 'placement' and 'ids'"),
        ({"user": {"ids": "many"}}, TypeError, "ids: got 'many' of type str, wanted a number of ids per step"),
        ({"user": {"ids": -1}}, ValueError, "ids: got -1, wanted a number of ids per step"),
        ("none.json", ValueError, "plan file 'none.json' cannot be read: No such file or directory"),
        (pathlib.Path("none.json"), ValueError, "plan file 'none.json' cannot be read"),
    ],
)
def test_a_value_that_is_no_placement_is_refused(value, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = Options()
    with pytest.raises(error, match=message):
        options.placement = value
    assert options.placement == "rows"


@pytest.mark.parametrize(
    ("content", "message"), [("{", "is not JSON: "), ("[]", "is not a plan: "), ('{"a": 1}', "has no 'tables'")]
)
def test_a_file_that_is_no_plan_is_refused(content, message, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        checked(path)
