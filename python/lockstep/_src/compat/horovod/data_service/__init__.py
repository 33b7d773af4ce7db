"""A job of TensorFlow's tf.data service beside a training job, as Horovod starts it (docs/horovod_data_service.md).

Compute job: processes that run dispatchers and workers of tf.data's service. Training job: processes that read from
them. Config: the file in which the compute job says where it is. Registry: what rank 0 of the compute job knows of
dispatchers and workers; both jobs ask it over TCP.
"""
