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
A process of a TensorFlow data service. horovodrun starts one process for each worker. The service runs until a training
job ends it, or until it is killed.
"""


# A function with the arguments of `compute.main` (dispatchers, dispatcher_side, configfile, timeout).
Main = Callable[[int, str, str, int], None]


def run(
    program: str,
    arguments: Sequence[str] | None = None,
    main: Main = compute.main,
    description: str = _DESCRIPTION,
) -> NoReturn:
    """Runs the command, and ends the process.

    Args:
      program: the program's name in messages.
      arguments: the command line without the program's name; `sys.argv[1:]` by default.
      main: the function to run; arguments and errors are the same as in `compute.main`.
      description: the description of the program in its help.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    signal.signal(signal.SIGTERM, _exit)
    # Transformations run on CPUs; the GPUs belong to the training job.
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
    """Runs the command; takes the arguments of `run`.

    Returns:
      The exit status for the process: 0 if training has ended the job, 2 for wrong arguments, 1 for other failures, and
      128 plus the signal's number if a signal ended it.
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
    # A value that is not a number is rejected later, by `main`, so that a waiting training job gets the error.
    parser.add_argument(
        "--dispatchers", type=_number, default=1, help="number of dispatchers: one, or one for each training rank (1)"
    )
    parser.add_argument(
        "--dispatcher-side", default="compute", help="the job that runs them: compute (default) or training"
    )
    parser.add_argument(
        "--timeout",
        type=_number,
        default=config.DEFAULT_TIMEOUT_S,
        help=f"seconds within which dispatchers and workers must register ({config.DEFAULT_TIMEOUT_S})",
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
