"""The exchange of gradients, and its adapters for optimizers of TensorFlow 1, Keras 3 and Keras 2, and for tapes."""
