"""A worker that calls a function (`call`).

python -m lockstep.launch.cli.call_worker
"""

import os
import pickle
import sys
import traceback
from pathlib import Path

from lockstep.launch.base.call_folder import FUNCTION, VARIABLE, worker_file
from lockstep.launch.base.elastic_wire import WORKER


def _work(folder: Path) -> None:
    """Calls the function, and writes its result, or the last lines of the exception's report."""
    try:
        with open(folder / FUNCTION, "rb") as file:
            # They come after this interpreter's own folders, which may differ from the caller's.
            sys.path += [path for path in pickle.load(file) if path not in sys.path]
            function, dumps = pickle.load(file)
        result = dumps(function())
    except Exception as error:
        report = "".join(traceback.format_exception_only(type(error), error))
        worker_file(folder, "error", _rank()).write_text(report, errors="replace")
        raise
    worker_file(folder, "result", _rank()).write_bytes(result)


def _rank() -> str:
    # In an elastic job the rank comes with the first round, and changes. Without a round the worker's number is used.
    return os.environ.get("LOCKSTEP_RANK") or os.environ[WORKER]


if __name__ == "__main__":
    _work(Path(os.environ[VARIABLE]))
