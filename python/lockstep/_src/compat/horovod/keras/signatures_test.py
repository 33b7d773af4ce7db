import inspect

import pytest

from lockstep._src.compat.horovod.keras.signatures import function_of


def _declared(a, b=1, c=2, d=3):
    """Says what it got."""
    return a, b, c, d


def test_moved_parameters_keep_defaults_and_docstring():
    moved = function_of("program", _declared, ["d"], before="b")
    assert str(inspect.signature(moved)) == "(a, d=3, b=1, c=2)"
    assert moved.__doc__ == "Says what it got." and moved.__name__ == "_declared"
    assert moved(10, 20) == (10, 1, 2, 20)
    assert moved(10, 20, 30, 40) == (10, 30, 40, 20)
    assert moved(c=5, a=4) == (4, 1, 5, 3)


def test_several_parameters_move_in_their_order():
    assert function_of("program", _declared, ["c", "d"], before="b")(0, 7) == (0, 1, 7, 3)


def test_a_bound_argument_is_no_parameter():
    function = function_of("program", _declared, b=5)
    assert str(inspect.signature(function)) == "(a, c=2, d=3)" and function.__module__ == "program"
    assert function(0, 7) == (0, 5, 7, 3)


def test_wrong_arguments_are_refused():
    moved = function_of("program", _declared, ["d"], before="b")
    with pytest.raises(TypeError, match="missing a required argument: 'a'"):
        moved()
    with pytest.raises(TypeError, match="unexpected keyword argument 'e'"):
        moved(1, e=2)
