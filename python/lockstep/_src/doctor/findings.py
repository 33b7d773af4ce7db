"""Findings of the doctor, and how they are shown."""

import dataclasses
import textwrap
from collections.abc import Sequence
from typing import Literal

State = Literal["ok", "warning", "problem"]
_WIDTH = 120


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was checked.

    Attributes:
      name: The thing.
      state: "ok"; "warning": jobs run, but slowly or not in every form; "problem": jobs fail.
      seen: What was found.
      advice: What to do about it; empty if there is nothing to do.
    """

    name: str
    state: State
    seen: str
    advice: str = ""

    def lines(self) -> list[str]:
        """Returns the lines of a table for a person."""
        head = f"{self.state:<9}{self.name:<20}"
        shown = textwrap.wrap(self.seen, _WIDTH - len(head), break_on_hyphens=False) or [""]
        lines = [head + shown[0], *(" " * len(head) + more for more in shown[1:])]
        if self.advice:
            more = textwrap.wrap(
                "-> " + self.advice, _WIDTH - len(head), subsequent_indent="   ", break_on_hyphens=False
            )
            lines += [" " * len(head) + line for line in more]
        return lines


def has_problem(findings: Sequence[Finding]) -> bool:
    """Returns whether jobs would fail."""
    return any(finding.state == "problem" for finding in findings)
