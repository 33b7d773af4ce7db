import ast

import hooks_page
import pytest


def test_the_page_is_made_from_the_table():
    assert hooks_page.PAGE.read_text(encoding="utf-8") == hooks_page.page(), "run: make docs"


def test_each_section_names_each_symbol_of_its_period():
    sections = hooks_page.page().split("\n## ")
    for hook in hooks_page.symbols.TABLE:
        for period in hook.why:
            [section] = [text for text in sections if text.lower().startswith(f"{period.name.lower()}\n")]
            assert f"`{hook.symbol.partition(':')[2]}`" in section, (hook.symbol, period.name)


def test_each_row_is_used_by_a_module():
    unused = [hook.symbol for hook, modules in hooks_page.replacing_modules().items() if not modules]
    assert not unused, "delete these rows of the table, or replace the symbols"


def test_each_period_of_a_row_has_modules_of_its_own():
    for hook, modules in hooks_page.replacing_modules().items():
        by = [hooks_page.replacing_in(period, hook) for period in hook.why]
        assert all(by), hook.symbol
        assert set(modules) == {module for of_period in by for module in of_period}, hook.symbol


def test_replacing_modules_are_those_of_the_period():
    symbols = hooks_page.symbols
    by = {period: hooks_page.replacing_in(period, symbols.KERAS_ADD_SLOT) for period in symbols.KERAS_ADD_SLOT.why}
    assert by == {symbols.SCOPE: ["keras/hooks/variables.py"], symbols.TABLES: ["tables/dynamic/keras_adapter.py"]}


def test_the_models_of_keras_2_stand_under_keras_2():
    [scope] = [text for text in hooks_page.page().split("\n## ") if text.startswith("Scope\n")]
    assert "`compat.v1.keras.Model`" in scope.partition("### Keras 2")[2]


@pytest.mark.parametrize("module", ["keras/saved_model_export.py", "sessions/job_hooks.py"])
def test_the_page_names_each_attribute_that_a_module_assigns_to_objects_of_tensorflow_and_keras(module):
    tree = ast.parse((hooks_page._SOURCES / module).read_text(encoding="utf-8"))
    stored = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    assigned = {node.attr for node in stored if node.attr.startswith("_") and ast.unparse(node.value) != "self"}
    rows = "".join(line for line in hooks_page.page().splitlines() if f"| `{module}` |" in line)
    assert assigned, "the module assigns none: delete its rows of the page, and this case"
    assert not [name for name in assigned if f"`{name}`" not in rows]
