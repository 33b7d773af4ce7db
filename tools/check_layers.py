"""A check of every #include and import against the layers of tools/layers.toml, and of other rules of that file.

It also finds circles, uses of another file's private names, and files and functions that are too long.

Run it as:

    python tools/check_layers.py [folder]

Prints the folders in layers, the lowest first, and one line per violation, `file:line: what is wrong`. Exits with 1 if
there is any violation.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import private_names

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where the build brings the same under this name.
    import tomli as tomllib

_INCLUDE = re.compile(r'\s*#\s*include\s*(["<])([^">]+)[">]')
_CPP_SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
# Tests, benchmarks and fuzz targets, and headers that they share.
_CPP_TEST = re.compile(r"_(test|benchmark|fuzz)\.(cc|cu|h)$|(^|/)test_\w+\.h$")
# Comments, and strings and characters whose text could look like code or like a comment.
_CPP_NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
_NOT_OURS = {"build", "third_party"}


class Violation(NamedTuple):
    """One line that breaks a rule."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


class Uses:
    """A graph of names that use each other, with the first place where each use is written."""

    def __init__(self) -> None:
        self._places: dict[str, dict[str, tuple[str, int]]] = {}

    def add(self, name: str, used: str, path: str, line: int) -> None:
        """Records that a line of `name` uses another name. A name that only uses itself is in no circle."""
        self._places.setdefault(used, {})
        if name != used:
            self._places.setdefault(name, {}).setdefault(used, (path, line))

    def layers(self) -> list[list[str]]:
        """Returns all names, the lowest layer first; each uses only names of lower layers, or of its own circle."""
        levels: dict[str, int] = {}
        for component in strongly_connected(self._places):
            below = {used for name in component for used in self._places[name]}.difference(component)
            level = 1 + max((levels[name] for name in below), default=-1)
            levels.update(dict.fromkeys(component, level))
        height = 1 + max(levels.values(), default=-1)
        return [sorted(name for name in levels if levels[name] == level) for level in range(height)]

    def circles(self, what: str) -> Iterator[Violation]:
        """Yields every use between two names of one circle.

        Args:
          what: What the names are ("folders"), for the messages.
        """
        for component in strongly_connected(self._places):
            for name in component if len(component) > 1 else ():
                for used, (path, line) in self._places[name].items():
                    if used in component:
                        yield Violation(path, line, f"{name} uses {used}: one of a circle of {len(component)} {what}")


def strongly_connected(uses: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Returns the strongly connected components of a graph, each after all that it uses (Tarjan, 1972).

    Args:
      uses: For each name, the names that it uses. All names are keys.

    Returns:
      Lists of names. A component of several names is a circle: each uses all others, directly or through others.
    """
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_names: list[str] = []
    components: list[list[str]] = []

    def visit(name: str) -> None:
        numbers[name] = lowest[name] = len(numbers)
        open_names.append(name)
        for used in sorted(uses[name]):
            if used not in numbers:
                visit(used)
                lowest[name] = min(lowest[name], lowest[used])
            elif used in open_names:
                lowest[name] = min(lowest[name], numbers[used])
        if lowest[name] == numbers[name]:
            start = open_names.index(name)
            components.append(open_names[start:])
            del open_names[start:]

    for name in sorted(uses):
        if name not in numbers:
            visit(name)
    return components


def tracked_files(root: Path) -> list[str]:
    """Returns the project's paths below `root`: files that git tracks or would add; without git, all files."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
        paths = listed.stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        paths = [str(path.relative_to(root)) for path in root.rglob("*") if not _is_hidden(path.relative_to(root))]
    paths = [path for path in paths if Path(path).parts[0] not in _NOT_OURS and (root / path).is_file()]
    return sorted(set(paths))


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in path.parts)


def layer_of(name: str, layers: Sequence[str], separator: str) -> str | None:
    """Returns the longest of `layers` that `name` is or lies in."""
    inside = [layer for layer in layers if name == layer or name.startswith(layer + separator)]
    return max(inside, key=len, default=None)


