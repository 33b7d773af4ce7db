"""`dir()` of a module also lists the names that it imports on first use."""

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
}


@pytest.mark.parametrize("module", LAZY)
def test_names_that_come_later_are_listed(module):
    found = importlib.import_module(module)
    assert {*LAZY[module], *found.__all__} <= set(dir(found))
