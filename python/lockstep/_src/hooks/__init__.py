"""Symbols of TensorFlow and Keras that this library replaces, and the one mechanism that replaces and restores them.

`symbols` is the table. It lists each symbol with its signature, the reason, and when it is replaced and restored.
`hook` defines a row of it; `signatures` compares what a row relies on with what is found. `interception` replaces
symbols, in layers that go away in any order. `hook_set` keeps the hooks of a period for all who want them.

`tools/hooks_page.py` makes docs/hooks.md from the table. This package imports nothing else of this library.
"""
