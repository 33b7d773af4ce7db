"""Calls a function on the workers of a job, each a fresh interpreter, and brings back what it returns.

Unlike forks of the caller (`process.call_starter`), such workers can be started where TensorFlow works already, and may
run another interpreter. Function and results travel as pickles, through a folder that only the user can read; each host
has one, and the job brings the function there and the results back. Who calls chooses the pickler: with cloudpickle the
function may be a lambda or stand in the caller's script. pickle itself reads what cloudpickle writes.
"""

import pickle
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lockstep.launch.base.call_folder import FUNCTION, KINDS, results_of_rank, worker_file
from lockstep.launch.base.output import Console
from lockstep.launch.local.attempts import run_attempts
from lockstep.launch.local.supervised_job import SupervisedJob, check_thread
from lockstep.launch.local.worker import Worker

# Gives the bytes of an object, for pickle to read; a function that pickle finds by its name.
Dumps = Callable[[Any], bytes]
# Makes a job: of a command, the folder of its files, and the how manieth attempt it is.
JobFactory = Callable[[Sequence[str], Path, int], SupervisedJob]


def call_in(
    function: Callable[[], Any],
    dumps: Dumps,
    make_job: JobFactory,
    console: Console,
    *,
    executable: str | None = None,
    restarts: int = 0,
) -> dict[str, Any]:
    """What a function without arguments returns on each of the workers of a job.

    Modules that the function refers to by name are looked for where this process finds them.

    Args:
      function: Called once by each worker.
      dumps: Pickles the function here, and its results there.
      make_job: Makes the job for a command and the folder of its files. When the function has returned, workers have
        LOCKSTEP_RANK.
      console: Is told of restarts.
      executable: The workers' interpreter, which has to have this package as well; by default this process's.
      restarts: How often the job may begin anew after a failure.

    Returns:
      Its results by LOCKSTEP_RANK, those that there are.

    Raises:
      LaunchError: this is not the main thread, or the interpreter cannot be executed.
      RuntimeError: a worker failed: with its rank, and the exception where there was one; or it ended by itself.
    """
    check_thread("run")
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryDirectory(prefix="lockstep-run-") as name:
        folder = Path(name)
        (folder / FUNCTION).write_bytes(pickle.dumps(sys.path) + dumps((function, dumps)))
        words = [executable or sys.executable, "-m", "lockstep.launch.cli.call_worker"]

        def attempt(number: int) -> SupervisedJob:
            for rank in _ranks_in(folder):  # Of the attempt before.
                for path in results_of_rank(folder, rank):
                    path.unlink()
            return make_job(words, folder, number)

        job, code = run_attempts(attempt, restarts, console)
        if job.failed is not None:
            raise RuntimeError(_describe(job.failed, folder))
        if code:  # 141: nobody reads our output.
            raise RuntimeError(f"the job was ended with exit code {code}" + (f": {job.why}" if job.why else ""))
        return {str(rank): _result(folder, str(rank)) for rank in job.ranks()}


def _ranks_in(folder: Path) -> set[int]:
    return {int(path.suffix[1:]) for kind in KINDS for path in folder.glob(f"{kind}.*")}


def _describe(worker: Worker, folder: Path) -> str:
    error = worker_file(folder, "error", str(worker.rank))
    said = f": {error.read_text(errors='replace').strip()}" if error.exists() else ""
    return f"{worker.name} {worker.describe_end()}{said}"


def _result(folder: Path, rank: str) -> Any:
    try:
        data = worker_file(folder, "result", rank).read_bytes()
    except FileNotFoundError:
        raise RuntimeError(f"rank {rank} ended with exit code 0 before its function returned") from None
    return pickle.loads(data)
