"""The launcher: starts the workers of a job, on this machine or on several hosts, and ends them together.

    python -m lockstep.launch [-n N] [--hosts a:2,b:2] [--restarts N] [--tf1] python main.py ...

A program calls `run(function_or_command)` instead.

The launcher uses only the standard library: it imports neither TensorFlow nor another part of Lockstep. So it starts in
milliseconds, and the launchers of all façades can use it. `docs/launching.md` is the manual. The folders:

    base/       modules that all other folders use
    placement/  plans the workers: how many, on which hosts and GPUs, with which variables
    local/      runs workers of this machine
    remote/     runs workers of other hosts
    elastic/    runs jobs whose number of workers changes
    cli/        the command line, and function calls on workers
    frontends/  the launchers of Horovod and DeepRec
"""

from lockstep.launch.api import run
from lockstep.launch.base.errors import LaunchError
from lockstep.launch.cli.main import main

__all__ = ["LaunchError", "main", "run"]