def check_rows(layers: Mapping[str, Sequence[str]], exists: Callable[[str], bool]) -> Iterator[Violation]:
    """Yields what is wrong in a table of layers: rows of what does not exist, and uses of later rows.

    Args:
      layers: For each layer, the layers that it may use, in the table's order.
      exists: Whether the project has a layer of this name.
    """
    above: set[str] = set()
    for layer, allowed in layers.items():
        if not exists(layer):
            yield Violation("tools/layers.toml", 1, f"{layer} does not exist")
        for used in allowed:
            if used not in above:
                yield Violation("tools/layers.toml", 1, f"{layer} may use {used}, which is not listed above it")
        above.add(layer)


class CppRules:
    """The rules of C++ files.

    Args:
      table: The part `cpp` of layers.toml.
    """

    def __init__(self, table: dict[str, Any]):
        self._layers: dict[str, list[str]] = table["layers"]
        self._tests_may_include: list[str] = table["tests_may_include"]
        self._areas: list[str] = table["areas"]
        self._headers = [(rule["name"], re.compile(rule["pattern"]), rule["folders"]) for rule in table["headers"]]
        self._code = [
            (rule["name"], re.compile(rule["pattern"], re.MULTILINE), rule["folders"]) for rule in table["code"]
        ]
        # The #includes of all files but tests: between folders, and between pairs of a header and its source file.
        self.folders = Uses()
        self._pairs = Uses()

    def circles(self) -> Iterator[Violation]:
        """Yields the #includes that make circles, in all files that were checked."""
        yield from self.folders.circles("folders")
        yield from self._pairs.circles("files")

    def check_rows(self, root: Path, paths: Sequence[str]) -> Iterator[Violation]:
        """Yields what is wrong in the table of layers, and folders of an area that have no row.

        Args:
          root: The project's folder.
          paths: All of its files.
        """
        yield from check_rows(self._layers, lambda folder: (root / folder).is_dir())
        folders = {path.rpartition("/")[0] for path in paths if Path(path).suffix in _CPP_SUFFIXES}
        for folder in sorted(folders - set(self._layers)):
            if layer_of(folder, self._areas, "/"):
                yield Violation("tools/layers.toml", 1, f"{folder} has no row")

    def check(self, path: str, text: str) -> Iterator[Violation]:
        """Yields what is wrong in one file."""
        folder = path.rpartition("/")[0]
        layer = layer_of(folder, list(self._layers), "/")
        if layer is None:
            yield Violation(path, 1, "lies in no layer of tools/layers.toml")
            return
        allowed = {layer, *self._layers[layer]}
        if _CPP_TEST.search(path):
            allowed.update(self._tests_may_include)
        for number, line in enumerate(text.splitlines(), 1):
            if include := _INCLUDE.match(line):
                yield from self._check_include(path, number, layer, allowed, include[2])
                self._note_include(path, number, include[2])
        plain = _CPP_NOISE.sub(_blank, text)
        for name, pattern, folders in self._code:
            if not _lies_in(path, folders):
                for found in pattern.finditer(plain):
                    start = found.start() + len(found[0]) - len(found[0].lstrip())
                    yield Violation(path, plain.count("\n", 0, start) + 1, f"{name} belongs {_places(folders)}")

    def _check_include(self, path: str, number: int, layer: str, allowed: set[str], header: str) -> Iterator[Violation]:
        target = layer_of(header, list(self._layers), "/")
        if target is not None and target not in allowed:
            yield Violation(path, number, f"{layer} may not include {header} ({target})")
        elif target is not None and _CPP_TEST.search(header) and not _CPP_TEST.search(path):
            yield Violation(path, number, f"{header} is for tests")
        elif target is None and header.partition("/")[0] in {name.partition("/")[0] for name in self._layers}:
            yield Violation(path, number, f"{header} lies in no layer of tools/layers.toml")
        for name, pattern, folders in self._headers:
            if pattern.search(header) and not _lies_in(path.rpartition("/")[0], folders):
                yield Violation(path, number, f"{name} belong {_places(folders)}: {header}")

    def _note_include(self, path: str, number: int, header: str) -> None:
        if not _CPP_TEST.search(path) and layer_of(header, list(self._layers), "/") is not None:
            self.folders.add(path.rpartition("/")[0], header.rpartition("/")[0], path, number)
            self._pairs.add(path.rpartition(".")[0], header.rpartition(".")[0], path, number)


