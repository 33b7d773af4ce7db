import hooks_page


def test_the_page_is_made_from_the_table():
    assert hooks_page.PAGE.read_text(encoding="utf-8") == hooks_page.page(), "run: python tools/hooks_page.py"


def test_each_section_names_each_symbol_of_its_period():
    sections = hooks_page.page().split("\n## ")
    for hook in hooks_page.symbols.TABLE:
        for period in hook.why:
            [section] = [text for text in sections if text.lower().startswith(f"{period.name}\n")]
            assert f"`{hook.symbol.partition(':')[2]}`" in section, (hook.symbol, period.name)


def test_each_row_is_used_by_a_module():
    unused = [hook.symbol for hook, modules in hooks_page.replacing_modules().items() if not modules]
    assert not unused, "delete these rows of the table, or replace the symbols"
