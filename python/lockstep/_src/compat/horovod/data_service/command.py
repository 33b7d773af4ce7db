"""The command line of a compute job's process."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import tensorflow as tf

from lockstep._src.compat.horovod.data_service import compute, config
from lockstep._src.compat.horovod.data_service.errors import DataServiceError, TimeoutException

_DESCRIPTION = """\
A process of a TensorFlow data service: started once for each worker by horovodrun, it serves training jobs until one of
them ends it, or it is killed.
"""


# Runs what the command line says, as `compute.main` does.
Main = Callable[[int, str, str, int], None]


def run(
    program: str,
    arguments: Sequence[str] | None = None,
    main: Main = compute.main,
    description: str = _DESCRIPTION,
) -> NoReturn:
    """Does what the command line says, and ends the process.

    Args:
      program: its name in messages.
      arguments: the command line without the program's name; `sys.argv[1:]` by default.
      main: does it; arguments and errors are those of `compute.main`.
      description: of the program, for its help.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    signal.signal(signal.SIGTERM, _exit)
    # Transformations run on processors; the GPUs are the training job's.
    with contextlib.suppress(RuntimeError):
        tf.config.set_visible_devices([], "GPU")
    code = execute(program, arguments, main, description)
    sys.stdout.flush()
    sys.stderr.flush()
    # A server that did not stop would keep the interpreter from ending.
    os._exit(code)


def execute(
    program: str,
    arguments: Sequence[str] | None = None,
    main: Main = compute.main,
    description: str = _DESCRIPTION,
) -> int:
    """Does what the command line says; arguments are those of `run`.

    Returns:
      What the process should exit with: 0 when training has ended the job, 2 for wrong arguments, 1 for other failures,
      and 128 plus the number of a signal that ended it.
    """
    parsed = _parser(program, description).parse_args(arguments)
    try:
        main(parsed.dispatchers, parsed.dispatcher_side, parsed.configfile, parsed.timeout)
    except ValueError as error:
        return _complain(program, error, 2)
    except (DataServiceError, TimeoutException, OSError, tf.errors.OpError) as error:
        return _complain(program, error, 1)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def _parser(program: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    parser.add_argument("configfile", help="where to write the config, which the training job reads")
    # What is no number is refused with the rest, so that a waiting training job is told.
    parser.add_argument(
        "--dispatchers", type=_number, default=1, help="how many: one, or one for each training rank (1)"
    )
    parser.add_argument(
        "--dispatcher-side", default="compute", help="the job that runs them: compute (default) or training"
    )
    parser.add_argument(
        "--timeout",
        type=_number,
        default=config.DEFAULT_TIMEOUT_S,
        help=f"seconds that dispatchers and workers may take to come ({config.DEFAULT_TIMEOUT_S})",
    )
    return parser


def _number(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        return text


def _complain(program: str, error: Exception, code: int) -> int:
    print(f"{program}: {error}", file=sys.stderr)
    return code


def _exit(number: int, _: Any) -> NoReturn:
    raise SystemExit(128 + number)