def _blank(noise: re.Match[str]) -> str:
    """Returns spaces of the same shape."""
    return re.sub(r"[^\n]", " ", noise[0])


def _lies_in(folder: str, folders: Sequence[str]) -> bool:
    return layer_of(folder, folders, "/") is not None


def _places(folders: Sequence[str]) -> str:
    return "in " + ", ".join(folders) if folders else "nowhere here"


class PythonRules:
    """The rules of Python files.

    Imports inside of functions and below `if TYPE_CHECKING:` count as all others do.

    Args:
      table: The part `python` of layers.toml.
      paths: All of the project's files: they distinguish modules from names that modules define.
    """

    def __init__(self, table: dict[str, Any], paths: Sequence[str]):
        self._layers: dict[str, list[str]] = table["layers"]
        self._roots: list[str] = sorted(table["roots"], key=len, reverse=True)
        self._tests_may_import: list[str] = table["tests_may_import"]
        self._tests: dict[str, list[str]] = table["tests"]
        self._programs: list[str] = table["programs"]
        self._standard_only: list[str] = table["standard_library_only"]
        self._may_load_tensorflow: list[str] = table["may_load_tensorflow_by_name"]
        self._areas: list[str] = table["areas"]
        self._built: list[str] = table["built"]
        self._private: dict[str, list[str]] = table["private"]
        self._modules = {self._module(path) for path in paths if path.endswith(".py")}
        self._packages = {self._module(path) for path in paths if path.endswith("/__init__.py")}
        self._ours = {layer.partition(".")[0] for layer in self._layers} | set(self._programs)
        # The imports of all files but tests: between folders, and between files.
        self.folders = Uses()
        self._files = Uses()

    def circles(self) -> Iterator[Violation]:
        """Yields the imports that make circles, in all files that were checked."""
        yield from self.folders.circles("folders")
        yield from self._files.circles("files")

    def check_rows(self) -> Iterator[Violation]:
        """Yields what is wrong in the table of layers, and packages of an area that have no row."""
        exist = {*self._modules, *(module.partition(".")[0] for module in self._modules), *self._built}
        yield from check_rows(self._layers, exist.__contains__)
        for package in sorted(self._packages - set(self._layers)):
            if layer_of(package, self._areas, "."):
                yield Violation("tools/layers.toml", 1, f"{package} has no row")

    def _module(self, path: str) -> str:
        """Returns the name under which a file is imported."""
        for root in self._roots:
            if path.startswith(root + "/"):
                path = path[len(root) + 1 :]
                break
        name = path.removesuffix(".py").replace("/", ".")
        return name.removesuffix(".__init__")

    def check(self, path: str, text: str) -> Iterator[Violation]:
        """Yields what is wrong in one file."""
        module = self._module(path)
        if module.partition(".")[0] in self._programs:
            return
        layer = layer_of(module, list(self._layers), ".")
        if layer is None:
            yield Violation(path, 1, f"module {module} lies in no layer of tools/layers.toml")
            return
        is_test = path.endswith(("_test.py", "/conftest.py"))
        allowed = {layer, *self._layers[layer]}
        if is_test:
            below = layer_of(module, list(self._tests), ".")
            allowed.update(self._tests_may_import, self._tests.get(below, ()))
            area = layer_of(module, self._areas, ".")
            allowed.update(other for other in self._layers if area and layer_of(other, [area], "."))
        package = module if path.endswith("__init__.py") else module.rpartition(".")[0]
        tree = ast.parse(text, path)
        for number, target, by_name in self._imports(tree, package):
            top = target.partition(".")[0]
            if top in self._ours:
                target_layer = layer_of(target, [*self._layers, *self._programs], ".")
                if target_layer not in allowed:
                    yield Violation(path, number, f"{layer} may not import {target} ({target_layer})")
                if not is_test:
                    self._note_import(path, number, module, target)
            elif self._is_standard_only(layer) and not is_test and not self._is_standard(module, top, by_name):
                yield Violation(path, number, f"{layer} may import the standard library only, not {target}")
        if not is_test:
            for use in private_names.uses(tree, module, package, self._modules):
                if f"{use.module}.{use.name}" not in self._private.get(module, ()):
                    yield Violation(path, use.line, f"{use.text} is private to {use.module}")

    def _note_import(self, path: str, number: int, module: str, target: str) -> None:
        if target in self._modules:
            self._files.add(module, target, path, number)
            self.folders.add(self._folder(module), self._folder(target), path, number)

    def _folder(self, module: str) -> str:
        return module if module in self._packages else module.rpartition(".")[0]

    def _is_standard_only(self, layer: str) -> bool:
        return layer_of(layer, self._standard_only, ".") is not None

    def _is_standard(self, module: str, top: str, by_name: bool) -> bool:
        loads_tensorflow = by_name and module in self._may_load_tensorflow and top.startswith("tensorflow")
        return loads_tensorflow or top in sys.stdlib_module_names

    def _imports(self, tree: ast.Module, package: str) -> Iterator[tuple[int, str, bool]]:
        """Yields (line, module, whether it is imported by a string) for all imports, also inside of functions."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield node.lineno, alias.name, False
            elif isinstance(node, ast.ImportFrom):
                base = private_names.imported_from(node, package)
                for alias in node.names:
                    member = f"{base}.{alias.name}"
                    yield node.lineno, member if member in self._modules else base, False
            elif isinstance(node, ast.Call) and node.args:
                function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                first = node.args[0]
                if function in ("import_module", "__import__") and isinstance(first, ast.Constant):
                    yield node.lineno, str(first.value), True


def long_functions(path: str, text: str, most: int) -> Iterator[Violation]:
    """Yields the functions of a Python file that have more than `most` lines, without their docstrings."""
    waiting: list[ast.AST] = [ast.parse(text, path)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = _lines(node)
            if ast.get_docstring(node, clean=False) is not None:
                lines -= _lines(node.body[0])
            if lines > most:
                message = f"{node.name} has {lines} lines without its docstring, at most {most}: split it"
                yield Violation(path, node.lineno, message)
        # Functions stand in statements, never in expressions.
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            parts = getattr(node, block, ())
            waiting += parts if isinstance(parts, list) else ()


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


class Findings(NamedTuple):
    """The state of the project's layers."""

    violations: list[Violation]
    cpp_folders: list[list[str]]  # in layers, the lowest first
    python_folders: list[list[str]]  # likewise


