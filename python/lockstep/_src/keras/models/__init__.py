"""Models that open the scope themselves: models of Keras 3, and models with Keras' interface in TensorFlow 1 graphs."""
