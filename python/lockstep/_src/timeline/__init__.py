"""`lockstep timeline`: reads the traces of a job's ranks (core/telemetry/trace_file.h), merges and summarizes them."""
