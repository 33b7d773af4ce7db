import pytest

from lockstep.launch.cli.arguments import CommandLine

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


@pytest.fixture
def line():
    line = CommandLine("start", "Starts something.")
    line.add("-n", "--number", type=int)
    line.add("-np", "--num-proc", type=int, to=line.group("numbers"))
    line.add("--range", type=int, nargs=2)
    line.add("--max-np", type=int)
    line.add("--max-num", type=int)
    line.add("--verbose", "-v", action="store_true")
    return line


# Promise (horovod.md): options after the command belong to the command.
@pytest.mark.parametrize(
    ("words", "ours"),
    [
        ("prog", 0),
        ("-n 2 prog -n 3", 2),
        ("-n2 prog", 1),
        ("-np 2 -v prog", 3),
        ("--num-proc=2 prog --verbose", 1),
        ("--range 1 2 prog 3", 3),
        ("-v prog --max 5 --num-proc 7 -v", 1),
        ("-v prog -- --max", 1),
        ("-v - x", 1),
        ("-n -1 prog", 2),
    ],
)
def test_a_command_begins_at_the_first_word_that_is_no_option_of_ours(line, words, ours):
    words = words.split()
    assert line.split(words) == (words[:ours], words[ours:])
    assert line.parse(words)[1] == words[ours:]


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ("-n 2", (2, None)),
        ("-n2", (2, None)),
        ("-np 2", (None, 2)),
        ("-np2", (None, 2)),
        ("-np=2", (None, 2)),
        ("-n2 -np12 -v", (2, 12)),
    ],
)
def test_a_number_may_follow_its_option_at_once(line, words, numbers):
    options, command = line.parse([*words.split(), "prog", "-np3"])
    assert (options.number, options.num_proc) == numbers
    assert command == ["prog", "-np3"]


def test_two_dashes_end_our_options(line):
    options, command = line.parse(["-n", "2", "--", "-n", "--", "3"])
    assert (options.number, command) == (2, ["-n", "--", "3"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--max 5 prog", "unrecognized arguments: --max"),
        ("--number x prog", "invalid int value: 'x'"),
        ("--range 1", "expected 2 arguments"),
        ("-npx prog", "invalid int value: 'px'"),
        ("--unknown prog", "unrecognized arguments: --unknown"),
    ],
)
def test_what_is_wrong_with_our_options_is_said_in_a_line(line, capsys, words, message):
    with pytest.raises(SystemExit) as end:
        line.parse(words.split())
    usage, *said = capsys.readouterr().err.splitlines()
    assert (end.value.code, usage, len(said)) == (2, "usage: start [options] command ...", 1)
    assert message in said[0]


def test_a_help_may_begin_with_all_options_and_errors_stay_short(capsys):
    line = CommandLine("start", "Starts something.", lists_options=True)
    line.add("-np", "--num-proc", type=int)
    for words in (["--help"], ["--max", "5"]):
        with pytest.raises(SystemExit):
            line.parse(words)
    shown, said = capsys.readouterr()
    assert shown.startswith("usage: start [-h] [-np NUM_PROC] ...\n")
    assert said.splitlines()[0] == "usage: start [options] command ..." and len(said.splitlines()) == 2


def test_the_help_shows_options_and_their_groups(line, capsys):
    with pytest.raises(SystemExit) as end:
        line.parse(["--help", "prog"])
    shown = capsys.readouterr().out
    assert end.value.code == 0
    assert "numbers:" in shown and "--num-proc" in shown
