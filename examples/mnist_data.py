"""Pictures of digits in the shape of MNIST's. This module draws them; nothing is downloaded.

A digit looks as on a seven-segment display. Its position and brightness vary, and there is noise. A linear model
recognizes most digits, a small convolutional one nearly all.
"""

import numpy as np

_SIDE, _NOISE = 28, 64
# The size of a glyph; its strokes are 2 wide.
_HEIGHT, _WIDTH = 15, 9
# The strokes of each digit: top, top left, top right, middle, bottom left, bottom right, bottom.
_STROKES = (
    "1110111",
    "0010010",
    "1011101",
    "1011011",
    "0111010",
    "1101011",
    "1101111",
    "1010010",
    "1111111",
    "1111011",
)
_BOXES = (  # rows and columns of each stroke
    (slice(0, 2), slice(0, 9)),
    (slice(0, 8), slice(0, 2)),
    (slice(0, 8), slice(7, 9)),
    (slice(6, 8), slice(0, 9)),
    (slice(7, 15), slice(0, 2)),
    (slice(7, 15), slice(7, 9)),
    (slice(13, 15), slice(0, 9)),
)


def load_data(train=60000, test=10000, seed=0):
    """Returns ((images, labels), (images, labels)), for training and for a test, as Keras' `mnist.load_data` does.

    Args:
      train: The number of pictures for training.
      test: The number of pictures for the test.
      seed: Determines the pictures.

    Returns:
      images: uint8 [pictures, 28, 28]; labels: uint8 [pictures], 0 to 9.
    """
    generator = np.random.default_rng(seed)
    return _draw(generator, train), _draw(generator, test)


def _draw(generator, count):
    glyphs = np.zeros([10, _HEIGHT, _WIDTH], np.float32)
    for digit, strokes in enumerate(_STROKES):
        for stroke, box in zip(strokes, _BOXES, strict=True):
            glyphs[digit][box] += int(stroke)
    glyphs = np.minimum(glyphs, 1)
    labels = generator.integers(0, 10, count, np.uint8)
    # Near the middle, as in MNIST.
    top = generator.integers(5, 9, count)
    left = generator.integers(7, 12, count)
    brightness = generator.uniform(0.5, 1, count).astype(np.float32)
    images = generator.integers(0, _NOISE, [count, _SIDE, _SIDE], np.uint8)
    rows = top[:, np.newaxis, np.newaxis] + np.arange(_HEIGHT)[:, np.newaxis]
    columns = left[:, np.newaxis, np.newaxis] + np.arange(_WIDTH)
    drawn = glyphs[labels] * brightness[:, np.newaxis, np.newaxis] * (255 - _NOISE)
    images[np.arange(count)[:, np.newaxis, np.newaxis], rows, columns] += drawn.astype(np.uint8)
    return images, labels
