"""The note about failed directories: what is no note counts as none."""

from __future__ import annotations

import zlib

import pytest

from bookies.storage.checkpoint.failover import Note, pack_note, parse_note


def test_what_is_packed_is_parsed() -> None:
    note = Note(["/l1"], {31: 4096})
    assert parse_note(pack_note(note)) == note
    assert parse_note(pack_note(note)[:-2]) == Note()


@pytest.mark.parametrize(
    "line", [b"[]", b"{}", b'{"failed": [], "lost": 1}', b'{"failed": [], "lost": {"x": 1}}', b"["]
)
def test_a_right_checksum_over_other_content(line: bytes) -> None:
    line += b"\n"
    assert parse_note(line + f"{zlib.crc32(line):08x}\n".encode()) == Note()
