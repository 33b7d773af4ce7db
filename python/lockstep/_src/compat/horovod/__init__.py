"""The implementation of Horovod's API; the package `horovod` holds names, signatures and docstrings.

Classes that programs import carry the name of the façade's module in `__module__`. Pickles, saved models and tracebacks
then name the module that programs know. Objects travel by cloudpickle, which the distribution of the façade requires.
"""
