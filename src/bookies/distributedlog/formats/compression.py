"""The two codecs of entries and record sets: none, and one raw LZ4 block. Source: distributedlog 3.1."""

from __future__ import annotations

import importlib
from typing import Any

from bookies.errors import ConfigError, InvalidArgument, LogRecordCorrupt

NONE, LZ4 = 0, 1
CODECS = {"none": NONE, "lz4": LZ4}


def codec_of(name: str) -> int:
    """Return the number of a codec. Raises `InvalidArgument`, and `ConfigError` if its library is missing."""
    if name not in CODECS:
        raise InvalidArgument(f"compression={name!r}: must be one of {', '.join(CODECS)}")
    if CODECS[name] == LZ4:
        _block()
    return CODECS[name]


def compress(body: bytes, codec: int) -> bytes:
    """Return the stored form of a body."""
    if codec == NONE:
        return body
    stored: bytes = _block().compress(body, store_size=False)
    return stored


def decompress(stored: bytes, codec: int, size: int) -> bytes:
    """Return the body, which has `size` bytes. Raises `LogRecordCorrupt`, `ConfigError`."""
    if codec == NONE:
        body = stored
    elif codec == LZ4:
        if size > len(stored) * 255 + 64:  # LZ4 cannot do more: refuse before allocating.
            raise LogRecordCorrupt(f"{len(stored)} bytes of LZ4 cannot hold {size:,} bytes")
        block = _block()
        try:
            body = block.decompress(stored, uncompressed_size=size)
        except block.LZ4BlockError as error:
            raise LogRecordCorrupt(f"{len(stored)} bytes are not a block of LZ4: {error}") from None
    else:
        raise LogRecordCorrupt(f"codec {codec} is unknown: 0 is none, 1 is LZ4")
    if len(body) != size:
        raise LogRecordCorrupt(f"the body has {len(body):,} bytes, its header says {size:,}")
    return body


def _block() -> Any:
    try:
        return importlib.import_module("lz4.block")
    except ImportError:
        raise ConfigError("LZ4 needs a library: pip install 'bookies[distributedlog]'") from None
