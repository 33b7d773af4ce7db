"""The hook that makes the site: lists, code and the reference, as the pages of the repository have them."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import docs_site

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


@pytest.mark.parametrize(
    ("page", "wanted"),
    [
        ("Text:\n- one\n- two\n", "Text:\n\n- one\n- two\n"),
        ("Text:\n\n- one\n  goes on\n  - deeper\n", "Text:\n\n- one\n    goes on\n    - deeper\n"),
        (
            "1. one:\n   ```python\n   x\n     y\n   ```\n2. two\n",
            "1. one:\n    ```python\n    x\n      y\n    ```\n2. two\n",
        ),
        ("```python\nx\n- y\n  - z\n```\n", "```python\nx\n- y\n  - z\n```\n"),
        ("- one\n\nText.\n  text\n- two\n", "- one\n\nText.\n  text\n\n- two\n"),
        ("| a |\n| --- |\n| b |\n", "| a |\n| --- |\n| b |\n"),
    ],
    ids=["a list after a line", "a nested item", "code in an item", "code", "two lists", "a table"],
)
def test_lists_are_written_as_python_markdown_wants_them(page, wanted):
    assert docs_site.as_python_markdown(page) == wanted


def test_the_reference_has_a_page_for_each_module_that_lists_names():
    assert {"lockstep", "lockstep.data", "lockstep.keras", "lockstep.train"} <= set(docs_site.public_modules())
    nav = (docs_site.ROOT / "mkdocs.yml").read_text()
    for module in docs_site.public_modules():
        assert f"      - {module}: reference/{module}.md\n" in nav