def check(root: Path, table: dict[str, Any]) -> Findings:
    """Checks all files below `root`.

    Args:
      root: The project's folder.
      table: What layers.toml holds.
    """
    paths = tracked_files(root)
    cpp, python = CppRules(table["cpp"]), PythonRules(table["python"], paths)
    violations: list[Violation] = []
    for path in paths:
        rules = cpp if Path(path).suffix in _CPP_SUFFIXES else python if path.endswith(".py") else None
        if rules is None:
            continue
        text = (root / path).read_text(encoding="utf-8")
        violations += rules.check(path, text)
        if rules is python:
            violations += long_functions(path, text, table["style"]["max_function_lines"])
        lines = text.count("\n")
        if lines > table["style"]["max_lines"]:
            violations.append(Violation(path, lines, f"{lines} lines, at most {table['style']['max_lines']}: split it"))
    violations += [*cpp.circles(), *python.circles()]
    return Findings(violations, cpp.folders.layers(), python.folders.layers())


def check_table(root: Path, table: dict[str, Any]) -> list[Violation]:
    """Checks the table itself against the project below `root`."""
    paths = tracked_files(root)
    python = PythonRules(table["python"], paths)
    return [*CppRules(table["cpp"]).check_rows(root, paths), *python.check_rows()]


def main() -> int:
    """Checks the project, or the folder that the command line names."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent)
    table = tomllib.loads((Path(__file__).parent / "layers.toml").read_text(encoding="utf-8"))
    violations, *languages = check(root, table)
    violations += check_table(root, table)
    for language, layers in zip(("C++", "Python"), languages, strict=True):
        print(f"Folders of {language}, each above all that it uses:")
        for level, folders in enumerate(layers):
            print(f"  {level}  {'  '.join(folders)}")
    for violation in violations:
        print(violation)
    print(f"{len(violations)} violations of tools/layers.toml" if violations else "no circles")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
