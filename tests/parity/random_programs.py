"""Random training programs of TensorFlow 1: their descriptions. `random_graphs.py` builds them.

A program has tables of several kinds, towers of one or two lookups in them, a small dense part, and an optimizer with a
treatment of the gradients. `programs` draws descriptions. Combinations that the pages name as exceptions are not drawn;
comments here name the pages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import hypothesis
from hypothesis import strategies as st

# The rows of each worker. A worker may have a shorter last batch, or none.
SHARES = ((8, 8, 8), (7, 4, 8), (8, 0, 3), (3, 5, 0))
OPTIMIZERS = ("SGD", "Momentum", "Adagrad", "Adam", "FTRL", "RMSProp")
GRADIENTS = ("plain", "tf.gradients", "clip_by_norm", "clip_by_value", "clip_by_global_norm", "global_norm", "tanh")
LOSSES = ("plain", "l2", "penalty", "second order", "row penalty", "two tasks")
# Forms of lookups with a row for each id.
ROWS = ("rows", "gather", "loop")
SOK = ("sok", "sok localized", "sok dynamic")


replaced = dataclasses.replace


class Printed:
    """A dataclass that prints the fields that differ from their defaults."""

    def __repr__(self) -> str:
        fields = [(f.name, getattr(self, f.name), f.default) for f in dataclasses.fields(self)]
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value, d in fields if value != d)})"


@dataclasses.dataclass(frozen=True, repr=False)
class Table(Printed):
    """A table.

    Attributes:
      kind: static, replicated (made outside of embedding_scope), dynamic, or one of `SOK`.
      rows: the number of rows; of a dynamic table, keys are below it.
      dim: the width.
      placement: where rows of a static table live; 'worker:N' means worker N mod W.
    """

    kind: str = "static"
    rows: int = 5
    dim: int = 2
    placement: str = "rows"


@dataclasses.dataclass(frozen=True, repr=False)
class Lookup(Printed):
    """A lookup.

    Attributes:
      table: the number of the table.
      form: rows, gather or loop (over columns of ids of rank 2) for a row of each id; sparse, ragged, safe sparse or
        safe ragged for a row of each example.
      rank: the rank of the ids of all examples; with `constant`, the rank of constant ids.
      constant: whether the ids are the same for all examples.
      ids: the type of ids.
      combiner: of forms with a row of each example.
      weighted: whether ids have weights.
    """

    table: int = 0
    form: str = "rows"
    rank: int = 1
    constant: bool = False
    ids: str = "int64"
    combiner: str = "sum"
    weighted: bool = False


@dataclasses.dataclass(frozen=True, repr=False)
class Tower(Printed):
    """One lookup, or two whose rows are joined, and what happens to the rows.

    Attributes:
      lookups: one or two.
      join: stack or concat, on `axis`; '' for one lookup.
      axis: counted from the first axis behind the examples' axis.
      then: gather, slice, transpose, unstack or nothing; on `then_axis`, counted like `axis`.
      then_axis: the axis of `then`.
    """

    lookups: tuple[Lookup, ...] = (Lookup(),)
    join: str = ""
    axis: int = 0
    then: str = ""
    then_axis: int = 0


@dataclasses.dataclass(frozen=True, repr=False)
class Program(Printed):
    """A program; its printed form is Python that makes it again."""

    tables: tuple[Table, ...] = (Table(),)
    towers: tuple[Tower, ...] = (Tower(),)
    optimizer: str = "SGD"
    gradients: str = "plain"
    loss: str = "plain"
    shares: tuple[int, int, int] = SHARES[0]
    steps: int = 2
    seed: int = 0

    def placement(self, workers: int) -> dict[str, str]:
        """Returns the option of the scope."""
        where = {f"table{i}": t.placement for i, t in enumerate(self.tables)}
        for name, place in where.items():
            if place.startswith("worker:"):
                where[name] = f"worker:{int(place[7:]) % workers}"
        return where


# --- drawing


@st.composite
def _lookups(draw: Any, tables: tuple[Table, ...], number: int) -> Lookup:
    kind = tables[number].kind
    forms = ("sparse", "ragged") if kind in SOK else ("sparse", "ragged", "safe sparse", "safe ragged")
    # Outside of a loop with its lookup, a dynamic table has no gradient (docs/embedding.md, "Not supported").
    by_id = ("rows",) if kind in SOK else ROWS[:2] if kind == "dynamic" else ROWS
    form = draw(st.sampled_from(by_id) | st.sampled_from(forms))
    combiner, weighted, constant, rank = "sum", False, False, 2
    if form in ROWS[:2]:
        constant = draw(st.booleans())
        rank = draw(st.sampled_from((0, 0, 1, 2, 3) if constant else (1, 2, 3)))
    elif form not in ROWS:
        combiner = draw(st.sampled_from(("sum", "mean") if kind in SOK else ("sum", "mean", "sqrtn")))
        weighted = draw(st.booleans())
    ids = draw(st.sampled_from(("int64", "int32")))
    return Lookup(number, form, rank, constant, ids, combiner, weighted)


@st.composite
def _towers(draw: Any, tables: tuple[Table, ...], number: int) -> Tower:
    first = draw(_lookups(tables, number))
    lookups = (first,)
    width = _axes(first) + 1  # axes that may be used, the table's width included
    join, axis = "", 0
    if draw(st.booleans()):
        partners = [i for i, table in enumerate(tables) if table.dim == tables[number].dim]
        second = _joinable(draw(_lookups(tables, draw(st.sampled_from(partners)))), first)
        lookups = (first, second)
        join = draw(st.sampled_from(("stack", "concat")))
        axis = draw(st.integers(0, width - (join == "concat")))
        width += join == "stack"
    then = draw(st.sampled_from(("", "gather", "slice", "transpose", "unstack")))
    return Tower(lookups, join, axis, then, draw(st.integers(0, width - 1)))


def _joinable(lookup: Lookup, other: Lookup) -> Lookup:
    """Returns a lookup whose rows have the shape of the other one's."""
    if (lookup.constant, _axes(lookup)) == (other.constant, _axes(other)):
        return lookup
    form = lookup.form if lookup.form in ROWS[:2] else "rows"
    rank = other.rank if other.form in ROWS else 1
    return replaced(lookup, form=form, rank=rank, constant=other.constant, combiner="sum", weighted=False)


