"""Trains the same model twice at the same time: one job is undisturbed, the other is killed again and again.

    python -m tests.soak --minutes 30 --seed 1

At the end both must have the same checkpoint, bit for bit, and must have seen the same batches. The memory of the
undisturbed workers must be within 1 % of its settled size. The exit code is then 0. docs/robustness.md describes it.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.soak import compare, jobs, memory, program
from tests.soak.disturbed import DisturbedJob, SoakError

_WORKERS = 2
# Increments hold the changes since the one before; every fifth checkpoint is a full one.
_FLAGS = ("--every", 100, "--increments", 20, "--weigh", 100)
_RESTARTS = 1_000_000
# Steps after the decision on the end: enough that no worker gets there before it can read the decision.
_STEPS_TO_GO = 300
_LOOK_S, _SAY_S = 0.2, 30.0
# If neither job makes a step, and no job is killed, for this time, they hang.
_STALLS_AFTER_S = 300.0
_MOST_GROWTH = 0.01
# Shorter runs have not settled: growth of memory is printed, and not judged.
_JUDGED_FROM_MINUTES = 5.0


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


class _Clock:
    """The progress of both jobs, and whether they advance."""

    def __init__(self, minutes: float, folders: list[Path]) -> None:
        self._folders = folders
        self._begin_s = self._said_s = time.monotonic()
        self._end_s = self._begin_s + 60 * minutes
        self._seen: list[object] = [0] * len(folders)
        self._moved_s = [self._begin_s] * len(folders)

    @property
    def over(self) -> bool:
        return time.monotonic() >= self._end_s

    def look(self, done: list[bool], kills: list[int]) -> list[int]:
        """Returns the step of each job. Raises SoakError if an unfinished job hangs and was not killed."""
        now_s = time.monotonic()
        steps = [jobs.last_step(folder) for folder in self._folders]
        for i, seen in enumerate(zip(steps, kills, strict=True)):
            if seen != self._seen[i] or done[i]:
                self._seen[i], self._moved_s[i] = seen, now_s
            if now_s - self._moved_s[i] > _STALLS_AFTER_S:
                raise SoakError(f"no step for {_STALLS_AFTER_S:g} s after step {steps[i]}; see {self._folders[i]}.log")
        if now_s - self._said_s > _SAY_S:
            self._said_s = now_s
            minutes = (now_s - self._begin_s) / 60
            _say(f"{minutes:.1f} min: undisturbed at step {steps[0]}, disturbed at step {steps[1]}")
        return steps


def _train(folder: Path, minutes: float, seed: int) -> tuple[int, DisturbedJob]:
    """Runs both jobs to their end. Returns the last step, and the disturbed job."""
    program.make_data(folder / "data")
    runs = [folder / "undisturbed", folder / "disturbed"]
    until = folder / "until"
    flags = (folder / "data", "--until", until, *_FLAGS)
    calm_words = jobs.command(runs[0], *flags, "--beside", runs[1], launcher=("-n", _WORKERS))
    words = jobs.command(runs[1], *flags, launcher=("-n", _WORKERS, "--restarts", _RESTARTS))
    saves_position = {"LOCKSTEP_SAVE_DATA_POSITION": "1"}  # as jobs with --restarts do
    with (
        jobs.started(calm_words, str(runs[0]), runs[0].with_suffix(".log"), saves_position) as calm,
        DisturbedJob(words, runs[1], _WORKERS, seed, _say) as disturbed,
    ):
        clock = _Clock(minutes, runs)
        last = None
        while calm.poll() is None or not disturbed.done:
            time.sleep(_LOOK_S)
            steps = clock.look([calm.returncode == 0, disturbed.done], [0, disturbed.kills.total()])
            if calm.poll():
                raise SoakError(f"the undisturbed job has ended with {calm.returncode}; see {runs[0]}.log")
            if not disturbed.done:
                disturbed.look(kills=not clock.over)
            if clock.over and last is None:
                last = max(steps) + _STEPS_TO_GO
                until.with_suffix(".new").write_text(str(last))
                until.with_suffix(".new").rename(until)
                _say(f"time is over: both train until step {last}")
    return last, disturbed


def _check(folder: Path, last: int) -> int:
    """Returns the number of repeated steps. Raises SoakError if the jobs' ends differ."""
    got, wanted = (compare.checkpoint(folder / run / "checkpoints", last) for run in ("disturbed", "undisturbed"))
    if lines := compare.differences(got, wanted):
        raise SoakError("\n  ".join([f"{len(lines)} of {len(wanted)} tensors differ:", *lines]))
    if stray := compare.not_finite(wanted):
        raise SoakError(f"cannot compare: undisturbed training ended with infinite values or NaN in {', '.join(stray)}")
    left = [*(folder / "disturbed" / "checkpoints").rglob("*_temp")]
    if left:
        raise SoakError(f"parts of checkpoints are left over: {left}")
    try:
        return compare.check_batches(folder / "disturbed", folder / "undisturbed", _WORKERS)
    except AssertionError as error:
        raise SoakError(str(error)) from error


def _soak(folder: Path, minutes: float, seed: int) -> None:
    begin_s = time.monotonic()
    last, disturbed = _train(folder, minutes, seed)
    again = _check(folder, last)
    growths = []
    for rank in range(_WORKERS):
        growths += memory.in_one_life(folder / "undisturbed", rank) + memory.over_lives(folder / "disturbed", rank)
    for growth in growths:
        _say(f"memory: {growth}")
    kills = ", ".join(f"{whom} {count}" for whom, count in disturbed.kills.most_common())
    most = max((growth.share for growth in growths), default=0.0)
    _say(
        f"soak of {minutes:g} min (seed {seed}), {(time.monotonic() - begin_s) / 60:.1f} min in all: "
        f"{disturbed.kills.total()} kills ({kills}), {disturbed.restarts} restarts by launchers, "
        f"{disturbed.starts_by_hand} by hand; {last} steps, {again} repeated by workers; all tensors equal, memory "
        f"grew by at most {most:.2%}"
    )
    if most > _MOST_GROWTH and minutes >= _JUDGED_FROM_MINUTES:
        raise SoakError(f"memory grew by {most:.2%}, wanted at most {_MOST_GROWTH:.0%}")


def main() -> int:
    """Returns the exit code."""
    flags = argparse.ArgumentParser(
        prog="python -m tests.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument("--minutes", type=float, default=30, help="the time during which jobs are killed")
    flags.add_argument("--seed", type=int, help="determines victims and moments; by default a random one")
    flags.add_argument("--folder", type=Path, help="keeps all files in this new folder")
    given = flags.parse_args()
    seed = secrets.randbelow(10000) if given.seed is None else given.seed
    folder = given.folder or Path(tempfile.mkdtemp(prefix="lockstep-soak-"))
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the jobs as well
    _say(f"soak of {given.minutes:g} min, seed {seed}, in {folder}")
    try:
        _soak(folder, given.minutes, seed)
    except (SoakError, AssertionError) as error:
        _say(f"soak FAILED (seed {seed}, files in {folder}): {error}")
        return 1
    if given.folder is None:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
