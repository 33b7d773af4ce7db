"""The launcher: starts the workers of a job, on this machine or on several hosts, and ends them together.

    python -m lockstep.launch [-n N] [--hosts a:2,b:2] [--restarts N] [--tf1] python main.py ...

or, in a program, `run(function_or_command)`.

Standard library only: nothing here imports TensorFlow or another part of Lockstep, so that the launcher starts in
milliseconds and every façade's launcher is a spelling of this one. `docs/launching.md` is the manual.
"""

from lockstep.launch.api import run
from lockstep.launch.base.errors import LaunchError
from lockstep.launch.cli.main import main

__all__ = ["LaunchError", "main", "run"]
