"""The one exchange of gradients, and its adapters: for optimizers of TensorFlow 1, of Keras 3 and 2, and for tapes."""
