"""The tables of the layers of SOK 1.x."""

from lockstep._src.compat.sok.embedding_tables import EmbeddingVariable as _EmbeddingVariable
from lockstep._src.compat.sok.embedding_tables import LayerHandle
from sparse_operation_kit._version import __version__

__all__ = ["DenseEmbeddingLayerHandle", "EmbeddingVariable", "SparseEmbeddingLayerHandle", "__version__"]

# The base of the class of every table: a layer makes it, and `m_var_name` is the name of its files. `capacity` is the
# largest number of keys on a rank, `values` has the table itself.
EmbeddingVariable = _EmbeddingVariable
# The part of a layer that lookups in its table need: `handle`, `initializer`, `compute_dtype`, `combiner`.
DenseEmbeddingLayerHandle = SparseEmbeddingLayerHandle = LayerHandle
