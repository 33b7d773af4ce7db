"""Copies tensors from checkpoint to checkpoint byte for byte, in small pieces, so that they may exceed memory.

TensorFlow's own readers load at least one written slice at a time: for a table that one worker saved, all of it.
However, a checkpoint's data files hold only the bytes of tensors, one after the other. The index has their places.

    <prefix>.data-0000i-of-0000N    bytes
    <prefix>.index                  sorted table of key -> protocol buffer
        ""                              BundleHeaderProto: number of data files, byte order
        <name>                          BundleEntryProto: type, shape, and data file, offset, length, checksum
        <name> of a sliced tensor       the same; each slice has an entry of its own
        <slice of name>                 BundleEntryProto of a slice

(tensorflow/core/util/tensor_bundle/tensor_bundle.h). A copy therefore reads the index, copies the ranges of bytes, and
writes an index with their new places. The checksums stay valid, because they depend only on the bytes. The index is a
table in LevelDB's format (doc/table_format.md of LevelDB), which TensorFlow writes without compression.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Collection, Iterator, Sequence

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import tensor_bundle_pb2

from lockstep._src.engine import whole_files

_gfile = tf.io.gfile

_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
# Size at which a block of the index ends.
_BLOCK_BYTES = 16 << 10
# The number of bytes that are copied at a time, and thus held in memory.
_CHUNK_BYTES = 16 << 20
# A key has the previous key's beginning in a few bytes, so a short damaged index may have keys that fill the memory.
_MOST_KEY_BYTES = 512 << 20


def copy_tensors(source: str, names: Collection[str], target: str) -> None:
    """Writes a checkpoint with some tensors of another one.

    Args:
      source: prefix of the checkpoint to copy from.
      names: names of the tensors in the checkpoint.
      target: prefix of the checkpoint to write; its folder must exist.

    Raises:
      ValueError: the source's index is damaged, is not a table in the known format, or lacks a tensor.
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


def publish(draft: str, prefix: str) -> None:
    """Moves a complete checkpoint to its place, where one of the same name stays complete until then.

    For savers of TensorFlow; a job's savers do the same in tf/checkpoint/commit.cc, which has the reasons.

    Args:
      draft: the prefix of the checkpoint, in a folder of its own on the same file system.
      prefix: the prefix of its place.

    Raises:
      ValueError: the index is damaged.
      OSError: the folder cannot be read, or a file cannot be renamed.
    """
    entries = _read_table(f"{draft}.index")
    header = tensor_bundle_pb2.BundleHeaderProto.FromString(entries[b""])
    written = header.num_shards
    exists, before = _present(prefix)
    while exists and header.num_shards in before:
        header.num_shards += 1
    if header.num_shards != written:
        entries[b""] = header.SerializeToString()
        with open(f"{draft}.index", "wb") as file:
            file.write(_table(entries))
    for shard in range(header.num_shards):
        source = f"{draft}.data-{shard:05d}-of-{written:05d}" if shard < written else f"{draft}.data"
        if shard >= written:
            open(source, "wb").close()
        whole_files.publish(source, f"{prefix}.data-{shard:05d}-of-{header.num_shards:05d}")
    whole_files.publish(f"{draft}.index", f"{prefix}.index")
    for count, paths in before.items():
        for path in paths if count != header.num_shards else ():
            os.remove(path)


def _present(prefix: str) -> tuple[bool, dict[int, list[str]]]:
    """Returns whether a prefix has an index, and the paths of its data files by the number of files that they name.

    Raises:
      OSError: the folder cannot be read. Its files are then unknown: it must not count as empty.
    """
    folder, begin = os.path.split(prefix)
    found: dict[int, list[str]] = {}
    try:
        names = os.listdir(folder or ".")
    except FileNotFoundError:
        return False, found
    for name in names:
        if name.startswith(begin) and (match := re.fullmatch(r"\.data-\d{5}-of-(\d{5})", name[len(begin) :])):
            found.setdefault(int(match[1]), []).append(os.path.join(folder, name))
    return f"{begin}.index" in names, found


