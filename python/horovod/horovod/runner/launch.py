"""Horovod's spelling of the launcher's command line: `horovodrun -np N python main.py ...`."""

import sys

from lockstep._src.compat.horovod.helpers import parse_yaml
from lockstep.launch.frontends.horovodrun import main

__all__ = ["run_commandline"]


def run_commandline() -> None:
    """Runs a job as `sys.argv` says, and ends this process with the job's exit code."""
    sys.exit(main(read_yaml=parse_yaml))


if __name__ == "__main__":
    run_commandline()
