import random
from pathlib import Path

import check_layers
import pytest

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

TOOLS = Path(__file__).parent
TABLE = check_layers.tomllib.loads((TOOLS / "layers.toml").read_text(encoding="utf-8"))


def _check(root: Path, files: dict[str, str]) -> list[str]:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return [str(violation) for violation in check_layers.check(root, TABLE).violations]


def test_the_project_keeps_its_layers():
    assert [str(violation) for violation in check_layers.check(TOOLS.parent, TABLE).violations] == []


def test_the_table_has_rows_of_what_there_is_in_their_order():
    assert [str(violation) for violation in check_layers.check_table(TOOLS.parent, TABLE)] == []


def test_the_project_is_really_read():
    paths = check_layers.tracked_files(TOOLS.parent)
    assert "core/base/status.h" in paths
    assert "python/lockstep/launch/local/supervised_job.py" in paths
    assert not [path for path in paths if path.startswith((".venv", "build"))]


@pytest.mark.parametrize(
    ("path", "line", "message"),
    [
        (
            "core/base/x.h",
            '#include "core/comm/job/context.h"',
            "core/base may not include core/comm/job/context.h (core/comm/job)",
        ),
        ("core/comm/x.cc", '#include "core/columnar/reader.h"', "core/comm may not include core/columnar/reader.h"),
        (
            "core/embedding/x.h",
            '#include "core/comm/job/context.h"',
            "core/embedding may not include core/comm/job/context.h",
        ),
        ("core/comm/shm/x.cc", '#include "core/comm/gloo/x.h"', "core/comm/shm may not include core/comm/gloo/x.h"),
        ("core/sharding/x.cc", '#  include "core/capi/capi.h"', "core/sharding may not include core/capi/capi.h"),
        ("core/comm/x.cc", '#include "core/testing/ranks.h"', "core/comm may not include core/testing/ranks.h"),
        ("core/comm/x.cc", '#include "core/unheard_of/x.h"', "core/unheard_of/x.h lies in no layer"),
        ("core/sharding/x.cc", '#include "tf/bridge/x.h"', "core/sharding may not include tf/bridge/x.h (tf/bridge)"),
        ("core/comm/x.cc", "#include <tensorflow/core/framework/op.h>", "TensorFlow's headers belong in tf"),
        ("tf/data/x.cc", '#include "parquet/arrow/reader.h"', "Arrow's headers belong in core/columnar/arrow"),
        (
            "core/comm/shm/x.cc",
            '#include "core/comm/job/context.h"',
            "core/comm/shm may not include core/comm/job/context.h",
        ),
        ("core/comm/shm/x.cc", "#include <cuda_runtime.h>", "CUDA's headers belong in core/device"),
        ("tf/bridge/x.cc", "#include <Python.h>", "Python's headers belong nowhere here"),
        ("tf/comm/x.cc", '#include "tf/graph/x.h"', "tf/comm may not include tf/graph/x.h (tf/graph)"),
        ("tf/metrics/x.cc", '#include "core/sharding/x.h"', "tf/metrics may not include core/sharding/x.h"),
        (
            "tf/data/x.cc",
            'auto* home = std::getenv("HOME");',
            "getenv (settings are read in one place) belongs in core/base",
        ),
        (
            "core/comm/x.h",
            "#ifdef __linux__",
            "a preprocessor condition (choose at run time) belongs in core/base/mutex.h",
        ),
        ("core/comm/named/x.cc", '#include "core/comm/named/test_lane.h"', "core/comm/named/test_lane.h is for tests"),
        ("core/nowhere/x.h", "", "lies in no layer"),
        ("tf/x.cc", "", "lies in no layer"),
    ],
)
def test_a_wrong_cpp_line_is_found(tmp_path, path, line, message):
    found = _check(tmp_path, {path: f"// one\n\n{line}\n"})
    assert len(found) == 1
    assert found[0].startswith(f"{path}:{3 if line else 1}: ")
    assert message in found[0]


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("core/comm/x_test.cc", '#include "core/testing/ranks.h"'),
        ("core/comm/named/test_lane.h", '#include "core/testing/job.h"'),
        ("core/comm/named/x_test.cc", '#include "core/comm/named/test_lane.h"'),
        ("core/comm/job/x.cc", '#include "core/comm/shm/x.h"'),
        ("core/comm/shm/x.cc", '#include "core/comm/collective/communicator.h"'),
        ("core/sharding/x.cc", '#include "core/comm/collective/communicator.h"'),
        ("core/base/env.cc", 'return std::getenv("HOME");'),
        ("core/base/env.h", "#ifndef LOCKSTEP_CORE_BASE_ENV_H_"),
        ("core/comm/x.cc", '// std::getenv and "#if" in words'),
        ("core/comm/x.cc", 'Status("say \\" getenv(HOME)");'),
        ("tf/bridge/x.cc", "#include <tensorflow/core/framework/op.h>"),
        ("core/comm/x.cc", "#include <vector>"),
    ],
)
def test_a_right_cpp_line_passes(tmp_path, path, line):
    assert _check(tmp_path, {path: line + "\n"}) == []


