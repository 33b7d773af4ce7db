"""The engine's suites of conformance and faults, with ranks on several hosts that connect over their network.

The same test program runs on each host and starts that host's ranks (core/testing/site.h).
"""

import os
import subprocess

import pytest

from lockstep.testing.emulated_cluster import Cluster, core_program, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

_DEADLINE_S = 500
# Two ranks on each host; one on each.
_SHAPES = "auto_4_aabb", "auto_2_ab"
# One rank on the last of three hosts, two on each of the others, in turn.
_THREE_HOSTS = "auto_5_abacb"
# Three on each of two hosts, two on the last one.
_MOST_ON_THREE_HOSTS = "auto_8_aaabbbcc"
# The named lane, and algorithms that use collectives.
_LANES = (
    "AdasumTest",
    "NamedExchangeTest",
    "NamedLaneErrorsTest",
    "NamedLaneJoinPairTest",
    "NamedLaneJoinTest",
    "NamedLanePairTest",
    "NamedLaneTest",
)
_LANE_FAULTS = "NamedLaneFaultsTest", "NamedLanePairFaultsTest"
# The other suites read the memory of another rank, or run their ranks as threads of one process.
_FAULTS = (
    "ARankThatLeavesEarlyIsSaidToHaveLeft",
    "RanksThatHaveDoneTheirPartMayLeaveInAnyOrder",
    "AFrozenRankIsNamedAfterTheStallTimeoutWhateverTheOthersDo",
    "DifferentCallsAreDescribedToAllAndBreakNothing",
    "ADeclinedCollectiveFailsOnAllRanksAndBreaksNothing",
    "NothingStaysInTheFolderOfSharedMemory",
)


# 64 ranks: four on each of 16 hosts.
_AT_SCALE = "auto_64_" + "".join(4 * letter for letter in "abcdefghijklmnop")


def _run_on(hosts, tests, version, folder="comm"):
    """Runs tests of a folder of the core on all hosts at once; expects all to pass, and returns how many there were."""
    address = f"[{hosts[0].addresses[6]}]" if version == 6 else hosts[0].addresses[4]
    processes = []
    for host in hosts:
        environment = {**os.environ, "LOCKSTEP_TEST_SITE": f"{host.name}@{address}:7000"}
        command = [core_program(folder, f"lockstep_{folder}_test"), f"--gtest_filter={':'.join(tests)}"]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        processes.append(host.start(command, env=environment, **options))
    outputs = [process.communicate(timeout=_DEADLINE_S)[0] for process in processes]
    for host, process, output in zip(hosts, processes, outputs, strict=True):
        assert process.returncode == 0, f"host {host.name}:\n{output}"
        assert host.shared_memory() == []
        assert host.pids() == []
    (count,) = {output.count("[       OK ]") for output in outputs}
    return count


def _all_of(suites, shapes):
    return [f"*/{suite}.*/{shape}" for suite in suites for shape in shapes]


def test_the_suite_of_conformance_passes():
    with Cluster(2) as hosts:
        assert _run_on(hosts, _all_of(["ConformanceTest", "ReductionsConformanceTest"], _SHAPES), 4) >= 12


@pytest.mark.long
def test_lanes_by_name_and_adaptive_sums_do_what_they_do_on_one_host():
    with Cluster(2) as hosts:
        assert _run_on(hosts, _all_of(_LANES, _SHAPES), 4) >= 30
    with Cluster(3) as hosts:
        assert _run_on(hosts, _all_of(_LANES, [_THREE_HOSTS]), 6) >= 10


def test_the_suite_of_conformance_passes_on_three_hosts():
    with Cluster(3) as hosts:
        assert _run_on(hosts, [f"*/ConformanceTest.*/{_MOST_ON_THREE_HOSTS}"], 6) >= 6


def test_faults_are_said_as_they_are_on_one_host():
    with Cluster(2) as hosts:
        tests = [f"*/FaultsTest.{fault}/auto_4_aabb" for fault in _FAULTS]
        assert _run_on(hosts, tests, 4) == len(tests)


@pytest.mark.long
def test_faults_end_lanes_by_name_as_they_do_on_one_host():
    with Cluster(2) as hosts:
        assert _run_on(hosts, _all_of(_LANE_FAULTS, _SHAPES), 4) >= 7


@pytest.mark.parametrize("cables", [{"delay_us": 500, "rate": "1gbit"}, {"loss": 0.005}], ids=["slow", "lossy"])
def test_cables_that_are_slow_or_lossy_change_no_result(cables):
    with Cluster(2, versions=(6,), **cables) as hosts:
        assert _run_on(hosts, [f"*/ConformanceTest.RandomCallsEqualTheOracle/{_SHAPES[0]}"], 6) == 1


# Promise (many_hosts.md): collectives of 64 ranks on 16 hosts equal the oracle, and report faults.
@pytest.mark.long
def test_64_ranks_pass_the_suite_of_conformance():
    with Cluster(16) as hosts:
        assert _run_on(hosts, [f"AtScale/ConformanceTest.*/{_AT_SCALE}"], 4) >= 6


# Promise (many_hosts.md): lookups and updates of 64 ranks equal the results of one rank, bit for bit.
@pytest.mark.long
def test_64_ranks_look_up_and_update_sharded_tables_as_one_rank_does():
    with Cluster(16) as hosts:
        assert _run_on(hosts, [f"AtScale/HostsTest.*/{_AT_SCALE}"], 6, folder="sharding") == 2


# Promise (many_hosts.md): collectives of 64 ranks on 16 hosts equal the oracle, and report faults.
@pytest.mark.long
def test_64_ranks_say_faults_as_few_do():
    # The other tests of faults make a job for each rank.
    faults = [fault for fault in _FAULTS if fault != "RanksThatHaveDoneTheirPartMayLeaveInAnyOrder"]
    with Cluster(16) as hosts:
        assert _run_on(hosts, [f"AtScale/FaultsTest.{fault}/{_AT_SCALE}" for fault in faults], 4) == len(faults)
