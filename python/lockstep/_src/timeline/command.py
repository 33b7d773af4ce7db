"""The command line of `lockstep timeline`. It needs neither TensorFlow nor the op library."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Sequence

from lockstep._src.engine import whole_files
from lockstep._src.timeline import merging, picture, summary, traces
from lockstep.launch.base.printing import print_error, print_text


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the options."""
    line = argparse.ArgumentParser(
        prog="lockstep timeline",
        description="Merges the timelines that the ranks of a job have recorded in a folder (lockstep run --timeline "
        "FOLDER, or LOCKSTEP_TIMELINE=FOLDER), and prints a summary: the time of steps, exchanges and waits of each "
        "rank, who came last, the rows of each table, and the slowest exchanges.",
    )
    line.add_argument("folder", help="the folder")
    line.add_argument("-o", "--output", metavar="FILE", help="write one trace, for chrome://tracing or ui.perfetto.dev")
    line.add_argument("--svg", metavar="FILE", help="draw some steps")
    line.add_argument("--steps", metavar="A:B", help="the first and the last step to draw")
    line.add_argument("--job", help="the job, if it is not the last one in the folder")
    line.add_argument("--json", action="store_true", help="print the summary as one JSON object")
    return line


def main(arguments: Sequence[str]) -> int:
    """Prints the summary; returns 1 if a trace is missing, damaged or foreign, or a file cannot be made, else 0."""
    line = parser()
    options = line.parse_args(arguments)
    steps = _steps(line, options.steps)
    if options.steps and not options.svg:
        line.error("--steps is for --svg")
    try:
        mine, others = traces.read_folder(options.folder, options.job)
        clocks = merging.align(mine)
        found = summary.summarize(mine, clocks)
        # The summary comes first: files that cannot be written take nothing from it.
        print_text(json.dumps(found) if options.json else "\n".join(summary.lines_of(found, len(others))))
        if options.output:
            _write(options.output, json.dumps(merging.merged(mine), separators=(",", ":")) + "\n")
            _tell(options, f"{options.output} is for ui.perfetto.dev or chrome://tracing")
        if options.svg:
            _write(options.svg, picture.svg(mine, *steps))
            _tell(options, f"{options.svg} shows the steps; a browser opens it")
    except traces.TimelineError as error:
        print_error("lockstep timeline", error)
        return 1
    return 0


def _steps(line: argparse.ArgumentParser, text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    if not re.fullmatch(r"[0-9]{1,18}(:[0-9]{0,18})?", text):
        line.error(f"--steps: got {text!r}, wanted two steps like 20:22")
    first, _, last = text.partition(":")
    return int(first), int(last or first)


def _tell(options: argparse.Namespace, text: str) -> None:
    if not options.json:
        print_text(f"\n{text}")


def _write(path: str, text: str) -> None:
    if not whole_files.is_local(path):
        raise traces.TimelineError(f"{path}: got a remote path, wanted a file of this machine")
    try:
        whole_files.write_text(path, text)
    except OSError as error:
        raise traces.TimelineError(f"{path}: {os.strerror(error.errno) if error.errno else error}") from None
