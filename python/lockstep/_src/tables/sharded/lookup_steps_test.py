"""Tests of when a lookup exchanges in two stages."""

from __future__ import annotations

import pytest

from lockstep._src.engine import library
from lockstep._src.engine.context import context
from lockstep._src.tables.sharded import lookup_steps


@pytest.mark.parametrize(
    ("workers", "hosts", "chosen", "expected"),
    [
        (8, 2, None, True),
        (12, 3, None, True),
        (4, 2, None, False),  # two workers on a host share too few ids
        (7, 2, None, False),  # one host has three workers
        (8, 1, None, False),
        (4, 4, None, False),
        (4, 2, True, True),
        (3, 2, True, True),
        (8, 1, True, False),  # one worker per host: there is only one stage
        (4, 4, True, False),
        (8, 2, False, False),
    ],
)
def test_workers_of_a_host_look_up_together_where_that_is_cheaper(monkeypatch, workers, hosts, chosen, expected):
    monkeypatch.setattr(library, "size", lambda: workers)
    monkeypatch.setattr(library, "num_hosts", lambda: hosts)
    monkeypatch.setattr(context.options, "use_hierarchical_embedding_lookup", chosen)
    assert lookup_steps._in_two_stages() == expected
