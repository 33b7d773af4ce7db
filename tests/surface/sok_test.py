"""The façade has the names and signatures of SparseOperationKit, and its page lists each with a test that exists.

Signatures follow SOK 2.1.0, and 1.3.0 for what 2.x lacks; parameters and defaults are written down here.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import types
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import sparse_operation_kit as sok
from lockstep._src.compat.sok import job
from tests.surface.definitions import has_python

pytestmark = pytest.mark.oldest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "sok" / "sparse_operation_kit"
PAGE = (ROOT / "docs" / "sok.md").read_text()
TESTS = "python/lockstep/_src/compat/sok/"
# Modules that programs do not name: their names equal the package's.
_PARTS = ("distributed_variable", "dump_load", "dynamic_variable", "lookup", "optimizer", "version_1", "embeddings")

VARIABLE = {
    "initial_value": None,
    "trainable": None,
    "collections": None,
    "validate_shape": True,
    "caching_device": None,
    "name": None,
    "dtype": None,
    "variable_def": None,
    "import_scope": None,
    "constraint": None,
    "distribute_strategy": None,
    "synchronization": None,
    "aggregation": None,
    "shape": None,
    "initializer": None,
    "global_gpu_id": None,
}
SIGNATURES = {
    "init": "(comm_tool='horovod', use_legacy_optimizer=True)",
    "set_comm_tool": "(tool)",
    "filter_variables": "(vars)",
    "Variable": "(*args, **kwargs)",
    "DynamicVariable": (
        "(dimension, initializer=None, var_type=None, name=None, constraint=None, trainable=True, key_type=None, "
        "dtype=None, mode=None, **kwargs)"
    ),
    "DynamicVariable.sparse_read": "(self, indices, name=None)",
    "DynamicVariable.scatter_add": "(self, sparse_delta, use_locking=False, name=None)",
    "DynamicVariable.scatter_sub": "(self, sparse_delta, use_locking=False, name=None)",
    "DynamicVariable.scatter_update": "(self, sparse_delta, use_locking=False, name=None)",
    "DynamicVariable.to_static": "(self, indices)",
    "DynamicVariable.to_dynamic": "(self)",
    "DynamicVariable.is_static": "(self)",
    "DynamicVariable.key_map": "(self, indices)",
    "DistributedVariable.key_map": "(self, indices)",
    "LocalizedVariable.key_map": "(self, indices)",
    "lookup_sparse": "(params, sp_ids, sp_weights=None, combiners=None, use_low_frequency_filter=False)",
    "all2all_dense_embedding": "(param, indices)",
    "sparse_read_and_evict": "(var, indices, name=None)",
    "OptimizerWrapper": "(optimizer)",
    "SGD": "(lr)",
    "SGD.apply_gradients": "(self, grads_and_vars, global_step=None, name=None)",
    "assign": "(var, indices, values)",
    "export": "(var)",
    "dump": "(path, dump_vars, optimizer=None)",
    "load": "(path, load_vars, optimizer=None)",
    "incremental_model_dump": "(sok_vars, time_threshold, sess=None)",
    **{
        f"communication.{name}": "()"
        for name in ("rank", "num_ranks", "local_rank", "id_in_rank", "num_gpu_per_rank", "global_gpu_id", "num_gpus")
    },
    "communication.set_comm_tool": "(tool)",
    "communication.check_comm_tool": "()",
    "communication.alltoall": "(tensor, splits)",
    "communication.allreduce": "(tensor, op)",
    "communication.allgather": "(tensor)",
    "communication.broadcast": "(tensor, root)",
    "Init": "(**kwargs)",
    "split_embedding_variable_from_others": "(variables)",
    "OptimizerScope": "(trainable_variables)",
    "get_embedding": "(name, constructor=None, **kwargs)",
    "Saver": "()",
    "Saver.dump_to_file": "(self, embedding_variable, filepath)",
    "Saver.restore_from_file": "(self, embedding_variable, filepath)",
    "Saver.load_embedding_values": "(self, embedding_variable, tensors)",
    "DistributedEmbedding": (
        "(combiner, max_vocabulary_size_per_gpu, embedding_vec_size, slot_num, max_nnz, max_feature_num=1, "
        "use_hashtable=True, key_dtype=None, embedding_initializer=None, **kwargs)"
    ),
    "All2AllDenseEmbedding": (
        "(max_vocabulary_size_per_gpu, embedding_vec_size, slot_num, nnz_per_slot, dynamic_input=False, "
        "use_hashtable=True, key_dtype=None, embedding_initializer=None, **kwargs)"
    ),
    "TFDistributedEmbedding": (
        "(vocabulary_size, embedding_vec_size, initializer='GlorotNormal', comm_options=None, **kwargs)"
    ),
    "optimizers.Adam": ("(learning_rate=0.001, beta_1=0.9, beta_2=0.999, epsilon=1e-07, name='Plugin_Adam', **kwargs)"),
    "operations.unique": "(x, out_idx=tf.int32, name=None)",
    "operations.unsorted_segment_sum": "(data, segment_ids, num_segments, name=None)",
    "tf.keras.mixed_precision.LossScaleOptimizer": "(optimizer, loss_scale)",
}
# Properties of the original's variables.
PROPERTIES = {
    "DistributedVariable": "global_shape global_gpu_id target_gpu num_gpus",
    "LocalizedVariable": "global_shape global_gpu_id target_gpu num_gpus",
    "DynamicVariable": (
        "size indices dimension key_type handle_dtype backend_type config_dict target_gpu mode num_gpus initializer_str"
    ),
    "SGD": "lr",
}
WRAPPER = ("optimizer", "lr", "get_slot_names", "get_slot", "apply_gradients")


def find(path):
    found = sok
    for name in path.split("."):
        found = getattr(found, name)
    return found


# Promise (sok.md): names and signatures are SOK's, and the page lists each name.
@pytest.mark.parametrize("path", SIGNATURES)
def test_signature(path):
    found = find(path)
    # The signature of TensorFlow's class of variables says nothing.
    is_variable = inspect.isclass(found) and issubclass(found, tf.Variable)
    parameters = inspect.signature(found.__init__ if is_variable else found).parameters.values()
    plain = [p.replace(annotation=p.empty) for p in parameters]
    assert str(inspect.Signature(plain[is_variable:])) == SIGNATURES[path]


@pytest.mark.parametrize("name", PROPERTIES)
def test_properties(name):
    for of_class in PROPERTIES[name].split():
        assert isinstance(inspect.getattr_static(find(name), of_class), property), of_class


@pytest.mark.parametrize(("name", "place"), [("DistributedVariable", "num_gpus"), ("LocalizedVariable", "target_gpu")])
def test_classes_of_variables_take_the_originals_arguments(monkeypatch, name, place):
    monkeypatch.setattr(job, "_tool", "single")
    arguments = {**VARIABLE, place: {"num_gpus": 1, "target_gpu": 0}[place], "initial_value": np.ones([3, 2])}
    variable = find(name)(**arguments)
    assert variable.global_shape == (3, 2) and variable.dtype == tf.float64
    in_order = [arguments[argument] for argument in list(VARIABLE)[:7]]
    assert find(name)(*in_order, **{place: arguments[place]}).global_shape == (3, 2)


def test_wrapped_optimizers_have_the_originals_methods():
    wrapped = sok.OptimizerWrapper(tf.keras.optimizers.SGD(0.5))
    for name in WRAPPER:
        assert hasattr(wrapped, name), name
    parameters = inspect.signature(wrapped.apply_gradients).parameters
    assert [(p.name, p.default) for p in parameters.values()][1:] == [("global_step", None), ("name", None)]


def test_variables_are_filtered(monkeypatch):
    monkeypatch.setattr(job, "_tool", "single")
    plain = [tf.Variable([[0.0]]), tf.keras.layers.Dense(1)]
    plain[1].build([None, 2])
    others = [plain[0], *plain[1].trainable_variables]
    tables = [sok.Variable([[3, 4, 5]]), sok.Variable([[6.0]], mode="localized:0"), sok.DynamicVariable(3)]
    mixed = [tables[0], others[0], tables[2], *others[1:], tables[1]]
    found = sok.filter_variables(mixed)
    assert [[id(v) for v in part] for part in found] == [
        [id(v) for v in (tables[0], tables[2], tables[1])],
        [id(v) for v in others],
    ]


def test_operations_for_gpus_are_errors_that_name_another():
    for module in (sok, importlib.import_module("sparse_operation_kit.experiment")):
        with pytest.raises(NotImplementedError, match="lookup_forward: .* no counterpart here; use sok.lookup_sparse"):
            module.raw_ops.lookup_forward  # noqa: B018
    assert not hasattr(sok.raw_ops, "nothing")


@pytest.mark.parametrize("tool", ["single", "horovod"])
def test_a_rank_stands_for_a_gpu(monkeypatch, tool):
    monkeypatch.setattr(job, "_tool", None)
    with pytest.raises(RuntimeError):
        sok.communication.check_comm_tool()
    sok.set_comm_tool(tool)
    assert sok.communication.check_comm_tool() is None
    questions = [name for name in sok.communication.__all__ if SIGNATURES[f"communication.{name}"] == "()"]
    questions.remove("check_comm_tool")
    numbers = {name: getattr(sok.communication, name)() for name in questions}
    ones = {"num_ranks", "num_gpus", "num_gpu_per_rank"}
    assert numbers == {name: int(name in ones) for name in questions} and len(questions) == 7


# The page.


def modules():
    """Returns the modules of the package that programs name."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if not parts[-1].endswith("_test") and parts[0] not in ("_version",):
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            if not parts or ".".join(parts) not in _PARTS:
                yield ".".join(("sparse_operation_kit", *parts))


