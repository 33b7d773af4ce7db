"""A job of TensorFlow's tf.data service beside a training job, as Horovod starts it (docs/horovod_data_service.md).

Compute job: processes that run dispatchers and workers of tf.data's service. Training job: processes that read from
them. Config: a file with the addresses of the compute job. Registry: the list of dispatchers and workers that rank 0 of
the compute job keeps; both jobs send requests to it over TCP.
"""
