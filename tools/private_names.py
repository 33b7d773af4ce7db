"""Finds uses of another file's private names in Python files.

A name is private if it begins with one underscore. A file may use its own private names, and a class its
bases' private names. The types of objects are known from a file's imports, annotations and constructors:

    from lockstep._src.engine.context import context
    context._lane                          # an imported object

    def save(saver: Saver) -> None:
        saver._names                       # an annotated parameter, variable, or attribute of `self`

    Saver()._names                         # a constructor's result, also by a variable or an attribute of `self`

Objects of other types pass, private names of other libraries included.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Set
from typing import NamedTuple


class Use(NamedTuple):
    """A use of a private name.

    Attributes:
      line: the line of the use.
      text: the use as the file writes it, such as "context._lane".
      module: the module that defines the name, or the class of the object.
      name: the private name.
    """

    line: int
    text: str
    module: str
    name: str


class Imports(NamedTuple):
    """The names that a file imports.

    Attributes:
      modules: local name -> the module of that name.
      members: local name -> the module that defines it: a class, a function or an object.
    """

    modules: Mapping[str, str]
    members: Mapping[str, str]


def is_private(name: str) -> bool:
    """Returns whether a name begins with one underscore."""
    return name.startswith("_") and not name.startswith("__")


def imported_from(node: ast.ImportFrom, package: str) -> str:
    """Returns the name of the module from which a statement in a file of `package` imports."""
    base = node.module or ""
    if node.level:
        parents = package.split(".")[: len(package.split(".")) - node.level + 1]
        base = ".".join([*parents, base] if base else parents)
    return base


def uses(tree: ast.Module, module: str, package: str, modules: Set[str]) -> Iterator[Use]:
    """Yields the uses of private names of other modules.

    Args:
      tree: the file.
      module: its name as a module.
      package: the package of the file, for relative imports.
      modules: the names of all modules whose private names count.
    """
    imports = Imports({}, {})
    objects_matter = False
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            objects_matter |= not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        elif isinstance(node, ast.ImportFrom):
            base = imported_from(node, package)
            for alias in node.names:
                member, local = f"{base}.{alias.name}", alias.asname or alias.name
                if member in modules:
                    imports = imports._replace(modules={**imports.modules, local: member})
                elif base in modules:
                    imports = imports._replace(members={**imports.members, local: base})
                    if is_private(alias.name) and base != module:
                        yield Use(node.lineno, alias.name, base, alias.name)
    if objects_matter:
        visitor = _Visitor(imports)
        visitor.visit(tree)
        yield from (use for use in visitor.found if use.module != module)


class _Visitor(ast.NodeVisitor):
    """Follows the types of variables, and of attributes of `self`. A type is the module that defines it, "" if unknown.

    Attributes:
      found: the uses.
    """

    def __init__(self, imports: Imports) -> None:
        self.found: list[Use] = []
        self._imports = imports
        self._scopes: list[dict[str, str]] = []  # of each function or class around the node: name -> type
        self._attributes: list[dict[str, str]] = []  # of each class around the node: attribute of `self` -> type

    def visit_ClassDef(self, node: ast.ClassDef) -> None:  # noqa: N802
        """Visits a class; its methods may use attributes that later methods set."""
        self._attributes.append(self._attributes_of(node))
        self._scopes.append({})
        self.generic_visit(node)
        self._scopes.pop()
        self._attributes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:  # noqa: N802
        """Visits a function; its variables hide imports of the same name."""
        stored = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        self._scopes.append(dict.fromkeys(stored, "") | self._parameters(node.args))
        self.generic_visit(node)
        self._scopes.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> None:  # noqa: N802
        """Visits a lambda."""
        self._scopes.append(self._parameters(node.args))
        self.generic_visit(node)
        self._scopes.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:  # noqa: N802
        """Notes the type of an annotated variable."""
        if isinstance(node.target, ast.Name) and self._scopes:
            self._scopes[-1][node.target.id] = self._annotated(node.annotation)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:  # noqa: N802
        """Notes the type of a variable that gets a constructor's result or another variable's value."""
        self.generic_visit(node)
        for target, value in _pairs(node):
            if isinstance(target, ast.Name) and self._scopes:
                self._scopes[-1][target.id] = self._type(value)

    def visit_Attribute(self, node: ast.Attribute) -> None:  # noqa: N802
        """Notes a use."""
        self.generic_visit(node)
        if is_private(node.attr) and (module := self._type(node.value)):
            self.found.append(Use(node.lineno, ast.unparse(node), module, node.attr))

    def _attributes_of(self, node: ast.ClassDef) -> dict[str, str]:
        attributes: dict[str, str] = {}
        for part in ast.walk(node):
            if isinstance(part, ast.AnnAssign):
                name = part.target.attr if isinstance(part.target, ast.Attribute) else getattr(part.target, "id", "")
                attributes[name] = self._annotated(part.annotation)
            elif isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)):
                parameters = self._parameters(part.args)
                for assignment in (n for n in ast.walk(part) if isinstance(n, ast.Assign)):
                    for target, value in _pairs(assignment):
                        if isinstance(target, ast.Attribute):
                            known = parameters.get(value.id, "") if isinstance(value, ast.Name) else self._type(value)
                            attributes.setdefault(target.attr, known)
        return attributes

    def _parameters(self, arguments: ast.arguments) -> dict[str, str]:
        ordered = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        others = [one.arg for one in (arguments.vararg, arguments.kwarg) if one is not None]
        return {one.arg: self._annotated(one.annotation) for one in ordered} | dict.fromkeys(others, "")

    def _annotated(self, node: ast.expr | None) -> str:
        """Returns the type that an annotation names: `X`, `module.X`, either `| None`, or a string of it."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                return self._annotated(ast.parse(node.value, mode="eval").body)
            except SyntaxError:
                return ""
        if isinstance(node, ast.BinOp):
            known = {self._annotated(node.left), self._annotated(node.right)} - {""}
            return known.pop() if len(known) == 1 else ""
        return "" if node is None else self._class(node)

    def _class(self, node: ast.expr) -> str:
        """Returns the module of an imported class, which `node` names."""
        if isinstance(node, ast.Name):
            return self._imports.members.get(node.id, "")
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return self._imports.modules.get(node.value.id, "")
        return ""

    def _type(self, node: ast.expr) -> str:
        """Returns the type of an expression."""
        if isinstance(node, ast.Name):
            for scope in reversed(self._scopes):
                if node.id in scope:
                    return scope[node.id]
            return self._imports.members.get(node.id, "") or self._imports.modules.get(node.id, "")
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id == "self" and self._attributes:
                return self._attributes[-1].get(node.attr, "")
            return self._class(node)
        if isinstance(node, ast.Call):
            function = node.func
            called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            return self._class(function) if called[:1].isupper() else ""  # a class, by its name
        return ""


def _pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yields the targets of an assignment, each with its value."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value