def _rows():
    """Yields the modules, the names, and the tests of each row of the page's tables of names."""
    section = PAGE.split("## Names\n")[1].split("\n## ")[0]
    for table in section.split("\n**")[1:]:
        title, *lines = table.splitlines()
        of_table = re.findall(r"`(sparse_operation_kit[\w.]*)`", title)
        for line in lines:
            cells = line.strip("|").split(" | ")
            if len(cells) < 3 or "`" not in line:
                continue
            of_row = of_table or re.findall(r"`([\w.]+)`", cells.pop(0))
            names = re.findall(r"`(\w+)`", cells[0])
            tests = re.findall(r"`([\w/]+\.py)::(\w+)`", " ".join(cells[1:]))
            yield of_row, names, tests, "table" in cells[1]


MODULES, ROWS = list(modules()), list(_rows())


# Promise (sok.md): names and signatures are SOK's, and the page lists each name.
@pytest.mark.parametrize("module", MODULES)
def test_the_page_lists_every_name(module):
    found = importlib.import_module(module)
    assert found.__all__ is not None
    listed = {name for of, names, *_ in ROWS if module in of for name in names}
    assert listed >= set(found.__all__), set(found.__all__) - listed


@pytest.mark.parametrize(("of", "name"), [(of[0], name) for of, names, *_ in ROWS for name in names])
def test_the_pages_names_are_there(of, name):
    assert hasattr(importlib.import_module(of), name)


# Promise (sok.md): names and signatures are SOK's, and the page lists each name.
def test_every_row_has_a_test_that_exists():
    assert len(ROWS) > 40
    for _, names, tests, is_elsewhere in ROWS:
        assert tests or is_elsewhere, names
        for file, name in tests:
            path = ROOT / (file if "/" in file else TESTS + file)
            assert has_python(ast.parse(path.read_text()), [name]), f"{file}::{name}"


def _documented(value, name):
    """Yields what has to have a docstring: a public value, and the public members of a class of this project.

    Methods that only choose between TensorFlow's methods are TensorFlow's.
    """
    if isinstance(value, types.ModuleType) or callable(value):
        yield name, value
    if inspect.isclass(value):
        for member, found in vars(value).items():
            is_own = "tensorflow" not in getattr(found, "__module__", "")
            if not member.startswith("_") and is_own and (inspect.isroutine(found) or isinstance(found, property)):
                yield f"{name}.{member}", found


@pytest.mark.parametrize("module", MODULES)
def test_public_values_have_docstrings(module):
    found = importlib.import_module(module)
    assert found.__doc__
    for name in found.__all__:
        for path, value in _documented(getattr(found, name), name):
            assert inspect.getdoc(value), f"{module}.{path}"
