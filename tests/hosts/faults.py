"""A table of what happens to a job on two hosts, for every fault at every moment.

    python -m tests.hosts.faults [--faults WORDS] [--moments WORDS] [--seed N]      (make test-faults FAULTS="...")

prints the table. It exits with 1 if a promise was broken, and with 2 if no cell was tried. These are the promises:
every process that the fault leaves ends in time, with an error that names a rank, its host and the operation. No
process, no temporary file and no shared memory stays. Every checkpoint with an index is complete, in every byte.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import re
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lockstep.testing.emulated_cluster import Cluster, Host, why_not
from tests.hosts import fault_worker, launcher_faults, leftovers
from tests.hosts.fault_worker import MOMENTS
from tests.hosts.job import Job, running

ENDED_WITHIN_S = 10.0
CUT_S = 5.0
_THERE_WITHIN_S = 120.0
PATIENCE_S = 40.0  # after that, the job counts as hanging
# Before the job has begun, the rendezvous timeout reports a rank that is missing or frozen.
_VARIABLES = {"LOCKSTEP_RENDEZVOUS_TIMEOUT": "8"}
_HOST_OF = "aabb"  # by rank
_RANKS = range(len(_HOST_OF))
_OPERATION = (
    r"(allreduce|reducescatter|broadcast|allgather|alltoall|barrier|decline|start) '"
    r"|rendezvous|start of the job|outside of a collective"
)
# Each rank gathers 80 MiB from all ranks in each step: more than malloc ever keeps, so that it asks the kernel.
_MANY = 10 << 18
# A rank that has not connected to it knows its host only by the address.
_RANK_0_IS_THERE = r"|rank 0\b.* at '10\.77\.0\.1:7000'"


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault of the table.

    Attributes:
      name: its name in the table.
      strike: causes it.
      victims: ranks that are killed, or stand still: nothing is expected of them.
      named: the others' errors name one of these ranks; empty: a rank of the other host.
      misbehaves: a misbehaviour of a rank itself, and the rank.
      answers: how many numbers each rank sends to all in each step.
      variables: variables that TensorFlow reads during its import. With them, ranks start as programs.
      survives: whether the job continues and succeeds.
      cure: undoes the fault when the others have ended; then the victims must end as well.
    """

    name: str
    strike: Callable[[Job, Sequence[Host]], None] = lambda job, hosts: None
    victims: tuple[int, ...] = ()
    named: tuple[int, ...] = ()
    misbehaves: tuple[str, int] = ("", -1)
    answers: int = 1
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    survives: bool = False
    cure: Callable[[Job, Sequence[Host]], None] | None = None

    @property
    def late(self) -> int:
        """The rank for which the others wait; the fault does not strike it."""
        return next(rank for rank in (1, 2) if rank not in (*self.victims, self.misbehaves[1]))

    def named_by(self, rank: int) -> tuple[int, ...]:
        """Returns the ranks of which this one's error names one."""
        return self.named or tuple(other for other in _RANKS if _HOST_OF[other] != _HOST_OF[rank])


def _signals(rank: int, number: int) -> Callable[[Job, Sequence[Host]], None]:
    return lambda job, hosts: os.kill(job.pid(rank), number)


def _takes_all(rank: int, kind: int) -> Callable[[Job, Sequence[Host]], None]:
    return lambda job, hosts: resource.prlimit(job.pid(rank), kind, (0, 0))


def _cut_for_a_while(job: Job, hosts: Sequence[Host]) -> None:
    hosts[1].cut()
    time.sleep(CUT_S)
    hosts[1].join()


def _of_host(number: int) -> list[Fault]:
    """Returns the faults of a whole host."""
    name, ranks = "ab"[number], (2 * number, 2 * number + 1)
    return [
        Fault(f"kill all of host {name}", lambda job, hosts: hosts[number].kill(), ranks, ranks),
        Fault(f"host {name} loses its power", lambda job, hosts: hosts[number].lose_power(), ranks, ranks),
        Fault(
            f"freeze host {name}",
            lambda job, hosts: hosts[number].freeze(),
            ranks,
            ranks,
            cure=lambda job, hosts: hosts[number].thaw(),
        ),
    ]


