"""Scripts with which a shell completes a command's subcommands and options: for bash, zsh and fish.

The scripts are made from the parsers, and run no Python. Where a word is not an option, shells complete the names of
files.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True)
class Subcommand:
    """A subcommand as shells see it.

    Attributes:
      summary: One line for users.
      parser: Its options, and the choices of its words.
      has_command: Whether its first word that is not an option begins another program's command.
    """

    summary: str
    parser: argparse.ArgumentParser
    has_command: bool = False

    @property
    def options(self) -> list[argparse.Action]:
        """Its options, without those that the help does not show."""
        return [one for one in self.parser._actions if one.option_strings and one.help != argparse.SUPPRESS]

    @property
    def choices(self) -> list[str]:
        """The choices of its words, such as the names of shells."""
        words = [one for one in self.parser._actions if not one.option_strings]
        return [str(choice) for one in words for choice in one.choices or ()]

    def names(self, with_value: bool | None = None) -> list[str]:
        """Returns all spellings of its options: all, or those with or without a value."""
        chosen = [one for one in self.options if with_value in (None, one.nargs != 0)]
        return [name for one in chosen for name in one.option_strings]


def script(shell: str, program: str, options: list[str], subcommands: Mapping[str, Subcommand]) -> str:
    """Returns the script for a shell.

    Args:
      shell: One of SHELLS.
      program: The command's name.
      options: The command's own options, before a subcommand.
      subcommands: Its subcommands by name.
    """
    if shell == "fish":
        return _fish(program, options, subcommands)
    begin = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return begin + _bash(program, options, subcommands)


def _bash(program: str, options: list[str], subcommands: Mapping[str, Subcommand]) -> str:
    """Returns a function for `complete`. An empty COMPREPLY lets the shell complete files."""
    cases = "".join(
        f"    {name})\n"
        f'      options="{" ".join(one.names())}"\n'
        f'      valued=" {" ".join(one.names(with_value=True))} "\n'
        f'      choices="{" ".join(one.choices)}"\n'
        f"      has_command={int(one.has_command)} ;;\n"
        for name, one in subcommands.items()
    )
    return f"""\
_{program}() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" options="" valued=" " choices="" has_command=0 at=2
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join([*subcommands, *options])}" -- "$word"))
    return
  fi
  case "${{COMP_WORDS[1]}}" in
{cases}  esac
  # Words before this one: a value is no word of its own, and options end where a command begins.
  while [ "$at" -lt "$COMP_CWORD" ]; do
    case "${{COMP_WORDS[at]}}" in
      --) [ "$has_command" -eq 1 ] && return ;;
      -*) case "$valued" in *" ${{COMP_WORDS[at]}} "*) at=$((at + 1)) ;; esac ;;
      *) [ "$has_command" -eq 1 ] && return ;;
    esac
    at=$((at + 1))
  done
  [ "$at" -gt "$COMP_CWORD" ] && return
  case "$word" in
    -*) COMPREPLY=($(compgen -W "$options" -- "$word")) ;;
    *) [ -n "$choices" ] && COMPREPLY=($(compgen -W "$choices" -- "$word")) ;;
  esac
}}
complete -o default -F _{program} {program}
"""


def _fish(program: str, options: list[str], subcommands: Mapping[str, Subcommand]) -> str:
    lines = [f"complete -c {program} -n __fish_use_subcommand {_fish_name(name)}" for name in options]
    for name, one in subcommands.items():
        lines.append(f"complete -c {program} -f -n __fish_use_subcommand -a {name} -d {_quoted(one.summary)}")
        inside = f"complete -c {program} -n '__fish_seen_subcommand_from {name}'"
        if one.choices:
            lines.append(f"{inside} -f -a {_quoted(' '.join(one.choices))}")
        for option in one.options:
            names = " ".join(map(_fish_name, option.option_strings))
            value = "" if option.nargs == 0 else " -r"
            lines.append(f"{inside} {names}{value} -d {_quoted(option.help or '')}")
    return "\n".join(lines) + "\n"


def _fish_name(name: str) -> str:
    kind = "-l" if name.startswith("--") else "-s" if len(name) == 2 else "-o"
    return f"{kind} {name.lstrip('-')}"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
