"""Functions that replace symbols of Keras 3 while a scope is open.

Other modules replace symbols of Keras, too. In a scope, `tables/updates/keras3.py` and `keras2.py` replace symbols for
fused updates, and `keras/models/graph_model.py` the `Model` of Keras 2. Dynamic tables use
`tables/dynamic/keras_adapter.py`. Horovod's optimizers and tapes use `gradients/keras_hooks.py` and
`gradients/keras_optimizers.py`.

docs/hooks.md names the modules of each symbol.
"""