FAULTS = [
    Fault("kill a worker of host a", _signals(1, signal.SIGKILL), (1,), (1,)),
    Fault("kill a worker of host b", _signals(3, signal.SIGKILL), (3,), (3,)),
    Fault("kill rank 0", _signals(0, signal.SIGKILL), (0,), (0,)),
    Fault("stop a worker", _signals(3, signal.SIGSTOP), (3,), (3,), cure=_signals(3, signal.SIGCONT)),
    Fault("stop rank 0", _signals(0, signal.SIGSTOP), (0,), (0,), cure=_signals(0, signal.SIGCONT)),
    *_of_host(0),
    *_of_host(1),
    Fault("cut for good", lambda job, hosts: hosts[1].cut()),
    Fault("cut for 5 s", _cut_for_a_while, survives=True),
    Fault("exception in a worker", named=(2,), misbehaves=("raise", 2)),
    Fault("exit(0) too early", named=(2,), misbehaves=("exit", 2)),
    Fault("disk full for rank 0", _takes_all(0, resource.RLIMIT_FSIZE), named=(0,)),
    Fault(
        "no more memory for rank 3",
        _takes_all(3, resource.RLIMIT_AS),
        named=(3,),
        answers=_MANY,
        # With oneDNN, TensorFlow has an allocator that keeps all memory that it once had. When it gets no more, it
        # tries for 10 s.
        variables={"TF_ENABLE_ONEDNN_OPTS": "0"},
    ),
]


@dataclasses.dataclass
class Result:
    """The outcome of a job."""

    seconds: float  # until the last process ended
    survived: bool
    wrong: list[str]  # broken promises
    outputs: str

    def __str__(self) -> str:
        text = "done" if self.survived else f"{self.seconds:.1f} s"
        return text if not self.wrong else f"{text} ✗"


def try_cell(
    fault: Fault, moment: str, folder: Path, draw: random.Random, ended_within_s: float = ENDED_WITHIN_S
) -> Result:
    """Runs a job, has the fault strike in the moment, and looks at what remains.

    Args:
      fault: the fault.
      moment: one of MOMENTS.
      folder: an empty folder.
      draw: draws the time within the moment.
      ended_within_s: seconds after which the last rank has ended, where the job does not survive.
    """
    wrong: list[str] = []
    arguments = str(folder), moment, fault.late, fault.misbehaves, fault.answers
    work = fault_worker.command(*arguments) if fault.variables else (fault_worker.work, *arguments)
    variables = {**_VARIABLES, **fault.variables, **leftovers.own_tmp(folder)}
    with Cluster(2) as hosts, running(hosts, 2, work, folder, variables) as job:
        for rank in _RANKS:
            # A misbehaving rank may have ended the job before the last rank reaches the moment.
            job.wait_for(f"there.{rank}", _THERE_WITHIN_S, may_end=bool(fault.misbehaves[0]))
        # Now the others have connected to the rendezvous.
        time.sleep(draw.random() * 0.1 + (1 if moment == "rendezvous" else 0))
        begin = time.monotonic()
        fault.strike(job, hosts)
        # The fault strikes the waiting ranks while they wait. The late rank then comes to a broken job.
        goes_on = threading.Timer(0.3, (folder / "go").touch)
        goes_on.start()
        others = [rank for rank in _RANKS if rank not in (*fault.victims, fault.misbehaves[1])]
        ends = _ends(job, others, begin, wrong)
        survived = all(code == 0 for code, _ in ends.values())
        if survived != fault.survives:
            wrong.append("survived" if survived else "did not survive")
        if not survived:
            _check_errors(job, fault, moment, ends, wrong)
        if fault.cure is not None:
            fault.cure(job, hosts)
            _ends(job, fault.victims, time.monotonic(), wrong)
        outputs = job.outputs()
        goes_on.join()
        job.kill()
        wrong += leftovers.found(hosts, folder, moment)
    seconds = max((seconds for _, seconds in ends.values()), default=0)
    limit = CUT_S + PATIENCE_S if survived else ended_within_s
    if seconds > limit:
        wrong.append(f"the last rank ended after {seconds:.1f} s")
    return Result(seconds, survived, wrong, outputs)


