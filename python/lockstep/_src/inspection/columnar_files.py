"""Descriptions of Parquet and ORC files, and of folders of them.

pyarrow ends the process for some damaged footers: an unknown compression is a C++ exception that nobody catches. So the
files are read in a process of its own.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyarrow import orc, parquet

from lockstep._src.inspection import isolated
from lockstep._src.inspection.description import Description, InspectError

_CHUNK_BYTES = 1 << 20
# The time of the processor that a file may take; footers take little.
_SECONDS = 60


def describe(paths: Sequence[str], checksums: bool = False) -> Description:
    """Describes files of one data set in another process.

    Args:
      paths: The files.
      checksums: Whether to compute the SHA-256 of each file, as `ParquetDataset(checksums=…)` takes it.

    Raises:
      InspectError: a file is damaged, or is neither Parquet nor ORC.
    """
    return isolated.call(__name__, [list(paths), checksums], _SECONDS, paths[0], "pyarrow cannot read its footer")


def _describe(paths: Sequence[str], checksums: bool) -> Description:
    """Describes files of one data set in this process.

    Args:
      paths: The files.
      checksums: Whether to compute the SHA-256 of each file, as `ParquetDataset(checksums=…)` takes it.

    Raises:
      InspectError: a file is damaged, or is neither Parquet nor ORC.
    """
    files = []
    schema: pa.Schema | None = None
    columns: list[dict[str, Any]] = []
    groups: list[dict[str, Any]] = []
    for path in paths:
        try:
            # A checksum takes some seconds for each GiB.
            isolated.progress(path, os.path.getsize(path) >> 26 if checksums else 0)
            found, its_schema, its_columns, its_groups = (_orc if _is_orc(path) else _parquet)(path)
        except Exception as error:  # pyarrow may raise anything for a damaged footer
            isolated.check_memory(error)
            text = str(error) or type(error).__name__
            raise InspectError(f"{path} is damaged, or is not a Parquet or ORC file: {text}") from None
        schema, columns = (its_schema, its_columns) if schema is None else (schema, columns)
        groups += its_groups
        found["other_schema"] = None if its_schema.equals(schema) else "differs from the first file's"
        found["sha256"] = _sha256(path) if checksums else None
        files.append(found)
    return {
        "rows": sum(one["rows"] for one in files),
        "bytes": sum(one["bytes"] for one in files),
        "files": files,
        "columns": columns,
        "row groups": groups,
    }


_Parts = tuple[dict[str, Any], pa.Schema, list[dict[str, Any]], list[dict[str, Any]]]


def _parquet(path: str) -> _Parts:
    with parquet.ParquetFile(path) as file:
        data, schema = file.metadata, file.schema_arrow
        all_groups = [data.row_group(index) for index in range(data.num_row_groups)]
    found = _file(path, "Parquet", data.num_rows, data.num_row_groups, data.created_by)
    groups = [
        {"file": os.path.basename(path), "group": index, "rows": group.num_rows, "bytes": _stored(group)}
        for index, group in enumerate(all_groups)
    ]
    return found, schema, _columns(schema, all_groups), groups


def _columns(schema: pa.Schema, groups: list[Any]) -> list[dict[str, Any]]:
    """Returns the columns of a Parquet file. The format stores a column as one or several leaves, in the same order."""
    columns, leaf = [], 0
    for field in schema:
        leaves = range(leaf, leaf + _num_leaves(field.type))
        leaf = leaves.stop
        chunks = [group.column(at) for group in groups for at in leaves if at < group.num_columns]
        columns.append(
            {
                "name": field.name,
                "type": str(field.type),
                "compression": sorted({chunk.compression for chunk in chunks}),
                "bytes": sum(chunk.total_compressed_size for chunk in chunks),
            }
        )
    return columns


def _num_leaves(kind: pa.DataType) -> int:
    if isinstance(kind, pa.BaseExtensionType):
        return _num_leaves(kind.storage_type)
    return sum(_num_leaves(kind.field(at).type) for at in range(kind.num_fields)) or 1


def _stored(group: Any) -> int:
    return sum(group.column(at).total_compressed_size for at in range(group.num_columns))


def _orc(path: str) -> _Parts:
    file = orc.ORCFile(path)
    found = _file(path, "ORC", file.nrows, file.nstripes, str(file.writer))
    columns = [
        {"name": field.name, "type": str(field.type), "compression": [str(file.compression)], "bytes": None}
        for field in file.schema
    ]
    return found, file.schema, columns, []


def _file(path: str, kind: str, rows: int, groups: int, writer: str) -> dict[str, Any]:
    return {
        "file": path,
        "format": kind,
        "rows": rows,
        "groups": groups,  # ORC calls them stripes
        "bytes": os.path.getsize(path),
        "written_by": writer,
    }


def _is_orc(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(3) == b"ORC"


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"


if __name__ == "__main__":
    isolated.serve(lambda request: _describe(*request))
