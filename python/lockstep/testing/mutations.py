"""Damaged inputs, for tests of functions that read text or files from other programs.

This is the Python side of `core/fuzzing/fuzz.h`. It mutates well-formed inputs, in the same way each time.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence

SECONDS = "LOCKSTEP_FUZZ_SECONDS"
# Values at which lengths, counts and parsers go wrong.
_TEXTS = (
    b"0", b"-1", b"1e999", b"NaN", b"Infinity", b"null", b"true", b'""', b"[]", b"{}", b"\0", b"\n", b"\xff",
    b"\xc3\xa9", b"4294967296", b"9" * 5000, b"[" * 100_000, b'{"a":' * 20_000, "²".encode(), "٣".encode(), b"\\ud800",
    b",", b":",
)  # fmt: skip
# Configurations of several tasks in both forms, with a parameter server, of one task, and empty.
TF_CONFIGS = [
    json.dumps(config).encode()
    for config in (
        {"cluster": {"chief": ["a:1"], "worker": ["a:2", "b:1"]}, "task": {"type": "worker", "index": 1}},
        {"cluster": {"worker": {"0": "[::1]:1", "1": "[::1]:2"}}, "task": {"type": "worker", "index": "0"}},
        {"cluster": {"chief": ["a:1"], "ps": ["b:2"]}, "task": {"type": "ps", "index": 0}},
        {"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}, "environment": "cloud"},
        {},
    )
]


def text_of(data: bytes) -> str:
    """Returns bytes as the text of an environment variable: it ends at the first zero byte; any bytes become text."""
    return data.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def named(name: str, reads: Callable[[bytes], object], error: type[Exception]) -> Callable[[bytes], object]:
    """Returns `reads` with a check: the message of each `error` that it raises must contain `name`."""

    def check(data: bytes) -> object:
        try:
            return reads(data)
        except error as refused:
            assert name in str(refused), str(refused)
            raise

    return check


def mutation(seeds: Sequence[bytes], number: int, seed: int = 1) -> bytes:
    """Returns mutation `number` of some inputs: one of them with one to eight changes."""
    draw = random.Random(f"{seed} {number}")
    data = bytearray(draw.choice(seeds))
    for _ in range(2 ** draw.randrange(4)):
        at = draw.randrange(len(data) + 1)
        end = min(len(data), at + draw.randint(1, 16))
        kind = draw.randrange(8)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 1 and at < len(data):
            data[at] = draw.randrange(256)
        elif kind == 2:
            del data[at:]
        elif kind == 3:
            del data[at:end]
        elif kind == 4:
            data[at:at] = data[at:end]
        elif kind in (5, 6):
            data[at : draw.choice((at, end))] = draw.choice(_TEXTS)
        else:
            data[at:at] = draw.choice(seeds)
    return bytes(data)


def rounds(name: str, inputs: int) -> Iterator[tuple[int, int]]:
    """Yields (seed, number) for each input of a run, then prints how many inputs there were and the time they took.

    If the environment variable LOCKSTEP_FUZZ_SECONDS is set, the run takes this many seconds, with a random seed. The
    number `inputs` does not count then.
    """
    seconds = float(os.environ.get(SECONDS, 0))
    seed = random.SystemRandom().randrange(1 << 32) if seconds else 1
    begin, number = time.monotonic(), 0
    while time.monotonic() - begin < seconds if seconds else number < inputs:
        yield seed, number
        number += 1
    print(f"fuzz {name}: seed {seed}, {number} inputs in {time.monotonic() - begin:.1f} s, no finding")


def feed(
    name: str, reads: Callable[[bytes], object], seeds: Sequence[bytes], refused: type[Exception] | tuple, inputs: int
) -> int:
    """Calls `reads` with well-formed inputs, then with mutations of them, as many as `rounds` yields.

    Args:
      name: name of `reads`, for messages.
      reads: reads an input, or raises one of `refused`.
      seeds: well-formed inputs. `reads` must read all of them.
      refused: exceptions that `reads` may raise for mutations. Their messages must not be empty.
      inputs: number of mutations.

    Returns:
      The number of mutations that `reads` read.

    Raises:
      AssertionError: `reads` raised another exception, which is the cause.
    """
    for data in seeds:
        reads(data)
    read = 0
    for seed, number in rounds(name, inputs):
        data = mutation(seeds, number, seed)
        try:
            reads(data)
            read += 1
        except refused as error:
            assert str(error), f"{name} refused mutation {number} of seed {seed} without a message: {data[:200]!r}"
        except Exception as error:
            raise AssertionError(f"{name}: mutation {number} of seed {seed}, {data[:200]!r}: {error!r}") from error
    return read