@pytest.mark.parametrize(
    ("path", "line", "message"),
    [
        ("python/lockstep/launch/x.py", "import tensorflow as tf", "standard library only, not tensorflow"),
        ("python/lockstep/launch/local/x.py", "import numpy", "standard library only, not numpy"),
        (
            "python/lockstep/launch/x.py",
            "from lockstep._src import context",
            "lockstep.launch may not import lockstep._src",
        ),
        ("python/lockstep/launch/x.py", "from .. import testing", "lockstep.launch may not import lockstep"),
        (
            "python/lockstep/launch/x.py",
            "import importlib; importlib.import_module('tensorflow')",
            "standard library only",
        ),
        ("python/lockstep/launch/x.py", "def f():\n  import numpy", "standard library only, not numpy"),
        ("python/lockstep/_src/x.py", "import hybridbackend.tensorflow", "lockstep._src may not import hybridbackend"),
        (
            "python/lockstep/_src/x.py",
            "from lockstep.launch.cli import main",
            "lockstep._src may not import lockstep.launch",
        ),
        ("python/lockstep/_src/x.py", "from tests import model", "lockstep._src may not import tests"),
        (
            "python/hybridbackend/hybridbackend/x.py",
            "from lockstep._src import y",
            "hybridbackend may not import lockstep._src",
        ),
        ("python/hybridbackend/hybridbackend/x.py", "import horovod", "hybridbackend may not import horovod"),
        ("python/lockstep/_src/compat/horovod/x.py", "import horovod", "compat.horovod may not import horovod"),
        ("python/stranger/x.py", "", "lies in no layer"),
    ],
)
def test_a_wrong_import_is_found(tmp_path, path, line, message):
    found = _check(tmp_path, {path: line + "\n", "python/lockstep/_src/engine/context.py": ""})
    assert len(found) == 1
    assert message in found[0]


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("python/lockstep/launch/x.py", "import os, json\nfrom lockstep.launch import cli"),
        ("python/lockstep/launch/x_test.py", "import pytest"),
        ("python/lockstep/launch/tf1.py", "import importlib\nimportlib.import_module('tensorflow')"),
        ("python/lockstep/_src/x.py", "import tensorflow\nfrom . import y\nfrom lockstep._src.y import z"),
        ("python/lockstep/__init__.py", "from lockstep._src.engine.context import context"),
        ("python/hybridbackend/hybridbackend/run.py", "from lockstep.launch import main"),
        ("python/lockstep/_src/compat/horovod/x_test.py", "import horovod.tensorflow"),
        ("tests/x_test.py", "from lockstep._src import y\nimport hybridbackend"),
    ],
)
def test_a_right_import_passes(tmp_path, path, line):
    assert _check(tmp_path, {path: line + "\n"}) == []


