"""Signatures of symbols: those that Python reports, and those that a hook relies on."""

from __future__ import annotations

import ast
import inspect
import re
from types import ModuleType
from typing import Any

# The signatures of attributes that are no functions.
PROPERTY, CLASS, MODULE = "property", "class", "module"
# The end of a relied-on signature after which further parameters may follow.
_MORE = re.compile(r"(, |(?<=\())\.\.\.\)$")
_UNKNOWN = "(...)"


def describe(raw: Any, value: Any) -> str:
    """Returns the signature of an attribute, without annotations, or the kind of another attribute.

    Args:
      raw: the attribute as its owner holds it.
      value: the attribute as `getattr` returns it.
    """
    signature = _signature(raw, value)
    if isinstance(signature, str):
        return signature
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def is_as_relied_on(raw: Any, value: Any, relied_on: str) -> bool:
    """Returns whether an attribute has a signature that is relied on.

    Names, order, kinds and defaults of the parameters must be the same. Functions of `(*args, **kwargs)`, and functions
    built into Python, which have no signature, accept any call.

    Args:
      raw: the attribute as its owner holds it.
      value: the attribute as `getattr` returns it.
      relied_on: parameters as Python writes them. `...` stands for any default, and ", ..." at the end for any further
        parameters, which a replacement passes on unchanged. Or PROPERTY, CLASS or MODULE.
    """
    signature = _signature(raw, value)
    if isinstance(signature, str):
        return signature == relied_on or (signature == _UNKNOWN and relied_on.startswith("("))
    if not relied_on.startswith("("):
        return False
    found = list(signature.parameters.values())
    for wanted in _parameters(_MORE.sub(")", relied_on)):
        if not found or not _is_alike(found[0], wanted):
            return _takes_any_call(found)
        del found[0]
    return not found or _MORE.search(relied_on) is not None


def _signature(raw: Any, value: Any) -> inspect.Signature | str:
    if isinstance(raw, property):
        return PROPERTY
    if isinstance(value, ModuleType):
        return MODULE
    if isinstance(value, type):
        return CLASS
    try:
        return inspect.signature(value)
    except (TypeError, ValueError):
        return _UNKNOWN


def _parameters(text: str) -> list[inspect.Parameter]:
    """Returns the parameters of a signature; defaults are their text, or `...`."""
    arguments = ast.parse(f"def f{text}: pass").body[0].args  # type: ignore[attr-defined]
    empty = inspect.Parameter.empty
    positional = [(p, inspect.Parameter.POSITIONAL_OR_KEYWORD) for p in arguments.args]
    defaults = [empty] * (len(positional) - len(arguments.defaults)) + [ast.unparse(d) for d in arguments.defaults]
    if arguments.vararg is not None:
        positional.append((arguments.vararg, inspect.Parameter.VAR_POSITIONAL))
        defaults.append(empty)
    for parameter, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        positional.append((parameter, inspect.Parameter.KEYWORD_ONLY))
        defaults.append(empty if default is None else ast.unparse(default))
    if arguments.kwarg is not None:
        positional.append((arguments.kwarg, inspect.Parameter.VAR_KEYWORD))
        defaults.append(empty)
    return [
        inspect.Parameter(parameter.arg, kind, default=default)
        for (parameter, kind), default in zip(positional, defaults, strict=True)
    ]


def _is_alike(found: inspect.Parameter, wanted: inspect.Parameter) -> bool:
    if found.name != wanted.name or found.kind is not wanted.kind:
        return False
    if wanted.default is wanted.empty or found.default is found.empty:
        return wanted.default is found.default
    return wanted.default in ("...", repr(found.default))


def _takes_any_call(found: list[inspect.Parameter]) -> bool:
    return [p.kind for p in found] == [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]
