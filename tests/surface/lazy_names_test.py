"""`dir()` of a public module lists its public names only, and also those that it imports on first use."""

import importlib

import pytest

pytestmark = pytest.mark.oldest

# Module -> names that it does not have before their first use.
LAZY = {
    "deeprec": ["CollectiveStrategy", "get_embedding_variable"],
    "horovod.keras": ["elastic"],
    "horovod.tensorflow": ["SyncBatchNormalization", "elastic"],
    "horovod.tensorflow.keras": ["elastic"],
    "hybridbackend.tensorflow.keras": ["DynamicEmbedding", "LazyAdam", "Model", "export"],
    "lockstep": ["context", "data", "keras", "scope"],
    "lockstep.keras": ["DistributedEmbedding", "DynamicEmbedding", "LazyAdam", "Model", "TableConfig", "export"],
    "lockstep.train": ["AdamOptimizer"],
    "sparse_operation_kit": ["experiment", "optimizers", "raw_ops"],
}


@pytest.mark.parametrize("module", LAZY)
def test_names_that_come_later_are_listed(module):
    found = importlib.import_module(module)
    assert {*LAZY[module], *found.__all__} <= set(dir(found))


PUBLIC = [
    *LAZY,
    *("horovod", "hybridbackend", "hybridbackend.tensorflow", "hybridbackend.tensorflow.train"),
    *("lockstep.data", "lockstep.embedding", "lockstep.launch", "lockstep.metrics", "lockstep.ray"),
]


@pytest.mark.parametrize("module", PUBLIC)
def test_names_that_a_module_only_uses_are_not_listed(module):
    found = importlib.import_module(module)
    public = {*getattr(found, "__all__", ()), *LAZY.get(module, ())}
    for name in dir(found):
        # Names of Keras depend on its version: for some of them, an old Keras raises an error.
        if name.startswith("_") or name in public or module.endswith(".keras"):
            continue
        value = getattr(found, name)
        own_module = getattr(value, "__name__", "") == f"{module}.{name}"
        assert own_module or name.endswith("Optimizer"), name
