"""Command lines that end in the user's command, whose words are never interpreted.

argparse interprets every word of a line before it takes the first. So it could take an option of the user's program for
one of ours, or for an abbreviation of several. The line is therefore cut first. Our options are the words up to `--`,
or up to the first word that is neither an option nor an option's value. Only these go to argparse, without
abbreviations.
"""

import argparse
import re
from collections.abc import Callable, Sequence
from typing import Any

_USAGE = "[options] command ..."


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are two lines, however long its help is."""

    def format_usage(self) -> str:
        """Returns the short usage for messages."""
        return f"usage: {self.prog} {_USAGE}\n"


class ShowVersion(argparse.Action):
    """An option that prints a version and ends the program. The version is computed only if the option is given.

    Args:
      text: Returns the line to print.
      **details: As in `add_argument`.
    """

    def __init__(self, *, text: Callable[[], str], **details: Any):
        super().__init__(**{**details, "nargs": 0, "default": argparse.SUPPRESS, "dest": argparse.SUPPRESS})
        self._text = text

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Prints the version, and raises SystemExit(0)."""
        print(self._text())
        parser.exit()


class CommandLine:
    """A parser of `program [options] command ...`.

    Args:
      program: The name in messages.
      description: The program's description in the help.
      lists_options: Whether the help begins with a list of all options.
    """

    def __init__(self, program: str, description: str, lists_options: bool = False):
        usage = None if lists_options else f"{program} {_USAGE}"
        self._parser = _Parser(prog=program, usage=usage, description=description, allow_abbrev=False)
        if lists_options:  # This is only for the help: `split` takes the command before argparse sees it.
            self._parser.add_argument("command", nargs=argparse.REMAINDER, help="the program, and its own arguments")
        # The number of words that follow an option.
        self._values = {"-h": 0, "--help": 0}

    @property
    def parser(self) -> argparse.ArgumentParser:
        """The parser of the options."""
        return self._parser

    def group(self, title: str, description: str = "") -> Any:
        """Adds a heading to the help; returns it for `add`."""
        return self._parser.add_argument_group(title, description or None)

    def add(self, *names: str, to: Any = None, **details: Any) -> None:
        """Adds an option, as argparse's `add_argument`.

        Args:
          *names: Its spellings.
          to: A group of this parser, or an exclusive group of one.
          **details: As in `add_argument`; nargs must be a number.
        """
        action = (to or self._parser).add_argument(*names, **details)
        self._values.update(dict.fromkeys(action.option_strings, 1 if action.nargs is None else int(action.nargs)))

    def parse(self, arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Returns our options, and the command, which may be empty.

        Raises:
          SystemExit: the help or the like was asked for and printed (0), or an option is unknown or wrong (2).
        """
        ours, command = self.split(arguments)
        return self._parser.parse_args(ours), command

    def split(self, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
        """Returns the words of our options, and the words of the command."""
        words, end = list(arguments), 0
        while end < len(words) and words[end].startswith("-") and words[end] != "-":
            if words[end] == "--":
                return words[:end], words[end + 1 :]
            words[end : end + 1] = self._parts(words[end])
            # `--name=value` and `-nvalue` contain their values. argparse refuses unknown options.
            end += 1 + self._values.get(words[end], 0)
        return words[:end], words[end:]

    def _parts(self, word: str) -> list[str]:
        """Splits an option with its number, `-np2`, into two words: argparse would take it for `-n p2`."""
        glued = re.fullmatch(r"(-[a-z]{2,})([0-9]+)", word)
        return list(glued.groups()) if glued and self._values.get(glued[1]) == 1 else [word]

    def error(self, message: str) -> None:
        """Prints an error of the command line, and raises SystemExit(2)."""
        self._parser.error(message)
