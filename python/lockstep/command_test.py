import importlib.metadata
import subprocess
import sys

import pytest

from lockstep import command
from lockstep.testing.launching import finish, launchers, without_reminder

launch = pytest.fixture(launchers)

VERSION = importlib.metadata.version("lockstep-tf")


def test_run_is_the_launcher(launch):
    lockstep = ("-m", "lockstep", "run")
    worker = 'print(os.environ["LOCKSTEP_RANK"], sys.argv[1:])'
    code, stdout, stderr = finish(launch("-n", "2", worker=worker, program=lockstep))
    assert (code, sorted(stdout), without_reminder(stderr)) == (0, ["[0] 0 []", "[1] 1 []"], [])
    code, _, stderr = finish(launch("-n", "0", "true", program=lockstep))
    assert (code, stderr) == (2, ["lockstep run: -n 0: wanted 1 or more workers"])


def test_it_is_installed_under_its_name():
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="lockstep")
    assert script.load() is command.main


@pytest.mark.parametrize(
    ("words", "begin"),
    [
        (["--version"], f"lockstep {VERSION}, TensorFlow "),
        (["run", "--version"], f"lockstep {VERSION}\n"),
        (["--help"], "usage: lockstep [-h]"),
        (["run", "--help"], "usage: lockstep run [options] command"),
    ],
)
def test_version_and_help_end_with_success(capsys, words, begin):
    with pytest.raises(SystemExit) as end:
        command.main(words)
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(begin)


@pytest.mark.parametrize("words", [[], ["runs"], ["--quiet", "run"]])
def test_a_wrong_command_line_is_refused(capsys, words):
    with pytest.raises(SystemExit) as end:
        command.main(words)
    assert end.value.code == 2
    assert "lockstep: error: " in capsys.readouterr().err


def test_every_subcommand_is_in_the_help_and_in_the_completion(capsys):
    with pytest.raises(SystemExit):
        command.main(["--help"])
    shown = capsys.readouterr().out
    assert command.main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    for name in command.SUBCOMMANDS:
        assert f"  {name} " in shown and f"    {name})" in script


def test_the_command_loads_no_tensorflow_before_it_is_needed():
    code = (
        "import sys, lockstep.command as c; [one.parser() for one in c.SUBCOMMANDS.values()]; "
        "print(sorted({'tensorflow', 'numpy', 'pyarrow'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True, timeout=120) == "[]\n"
