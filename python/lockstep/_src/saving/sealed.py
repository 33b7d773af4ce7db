"""Small JSON files with a checksum. Reading a damaged file is an error, and never gives other content.

    {"base": "model.ckpt-0", "increments": [], "crc32": 1203977041}

The checksum is the CRC-32 of the content without it, as `json.dumps` writes it with sorted keys and no spaces. It
protects against damage, not against intended changes.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

_CHECKSUM = "crc32"


def seal(content: dict[str, Any]) -> str:
    """Returns the text of a file with this content."""
    return json.dumps({**content, _CHECKSUM: _checksum(content)}, indent=1)


def unseal(data: bytes, path: str) -> dict[str, Any]:
    """Returns the content of a file. Raises ValueError, which names `path`, if the file is damaged."""
    try:
        content = json.loads(data)
        expected = content.pop(_CHECKSUM)
        intact = expected == _checksum(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {type(error).__name__}: {error}") from None
    if not intact:
        raise ValueError(f"{path} is damaged: its content does not match its checksum")
    return content


def _checksum(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True, separators=(",", ":")).encode("utf-8", "surrogatepass"))
