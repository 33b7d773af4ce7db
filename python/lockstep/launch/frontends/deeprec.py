"""DeepRec's launcher, on top of this project's.

    CUDA_VISIBLE_DEVICES=0,1 COLLECTIVE_STRATEGY=hb python -m tensorflow.python.distribute.launch python main.py

It differs from `python -m lockstep.launch` where DeepRec's manual and programs expect it (docs/deeprec.md). Programs
run as TensorFlow 1 scripts unless LOCKSTEP_TF1=0. If no variable names GPUs, there is a worker for each GPU of this
machine. A Python script may be given without its interpreter.
"""

import os
import sys
from collections.abc import MutableMapping, Sequence

from lockstep.launch.base.collective_backend import collective_backend
from lockstep.launch.base.errors import LaunchError
from lockstep.launch.cli import tf1_command
from lockstep.launch.cli.main import main as run_command_line
from lockstep.launch.placement.devices import VARIABLES as DEVICE_VARIABLES


def main(arguments: Sequence[str] | None = None, program: str = "tensorflow.python.distribute.launch") -> int:
    """Runs a job as `lockstep.launch.main` does, with DeepRec's defaults.

    Args:
      arguments: The command line without the program's name; `sys.argv[1:]` by default.
      program: The module's name, for messages.

    Returns:
      The exit code for this process: 0, the first failure's exit code, or 2 for a request that cannot be met.
    """
    return run_command_line(arguments, program, _with_defaults)


def _with_defaults(words: list[str], environment: MutableMapping[str, str]) -> list[str]:
    """Returns the command to run; sets DeepRec's defaults in the environment.

    Raises:
      LaunchError: COLLECTIVE_STRATEGY names no backend.
    """
    try:
        collective_backend(environment)
    except ValueError as error:
        raise LaunchError(str(error)) from None
    environment.setdefault(tf1_command.TF1_VARIABLE, "1")
    if not any(name in environment for name in DEVICE_VARIABLES):
        environment["NVIDIA_VISIBLE_DEVICES"] = "all"
    if words[0].endswith(".py") and not os.access(words[0], os.X_OK):
        return [sys.executable, *words]
    return words
