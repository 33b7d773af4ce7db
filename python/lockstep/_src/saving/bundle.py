"""Tensors copied from checkpoint to checkpoint byte for byte, a little at a time, so that they may exceed memory.

TensorFlow's own readers take in at least what was written at once: of a table that one worker saved, all of it. But a
checkpoint's data files hold nothing else than the bytes of tensors, one after the other, and its index says where:

    <prefix>.data-0000i-of-0000N    bytes
    <prefix>.index                  sorted table of key -> protocol buffer
        ""                              BundleHeaderProto: number of data files, byte order
        <name>                          BundleEntryProto: type, shape, and data file, offset, length, checksum
        <name>, its slices              the same, its data in entries of their own
        <slice of name>                 BundleEntryProto of a slice

(tensorflow/core/util/tensor_bundle/tensor_bundle.h). So a copy reads the index, copies the ranges of bytes, and writes
an index with their new places. Checksums stay: they are those of the bytes. The index is a table in LevelDB's format
(doc/table_format.md of LevelDB), which TensorFlow writes without compression.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence

import tensorflow as tf
from tensorflow.core.protobuf import tensor_bundle_pb2

_gfile = tf.io.gfile

_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
# Size at which a block of the index ends.
_BLOCK_BYTES = 16 << 10
# How much is in memory at a time.
_CHUNK_BYTES = 16 << 20


def copy_tensors(source: str, names: Collection[str], target: str) -> None:
    """Writes a checkpoint of some tensors of another one.

    Args:
      source: prefix of the checkpoint to copy from.
      names: of the tensors, as the checkpoint has them.
      target: prefix of the checkpoint to write; its folder exists.

    Raises:
      ValueError: the source's index is damaged, is no table in the known format, or lacks a tensor.
      tf.errors.DataLossError: a data file of the source is shorter than its index says.

    """
    entries = _read_table(f"{source}.index")
    header = tensor_bundle_pb2.BundleHeaderProto.FromString(entries.pop(b"", b""))
    wanted = set(names)
    kept = {
        key: tensor_bundle_pb2.BundleEntryProto.FromString(value)
        for key, value in entries.items()
        if _name_of(key) in wanted
    }
    missing = sorted(wanted - {_name_of(key) for key in kept})
    if missing:
        raise ValueError(f"checkpoint {source!r} lacks {', '.join(missing)}")
    _copy_data(source, header.num_shards, list(kept.values()), target)
    header.num_shards = 1
    table = {b"": header.SerializeToString(), **{key: entry.SerializeToString() for key, entry in kept.items()}}
    with _gfile.GFile(f"{target}.index", "wb") as file:
        file.write(_table(table))


def _copy_data(source: str, shards: int, entries: Sequence[tensor_bundle_pb2.BundleEntryProto], target: str) -> None:
    """Copies the data of entries to one file, in the order in which it lies, and gives the entries their new places."""
    offset = 0
    with _gfile.GFile(f"{target}.data-00000-of-00001", "wb") as out:
        for shard in range(shards):
            path = f"{source}.data-{shard:05d}-of-{shards:05d}"
            here = sorted((e for e in entries if e.shard_id == shard and e.size), key=lambda entry: entry.offset)
            if not here:
                continue
            with _gfile.GFile(path, "rb") as file:
                for entry in here:
                    file.seek(entry.offset)
                    left = entry.size
                    while left:
                        chunk = file.read(min(left, _CHUNK_BYTES))
                        if not chunk:
                            raise tf.errors.DataLossError(
                                None, None, f"{path} ends {left} bytes before the end of a tensor that its index has"
                            )
                        out.write(chunk)
                        left -= len(chunk)
            for entry in here:
                # Of another shard than 0 are only those that come later.
                entry.offset, offset = offset, offset + entry.size
        for entry in entries:
            entry.shard_id = 0


def _name_of(key: bytes) -> str:
    """The name of the tensor that an entry belongs to.

    The key of a slice is its tensor's name and its extent in an encoding that keeps the order: a number 0, the name
    with 00 and ff escaped, its end 00 01, and numbers (EncodeTensorNameSlice of TensorFlow).
    """
    if key.startswith(b"\0"):
        key = key[1 : key.index(b"\0\1", 1)].replace(b"\xff\0", b"\xff").replace(b"\0\xff", b"\0")
    return key.decode()


# LevelDB's tables. A block is entries, each (bytes shared with the key before, other bytes of the key, bytes of the
# value: varints; the key's other bytes; the value), then places where a key is whole, and their number. A type of
# compression and a checksum follow it. The last block lists the blocks; the footer says where it is.


def _read_table(path: str) -> dict[bytes, bytes]:
    with _gfile.GFile(path, "rb") as file:
        data = file.read()
    if len(data) < _FOOTER_BYTES or struct.unpack("<Q", data[-8:])[0] != _MAGIC:
        raise ValueError(f"{path} is no index of a checkpoint in TensorFlow's format")
    try:
        # Where something is known of the table (which is nothing), and where its blocks are listed.
        _, position = _handle(data, len(data) - _FOOTER_BYTES)
        listed, _ = _handle(data, position)
        table = {}
        for _, where in _entries(data, *listed, path):
            block, _ = _handle(where, 0)
            table.update(_entries(data, *block, path))
        return table
    except (IndexError, struct.error) as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def _entries(data: bytes, offset: int, size: int, path: str) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of the block at a place of the data.

    Behind it are how it is compressed, and the checksum of both.
    """
    end = offset + size + 1
    if size < 4 or end + 4 > len(data):
        raise ValueError(f"{path} is damaged: it ends before a block does")
    if struct.unpack_from("<I", data, end)[0] != _masked_crc32c(data[offset:end]):
        raise ValueError(f"{path} is damaged: a block at byte {offset} has another checksum")
    if data[offset + size] != 0:
        raise ValueError(f"{path} is compressed, wanted an index as TensorFlow writes it")
    restarts = struct.unpack_from("<I", data, offset + size - 4)[0]
    position, end, key = offset, offset + size - 4 * (restarts + 1), b""
    while position < end:
        shared, position = _varint(data, position)
        other, position = _varint(data, position)
        length, position = _varint(data, position)
        key = key[:shared] + data[position : position + other]
        position += other
        yield key, data[position : position + length]
        position += length


