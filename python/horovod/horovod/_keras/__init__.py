"""Parts of Horovod's API for Keras, for whichever `keras`: `horovod.keras` and `horovod.tensorflow.keras` use them."""
