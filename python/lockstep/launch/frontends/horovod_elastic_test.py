"""The elastic part of a request: which values are refused, and the plan that follows from the others."""

import pytest

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.elastic.driver import Limits
from lockstep.launch.elastic.elastic_job import ElasticPlan
from lockstep.launch.elastic.host_pool import Cooldown
from lockstep.launch.frontends.horovod_elastic import ElasticOptions, check_whole
from lockstep.launch.frontends.horovod_request import Request
from lockstep.launch.placement.hosts import parse_hosts

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

ORDER = "wanted --min-np <= -np <= --max-np"
COOLDOWN = "wanted two numbers of seconds, the lower first, from 1 to 3600"


@pytest.mark.parametrize(
    ("num_proc", "options", "message"),
    [
        (2, {"min_np": "1"}, "--min-np: got '1', wanted a whole number"),
        (2, {"min_np": 1, "max_np": True}, "--max-np: got True, wanted a whole number"),
        (2, {"min_np": 1, "reset_limit": 1.0}, "--reset-limit: got 1.0, wanted a whole number"),
        (2, {"min_np": 0}, "--min-np 0: wanted 1 or more"),
        (2, {"min_np": 1, "slots": 0}, "--slots-per-host 0: wanted 1 or more"),
        (2, {"min_np": 1, "elastic_timeout": 0}, "--elastic-timeout 0: wanted 1 or more"),
        (2, {"min_np": 1, "reset_limit": -1}, "--reset-limit -1: wanted 0 or more"),
        (2, {"min_np": 1, "cooldown_range": 5}, f"--blacklist-cooldown-range 5: {COOLDOWN}"),
        (2, {"min_np": 1, "cooldown_range": "59"}, f"--blacklist-cooldown-range 5 9: {COOLDOWN}"),
        (2, {"min_np": 1, "cooldown_range": (9, 2)}, f"--blacklist-cooldown-range 9 2: {COOLDOWN}"),
        (2, {"min_np": 1, "cooldown_range": (0, 2)}, f"--blacklist-cooldown-range 0 2: {COOLDOWN}"),
        (2, {"min_np": 1, "cooldown_range": (1, 3601)}, f"--blacklist-cooldown-range 1 3601: {COOLDOWN}"),
        (2, {"min_np": 1, "cooldown_range": (True, 2)}, f"--blacklist-cooldown-range True 2: {COOLDOWN}"),
        (1, {"slots": 2}, "--slots-per-host is for elastic jobs: wanted one of --min-np, --max-np, --host-discovery-"),
        (None, {"max_np": 2}, "-np is missing: wanted the number of processes to start with, or --min-np"),
        (2, {"max_np": 65537}, "-np, --max-np: got 65537 workers, wanted at most 65536"),
        (2, {"max_np": 1}, f"got --min-np 2, -np 2, --max-np 1; {ORDER}"),
        (2, {"min_np": 3}, f"got --min-np 3, -np 2; {ORDER}"),
        (1, {"host_discovery_script": "x"}, "got hosts and a host discovery script, wanted one of them"),
    ],
)
def test_a_value_that_cannot_be_is_refused(num_proc, options, message):
    with pytest.raises(LaunchError) as refused:
        Request(num_proc=num_proc, hosts="a:1", elastic=ElasticOptions(**options)).validate()
    assert str(refused.value).startswith(message)
    assert (refused.value.exit_code, "\n" in str(refused.value)) == (2, False)


@pytest.mark.parametrize("value", [None, 0, -3, 1 << 80])
def test_whole_numbers_and_none_are_accepted(value):
    check_whole("-np", value)


@pytest.mark.parametrize(
    ("options", "is_elastic"),
    [
        ({}, False),
        ({"slots": 2, "elastic_timeout": 1, "reset_limit": 0, "cooldown_range": (1, 2)}, False),
        ({"min_np": 1}, True),
        ({"max_np": 1}, True),
        ({"host_discovery_script": "x"}, True),
    ],
)
def test_only_some_options_make_a_job_elastic(options, is_elastic):
    assert bool(ElasticOptions(**options)) == is_elastic


def _plan(num_proc, variables, hosts, elastic):
    options = ElasticOptions(**elastic)
    options.validate(num_proc, hosts is not None)
    return options.plan(num_proc, None if hosts is None else parse_hosts(hosts), variables)


@pytest.mark.parametrize(
    ("num_proc", "hosts", "elastic", "wanted"),
    [
        (2, None, {"min_np": 1}, ElasticPlan(Limits(2, 1, None), {"localhost": 2})),
        (None, None, {"min_np": 3, "slots": 5}, ElasticPlan(Limits(3, 3, None), {"localhost": 5}, slots=5)),
        (
            2,
            "localhost:1,127.0.0.1:4,localhost:2",
            {"min_np": 1, "max_np": 9, "cooldown_range": [1, 2]},
            ElasticPlan(Limits(2, 1, 9), {"localhost": 3, "127.0.0.1": 4}, cooldown=Cooldown(1, 2)),
        ),
        (2, "me@192.0.2.1:2", {"min_np": 1}, ElasticPlan(Limits(2, 1), {"me@192.0.2.1": 2})),
    ],
)
def test_an_elastic_jobs_numbers_follow_from_each_other(num_proc, hosts, elastic, wanted):
    assert _plan(num_proc, {}, hosts, elastic) == wanted


@pytest.mark.parametrize(
    ("elastic", "variables", "seconds"),
    [({}, {}, 600), ({}, {"HOROVOD_ELASTIC_TIMEOUT": "7"}, 7)]
    + [({"elastic_timeout": 8}, {"HOROVOD_ELASTIC_TIMEOUT": text}, 8) for text in ("7", "x")],
)
def test_the_options_timeout_overrides_the_variables(elastic, variables, seconds):
    assert _plan(2, variables, None, {"min_np": 1, **elastic}).limits.timeout_s == seconds


@pytest.mark.parametrize("text", ["x", "", "0", "\N{SUPERSCRIPT TWO}"])
def test_a_timeout_that_is_none_is_refused(text):
    with pytest.raises(LaunchError, match=f"^HOROVOD_ELASTIC_TIMEOUT={text!r}: wanted seconds, 1 or more$"):
        _plan(2, {"HOROVOD_ELASTIC_TIMEOUT": text}, None, {"min_np": 1})
