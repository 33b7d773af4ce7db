"""Parts of Horovod's API for any package of Keras: `horovod.keras` and `horovod.tensorflow.keras` use them."""
