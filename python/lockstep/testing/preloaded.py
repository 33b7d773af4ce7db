"""The modules that the fork server of tests imports once for all workers."""

import gc

import numpy
import tensorflow

from lockstep import _assembly, data, embedding, train

__all__ = ["_assembly", "data", "embedding", "numpy", "tensorflow", "train"]

# Workers share this memory as long as they do not write to it. A collection in a worker would write to all of it.
gc.collect()
gc.freeze()
