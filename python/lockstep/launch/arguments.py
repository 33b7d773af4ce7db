"""Command lines of ours that end in a command of the user's, which is never looked at.

argparse interprets every word of a line before it takes the first, so it could take an option of the user's program for
one of ours, or for an abbreviation of several. So the line is cut first: our options are the words up to the first that
is neither an option nor the value of one, or up to `--`; only these go to argparse, and none may be abbreviated.
"""

import argparse
from collections.abc import Sequence
from typing import Any


class CommandLine:
    """A parser of `program [options] command ...`.

    Args:
      program: The name in messages.
      description: Of what it does, for the help.
    """

    def __init__(self, program: str, description: str):
        self._parser = argparse.ArgumentParser(
            prog=program, usage=f"{program} [options] command ...", description=description, allow_abbrev=False
        )
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
            # `--name=value` and `-nvalue` bring their values along, and unknown options are argparse's to refuse.
            end += 1 + self._values.get(words[end], 0)
        return words[:end], words[end:]

    def error(self, message: str) -> None:
        """Says what is wrong with the line, and raises SystemExit(2)."""
        self._parser.error(message)
