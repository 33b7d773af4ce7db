import inspect

import pytest

from lockstep._src.compat.horovod.keras.signatures import with_moved_parameters


def _declared(a, b=1, c=2, d=3):
    """Says what it got."""
    return a, b, c, d


def test_moved_parameters_keep_defaults_and_docstring():
    moved = with_moved_parameters(_declared, ["d"], before="b")
    assert str(inspect.signature(moved)) == "(a, d=3, b=1, c=2)"
    assert moved.__doc__ == "Says what it got." and moved.__name__ == "_declared"
    assert moved(10, 20) == (10, 1, 2, 20)
    assert moved(10, 20, 30, 40) == (10, 30, 40, 20)
    assert moved(c=5, a=4) == (4, 1, 5, 3)


def test_another_function_gets_all_arguments_by_name():
    moved = with_moved_parameters(_declared, ["c", "d"], before="b", calls=lambda **arguments: arguments)
    assert moved(0, 7) == {"a": 0, "b": 1, "c": 7, "d": 3}


def test_wrong_arguments_are_refused():
    moved = with_moved_parameters(_declared, ["d"], before="b")
    with pytest.raises(TypeError, match="missing a required argument: 'a'"):
        moved()
    with pytest.raises(TypeError, match="unexpected keyword argument 'e'"):
        moved(1, e=2)
