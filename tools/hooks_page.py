"""Writes docs/hooks.md, the page of replaced symbols, from their table.

    PYTHONPATH=python python tools/hooks_page.py          # a part of make docs

The table is a module of the project that imports no TensorFlow.
"""

import functools
import re
from pathlib import Path
from typing import Any

from lockstep._src.hooks import symbols
from lockstep._src.hooks.hook import ABSENT, VERSIONS, Hook, Period

_ROOT = Path(__file__).parent.parent
PAGE = _ROOT / "docs" / "hooks.md"
_SOURCES = _ROOT / "python" / "lockstep" / "_src"

_BEGIN = """# Replaced symbols

<!-- Written by tools/hooks_page.py from python/lockstep/_src/hooks/symbols.py. Change the table, and run make docs. -->

Lockstep uses TensorFlow and Keras as PyPI has them. It changes no file of them. In a scope, in a job and beside dynamic
tables, some of their functions and methods are replaced in memory, and restored afterwards. This page lists each one.
With one worker they are replaced as well, except those with a note such as "(several workers)".

<!-- run: workers=2 -->
```python
import hybridbackend.tensorflow as hb
from tensorflow.python.training.saver import Saver

own = Saver._build
with hb.scope():
  print(Saver._build is own)   # False: it saves one checkpoint for all workers
print(Saver._build is own)     # True: the last scope has ended
```

## How symbols are replaced

- One mechanism replaces all of them: `Interception`, in `python/lockstep/_src/hooks/interception.py`. A row is replaced
  only in the periods that it lists. (A row is an object of class `Hook`. It has nothing to do with a `SessionRunHook`.)
- Overrides of a row's method are replaced without a row of their own: in the subclasses that its line names, and in
  `lockstep.keras.LazyAdam`.
- Before a symbol is replaced, its signature is compared with the table. `...` stands for parameters that are passed on
  as they come. Another signature is an error, and all symbols stay as they are:

  ```
  cannot replace tensorflow.python.ops.clip_ops:global_norm: wanted (t_list, name=None), found (tensors); with
  tensorflow 2.99.0, keras 3.99.0. Use a tested version: TensorFlow 2.15.1, 2.16.2,
  2.17.1, 2.18.1, 2.19.1, 2.20.0, 2.21.0
  ```
- Nested scopes, and scopes of several threads, replace symbols once. The last scope that ends restores them, also
  after an error.
- Several periods may replace one symbol. Each adds a layer, and takes only its own layer away.
- Objects keep what they need. An optimizer of TensorFlow 1 that was made in a scope exchanges gradients after it.
  Variables of Keras 3 that hold a table keep the class that the scope gave them ([below](#beside-the-table)).
- Tests compare the table with all attributes of TensorFlow and Keras before, in and after scopes and jobs.

## Which Keras

`import tensorflow` loads the installed Keras: the package `keras`, or `tf_keras` with `TF_USE_LEGACY_KERAS=1`. Symbols
of Keras are replaced only if it is loaded at the right time:

- A scope looks when the outermost one is entered. It takes Keras 3 if that is loaded with TensorFlow as its backend.
  Otherwise it takes Keras 2, if that is loaded. It never takes both.
- A scope that takes Keras 3 takes Keras RS as well, if that is loaded then. An optimizer that is built in a scope
  raises an error if Keras RS was loaded later.
- A dynamic table takes Keras 3, if that is loaded when the table is made.
- `hvd.DistributedOptimizer` takes the Keras of the given optimizer.
- `hvd.DistributedGradientTape` takes Keras 3, if that is loaded.

## How to read the tables

- "replaced by" names the modules in `python/lockstep/_src` that replace the symbol in this period.
- Modules of Keras 2 are written as modules of `tf_keras`. With TensorFlow 2.15 they lie in `keras`.
"""

