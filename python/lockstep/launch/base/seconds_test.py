import re

import pytest

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.seconds import seconds_of, whole_seconds


@pytest.mark.parametrize(("text", "seconds"), [(None, 7.5), ("0", 0), ("2.5", 2.5), ("1e3", 1000)])
def test_a_variable_gives_seconds(text, seconds):
    assert seconds_of({} if text is None else {"WAIT": text}, "WAIT", 7.5) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1", "nan", "inf"])
def test_what_is_no_number_of_seconds_is_refused(text):
    with pytest.raises(LaunchError, match=f"^WAIT={text!r}: wanted seconds, 0 or more$"):
        seconds_of({"WAIT": text}, "WAIT", 7.5)


@pytest.mark.parametrize("text", ["1.9", "3601"])
def test_seconds_out_of_range_are_refused(text):
    with pytest.raises(LaunchError, match=f"^WAIT={text!r}: wanted seconds, 2 to 3600$"):
        seconds_of({"WAIT": text}, "WAIT", 5, 2, 3600)


@pytest.mark.parametrize(("text", "seconds"), [("1", 1), ("007", 7), ("9" * 18, 10**18 - 1)])
def test_whole_seconds_are_read(text, seconds):
    assert whole_seconds("WAIT", text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "0", "00", "-1", "+1", "1.5", "1e3", " 1", "\N{SUPERSCRIPT TWO}", "\N{ARABIC-INDIC DIGIT THREE}", "9" * 5000],
)
def test_what_is_no_whole_number_of_seconds_is_refused(text):
    """Python's `isdigit` takes some of these for digits, and its `int` does not."""
    with pytest.raises(LaunchError, match=f"^WAIT={re.escape(repr(text))}: wanted seconds, 1 or more$"):
        whole_seconds("WAIT", text)
