"""The implementation of SparseOperationKit's API; the package `sparse_operation_kit` holds names and docstrings."""
