"""Whether a file of Python defines a name that a page gives."""

from __future__ import annotations

import ast


def has_python(tree: ast.AST, names: list[str]) -> bool:
    """Returns whether nested classes and functions have these names, from the outermost on.

    A test whose cases run in one job is a name that a call returns: `test_x = reported_by_case(...)`.
    """
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)]
    if len(names) == 1 and any(getattr(target, "id", "") == names[0] for node in assigned for target in node.targets):
        return True
    return not names or any(
        has_python(node, names[1:])
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == names[0]
    )