def test_a_file_that_is_too_long_is_found(tmp_path):
    found = _check(tmp_path, {"core/base/x.cc": "\n" * 801})
    assert found == ["core/base/x.cc:801: 801 lines, at most 800: split it"]


def test_an_include_that_closes_a_circle_is_found(tmp_path):
    files = {
        "core/base/a.h": '#include "core/base/b.h"',
        "core/base/b.h": "",
        "core/base/b.cc": '#include "core/base/b.h"\n#include "core/base/a.h"',
        "core/base/a_test.cc": '#include "core/testing/x.h"',  # tests close no circle
        "core/testing/x.h": '#include "core/base/a.h"',
    }
    assert _check(tmp_path, {path: text + "\n" for path, text in files.items()}) == [
        "core/base/a.h:1: core/base/a uses core/base/b: one of a circle of 2 files",
        "core/base/b.cc:2: core/base/b uses core/base/a: one of a circle of 2 files",
    ]
    found = check_layers.check(tmp_path, TABLE)
    assert found.cpp_folders == [["core/base"], ["core/testing"]]


def test_an_import_that_closes_a_circle_is_found(tmp_path):
    files = {
        "python/lockstep/_src/engine/__init__.py": "",
        "python/lockstep/_src/graph/__init__.py": "",
        "python/lockstep/_src/engine/a.py": "def f():\n    from lockstep._src.engine import b",  # lazily
        "python/lockstep/_src/engine/b.py": "from lockstep._src.engine.a import f",
        "python/lockstep/_src/graph/c.py": "from lockstep._src.engine import a",
        "python/lockstep/_src/engine/a_test.py": "from lockstep._src.graph import c",  # tests close no circle
    }
    assert _check(tmp_path, {path: text + "\n" for path, text in files.items()}) == [
        f"python/lockstep/_src/engine/{place} uses lockstep._src.engine.{used}: one of a circle of 2 files"
        for place, used in (("a.py:2: lockstep._src.engine.a", "b"), ("b.py:1: lockstep._src.engine.b", "a"))
    ]
    found = check_layers.check(tmp_path, TABLE)
    assert found.python_folders == [["lockstep._src.engine"], ["lockstep._src.graph"]]


@pytest.mark.parametrize("condition", ["TYPE_CHECKING", "typing.TYPE_CHECKING"])
def test_an_import_for_types_that_closes_a_circle_is_found(tmp_path, condition):
    files = {
        "python/lockstep/_src/graph/c.py": f"if {condition}:\n    from lockstep._src.graph.d import D",
        "python/lockstep/_src/graph/d.py": "from lockstep._src.graph.c import C",
    }
    assert _check(tmp_path, {path: text + "\n" for path, text in files.items()}) == [
        f"python/lockstep/_src/graph/{place} uses lockstep._src.graph.{used}: one of a circle of 2 files"
        for place, used in (("c.py:2: lockstep._src.graph.c", "d"), ("d.py:1: lockstep._src.graph.d", "c"))
    ]


def test_a_private_name_of_another_file_is_found(tmp_path):
    files = {
        "python/lockstep/_src/engine/a.py": "_x = 1\n",
        "python/lockstep/_src/engine/b.py": "from lockstep._src.engine import a\n\nprint(a._x)\n",
        "python/lockstep/_src/engine/b_test.py": "from lockstep._src.engine.a import _x\n",  # tests may
        "python/horovod/horovod/tensorflow/util.py": "_executing_eagerly = _other = 1\n",
        "python/horovod/horovod/tensorflow/__init__.py": (
            "from horovod.tensorflow.util import _executing_eagerly, _other\n"  # the table permits the first
        ),
    }
    assert _check(tmp_path, files) == [
        "python/horovod/horovod/tensorflow/__init__.py:1: _other is private to horovod.tensorflow.util",
        "python/lockstep/_src/engine/b.py:3: a._x is private to lockstep._src.engine.a",
    ]


