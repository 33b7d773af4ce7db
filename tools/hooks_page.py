"""Writes docs/hooks.md, the page of replaced symbols, from their table.

    python tools/hooks_page.py

Needs the environment of the project, since the table is a module of it.
"""

from pathlib import Path

from lockstep._src.hooks import symbols
from lockstep._src.hooks.hook import ABSENT, VERSIONS, Hook, Period

PAGE = Path(__file__).parent.parent / "docs" / "hooks.md"

_BEGIN = """# Replaced symbols

<!-- Written by tools/hooks_page.py from python/lockstep/_src/hooks/symbols.py. Change the table, and run the tool. -->

Lockstep uses TensorFlow and Keras as PyPI has them. It changes no file of them. While a program trains on several
workers, some of their functions and methods are replaced in memory, and restored afterwards. This page lists each one.

```python
import hybridbackend.tensorflow as hb
from tensorflow.python.training.saver import Saver

own = Saver._build
with hb.scope():
  print(Saver._build is own)   # False: it saves one checkpoint for all workers
print(Saver._build is own)     # True: the last scope has ended
```

## How symbols are replaced

- One mechanism replaces all of them: `Interception`, in `python/lockstep/_src/hooks/interception.py`. It accepts only
  rows of the table, and only in the periods that the row lists.
- Before a symbol is replaced, its signature is compared with the table. `...` stands for parameters that are handed on
  as they come. Another signature is an error, and all symbols stay as they are:

  ```
  cannot replace tensorflow.python.ops.clip_ops:global_norm: wanted (t_list, name=None), found (tensors); with
  tensorflow 2.99.0, keras 3.99.0. Use a tested version: TensorFlow 2.15.1 or 2.21.0
  ```
- Nested scopes, and scopes of several threads, replace symbols once. The last scope that ends restores them, also
  after an error.
- Several periods may replace one symbol. Each adds a layer, and takes only its own layer away.
- Objects keep what they need. An optimizer of TensorFlow 1 that was made in a scope exchanges gradients after it.
- Tests compare the table with all attributes of TensorFlow and Keras before, in and after scopes and jobs.

Modules of Keras 2 are written as those of `tf_keras`. With TensorFlow 2.15 they lie in `keras`.
"""

_END = """
## Beside the table

These changes replace no symbol of TensorFlow or Keras:

| change | from | until |
| --- | --- | --- |
| gradients of this library's operations are registered | `import lockstep` | the process ends |
| classes of this library are registered with Keras, for saved models | `import lockstep.keras` | the process ends |
| `sys.excepthook` and `sys.exit` note how a worker's program ends | the worker joins a job | the process ends |
| the program's modules see TensorFlow 1 as `tensorflow` | `--tf1` | the process ends |
| DeepRec's modules are found below `tensorflow`, if it lacks them | Python starts, with `lockstep-deeprec` | it ends |
"""


def page() -> str:
    """Returns the text of the page."""
    return _BEGIN + "".join(map(_section, symbols.PERIODS)) + _END


def _section(period: Period) -> str:
    groups: dict[tuple[str, ...], list[Hook]] = {}
    for hook in symbols.TABLE:
        if period in hook.why:
            module = hook.symbol.partition(":")[0]
            why = hook.why[period]
            key = (module, _versions(hook), _signature(hook), f"{why} ({hook.only})" if hook.only else why)
            groups.setdefault(key, []).append(hook)
    lines = [
        "",
        f"## {period.name[0].upper()}{period.name[1:]}",
        "",
        f"- replaced: {period.installed}",
        f"- restored: {period.undone}",
        "",
        "| symbol | module | versions | signature | why |",
        "| --- | --- | --- | --- | --- |",
    ]
    for (module, versions, signature, why), hooks in groups.items():
        lines.append(f"| {_names(hooks)} | `{module}` | {versions} | {signature} | {why} |")
    return "\n".join(lines) + "\n"


def _names(hooks: list[Hook]) -> str:
    """Returns the symbols of one module, and the other places that hold the same objects."""
    names = [f"`{hook.symbol.partition(':')[2]}`" for hook in hooks]
    others = []
    for hook in hooks:
        for place in hook.also:
            owner, _, name = place.replace("tensorflow:", "tf.").rpartition(".")
            others.append(f"in `{owner}`" if name == hook.name else f"as `{owner}.{name}`")
    text = ", ".join(names)
    if others:
        text += "; also " + ", ".join(dict.fromkeys(others))
    return text + ("; subclasses that define it" if hooks[0].subclasses else "")


def _versions(hook: Hook) -> str:
    name = hook.library.partition(" ")[0]
    return f"{name} {', '.join(VERSIONS[hook.library])}" + (", where it exists" if hook.optional else "")


def _signature(hook: Hook) -> str:
    return "none: it is added" if hook.signature == ABSENT else f"`{hook.signature}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
