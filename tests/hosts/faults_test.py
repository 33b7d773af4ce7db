"""Cells of the table of faults (`make test-faults`) that are quick."""

import random

import pytest

from lockstep.testing.emulated_cluster import why_not
from tests.hosts.faults import FAULTS, PATIENCE_S, main, try_cell

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


@pytest.mark.parametrize(
    ("name", "moment"),
    [("kill a worker of host b", "step"), ("kill all of host b", "checkpoint"), ("kill all of host a", "step")],
)
def test_a_job_of_which_a_part_is_killed_ends_by_name_and_leaves_nothing(name, moment, tmp_path):
    (fault,) = [fault for fault in FAULTS if fault.name == name]
    # The table measures the time until the end, on an idle machine. Here the others only must not hang.
    result = try_cell(fault, moment, tmp_path, random.Random(1), PATIENCE_S)
    assert not result.wrong, result.outputs


def test_a_table_without_a_row_is_not_as_promised(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["faults", "--faults", "kil rank 0"])
    assert main() == 2
    assert "no fault has a name with one of ['kil rank 0']" in capsys.readouterr().err
