"""The catalog's format: a record that no catalog has ends it, even with a right checksum."""

from __future__ import annotations

import struct
import zlib

import pytest

from bookies.storage.index import catalog_format as layout
from bookies.storage.index.index_format import IndexHeader

HEADER = IndexHeader(b"k" * 20)


@pytest.mark.parametrize(
    "body",
    [
        bytes([layout.LEDGER]),
        layout.pack_ledger(7, HEADER, [(0, 1)])[8:-1],
        bytes([layout.SETTLED]) + b"\xff\xff\xff\xff",
        bytes([layout.SYNCED]) + bytes(10),
        bytes([layout.TORN]) + bytes(9),
    ],
)
def test_a_right_checksum_over_other_content(body: bytes) -> None:
    record = struct.pack(">II", len(body), zlib.crc32(body)) + body
    data = layout.pack_file_header(64) + layout.pack_ledger(5, HEADER, [(0, 1)]) + layout.pack_settled([]) + record
    contents = layout.parse(data, 64)
    assert list(contents.ledgers) == [5]
    assert contents.problem


def test_versions_of_databases() -> None:
    contents = layout.Contents(64, versions=(7, 1 << 40, 0, 3))
    data = b"".join(layout.pack(contents))
    assert layout.parse(data, 64).versions == contents.versions
    newer = data + layout.pack_versions((7, (1 << 40) + 1, 0, 3))
    assert layout.parse(newer, 64).versions == (7, (1 << 40) + 1, 0, 3)
    assert layout.parse(b"".join(layout.pack(layout.Contents(64))), 64).versions == ()
