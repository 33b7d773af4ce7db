"""A hook of MkDocs: it makes a site of README, docs/, and the files that they link to.

The pages' links are written for the repository, and a test follows them there (tests/surface/links_test.py). MkDocs
knows only files below docs/. So this hook adds README.md as the first page, and other files outside of docs/ under
their own paths. It rewrites the links between these places; a strict build then checks each link and each anchor.

It also writes the reference: a page for each public module, with the public names and their docstrings. mkdocstrings
reads the docstrings without importing anything, so .venv-docs has no TensorFlow.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # .venv-docs has these; the tests of this module do without
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import File, Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = "docs"
FIRST_PAGE = "README.md"
PACKAGE = "python/lockstep"

# The name is one of two classes, by whether the program executes eagerly.
_CHOSEN_AT_RUN_TIME = {"Model": "lockstep._src.keras.models.model"}

_LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
_FENCED = re.compile(r"(^ *```.*?^ *```$)", re.M | re.S)
# tests/scripts/page_blocks.py reads these; readers of the site have no use for them.
_MARKS = re.compile(r"^<!-- .*?-->\n", re.M | re.S)
_ITEM = re.compile(r" *([-*]|\d+\.) ")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the files outside of docs/ that pages link to, and the pages of the reference."""
    pages = [FIRST_PAGE, *(f"{DOCS}/{file.src_uri}" for file in files.documentation_pages())]
    seen = set(pages)
    files.append(_added(FIRST_PAGE, config))
    while pages:
        page = pages.pop()
        for target in _targets(page) - seen:
            seen.add(target)
            if _is_outside(target) and (ROOT / target).is_file():
                files.append(_added(target, config))
                pages += [target] if target.endswith(".md") else []
    for module in public_modules():
        files.append(_generated(config, f"reference/{module}.md", content=reference(module)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Returns the page with links between places in the site, in MkDocs' dialect."""
    source = _in_repository(page.file.src_uri)
    here = PurePosixPath(page.file.src_uri).parent

    def moved(link: re.Match[str]) -> str:
        if "://" in link[2]:
            return link[0]
        return link[1] + os.path.relpath(_in_site(_target(source, link[2])), here) + link[3]

    parts = _FENCED.split(markdown)
    parts[::2] = [_LINK.sub(moved, _MARKS.sub("", part)) for part in parts[::2]]
    return as_python_markdown("".join(parts))


def as_python_markdown(text: str) -> str:
    """Returns a page's text as Python-Markdown wants it: blank lines before lists, four columns for nested items."""
    lines: list[str] = []
    in_list, fence, deeper = False, False, 0
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip())
        marks = line.lstrip().startswith("```")
        if not fence:
            if line and not indent and not _ITEM.match(line):
                # A line without indentation continues an item, or ends the list after a blank line.
                in_list = in_list and bool(lines) and lines[-1] != ""
            elif _ITEM.match(line):
                if not in_list and lines and lines[-1]:
                    lines.append("")
                in_list = True
            deeper = 4 - indent if in_list and indent in (2, 3) else 0
        fence ^= marks
        lines.append(" " * deeper + line if line else line)
    return "\n".join(lines)


def _targets(page: str) -> set[str]:
    """Returns the files that a page links to, as paths in the repository."""
    text = "".join(_FENCED.split((ROOT / page).read_text())[::2])
    return {_target(page, link) for _, link, _ in _LINK.findall(text) if "://" not in link}


def _target(page: str, link: str) -> str:
    return os.path.normpath((PurePosixPath(page).parent / link).as_posix())


def _is_outside(path: str) -> bool:
    return not path.startswith(f"{DOCS}/")


def _in_site(path: str) -> str:
    """Returns the place in the site of a file of the repository."""
    if path == FIRST_PAGE:
        return "index.md"
    return path if _is_outside(path) else path.removeprefix(f"{DOCS}/")


def _in_repository(uri: str) -> str:
    if uri == "index.md":
        return FIRST_PAGE
    return f"{DOCS}/{uri}" if (ROOT / DOCS / uri).exists() else uri


def _added(path: str, config: MkDocsConfig) -> File:
    return _generated(config, _in_site(path), abs_src_path=str(ROOT / path))


def _generated(config: MkDocsConfig, uri: str, **source: str) -> File:
    from mkdocs.structure.files import File

    return File.generated(config, uri, **source)


def public_modules() -> list[str]:
    """Returns the public modules of the library that list their names, such as 'lockstep.data'."""
    modules = [*(ROOT / PACKAGE).glob("[a-z]*.py"), *(ROOT / PACKAGE).glob("[a-z]*/__init__.py")]
    names = [".".join(path.relative_to(ROOT / "python").with_suffix("").parts) for path in modules if _names(path)]
    return ["lockstep", *sorted(name.removesuffix(".__init__") for name in names)]


def reference(module: str) -> str:
    """Returns the page of a public module: its docstring, and each public name with its docstring."""
    path = ROOT / "python" / Path(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    lazy = {**_CHOSEN_AT_RUN_TIME, **_exports(path)}
    lines = [f"# `{module}`", "", ast.get_docstring(ast.parse(path.read_text())) or "", ""]
    for name in sorted(_names(path), key=str.lower):
        lines += [f"::: {lazy.get(name, module)}.{name}", "    options:", f"      heading: {module}.{name}", ""]
    return "\n".join(lines)


def _names(path: Path) -> list[str]:
    """Returns the names in a module's `__all__`."""
    return _constant(path, "__all__") or list(_exports(path))


def _exports(path: Path) -> dict[str, str]:
    """Returns the names that a module imports at their first use, with the modules that hold them."""
    return _constant(path, "_EXPORTS") or {}


def _constant(path: Path, name: str) -> object:
    """Returns the literal that a module assigns to a name; None if there is no such literal."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == name:
            try:
                return ast.literal_eval(node.value)
            except ValueError:
                return None
    return None
