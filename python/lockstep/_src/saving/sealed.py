"""Small files of JSON with a checksum: what was damaged is an error, and never other content.

    {"base": "model.ckpt-0", "increments": [], "crc32": 1203977041}

The checksum is CRC-32 of the content without it, as `json.dumps` writes it with sorted keys and no blanks. It is
against damage, not against somebody who means to change the file.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

_CHECKSUM = "crc32"


def seal(content: dict[str, Any]) -> str:
    """The text of a file."""
    return json.dumps({**content, _CHECKSUM: _checksum(content)}, indent=1)


def unseal(data: bytes, path: str) -> dict[str, Any]:
    """The content of a file; ValueError that names `path` where it is not what was written."""
    try:
        content = json.loads(data)
        expected = content.pop(_CHECKSUM)
        intact = expected == _checksum(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {type(error).__name__}: {error}") from None
    if not intact:
        raise ValueError(f"{path} is damaged: its checksum is that of other content")
    return content


def _checksum(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True, separators=(",", ":")).encode("utf-8", "surrogatepass"))
