"""Symbols of TensorFlow and Keras that this library replaces, and the one mechanism that replaces and restores them.

`symbols` is the table. It lists each symbol with its signature, the reason, and when it is replaced and restored.
`hook` defines a row of it, the class `Hook`; a hook of a session, such as a `SessionRunHook`, is something else.
`signatures` compares the signature that a row relies on with the real one. `interception` replaces symbols, in layers
that may be removed in any order. `hook_set` shares the symbols of a period between its users.

`tools/hooks_page.py` makes docs/hooks.md from the table. This package imports nothing else of this library.
"""
