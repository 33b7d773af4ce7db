"""Horovod's TensorFlow data service (docs/horovod_data_service.md)."""
