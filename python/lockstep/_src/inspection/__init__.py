"""`lockstep inspect`: describes checkpoints, exports, and Parquet and ORC files, without loading their content."""