def _axes(lookup: Lookup) -> int:
    """Returns the number of axes of a lookup's rows, without the axes of examples and of the table's width."""
    if lookup.constant:
        return lookup.rank
    return lookup.rank - 1 if lookup.form in ROWS else 0


def is_promised(program: Program) -> bool:
    """Returns whether the pages promise that a program trains as in plain TensorFlow."""
    kinds = {table.kind for table in program.tables}
    dynamic = [i for i, table in enumerate(program.tables) if "dynamic" in table.kind]
    # Rows of dynamic tables without a gradient stay unchanged: for examples without ids, TensorFlow gives row 0 a
    # gradient of zero, and dynamic tables do not (docs/sharding.md, "Lookups with a combiner").
    touches_row_0 = any(
        lookup.table in dynamic and lookup.form.startswith("safe")
        for tower in program.towers
        for lookup in tower.lookups
    )
    if touches_row_0 and program.optimizer not in ("SGD", "Adagrad", "Adam"):
        return False
    # Adam is lazy for SOK's dynamic variables (docs/sok.md, "Optimizers").
    if "sok dynamic" in kinds and program.optimizer == "Adam":
        return False
    # Dense gradients of tf.gradients are each worker's own until an optimizer applies them: a program that clips,
    # measures or squares them does so on each worker (docs/promises.md, "Where one worker and many differ";
    # docs/design.md).
    if program.gradients == "tf.gradients" and program.loss in ("second order", "penalty"):
        return False
    # A dynamic table has no value as a whole (docs/embedding.md), and one of SOK is a variable of the rank's rows
    # (docs/sok.md, "Tables"): a regularizer of all rows is only for the other ones.
    return program.loss != "l2" or any(kind in ("static", "replicated") for kind in kinds)


