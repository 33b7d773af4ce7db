"""Models that open the scope themselves: of Keras 3, and of Keras' interface in graphs of TensorFlow 1."""
