"""Tracebacks without the frames of replaced symbols, and the identity of errors of several ranks."""

import re
import traceback

import pytest
import tensorflow as tf

from lockstep._src.engine import tracebacks
from lockstep._src.hooks.interception import around


def _users_function(error: Exception) -> None:
    raise error


def _replaced(original, error: Exception) -> None:
    original(error)


def _raised(error: Exception, function=_users_function) -> Exception:
    try:
        function(error)
    except Exception as raised:
        return raised
    raise AssertionError


def _names(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def test_frames_of_interception_are_left_out_and_all_others_stay():
    error = _raised(ValueError("x"), around(_replaced)(_users_function))
    assert _names(error) == ["_raised", "replacement", "_replaced", "_users_function"]
    tracebacks.hide_interception(error)
    assert _names(error) == ["_raised", "_replaced", "_users_function"]


def test_causes_are_cleaned_as_well_and_the_text_is_the_interpreters():
    intercepted = around(_replaced)(_users_function)
    try:
        try:
            intercepted(KeyError("first"))
        except KeyError as error:
            intercepted(ValueError("second")) if error else None
    except ValueError as error:
        caught = error
    text = tracebacks.text_of(caught)
    assert "interception.py" not in text and "in replacement" not in text
    assert "KeyError: 'first'" in text and text.endswith("ValueError: second\n")
    assert "During handling of the above exception, another exception occurred:" in text
    assert text.count("raise error") == 2


def test_an_error_that_interception_itself_raises_keeps_its_place():
    error = _raised(None, around(None)(None))  # calls None
    tracebacks.hide_interception(error)
    assert _names(error) == ["_raised", "replacement"]


def test_tensorflows_lists_of_frames_lose_those_of_interception():
    listed = f'  File "{tracebacks._INTERCEPTION}", line 173, in replacement\n\n'
    message = f'Detected at node x defined at (most recent call last):\n  File "a.py", line 8, in f\n\n{listed}end'
    text = tracebacks.text_of(_raised(ValueError(message)))
    assert text.endswith('last):\n  File "a.py", line 8, in f\n\nend\n')


_FAILING = """
import tensorflow.compat.v1 as tf

def build():
    return tf.gather(tf.ones([3]), tf.placeholder_with_default([7], [1]))

def of_a_session():
    with tf.Graph().as_default(), tf.Session() as session:
        session.run(build())

def of_a_function():
    tf.function(build, autograph=False)()

def of_a_call():
    tf.raw_ops.GatherV2(params=tf.ones([3]), indices=7, axis=0)

def of_the_program():
    try:
        of_a_session()
    except tf.errors.InvalidArgumentError as error:
        raise ValueError("wrong ids") from error
"""


# Promise (launching.md): an operation's error shows the program's own frames.
@pytest.mark.parametrize("name", ["of_a_session", "of_a_function", "of_a_call", "of_the_program"])
def test_an_operations_error_shows_the_programs_own_frames_only(name):
    program: dict = {}
    exec(compile(_FAILING, "/home/user/train.py", "exec"), program)
    text = tracebacks.text_of(_raised_by(program[name]))
    assert "is not in [0, 3)" in text
    assert f'File "/home/user/train.py", line {_line_of(name)}, in {name}' in text
    assert not re.findall(r'File "[^"]*/(?:tensorflow|keras|hooks)/[^"]*"', text), text
    assert "Original stack trace" not in text
    tracebacks_of = {"of_the_program": 2}
    assert text.count("Traceback (most recent call last):") == tracebacks_of.get(name, 1), text
    if name in ("of_a_session", "of_a_function"):
        listed = text.partition("defined at (most recent call last):")[2]
        assert f'File "/home/user/train.py", line {_line_of("build")}, in build' in listed, text


def _raised_by(function) -> Exception:
    try:
        function()
    except Exception as raised:
        return raised
    raise AssertionError


def _line_of(name: str) -> int:
    """Returns the line of a function of one statement, or of its last statement."""
    lines = _FAILING.splitlines()
    first = lines.index(f"def {name}():")
    return first + next(n for n, line in enumerate(lines[first:], 1) if n > 1 and not line.endswith(":"))


@pytest.mark.parametrize(
    ("mine", "other", "same"),
    [
        ("no column", "no column", True),
        ("no column", "no row", False),
        ("rank 0: nothing came", "rank 1: nothing came", True),
        ("rank 0: nothing came", "rank 0: nothing came", True),
        ("{{node x}} rank 0: id 7", "{{node x}} rank 0: id 7", True),
        ("rank 2 left", "rank 3 left", False),
        ("rank 0 failed", "rank 1 failed", True),
        ("rank 0 has [5]; rank 1 has [4]", "rank 0 has [5]; rank 1 has [4]", True),
        ("<f at 0x7f01>", "<f at 0x7fab>", True),
        ("in __autograph_generated_filev5_5de54.py", "in __autograph_generated_fileiiaafyul.py", True),
        ("[Op:__inference_step_376]", "[Op:__inference_step_41]", True),
        ("row 10 of 9", "row 11 of 9", False),
    ],
)
def test_errors_of_ranks_are_the_same_if_only_the_process_differs(mine, other, same):
    zero, one = (_raised(ValueError(text)) for text in (mine, other))
    assert (tracebacks.identity(zero, "0") == tracebacks.identity(one, "1")) == same


def _raised_in_program(line: int) -> Exception:
    """Returns an error that is raised in this line of a user's program."""
    program = "\n" * (line - 1) + "def fails(error):\n  raise error"
    names: dict = {}
    exec(compile(program, "/home/user/train.py", "exec"), names)
    return _raised(ValueError("x"), names["fails"])


def test_errors_differ_by_class_place_and_cause():
    error = _raised_in_program(3)
    assert tracebacks.identity(error, "0") == tracebacks.identity(_raised_in_program(3), "1")
    caused = _raised_in_program(3)
    caused.__cause__ = _raised(KeyError("y"))
    for other in (_raised(KeyError("x")), _raised(ValueError("x")), _raised_in_program(4), caused):
        assert tracebacks.identity(other, "0") != tracebacks.identity(error, "0")


def _missing(get) -> AttributeError:
    try:
        get()
    except AttributeError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    ("get", "name"),
    [
        (lambda: tf.placeholder, "tf.placeholder"),
        pytest.param(
            lambda: tf.estimator,
            "tf.estimator",
            marks=pytest.mark.skipif(hasattr(tf, "estimator"), reason="TensorFlow 2.15 has estimators"),
        ),
        (lambda: tf.data.make_one_shot_iterator, "tf.data.make_one_shot_iterator"),
        (lambda: tf.losses.sigmoid_cross_entropy, "tf.losses.sigmoid_cross_entropy"),
        (lambda: tf.metrics.auc, "tf.metrics.auc"),
    ],
)
def test_a_name_of_tensorflow_1_is_followed_by_a_hint(get, name):
    error = _missing(get)
    assert tracebacks.hint_for(error).startswith(
        f"lockstep: {name} is a name of TensorFlow 1. Run the program with --tf1"
    )
    assert tracebacks.text_of(error).endswith(f"\n{tracebacks.hint_for(error)}")


@pytest.mark.parametrize(
    "get",
    [
        lambda: tf.nonsense,
        lambda: tf.contrib,
        lambda: tf.compat.v1.nonsense,
        lambda: tf.compat.v1.losses.nonsense,
        lambda: pytest.placeholder,
        lambda: tf.constant(1).placeholder,
    ],
)
def test_other_missing_names_have_no_hint(get):
    assert tracebacks.hint_for(_missing(get)) == ""


def test_under_tf1_its_launcher_explains(monkeypatch):
    monkeypatch.setattr("sys.orig_argv", ["python", "-m", "lockstep.launch.tf1", "main.py"])
    assert tracebacks.hint_for(_missing(lambda: tf.placeholder)) == ""
