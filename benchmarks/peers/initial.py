"""Initial values of variables by their names, the same in every system."""

from __future__ import annotations

import zlib

import numpy as np

TABLE_LIMIT = 0.1


def value(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the initial value of a variable: float32 of this shape.

    Tables are uniform in [-0.1, 0.1), kernels [inputs, outputs] by Glorot, and biases zero, as in models.py. The seed
    depends only on the name.
    """
    if name.endswith("bias"):
        return np.zeros(shape, np.float32)
    limit = np.float32((6 / sum(shape)) ** 0.5 if name.endswith("kernel") else TABLE_LIMIT)
    random = np.random.default_rng(zlib.crc32(name.encode()))
    values = random.random(shape, np.float32)
    values *= 2 * limit
    values -= limit
    return values
