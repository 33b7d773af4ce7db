"""Rounds take every system once, and continue without a system that fails."""

from __future__ import annotations

import pytest

from figures import Figures
from turn import Turn, TurnError, measure

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


def run(turns: list[Turn], rounds: int) -> list[str]:
    """Runs turns in rounds. Returns the lines for the terminal."""
    said: list[str] = []
    measure(turns, Figures("", rounds), said.append)
    return said


def turn(name: str, missing: str = "", failing_round: int = -1) -> Turn:
    def measured(figures: Figures, number: int) -> str:
        if number == failing_round:
            raise TurnError("exit code 1")
        figures.comparison("c", "training", "", "").of(name).values.append(number)
        return str(number)

    return Turn(name, missing, measured)


def test_systems_are_measured_in_turns_and_another_begins_each_round():
    assert run([turn("a"), turn("b")], 3) == ["a: 0", "b: 0", "b: 1", "a: 1", "a: 2", "b: 2"]


def test_a_system_that_is_not_installed_is_named_once():
    assert run([turn("a"), turn("b", missing="no b")], 2) == ["b: left out: no b", "a: 0", "a: 1"]


def test_a_system_that_fails_is_left_out_from_then_on_and_keeps_its_figures():
    figures, said = Figures("", 3), []
    measure([turn("a", failing_round=1), turn("b")], figures, said.append)
    assert said == ["a: 0", "b: 0", "b: 1", "a: left out: exit code 1", "b: 2"]
    assert figures.comparisons["c"].of("a").values == [0]
    assert figures.comparisons["c"].of("b").values == [0, 1, 2]
