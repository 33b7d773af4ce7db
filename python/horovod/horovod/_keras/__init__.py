"""What the modules for the different Keras have in common."""