def _table(entries: dict[bytes, bytes]) -> bytes:
    """The file of a table."""
    out = bytearray()
    blocks: dict[bytes, bytes] = {}  # the last key of a block -> where it is
    block: dict[bytes, bytes] = {}
    for key in sorted(entries):
        block[key] = entries[key]
        if sum(map(len, block.values())) > _BLOCK_BYTES:
            blocks[key] = _add_block(out, block)
            block = {}
    if block:
        blocks[max(block)] = _add_block(out, block)
    footer = _add_block(out, {}) + _add_block(out, blocks)
    return bytes(out) + footer.ljust(_FOOTER_BYTES - 8, b"\0") + struct.pack("<Q", _MAGIC)


def _add_block(out: bytearray, entries: dict[bytes, bytes]) -> bytes:
    """Adds a block to the file, in which all keys are whole. Returns where it is."""
    block = bytearray()
    starts = []
    for key, value in entries.items():
        starts.append(len(block))
        block += _varints(0, len(key), len(value)) + key + value
    starts = starts or [0]
    block += struct.pack(f"<{len(starts) + 1}I", *starts, len(starts))
    where = _varints(len(out), len(block))
    block.append(0)  # not compressed
    out += block + struct.pack("<I", _masked_crc32c(block))
    return where


def _handle(data: bytes, position: int) -> tuple[tuple[int, int], int]:
    """Offset and size of a block, as they are written at a position of the data, and the position behind them."""
    offset, position = _varint(data, position)
    size, position = _varint(data, position)
    return (offset, size), position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A number at a position of the data, and the position behind it."""
    number = shift = 0
    while True:
        byte = data[position]
        number |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return number, position


def _varints(*numbers: int) -> bytes:
    encoded = bytearray()
    for number in numbers:
        while number >= 0x80:
            encoded.append(number & 0x7F | 0x80)
            number >>= 7
        encoded.append(number)
    return bytes(encoded)


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC_TABLE = _crc_table()


def _masked_crc32c(data: bytes | bytearray) -> int:
    """The checksum of a block: CRC-32C, masked so that checksums of checksums are none."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