@st.composite
def programs(draw: Any) -> Program:
    """Draws a program."""
    with_sok = draw(st.integers(0, 3)) == 0
    kinds = ("static", "replicated", "dynamic", *(SOK if with_sok else ("static",)))
    tables = tuple(
        Table(
            kind=draw(st.sampled_from(kinds)),
            rows=draw(st.sampled_from((1, 2, 3, 4, 7, 13))),
            dim=draw(st.sampled_from((1, 2, 3))),
            placement=draw(st.sampled_from(("rows", "rows", "rows:2", "worker", "worker:1", "replicated", "auto"))),
        )
        for _ in range(draw(st.integers(1, 3)))
    )
    tables = tuple(t if t.kind == "static" else replaced(t, placement="rows") for t in tables)
    numbers = [i for i in range(len(tables)) for _ in range(draw(st.integers(1, 2)))]
    program = Program(
        tables=tables,
        towers=tuple(draw(_towers(tables, number)) for number in numbers),
        optimizer=draw(st.sampled_from(OPTIMIZERS)),
        gradients=draw(st.sampled_from(GRADIENTS)),
        loss=draw(st.sampled_from(("plain", "plain", *LOSSES))),
        shares=draw(st.sampled_from(SHARES)),
        steps=2,
        seed=draw(st.integers(0, 999)),
    )
    hypothesis.assume(is_promised(program))
    return program


# --- making a failure small


def smaller(program: Program) -> Iterator[Program]:
    """Yields programs that are simpler in one respect."""
    for i in range(len(program.towers)):
        if len(program.towers) > 1:
            yield _without_unused(replaced(program, towers=_without(program.towers, i)))
    for field in ("gradients", "loss", "shares", "optimizer", "seed"):
        default = getattr(Program(), field)
        if getattr(program, field) != default:
            yield replaced(program, **{field: default})
    if program.steps > 1:
        yield replaced(program, steps=1)
    for i, tower in enumerate(program.towers):
        for simpler in _smaller_towers(tower):
            yield _without_unused(replaced(program, towers=_with(program.towers, i, simpler)))
    for i, table in enumerate(program.tables):
        for field, value in (("placement", "rows"), ("kind", "static"), ("rows", 5), ("dim", 1)):
            if getattr(table, field) != value and not (field == "dim" and len(program.tables) > 1):
                simpler = replaced(table, **{field: value})
                yield replaced(program, tables=_with(program.tables, i, simpler))


def _smaller_towers(tower: Tower) -> Iterator[Tower]:
    if tower.join:
        for lookup in tower.lookups:
            yield replaced(tower, lookups=(lookup,), join="", axis=0, then="", then_axis=0)
    if tower.then:
        yield replaced(tower, then="", then_axis=0)
    for j, lookup in enumerate(tower.lookups):
        changes: list[dict[str, Any]] = [{"weighted": False}, {"combiner": "sum"}, {"ids": "int64"}]
        if not tower.join and not tower.then:
            changes += [{"form": "rows", "rank": 1, "constant": False, "weighted": False, "combiner": "sum"}]
        changes += [{"form": lookup.form.removeprefix("safe ")}]
        for change in changes:
            simpler = replaced(lookup, **change)
            if simpler != lookup:
                yield replaced(tower, lookups=_with(tower.lookups, j, simpler))


def _with(of: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
    return (*of[:place], value, *of[place + 1 :])


def _without(of: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    return (*of[:place], *of[place + 1 :])


def _without_unused(program: Program) -> Program:
    """Returns a program without the tables in which no lookup is."""
    used = sorted({lookup.table for tower in program.towers for lookup in tower.lookups})
    towers = tuple(
        replaced(
            tower,
            lookups=tuple(replaced(one, table=used.index(one.table)) for one in tower.lookups),
        )
        for tower in program.towers
    )
    return replaced(program, tables=tuple(program.tables[i] for i in used), towers=towers)
