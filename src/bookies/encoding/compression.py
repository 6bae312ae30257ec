"""Codecs of stored bytes: none, one raw LZ4 block, or one Zstandard frame. Their libraries are imported when used."""

from __future__ import annotations

import importlib
from typing import Any

from bookies.errors import ConfigError, LogRecordCorrupt

NONE, LZ4, ZSTD = 0, 1, 2
NAMES = ("none", "lz4", "zstd")  # by number
_LIBRARIES = {LZ4: "lz4.block", ZSTD: "zstandard"}
LEVEL = 1  # of Zstandard: the fastest of its usual ones
LZ4_RATIO_MAX = 255  # bytes that one byte of LZ4 can stand for


def check_library(codec: int) -> None:
    """Check that the library of a codec is installed. Raises `ConfigError`."""
    if codec != NONE:
        _library(codec)


def compress(body: bytes, codec: int) -> bytes:
    """Return the stored form of a body. Raises `ConfigError`."""
    if codec == NONE:
        return body
    library = _library(codec)
    stored: bytes
    if codec == LZ4:
        stored = library.compress(body, store_size=False)
    else:
        stored = library.ZstdCompressor(level=LEVEL).compress(body)
    return stored


def decompress(stored: bytes, codec: int, size: int) -> bytes:
    """Return the body, which has `size` bytes; no more are allocated. Raises `LogRecordCorrupt`, `ConfigError`."""
    if codec == NONE:
        body = stored
    elif codec == LZ4:
        if size > len(stored) * LZ4_RATIO_MAX + 64:  # Refuse before allocating.
            raise LogRecordCorrupt(f"{len(stored)} bytes of LZ4 cannot hold {size:,} bytes")
        block = _library(LZ4)
        try:
            body = block.decompress(stored, uncompressed_size=size)
        except block.LZ4BlockError as error:
            raise LogRecordCorrupt(f"{len(stored)} bytes are not a block of LZ4: {error}") from None
    elif codec == ZSTD:
        zstandard = _library(ZSTD)
        try:
            # The library allocates what the frame claims, so that has to be right.
            if zstandard.frame_content_size(stored) != size:
                raise LogRecordCorrupt(f"the frame of Zstandard does not have the {size:,} bytes of its header")
            body = zstandard.ZstdDecompressor().decompress(stored)
        except zstandard.ZstdError as error:
            raise LogRecordCorrupt(f"{len(stored)} bytes are not a frame of Zstandard: {error}") from None
    else:
        raise LogRecordCorrupt(f"codec {codec} is unknown: 0 is none, 1 is LZ4, 2 is Zstandard")
    if len(body) != size:
        raise LogRecordCorrupt(f"the body has {len(body):,} bytes, its header says {size:,}")
    return body


def _library(codec: int) -> Any:
    try:
        return importlib.import_module(_LIBRARIES[codec])
    except ImportError:
        raise ConfigError(f"codec {NAMES[codec]} needs a library: pip install 'bookies[compression]'") from None
