"""The implementation of the API of SparseOperationKit; the package `sparse_operation_kit` holds names and docstrings."""
