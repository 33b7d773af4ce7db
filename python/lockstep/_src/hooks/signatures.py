"""Signatures of symbols: those that Python reports, and those that a hook relies on."""

from __future__ import annotations

import inspect
import re
from types import ModuleType
from typing import Any

# The signatures of attributes that are not functions.
PROPERTY, CLASS, MODULE = "property", "class", "module"
# The signature of a function that is built into Python.
_UNKNOWN = "(...)"


def describe(raw: Any, value: Any) -> str:
    """Returns the signature of an attribute, without annotations, or the kind of another attribute.

    Args:
      raw: the attribute as its owner holds it.
      value: the attribute as `getattr` returns it.
    """
    if isinstance(raw, property):
        return PROPERTY
    if isinstance(value, ModuleType):
        return MODULE
    if isinstance(value, type):
        return CLASS
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return _UNKNOWN
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def is_as_relied_on(raw: Any, value: Any, relied_on: str) -> bool:
    """Returns whether an attribute has a signature that is relied on.

    Names, order, kinds and defaults of the parameters must be the same. Functions of `(*args, **kwargs)`, and functions
    built into Python, which have no signature, accept any call.

    Args:
      raw: the attribute as its owner holds it.
      value: the attribute as `getattr` returns it.
      relied_on: parameters as Python writes them. `...` stands for any default that has no comma. ", ..." at the end
        stands for any further parameters, which a replacement passes on unchanged. Or PROPERTY, CLASS or MODULE.
    """
    found = describe(raw, value)
    if not (found.startswith("(") and relied_on.startswith("(")):
        return found == relied_on
    if _UNKNOWN in (found, relied_on):
        return True
    # The beginning of "(self, *args, **kwargs)" has to be the same: "(self, ".
    any_call = re.fullmatch(r"(\(|\(.*, )\*\w+, \*\*\w+\)", found)
    if any_call is not None and relied_on.startswith(any_call[1]):
        return True
    wanted, may_have_more = re.subn(r", \.\.\.\)$", "", relied_on)
    pattern = re.escape(wanted).replace(r"=\.\.\.", "=[^,]+") + (r"(, .*)?\)" if may_have_more else "")
    return re.fullmatch(pattern, found) is not None
