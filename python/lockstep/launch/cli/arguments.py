"""Command lines of ours that end in a command of the user's, which is never looked at.

argparse interprets every word of a line before it takes the first, so it could take an option of the user's program for
one of ours, or for an abbreviation of several. So the line is cut first: our options are the words up to the first that
is neither an option nor the value of one, or up to `--`; only these go to argparse, and none may be abbreviated.
"""

import argparse
import re
from collections.abc import Sequence
from typing import Any

_USAGE = "[options] command ..."


class _Parser(argparse.ArgumentParser):
    """One whose errors are two lines, however long its help is."""

    def format_usage(self) -> str:
        """As of argparse."""
        return f"usage: {self.prog} {_USAGE}\n"


class CommandLine:
    """A parser of `program [options] command ...`.

    Args:
      program: The name in messages.
      description: Of what it does, for the help.
      lists_options: Whether the help begins with all options, one behind the other.
    """

    def __init__(self, program: str, description: str, lists_options: bool = False):
        usage = None if lists_options else f"{program} {_USAGE}"
        self._parser = _Parser(prog=program, usage=usage, description=description, allow_abbrev=False)
        if lists_options:  # For the help alone: `split` takes the command before argparse sees it.
            self._parser.add_argument("command", nargs=argparse.REMAINDER, help="the program, and its own arguments")
        # How many words follow an option.
        self._values = {"-h": 0, "--help": 0}

    def group(self, title: str, description: str = "") -> Any:
        """A heading of the help, for `add`."""
        return self._parser.add_argument_group(title, description or None)

    def add(self, *names: str, to: Any = None, **details: Any) -> None:
        """Adds an option, as argparse's `add_argument`.

        Args:
          *names: Its spellings.
          to: A group of this parser, or an exclusive group of one.
          **details: As of argparse; of nargs, numbers.
        """
        action = (to or self._parser).add_argument(*names, **details)
        self._values.update(dict.fromkeys(action.option_strings, 1 if action.nargs is None else action.nargs))

    def parse(self, arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Our options, and the command, which may be empty.

        Raises:
          SystemExit: what is asked for was printed (0), such as the help; or an option is unknown or wrong (2).
        """
        ours, command = self.split(arguments)
        return self._parser.parse_args(ours), command

    def split(self, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
        """Our words, and the command's."""
        words, end = list(arguments), 0
        while end < len(words) and words[end].startswith("-") and words[end] != "-":
            if words[end] == "--":
                return words[:end], words[end + 1 :]
            words[end : end + 1] = self._parts(words[end])
            # `--name=value` and `-nvalue` bring their values along, and unknown options are argparse's to refuse.
            end += 1 + self._values.get(words[end], 0)
        return words[:end], words[end:]

    def _parts(self, word: str) -> list[str]:
        """An option with its number behind it, `-np2`, as two words: argparse would take it for `-n p2`."""
        glued = re.fullmatch(r"(-[a-z]{2,})([0-9]+)", word)
        return list(glued.groups()) if glued and self._values.get(glued[1]) == 1 else [word]

    def error(self, message: str) -> None:
        """Says what is wrong with the line, and raises SystemExit(2)."""
        self._parser.error(message)
