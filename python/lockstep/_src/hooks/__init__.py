"""Symbols of TensorFlow and Keras that this library replaces, and the one mechanism that replaces and restores them.

- `symbols`: the table: each symbol, with its signature, the reason, and when it is replaced and restored.
- `hook`: what a row of the table is; finds the symbol and checks its signature.
- `interception`: replaces symbols, layer over layer, and takes any layer away again.
- `hook_set`: the hooks of a period, which several users may want at the same time.

`tools/hooks_page.py` makes docs/hooks.md from the table. This package imports nothing else of this library.
"""
