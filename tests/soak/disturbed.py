"""A job that is killed at random moments, in random ways, and continues."""

from __future__ import annotations

import collections
import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.soak import jobs

# Seconds from the first step of a start to the next kill; for every fifth kill, from the kill before it.
_GAP_S, _ANYWHERE = (0.5, 40.0), 0.2
# Seconds between kills that belong together.
_TOGETHER_S = 0.5
# The victims, and their share of 10 kills.
_WHOM = {"a worker": 4, "all workers": 2, "one after the other": 1, "the launcher": 2, "a worker and the launcher": 1}


class SoakError(Exception):
    """The job broke a promise."""


class DisturbedJob:
    """A job that runs until it is done. Its launcher restarts killed workers; this class restarts a killed launcher.

    Args:
      words: the job's command.
      folder: the run's folder, which is also the mark of its processes.
      workers: the number of workers.
      seed: determines victims and moments.
      say: receives a message for each kill.
    """

    def __init__(self, words: Sequence[str], folder: Path, workers: int, seed: int, say: Callable[[str], None]) -> None:
        self._words, self._folder, self._workers, self._say = words, folder, workers, say
        self._rng = random.Random(seed)
        self._killed_behind: int | None = None  # the gap to the next kill begins with the step after this
        self._gap_s = self._next_s = 0.0
        self._plan_next()
        self._stack = contextlib.ExitStack()
        self._process: subprocess.Popen | None = None
        self.kills: collections.Counter[str] = collections.Counter()
        self.starts_by_hand = 0
        self.done = False

    def __enter__(self) -> DisturbedJob:
        self._start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    @property
    def log(self) -> Path:
        """The output of the launchers and workers."""
        return self._folder.with_suffix(".log")

    @property
    def restarts(self) -> int:
        """The number of restarts by the launchers themselves."""
        return self.log.read_bytes().count(b": restart ")

    def look(self, kills: bool) -> None:
        """Kills if a kill is due, and restarts a killed launcher.

        Raises:
          SoakError: the job has ended by itself, or left processes behind.
        """
        code = self._process.poll()
        if code == 0:
            self.done = True
            if left := jobs.left_over(str(self._folder)):
                raise SoakError(f"the job has ended, but its processes {left} still run")
        elif code is not None:
            raise SoakError(f"the launcher has ended with exit code {code}; see {self.log}")
        elif kills and self._is_time():
            self._kill()
            self._plan_next()

    def _plan_next(self) -> None:
        self._gap_s = self._rng.uniform(*_GAP_S)
        self._next_s = time.monotonic() + self._gap_s
        self._killed_behind = None if self._rng.random() < _ANYWHERE else jobs.last_step(self._folder)

    def _is_time(self) -> bool:
        if self._killed_behind is None:
            return time.monotonic() >= self._next_s
        if jobs.last_step(self._folder) != self._killed_behind:
            self._killed_behind = None
            self._next_s = time.monotonic() + self._gap_s
        return False

    def _start(self) -> None:
        self._stack.close()
        self._process = self._stack.enter_context(jobs.started(self._words, str(self._folder), self.log))

    def _kill(self) -> None:
        """Kills the next victims. Workers that do not run yet are spared."""
        whom = self._rng.choices([*_WHOM], [*_WHOM.values()])[0]
        rank = self._rng.randrange(self._workers)
        order = self._rng.sample(range(self._workers), self._workers)
        pause_s = self._rng.uniform(0, _TOGETHER_S)
        ranks = {"a worker": [rank], "a worker and the launcher": [rank], "the launcher": []}.get(whom, order)
        self.kills[whom] += 1
        self._say(
            f"kills {whom}{f' ({ranks[0]})' if len(ranks) == 1 else ''} behind step {jobs.last_step(self._folder)}"
        )
        for i, victim in enumerate(ranks):
            if i and whom == "one after the other":
                time.sleep(pause_s)
            for pid in jobs.processes(str(self._folder), LOCKSTEP_RANK=victim):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if "launcher" in whom:
            time.sleep(pause_s if ranks else 0)
            self._process.kill()
            if self._process.wait() != -signal.SIGKILL:
                raise SoakError(f"the launcher had ended with exit code {self._process.returncode}; see {self.log}")
            if left := jobs.left_over(str(self._folder)):
                raise SoakError(f"the launcher is gone, but its processes {left} still run")
            self.starts_by_hand += 1
            self._start()