def read_index(
    prefix: str,
) -> tuple[tensor_bundle_pb2.BundleHeaderProto, list[tuple[str, tensor_bundle_pb2.BundleEntryProto]]]:
    """Reads the index of a checkpoint.

    Returns:
      The header; and for each tensor, and for each slice of one, the tensor's name and the entry. The entry of a sliced
      tensor lists the slices, and has no bytes of its own.

    Raises:
      ValueError: the index is damaged, or is not a table in the known format.
    """
    path = f"{prefix}.index"
    entries = _read_table(path)
    try:
        header = tensor_bundle_pb2.BundleHeaderProto.FromString(entries.pop(b"", b""))
        named = [(_name_of(k), tensor_bundle_pb2.BundleEntryProto.FromString(v)) for k, v in entries.items()]
    except (DecodeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    return header, named


def read_value(prefix: str, shards: int, entry: tensor_bundle_pb2.BundleEntryProto) -> bytes:
    """Returns the bytes of a tensor that is stored in one piece.

    Args:
      prefix: prefix of the checkpoint.
      shards: the number of its data files.
      entry: the tensor's entry.

    Raises:
      ValueError: the bytes do not match their checksum, or are missing.
      tf.errors.NotFoundError: the data file does not exist.
    """
    path = f"{prefix}.data-{entry.shard_id:05d}-of-{shards:05d}"
    with _gfile.GFile(path, "rb") as file:
        file.seek(entry.offset)
        data = file.read(entry.size)
    # The checksum of strings is over other bytes, see `string_in`.
    if len(data) != entry.size or (entry.dtype != tf.string.as_datatype_enum and entry.crc32c != _masked_crc32c(data)):
        raise ValueError(f"{path} is damaged: the {entry.size} bytes at {entry.offset} do not match their checksum")
    return data


def string_in(data: bytes) -> bytes:
    """Returns the string in the bytes of a scalar tensor: its length, a checksum of the length, and the string.

    Raises:
      ValueError: the bytes are of something else.
    """
    try:
        length, position = _varint(data, 0)
    except IndexError as error:
        raise ValueError(str(error)) from None
    if position + 4 + length != len(data):
        raise ValueError(f"a string of {length} bytes in {len(data)} bytes")
    return data[position + 4 :]


def _copy_data(source: str, shards: int, entries: Sequence[tensor_bundle_pb2.BundleEntryProto], target: str) -> None:
    """Copies the data of the entries to one file, in the order of the source, and updates the entries' places."""
    offset = 0
    with _gfile.GFile(f"{target}.data-00000-of-00001", "wb") as out:
        out.write(b"")  # the first write makes the file, which must be there also if all tensors are empty
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
                                None, None, f"{path} ends {left} bytes before the end of a tensor in its index"
                            )
                        out.write(chunk)
                        left -= len(chunk)
            for entry in here:
                # All shards become shard 0 below, after the loop has used the old numbers.
                entry.offset, offset = offset, offset + entry.size
        for entry in entries:
            entry.shard_id = 0


def _name_of(key: bytes) -> str:
    """Returns the name of the tensor that an entry belongs to.

    The key of a slice encodes its tensor's name and its extent so that keys sort in this order: a number 0, the name
    with 00 and ff escaped, its end 00 01, and numbers (EncodeTensorNameSlice in TensorFlow).
    """
    if key.startswith(b"\0"):
        key = key[1 : key.index(b"\0\1", 1)].replace(b"\xff\0", b"\xff").replace(b"\0\xff", b"\0")
    return key.decode()


# LevelDB's tables. A block consists of entries, then the places of entries with complete keys, then the number of these
# places. An entry has three varints (number of bytes shared with the previous key, number of other bytes of the key,
# number of bytes of the value), the key's other bytes, and the value. The type of compression and a checksum follow
# each block. The last block lists all blocks; the footer gives its place.


def _read_table(path: str) -> dict[bytes, bytes]:
    with _gfile.GFile(path, "rb") as file:
        data = file.read()
    if len(data) < _FOOTER_BYTES or struct.unpack("<Q", data[-8:])[0] != _MAGIC:
        raise ValueError(f"{path} is not an index of a checkpoint in TensorFlow's format")
    try:
        # The footer has the places of two blocks: the metadata of the table (here empty) and the list of its blocks.
        _, position = _handle(data, len(data) - _FOOTER_BYTES)
        listed, _ = _handle(data, position)
        table: dict[bytes, bytes] = {}
        last, key_bytes = None, 0
        for _, where in _entries(data, *listed, path):
            block, _ = _handle(where, 0)
            for key, value in _entries(data, *block, path):
                key_bytes += len(key)
                # Without this order, an index might list one block any number of times.
                if (last is not None and key <= last) or key_bytes > _MOST_KEY_BYTES:
                    raise ValueError(f"{path} is damaged: its keys are not in order, or too long")
                table[key], last = value, key
        return table
    except (IndexError, struct.error) as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def _entries(data: bytes, offset: int, size: int, path: str) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of the block at `offset`, which has `size` bytes.

    After the block come its type of compression (one byte) and the checksum of the block and that byte.
    """
    end = offset + size + 1
    if size < 4 or end + 4 > len(data):
        raise ValueError(f"{path} is damaged: it ends before a block does")
    if struct.unpack_from("<I", data, end)[0] != _masked_crc32c(data[offset:end]):
        raise ValueError(f"{path} is damaged: the block at byte {offset} does not match its checksum")
    if data[offset + size] != 0:
        raise ValueError(f"{path} is compressed, wanted an uncompressed index, as TensorFlow writes it")
    restarts = struct.unpack_from("<I", data, offset + size - 4)[0]
    position, end, key = offset, offset + size - 4 * (restarts + 1), b""
    if end < offset:
        raise ValueError(f"{path} is damaged: the block at byte {offset} is shorter than its header says")
    while position < end:
        shared, position = _varint(data, position)
        other, position = _varint(data, position)
        length, position = _varint(data, position)
        key = key[:shared] + data[position : position + other]
        position += other
        yield key, data[position : position + length]
        position += length


def _table(entries: dict[bytes, bytes]) -> bytes:
    """Returns the bytes of a table's file."""
    out = bytearray()
    blocks: dict[bytes, bytes] = {}  # the last key of a block -> its place
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
    """Adds a block with complete keys to the file, and returns its place (encoded offset and size)."""
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
    """Reads the offset and size of a block at a position of the data; also returns the position after them."""
    offset, position = _varint(data, position)
    size, position = _varint(data, position)
    return (offset, size), position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Reads a number at a position of the data; also returns the position after it."""
    number = shift = 0
    while True:
        byte = data[position]
        if shift > 63:
            raise IndexError("a number has more than 64 bits")
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
    """Returns the checksum of a block: CRC-32C, masked as in LevelDB, which avoids CRCs of data that holds CRCs."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