def _ends(job: Job, ranks: Sequence[int], begin: float, wrong: list[str]) -> dict[int, tuple[int | None, float]]:
    """Returns exit codes, and seconds since `begin`."""
    passed = time.monotonic() - begin
    ends = {rank: (code, at + passed) for rank, (code, at) in job.await_ends(ranks, PATIENCE_S).items()}
    wrong += [f"rank {rank} hangs" for rank, (code, _) in ends.items() if code is None]
    return ends


def _check_errors(
    job: Job, fault: Fault, moment: str, ends: dict[int, tuple[int | None, float]], wrong: list[str]
) -> None:
    for rank, (code, _) in ends.items():
        said, named = job.output(rank), fault.named_by(rank)
        if code == 0:
            wrong.append(f"rank {rank} ended with exit code 0")
        elif rank in named:
            continue  # its own message is TensorFlow's, or C++'s
        its_host = rf"\bhost [{''.join(_HOST_OF[other] for other in named)}]\b" + _RANK_0_IS_THERE * (0 in named)
        if fault.misbehaves[0] and moment == "rendezvous":
            its_host = ""  # It ends before the rendezvous, so its host is unknown.
        for what, pattern in {
            "a rank": rf"rank ({'|'.join(map(str, named))})\b",
            "its host": its_host,
            "the operation": _OPERATION,
        }.items():
            if not re.search(pattern, said):
                wrong.append(f"rank {rank} does not name {what}")


def main() -> int:
    """Prints the table."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument(
        "--faults", default="", help="only faults with one of these words in their name, separated by commas"
    )
    flags.add_argument("--moments", default=",".join(MOMENTS), help="(%(default)s)")
    flags.add_argument("--seed", type=int, default=1, help="seed of the time within a moment (%(default)s)")
    flags.add_argument("--logs", type=Path, help="a folder for the output of ranks in failed cells")
    flags = flags.parse_args()
    if why_not():
        print(f"error: nothing was tried: {why_not()}", file=sys.stderr)
        return 2
    words = flags.faults.split(",")
    faults = [fault for fault in [*FAULTS, *launcher_faults.FAULTS] if any(word in fault.name for word in words)]
    if not faults:
        print(f"error: nothing was tried: no fault has a name with one of {words}", file=sys.stderr)
        return 2
    # The table ends tidily when it is interrupted (a shell's background jobs ignore interrupts) or terminated.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    moments = flags.moments.split(",")
    header = "| fault | " + " | ".join(moments) + " |\n|---|" + "---|" * len(moments) + "\n"
    notes = []
    for fault in faults:
        cells = []
        for moment in moments:
            with tempfile.TemporaryDirectory(prefix="lockstep_faults_") as folder:
                draw = random.Random(f"{flags.seed} {fault.name} {moment}")
                try:
                    if isinstance(fault, Fault):
                        result = try_cell(fault, moment, Path(folder), draw)
                    else:
                        seconds, wrong, outputs = launcher_faults.try_cell(fault, moment, Path(folder), draw)
                        result = Result(seconds, False, wrong, outputs)
                except AssertionError as error:
                    result = Result(0, False, [str(error).splitlines()[0]], str(error))
            cells.append(str(result))
            notes += [f"{fault.name}, {moment}: {wrong}" for wrong in result.wrong]
            if result.wrong and flags.logs:
                flags.logs.mkdir(exist_ok=True)
                name = f"{fault.name} {moment}".replace(" ", "_")
                (flags.logs / name).write_text("\n".join([*result.wrong, result.outputs]))
        # The whole row at once, and the header with the first one: TensorFlow prints messages in the first cells.
        print(f"{header}| {' | '.join([fault.name, *cells])} |", flush=True)
        header = ""
    print("\n".join(["", *notes] if notes else ["", "All as promised."]))
    return int(bool(notes))


if __name__ == "__main__":
    sys.exit(main())
