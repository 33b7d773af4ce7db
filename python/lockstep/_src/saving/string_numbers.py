"""The int64 numbers that dynamic tables give string keys: `Fingerprint` of core/base/hash.h, for many strings at once.

Increments name removed string keys by their numbers. A delta needs the strings.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Strings are hashed in groups of this many, of similar length.
_GROUP = 1 << 16
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


def numbers_of(strings: Sequence[bytes], salt: int = 0) -> np.ndarray:
    """Returns the numbers of strings, int64 [N].

    Args:
      strings: the strings, [N].
      salt: 0 gives the number that a string has unless another string of the table has it already; 1 gives the next
        number, and so on.
    """
    lengths = np.fromiter(map(len, strings), np.int64, len(strings))
    order = np.argsort(lengths, kind="stable")
    numbers: np.ndarray = np.empty(len(strings), np.uint64)
    with np.errstate(over="ignore"):  # the function computes modulo 2^64
        for first in range(0, len(strings), _GROUP):
            group = order[first : first + _GROUP]
            numbers[group] = _fingerprints([strings[i] for i in group], lengths[group], salt)
    return numbers.view(np.int64)


def _fingerprints(strings: Sequence[bytes], lengths: np.ndarray, salt: int) -> np.ndarray:
    words = int(lengths.max()) // 8 + 1  # the last word of each string is its rest of less than 8 bytes, filled with 0
    padded = np.array(strings, dtype=f"S{8 * words}").view("<u8").reshape(len(strings), words).astype(np.uint64)
    full: np.ndarray = lengths // 8
    start = _mix(np.array([(salt + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF], np.uint64))
    hashes = start ^ (lengths.astype(np.uint64) * np.uint64(0xA0761D6478BD642F))
    for i in range(words - 1):
        word = padded[:, i]
        hashes = np.where(full > i, _fold(hashes ^ word, 0xE7037ED1A0B428DB) + word, hashes)
    rest = padded[np.arange(len(strings)), full]
    return _mix(_fold(hashes ^ rest, 0x8EBC6AF09C88C6E3) + rest)


def _mix(x: np.ndarray) -> np.ndarray:
    x = x ^ (x >> np.uint64(33))
    x = x * np.uint64(0xFF51AFD7ED558CCD)
    x = x ^ (x >> np.uint64(33))
    x = x * np.uint64(0xC4CEB9FE1A85EC53)
    return x ^ (x >> np.uint64(33))


def _fold(a: np.ndarray, constant: int) -> np.ndarray:
    """Returns the low half of the product of 128 bits, xor its high half, which is computed from 32 x 32 bits."""
    b_low, b_high = np.uint64(constant & 0xFFFFFFFF), np.uint64(constant >> 32)
    a_low, a_high = a & _LOW, a >> _HALF
    middle = a_high * b_low + (a_low * b_low >> _HALF)
    carried = a_low * b_high + (middle & _LOW)
    high = a_high * b_high + (middle >> _HALF) + (carried >> _HALF)
    return a * np.uint64(constant) ^ high
