"""Turns of the systems: rounds in which each system is measured once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from figures import Figures


class TurnError(Exception):
    """A system gave no figures. The first line of the message says why."""


@dataclasses.dataclass(frozen=True)
class Turn:
    """One measurement of one system, or of systems that are measured together.

    Attributes:
      name: for progress.
      missing: why it cannot run here; empty if it can.
      run: measures once and notes the values, given the number of the round. Returns a line for the terminal.
    """

    name: str
    missing: str
    run: Callable[[Figures, int], str]


def measure(turns: Sequence[Turn], figures: Figures, say: Callable[[str], None]) -> None:
    """Runs all turns in each round; each round begins with another turn.

    A turn that cannot run, or has failed, is named once and left out from then on.
    """
    able = [turn for turn in turns if not turn.missing]
    for turn in turns:
        if turn.missing:
            say(f"{turn.name}: left out: {turn.missing}")
    for number in range(figures.rounds):
        first = number % max(1, len(able))
        for turn in able[first:] + able[:first]:
            try:
                say(f"{turn.name}: {turn.run(figures, number)}")
            except TurnError as error:
                able.remove(turn)
                say(f"{turn.name}: left out: {error}")