_END = """
## Beside the table

These changes replace no symbol of TensorFlow or Keras:

| change | from | until |
| --- | --- | --- |
| variables of Keras 3 that hold a table, and its slots, get a class of this library | their creation | their end |
| gradients of this library's operations are registered | `import lockstep` | the process ends |
| TensorFlow dispatches lookups with a combiner in tables of this library to it | `import lockstep` | the process ends |
| classes of this library are registered with Keras, for saved models | `import lockstep.keras` | the process ends |
| `sys.excepthook` and `sys.exit` note how a worker's program ends | the worker joins a job | the process ends |
| the program's modules see TensorFlow 1 as `tensorflow` | `--tf1` | the process ends |
| DeepRec's modules are found below `tensorflow`, if it lacks them | Python starts, with `lockstep-deeprec` | it ends |

A `keras.Variable` whose value is a sharded table is made with Keras' class, and then becomes a `RowShardedVariable`
(`python/lockstep/_src/keras/hooks/variables.py`). So do the slots of its optimizer. They keep this class when the scope
ends, because they still hold only a shard: reads, assignments and files need methods that know this. The same holds for
dynamic tables (`python/lockstep/_src/keras/dynamic_embedding.py`,
`python/lockstep/_src/tables/dynamic/keras_adapter.py`).

These changes are made to single objects and classes of a program. Modules are those in `python/lockstep/_src`.

| object | changed | by | why | until |
| --- | --- | --- | --- | --- |
| an optimizer of TensorFlow 1 that updates a dynamic table | `_create_slots` | \
`tables/dynamic/tensorflow1_adapter.py` | Slots of a table are columns of it, or slots of a stand-in. | \
`apply_gradients` returns |
| the same | `_zeros_slot`, `_get_or_make_slot`, `_get_or_make_slot_with_initializer` | \
`tables/dynamic/tensorflow1_adapter.py` | Slots of a table are columns of it. | `_create_slots` returns |
| the `CheckpointSaverHook` of a session that has restored a checkpoint | `_get_saver` | `sessions/resumed.py` | \
The session does not write the restored checkpoint again. | its `after_create_session` returns |
| a copy of a `LoggingTensorHook`, on workers that do not log | `_log_tensors`, `_timer` | `sessions/job_hooks.py` | \
The worker takes part in exchanges of the tensors, and logs nothing. The program's own hook stays as it is. | \
the copy is deleted |
| a hook with a period in seconds, on several workers | `_timer` | `sessions/job_hooks.py` | \
Worker 0's clock decides for all workers. | its `end` returns |
| the `CheckpointSaverHook` of a session, on worker 0 | `_listeners` | `sessions/job_hooks.py` | \
The launcher gets a report of each checkpoint. | its `end` returns |
| a `CheckpointSaverHook` or `SummarySaverHook`, on workers other than 0 | `_summary_writer`, `_save_graph_def` | \
`sessions/job_hooks.py` | The worker writes no event files. | the hook is deleted |
| a program's class that is given to `hb.wraps_optimizer` | `compute_gradients`, `apply_gradients` | \
`gradients/tensorflow1_optimizers.py` | Its optimizers exchange gradients, in a scope or not. \
`super(MyOptimizer, self)` needs the same class. | the process ends |
| the weight of a `DynamicEmbedding`, on worker 0 | `_value` | `keras/saved_model_export.py` | \
An exported layer reads a matrix with the rows of all workers. | `lockstep.keras.export` has written the files |
| a sharded weight of a model of Keras, on worker 0 | `__class__`, `_value`, `_shape` | \
`keras/saved_model_export.py` | An exported model has whole, ordinary variables. | \
`lockstep.keras.export` has written the files |
"""


def page() -> str:
    """Returns the text of the page."""
    return _BEGIN + "".join(map(_section, symbols.PERIODS)) + _END


@functools.cache
def replacing_modules() -> dict[Hook, list[str]]:
    """Returns for each row of the table the modules of the library, by their paths in `_src`, whose code names it."""
    modules: dict[Hook, list[str]] = {hook: [] for hook in symbols.TABLE}
    for source in sorted(_SOURCES.rglob("*.py")):
        if source.name.endswith("_test.py"):
            continue
        for name in sorted(set(re.findall(r"\bsymbols\.([A-Z0-9_]+)", source.read_text(encoding="utf-8")))):
            for hook in _rows_of(getattr(symbols, name)):
                modules[hook].append(source.relative_to(_SOURCES).as_posix())
    return modules


def replacing_in(period: Period, hook: Hook) -> list[str]:
    """Returns the modules that replace a symbol in a period.

    A symbol of several periods may have several modules. The result is the ones that replace another
    symbol of only this period, or else the ones that replace no symbol of only another period.
    """
    modules = replacing_modules()
    if len(hook.why) == 1 or len(modules[hook]) == 1:
        return modules[hook]
    alone = {
        other: {m for row, by in modules.items() if list(row.why) == [other] for m in by} for other in symbols.PERIODS
    }
    of_others = set[str]().union(*(by for other, by in alone.items() if other != period))
    own = [module for module in modules[hook] if module in alone[period]]
    return own or [module for module in modules[hook] if module not in of_others]


def _rows_of(constant: Any) -> list[Hook]:
    """Returns the rows in a constant of the table: a row, or a tuple or dictionary of rows. A period has none."""
    if isinstance(constant, Hook):
        return [constant]
    if isinstance(constant, Period):
        return []
    return list(constant.values() if isinstance(constant, dict) else constant)


def _range(versions: tuple[str, ...]) -> str:
    """Returns the first and the last of several versions."""
    return " to ".join(dict.fromkeys((versions[0], versions[-1])))


def _section(period: Period) -> str:
    lines = [
        "",
        f"## {period.name[0].upper()}{period.name[1:]}",
        "",
        f"- replaced: {period.installed}",
        f"- restored: {period.undone}",
    ]
    for library in ("TensorFlow", "Keras 3", "Keras RS", "Keras 2"):
        hooks = [hook for hook in symbols.TABLE if period in hook.why and hook.library == library]
        if hooks:
            lines += ["", f"### {library} ({_range(VERSIONS[library])})", "", *_table(period, hooks)]
    return "\n".join(lines) + "\n"


def _table(period: Period, hooks: list[Hook]) -> list[str]:
    """Returns the lines of a table; symbols that differ only in name share one."""
    groups: dict[tuple[str, ...], list[Hook]] = {}
    for hook in hooks:
        why = f"{hook.why[period]} ({hook.only})" if hook.only else hook.why[period]
        by = ", ".join(f"`{module}`" for module in replacing_in(period, hook))
        groups.setdefault((hook.symbol.partition(":")[0], _signature(hook), by, why), []).append(hook)
    lines = ["| symbol | module | signature | replaced by | why |", "| --- | --- | --- | --- | --- |"]
    for (module, signature, by, why), alike in groups.items():
        lines.append(f"| {_names(alike)} | `{module}` | {signature} | {by} | {why} |")
    return lines


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
    text += "; subclasses that define it" if hooks[0].subclasses else ""
    return text + ("; where it exists" if hooks[0].optional else "")


def _signature(hook: Hook) -> str:
    return "none: it is added" if hook.signature == ABSENT else f"`{hook.signature}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
