"""Functions that replace symbols of Keras 3 while a scope is open."""
