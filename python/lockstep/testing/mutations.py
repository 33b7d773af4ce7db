"""Malformed inputs, for tests of code that reads text or files from others.

This is the Python side of `core/fuzzing/fuzz.h`: well-formed inputs, and reproducible mutations of them.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

SECONDS = "LOCKSTEP_FUZZ_SECONDS"
# Values that often break code that handles lengths, counts or text.
_TEXTS = (
    b"0", b"-1", b"1e999", b"NaN", b"Infinity", b"null", b"true", b'""', b"[]", b"{}", b"\0", b"\n", b"\xff",
    b"\xc3\xa9", b"4294967296", b"9" * 5000, b"[" * 100_000, b'{"a":' * 20_000, "²".encode(), "٣".encode(), b"\\ud800",
    b",", b":",
)  # fmt: skip
# Values that JSON can have in place of those that a reader expects.
_VALUES: tuple[Any, ...] = (
    None, True, "", "²", "\x1b[2J\n\u202e<&\"'>", "\ud800", "x" * 5000, -1, 0, 2**31, 2**53 + 1, 10**12, -(10**400),
    1.5, float("nan"), float("-inf"), [], {}, [[1]], {"a": {}},
)  # fmt: skip
# Values of TF_CONFIG: with several tasks or one, in both forms, and empty.
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
    """Returns bytes as text in the way in which Python reads environment variables: up to a zero byte, any bytes."""
    return data.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def named(name: str, reads: Callable[[bytes], object], error: type[Exception]) -> Callable[[bytes], object]:
    """Wraps `reads`: asserts that the text of each `error` contains `name`."""

    def check(data: bytes) -> object:
        try:
            return reads(data)
        except error as refused:
            assert name in str(refused), str(refused)
            raise

    return check


def mutation(seeds: Sequence[bytes], number: int, seed: int = 1) -> bytes:
    """Returns mutation `number` of some inputs: one of the inputs with one to eight changes."""
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


def json_mutation(seeds: Sequence[bytes], number: int, seed: int = 1) -> bytes:
    """Returns mutation `number` of some inputs whose lines are JSON: a part of a line is changed, left out or moved.

    Lines may end in a comma; lines that are not JSON stay as they are.
    """
    draw = random.Random(f"{seed} {number}")
    lines = draw.choice(seeds).split(b"\n")
    for _ in range(2 ** draw.randrange(3)):
        at = draw.randrange(len(lines))
        try:
            value = json.loads(lines[at].removesuffix(b","))
        except ValueError:
            continue
        whole: Any = [value]
        holder, place = whole, 0
        # Goes some levels down, and then changes what is there.
        while isinstance(holder[place], (dict, list)) and holder[place] and draw.random() < 0.8:
            holder = holder[place]
            place = draw.choice(sorted(holder)) if isinstance(holder, dict) else draw.randrange(len(holder))
        if draw.random() < 0.2 and holder is not whole:
            del holder[place]
        else:
            holder[place] = draw.choice(_VALUES)
        lines[at] = json.dumps(whole[0]).encode() + b"," * lines[at].endswith(b",")
    return b"\n".join(lines)


def rounds(name: str, inputs: int) -> Iterator[tuple[int, int]]:
    """Yields (seed, number) for each input of a run; then prints the number of inputs and the time.

    A run has `inputs` inputs of seed 1. If the environment variable LOCKSTEP_FUZZ_SECONDS is set, it runs for this time
    with a random seed instead.
    """
    seconds = float(os.environ.get(SECONDS, 0))
    seed = random.SystemRandom().randrange(1 << 32) if seconds else 1
    begin, number = time.monotonic(), 0
    while time.monotonic() - begin < seconds if seconds else number < inputs:
        yield seed, number
        number += 1
    print(f"fuzz {name}: seed {seed}, {number} inputs in {time.monotonic() - begin:.1f} s, no finding")


def feed(
    name: str,
    reads: Callable[[bytes], object],
    seeds: Sequence[bytes],
    refused: type[Exception] | tuple,
    inputs: int,
    mutate: Callable[[Sequence[bytes], int, int], bytes] = mutation,
) -> int:
    """Calls `reads` with well-formed inputs, and with mutations of them; see `rounds` for their number.

    Args:
      name: the name of the reader in messages.
      reads: reads an input, or raises one of `refused`.
      seeds: well-formed inputs, which `reads` must accept.
      refused: the exceptions that `reads` may raise for mutations. Their messages must not be empty.
      inputs: the number of mutations.
      mutate: makes them.

    Returns:
      The number of mutations that `reads` accepted.

    Raises:
      AssertionError: `reads` raised another exception, which is the cause.
    """
    for data in seeds:
        reads(data)
    read = 0
    for seed, number in rounds(name, inputs):
        data = mutate(seeds, number, seed)
        try:
            reads(data)
            read += 1
        except refused as error:
            assert str(error), f"{name} refused mutation {number} of seed {seed} without a message: {data[:200]!r}"
        except Exception as error:
            raise AssertionError(f"{name}: mutation {number} of seed {seed}, {data[:200]!r}: {error!r}") from error
    return read
