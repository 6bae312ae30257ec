"""The two codecs of entries and record sets: none, and one raw LZ4 block. Source: distributedlog 3.1."""

from __future__ import annotations

from bookies.encoding import compression
from bookies.encoding.compression import LZ4, NONE, compress
from bookies.errors import InvalidArgument, LogRecordCorrupt

CODECS = {"none": NONE, "lz4": LZ4}


def codec_of(name: str) -> int:
    """Return the number of a codec. Raises `InvalidArgument`, and `ConfigError` if its library is missing."""
    if name not in CODECS:
        raise InvalidArgument(f"compression={name!r}: must be one of {', '.join(CODECS)}")
    compression.check_library(CODECS[name])
    return CODECS[name]


def decompress(stored: bytes, codec: int, size: int) -> bytes:
    """Return the body, which has `size` bytes. Raises `LogRecordCorrupt`, `ConfigError`."""
    if codec not in (NONE, LZ4):
        raise LogRecordCorrupt(f"codec {codec} is unknown: 0 is none, 1 is LZ4")
    return compression.decompress(stored, codec, size)


__all__ = ["CODECS", "LZ4", "NONE", "codec_of", "compress", "decompress"]
