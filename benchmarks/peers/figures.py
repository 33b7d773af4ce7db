"""The file of figures: comparisons of systems, each measured several times."""

from __future__ import annotations

import dataclasses
import json
import statistics
from pathlib import Path


@dataclasses.dataclass
class Measured:
    """A system's figures in one comparison.

    Attributes:
      values: one for each round, in the comparison's unit.
      peak_gib: the memory of all processes together, one for each round; empty if it was not measured.
      busy_elsewhere: cores that other programs of the machine used meanwhile, one for each round.
      auc: on held-out rows, after the workload's steps; None if it was not measured.
    """

    values: list[float] = dataclasses.field(default_factory=list)
    peak_gib: list[float] = dataclasses.field(default_factory=list)
    busy_elsewhere: list[float] = dataclasses.field(default_factory=list)
    auc: float | None = None

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.values)


@dataclasses.dataclass
class Comparison:
    """Systems that did the same work.

    Attributes:
      group: comparisons of a group have the same systems, and are one table.
      title: a text for table and picture.
      unit: the unit of the values.
      less_is_better: whether the smallest value is the best.
      systems: the figures of each system, by its title.
    """

    group: str
    title: str
    unit: str
    less_is_better: bool = False
    systems: dict[str, Measured] = dataclasses.field(default_factory=dict)

    def of(self, system: str) -> Measured:
        """Returns the figures of a system, which are empty at first."""
        return self.systems.setdefault(system, Measured())


@dataclasses.dataclass
class Figures:
    """All comparisons of a run.

    Attributes:
      machine: the processor, and the number of cores that the run could use.
      rounds: how often each system was measured.
      is_trial: whether the run had only few steps.
      comparisons: by name.
    """

    machine: str
    rounds: int
    is_trial: bool = False
    comparisons: dict[str, Comparison] = dataclasses.field(default_factory=dict)

    def comparison(self, name: str, group: str, title: str, unit: str, *, less_is_better: bool = False) -> Comparison:
        """Returns the comparison of a name, which has no figures at first."""
        return self.comparisons.setdefault(name, Comparison(group, title, unit, less_is_better))

    def save(self, path: Path) -> None:
        """Writes the file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Figures:
        """Reads a file that `save` wrote."""
        values = json.loads(path.read_text())
        comparisons = {}
        for name, comparison in values.pop("comparisons").items():
            systems = {title: Measured(**measured) for title, measured in comparison.pop("systems").items()}
            comparisons[name] = Comparison(**comparison, systems=systems)
        return cls(**values, comparisons=comparisons)