@pytest.mark.parametrize("path", ["python/lockstep/_src/engine/a.py", "tests/scope/a_test.py", "tools/a.py"])
def test_a_function_that_is_too_long_is_found(tmp_path, path):
    longest = "def f():\n" + '    """One.\n\n    Two.\n    """\n' + "    print()\n" * 59
    too_long = "class C:\n    async def g(self):\n" + "        print()\n" * 60
    assert _check(tmp_path, {path: longest + "\n\n" + too_long}) == [
        f"{path}:68: g has 61 lines without its docstring, at most 60: split it"
    ]


def test_a_package_without_a_row_is_found(tmp_path):
    _check(tmp_path, {"python/lockstep/_src/attic/__init__.py": "", "python/lockstep/_src/attic/x.py": ""})
    found = [violation.message for violation in check_layers.check_table(tmp_path, TABLE)]
    assert "lockstep._src.attic has no row" in found
    assert "lockstep._src.engine does not exist" in found


def test_a_folder_without_a_row_is_found(tmp_path):
    _check(tmp_path, {"tf/bridge/x.h": "", "tf/attic/x.h": "", "core/x.cu": "", "tf/notes/x.md": "", "cmake/x.h": ""})
    found = [violation.message for violation in check_layers.check_table(tmp_path, TABLE)]
    assert [message for message in found if message.endswith("has no row")] == [
        "core has no row",
        "tf/attic has no row",
    ]


def test_a_wrong_row_is_found():
    rows = {"a": [], "b": ["a", "c"], "c": ["b"], "gone": ["a"]}
    found = check_layers.check_rows(rows, exists=lambda layer: layer != "gone")
    assert [violation.message for violation in found] == [
        "b may use c, which is not listed above it",
        "gone does not exist",
    ]


def _uses(**uses: str) -> check_layers.Uses:
    """Returns a graph of names of one letter: a="bc" says that a uses b and c."""
    graph = check_layers.Uses()
    for name, used in uses.items():
        for line, other in enumerate(used, 1):
            graph.add(name, other, f"{name}.h", line)
    return graph


def test_names_lie_above_all_that_they_use():
    uses = _uses(d="bc", b="a", c="a", e="a")
    assert uses.layers() == [["a"], ["b", "c", "e"], ["d"]]
    assert list(uses.circles("folders")) == []


def test_every_use_of_a_circle_is_named():
    uses = _uses(a="b", b="ca", c="ad", d="d", e="a")
    assert [str(violation) for violation in uses.circles("folders")] == [
        "a.h:1: a uses b: one of a circle of 3 folders",
        "b.h:1: b uses c: one of a circle of 3 folders",
        "b.h:2: b uses a: one of a circle of 3 folders",
        "c.h:1: c uses a: one of a circle of 3 folders",
    ]
    assert uses.layers() == [["d"], ["a", "b", "c"], ["e"]]


@pytest.mark.parametrize("seed", range(20))
def test_components_are_names_that_reach_each_other(seed):
    chance = random.Random(seed)
    names = "abcdefgh"
    uses = {name: {other: () for other in names if chance.random() < 0.15} for name in names}
    reached = {name: _reached(uses, name) for name in names}
    components = check_layers.strongly_connected(uses)
    assert sorted(sum(components, [])) == list(names)
    for index, component in enumerate(components):
        for name in component:
            assert set(component) == {name} | {other for other in reached[name] if name in reached[other]}
            assert reached[name] <= set(sum(components[: index + 1], []))


def _reached(uses: dict[str, dict[str, tuple[()]]], start: str) -> set[str]:
    """Returns the names that `start` uses, directly or through others."""
    reached: set[str] = set()
    waiting = list(uses[start])
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += uses[name]
    return reached
