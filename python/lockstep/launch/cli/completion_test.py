import argparse
import shutil
import subprocess

import pytest

from lockstep.launch.cli import completion

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


@pytest.fixture
def subcommands():
    run = argparse.ArgumentParser()
    run.add_argument("-n", "--workers", type=int, help="how many; here's one")
    run.add_argument("-np", "--num-proc", type=int)
    run.add_argument("--quiet", action="store_true", help="say nothing")
    run.add_argument("--hidden", help=argparse.SUPPRESS)
    shells = argparse.ArgumentParser()
    shells.add_argument("shell", choices=completion.SHELLS)
    return {
        "run": completion.Subcommand("start workers", run, has_command=True),
        "completion": completion.Subcommand("print a script", shells),
    }


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("r", "run"),
        ("", "run completion --version"),
        ("--v", "--version"),
        ("run --", "--help --workers --num-proc --quiet"),
        ("run -n 2 --q", "--quiet"),
        ("run --workers --q", ""),
        ("run -n 2 python --q", ""),
        ("run -- --q", ""),
        ("run main", ""),
        ("completion ", "bash zsh fish"),
        ("completion f", "fish"),
        ("unknown --", ""),
    ],
)
def test_bash_completes_subcommands_options_and_choices_and_leaves_files_to_the_shell(subcommands, line, completed):
    words = " ".join(f"'{word}'" for word in line.split(" "))
    ask = f'COMP_WORDS=(tool {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _tool; echo "${{COMPREPLY[*]}}"'
    script = completion.script("bash", "tool", ["--version"], subcommands)
    output = subprocess.check_output(["bash", "-uc", f"{script}\n{ask}"], text=True, timeout=60)
    assert output.strip() == completed


def test_zsh_takes_the_function_of_bash(subcommands):
    bash, zsh = (completion.script(shell, "tool", [], subcommands) for shell in ("bash", "zsh"))
    assert zsh == "autoload -U +X bashcompinit && bashcompinit\n" + bash


def test_fish_gets_a_line_for_each_option_and_its_help(subcommands):
    script = completion.script("fish", "tool", ["--version"], subcommands)
    lines = script.splitlines()
    assert "complete -c tool -n __fish_use_subcommand -l version" in lines
    assert "complete -c tool -f -n __fish_use_subcommand -a run -d 'start workers'" in lines
    inside = "complete -c tool -n '__fish_seen_subcommand_from run'"
    assert f"{inside} -s n -l workers -r -d 'how many; here\\'s one'" in lines
    assert f"{inside} -o np -l num-proc -r -d ''" in lines
    assert f"{inside} -l quiet -d 'say nothing'" in lines
    assert "hidden" not in script
    if shutil.which("fish"):
        asked = subprocess.check_output(["fish", "-c", script + 'complete -C "tool run --q"'], text=True, timeout=60)
        assert asked == "--quiet\tsay nothing\n"
