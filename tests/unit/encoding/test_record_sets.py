"""Record sets: the layout, what a reader refuses, codecs, and that both kernels agree."""

from __future__ import annotations

import importlib
import struct
from typing import Any

import pytest

from bookies.encoding import compression
from bookies.encoding.compression import LZ4, NONE, ZSTD, decompress
from bookies.encoding.envelope import Record
from bookies.encoding.record_sets import HEADER_SIZE, SIZE_MAX, codec_of, count_of, pack_set, pack_sets, parse_set
from bookies.errors import ConfigError, InvalidArgument, LogRecordCorrupt
from bookies.kernels import NATIVE, record_sets

KERNELS: list[Any] = [record_sets]
if NATIVE:
    KERNELS.append(importlib.import_module("bookies.kernels._native"))
EXAMPLE = bytes.fromhex(
    "626b7301 00 0a 0000 00000002 0000000d 0006475ef64cf346"  # magic, codec, flags, records, bytes, time
    "00000002 00000003"  # lengths of the values
    "6869 796f75"
)


def entry(count: int = 2, size: int = 13, flags: int = 10, codec: int = 0, version: int = 1, end: bytes = b"") -> bytes:
    return struct.pack(">3sBBBxxIIq", b"bks", version, codec, flags, count, size, 0) + (end or EXAMPLE[HEADER_SIZE:])


def test_the_layout() -> None:
    time_us = 1_767_323_045_000_006
    records = [Record(b"hi", None, None, time_us), Record(b"you", None, None, time_us)]
    assert pack_sets(records, NONE, time_us) == [(2, EXAMPLE)]
    found = parse_set(EXAMPLE)
    assert (len(found), list(found.values()), list(found.times()), count_of(EXAMPLE)) == (
        2, [b"hi", b"you"], [time_us, time_us], 2,
    )  # fmt: skip


@pytest.mark.parametrize("codec", [NONE, LZ4, ZSTD])
def test_codecs(codec: int) -> None:
    records = [Record(b"order %06d " % at + b"x" * 80, b"k", None, 5) for at in range(2_000)]
    sets = pack_sets(records, codec, 5)
    assert sum(count for count, _ in sets) == 2_000
    assert [value for _, one in sets for value in parse_set(one).values()] == [record.value for record in records]
    assert (sum(len(one) for _, one in sets) < 60_000) == (codec != NONE)
    assert pack_sets([Record(b"", None, None, 5)], codec, 5)[0][1][4] == NONE  # It would not get smaller.


@pytest.mark.parametrize(
    ("damaged", "text"),
    [
        (b"", r"\(0 bytes\) is not a record set"),
        (EXAMPLE[:20], "is not a record set"),
        (b"x" * 40, "is not a record set"),
        (entry(version=2), "version 2 and flags 10; this version reads version 1"),
        (entry(flags=64), "flags 64"),
        (entry(count=4), "claims 4 records in 13 bytes"),
        (entry(size=SIZE_MAX + 1), "claims"),
        (entry(codec=7), "codec 7 is unknown"),
        (entry(size=12), "has 13 bytes, its header says 12"),
        (entry(codec=LZ4, size=1 << 20), "cannot hold"),
        (entry(codec=LZ4), "not a block of LZ4"),
        (entry(codec=ZSTD), "not a frame of Zstandard"),
        (entry(codec=ZSTD, end=compression.compress(b"x" * 50, ZSTD)), "does not have the 13 bytes"),
    ],
)
def test_what_is_no_set(damaged: bytes, text: str) -> None:
    with pytest.raises(LogRecordCorrupt, match=text):
        parse_set(damaged)


@pytest.mark.parametrize("flags", [8, 9, 10, 10 + 16, 10 + 32, 15 + 16 + 32])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_lengths_outside_the_set(flags: int, count: int) -> None:
    for lengths in (b"\0\0\0\2\0\0\0\4hiyou", b"\xff\xff\xff\xff\0\0\0\0hiyou", b"\0\0\0\1\0\0\0\1hiyou"):
        found = parse_set(entry(count=count, flags=flags, end=lengths))
        with pytest.raises(LogRecordCorrupt, match=r"damaged|too short"):
            found.values()
        with pytest.raises(LogRecordCorrupt, match=r"damaged|too short"):
            found.rows()


def test_a_body_is_never_larger_than_its_header_says() -> None:
    with pytest.raises(LogRecordCorrupt, match="its header says 4"):
        decompress(compression.compress(b"abc", LZ4), LZ4, 4)
    with pytest.raises(InvalidArgument, match="a record set may have"):
        pack_set((8, 1, 0, bytes(SIZE_MAX + 1)), NONE)


def test_names_of_codecs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [codec_of(name) for name in (None, "lz4", "zstd")] == [NONE, LZ4, ZSTD]
    with pytest.raises(InvalidArgument, match="expected one of lz4, zstd, or None"):
        codec_of("gzip")

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(compression.importlib, "import_module", missing)
    with pytest.raises(ConfigError, match=r"codec zstd needs a library: pip install 'bookies\[compression\]'"):
        codec_of("zstd")


@pytest.mark.parametrize("kernel", KERNELS)
def test_collecting(kernel: Any) -> None:
    builder = kernel.SetBuilder(70)
    assert (builder.add_plain(b"a"), builder.add(b"a", None, None, 1), len(builder)) == (None, None, 0)
    builder.begin("token", 7)
    assert [builder.add_plain(value) for value in (b"a", bytearray(b"b"), "b")] == ["token", None, None]
    assert (builder.add(b"bc", None, None, 7), builder.time_us, len(builder)) == ("token", 7, 2)
    assert builder.add(b"x" * 40, b"k", None, 7) is None  # The set would be too large.
    assert builder.add_plain(b"x" * 60) is None
    assert builder.take() == (10, 2, 7, b"\0\0\0\1\0\0\0\2abc")
    assert builder.add_plain(b"a") is None
    builder.begin("token", 7)
    assert builder.add_plain(b"x" * 100) == "token"  # A single record may be larger.
    assert builder.add_plain(b"") is None
    assert len(builder.take()[3]) == 104
    builder.begin("other", 1)
    assert [builder.add_plain(b"v"), builder.add(None, b"k", b"", None), builder.add_plain(b"w")] == ["other"] * 3
    lengths = b"\0\0\0\0\0\0\0\1\0\0\0\0" + bytes(12) + b"\0\0\0\1\0\0\0\0\0\0\0\1"
    assert builder.take() == (15 + 32, 3, 1, bytes([10, 5, 10]) + lengths + b"kvw")
    builder.begin("other", 1)
    builder.add(b"v", None, None, 9)
    assert builder.take() == (10 + 16, 1, 1, (9).to_bytes(8) + b"\0\0\0\1v")


@pytest.mark.parametrize("kernel", KERNELS)
def test_columns(kernel: Any) -> None:
    data = b"..\0\0\0\2\0\0\0\3hiyou"
    assert list(kernel.offsets_of(data, 2, 2, 10)) == [10, 12, 15]
    assert kernel.cut_column(data, 2, 2, 10) == ([b"hi", b"you"], 15)
    assert kernel.cut_column(data, 2, 0, 15) == ([], 15)
    for arguments in ((2, 4, 10), (-1, 1, 0), (2, -1, 0), (2, 2, 11), (2, 1, -1), (99, 0, 0), (2, 0, 16)):
        for name in ("offsets_of", "cut_column"):
            with pytest.raises(ValueError):
                getattr(kernel, name)(data, *arguments)
