"""Replacing symbols of TensorFlow and Keras, and putting them back."""
