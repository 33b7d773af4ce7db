"""The options for the workers' output, which all launchers share."""

import os
from collections.abc import MutableMapping
from typing import Any

from lockstep.launch.cli.arguments import CommandLine
from lockstep.launch.local.output_folder import OutputFolder


def add_shown_ranks(line: CommandLine, group: Any) -> None:
    """Adds the options which choose the ranks whose output is shown; `ranks_of` reads them.

    Args:
      line: The command line.
      group: A group of it.
    """
    one = group.add_mutually_exclusive_group()
    line.add("--quiet", to=one, action="store_true", help="show only messages of the launcher, and failures")
    line.add(
        "--output-rank", to=one, type=int, action="append", metavar="RANK",
        help="show only the output of this rank; may be given several times",
    )  # fmt: skip


def add_log_folder(line: CommandLine, group: Any) -> None:
    """Adds the option for a folder of log files, which `folder_of` reads, to a group of the line."""
    line.add(
        "--log-dir", to=group, metavar="DIR",
        help="a folder that also gets the output, as lines of text: rank.RANK/stdout and stderr",
    )  # fmt: skip


def add_timeline(line: CommandLine, group: Any) -> None:
    """Adds the option for the workers' timeline, which `set_timeline` reads, to a group of the line."""
    line.add(
        "--timeline", to=group, metavar="DIR",
        help="a folder in which each worker records its steps, exchanges and lookups; `lockstep timeline DIR` reads it",
    )  # fmt: skip


def set_timeline(options: Any, environment: MutableMapping[str, str]) -> None:
    """Passes the folder of the timeline on to the workers."""
    if options.timeline is not None:
        environment["LOCKSTEP_TIMELINE"] = os.path.abspath(options.timeline)


def ranks_of(options: Any) -> frozenset[int] | None:
    """Returns the ranks whose output is shown; None: all."""
    if options.quiet:
        return frozenset()
    return None if options.output_rank is None else frozenset(options.output_rank)


def folder_of(options: Any) -> OutputFolder | None:
    """Returns the folder of log files; None: there is none."""
    return None if options.log_dir is None else OutputFolder(options.log_dir, holds_lines=True)
