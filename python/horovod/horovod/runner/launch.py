"""Horovod's spelling of the launcher's command line: `horovodrun -np N python main.py ...`."""

import sys
from typing import Any

from lockstep.launch.frontends.horovodrun import main

__all__ = ["run_commandline"]


def run_commandline() -> None:
    """Runs a job as `sys.argv` says, and ends this process with the job's exit code."""
    sys.exit(main(read_yaml=_read_yaml))


def _read_yaml(text: str) -> Any:
    """What a text of YAML holds; raises ValueError for what is none."""
    import yaml  # Only a configuration file pays for it.

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


if __name__ == "__main__":
    run_commandline()
