"""Calls a function on the workers of a job, each a fresh interpreter, and returns the results.

Unlike forks of the caller (`process.call_starter`), such workers can be started when TensorFlow already runs in this
process, and may use another interpreter. The function and the results are pickled into a folder that only the user can
read. Each host has such a folder; the job transfers the function there, and the results back. The caller chooses the
pickler: with cloudpickle the function may be a lambda, or be defined in the caller's script. pickle itself can read
cloudpickle's output.
"""

import pickle
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lockstep.launch.base.call_folder import FUNCTION, all_results, worker_file
from lockstep.launch.base.output import Console
from lockstep.launch.local.attempts import run_attempts
from lockstep.launch.local.supervised_job import SupervisedJob, check_thread
from lockstep.launch.local.worker import Worker

# Returns the bytes of an object, which pickle can read. It must itself be a function that pickle finds by its name.
Dumps = Callable[[Any], bytes]
# Makes a job from a command, the folder of its files (None: it has none), and the number of the attempt, from 0.
JobFactory = Callable[[Sequence[str], Path | None, int], SupervisedJob]


def call_in(
    function: Callable[[], Any],
    dumps: Dumps,
    make_job: JobFactory,
    console: Console,
    *,
    executable: str | None = None,
    restarts: int = 0,
) -> dict[str, Any]:
    """Calls a function without arguments on each worker of a job, and returns the results.

    Modules that the function refers to by name are searched in the folders of this process's module path.

    Args:
      function: Called once by each worker.
      dumps: Pickles the function here, and its results there.
      make_job: Makes the job for a command and the folder of its files. When the function has returned, workers have
        LOCKSTEP_RANK.
      console: Shows restarts.
      executable: The workers' interpreter, which must have this package too; by default this process's.
      restarts: How often the job may be restarted after a failure.

    Returns:
      LOCKSTEP_RANK -> result.

    Raises:
      LaunchError: this is not the main thread, or the interpreter cannot be executed.
      RuntimeError: a worker failed, or ended before the function had returned. The message has its rank, and the
        exception if there was one.
    """
    check_thread("run")
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryDirectory(prefix="lockstep-run-") as name:
        folder = Path(name)
        (folder / FUNCTION).write_bytes(pickle.dumps(sys.path) + dumps((function, dumps)))
        words = [executable or sys.executable, "-m", "lockstep.launch.cli.call_worker"]

        def attempt(number: int) -> SupervisedJob:
            for path in all_results(folder):  # Removes the results of the attempt before.
                path.unlink()
            return make_job(words, folder, number)

        job, code = run_attempts(attempt, restarts, console)
        if job.failed is not None:
            raise RuntimeError(_describe(job.failed, folder))
        if code:  # For example 141: nobody reads our output.
            raise RuntimeError(f"the job was ended with exit code {code}" + (f": {job.why}" if job.why else ""))
        return {str(rank): _result(folder, str(rank)) for rank in job.ranks()}


def _describe(worker: Worker, folder: Path) -> str:
    error = worker_file(folder, "error", str(worker.rank))
    said = f": {error.read_text(errors='replace').strip()}" if error.exists() else ""
    return f"{worker.name} {worker.describe_end()}{said}"


def _result(folder: Path, rank: str) -> Any:
    try:
        data = worker_file(folder, "result", rank).read_bytes()
    except FileNotFoundError:
        raise RuntimeError(f"rank {rank} exited with code 0 before its function returned") from None
    return pickle.loads(data)
