"""Verification in its order, of entries and LAC packets. The bytes themselves: tests/golden/test_wire_vectors.py."""

from __future__ import annotations

import pytest

from bookies.errors import DigestMismatch
from bookies.model import DigestType
from bookies.wire.digest import (
    EntryHeader,
    mac_key,
    package_entry,
    package_lac,
    verify_entry,
    verify_lac,
)

KEY = mac_key(b"secret")
ALL = list(DigestType)


@pytest.mark.parametrize("digest_type", ALL)
@pytest.mark.parametrize("payload", [b"", b"payload", bytes(5000)])
def test_entries_survive(digest_type: DigestType, payload: bytes) -> None:
    body = package_entry(digest_type, KEY, 5, 9, 8, 100, payload)
    header = verify_entry(digest_type, KEY, memoryview(body), 5, 9)  # type: ignore[arg-type]
    assert header == EntryHeader(5, 9, 8, 100, 32 + digest_type.size)
    assert body[header.payload_offset :] == payload
    assert verify_entry(digest_type, KEY, body, 5, None) == header


@pytest.mark.parametrize("digest_type", ALL)
def test_size_first(digest_type: DigestType) -> None:
    body = package_entry(digest_type, KEY, 5, 9, 8, 100, b"")
    for size in range(len(body)):
        with pytest.raises(DigestMismatch, match=f"of {size} bytes"):
            verify_entry(digest_type, KEY, body[:size], 5, 9)


@pytest.mark.parametrize("digest_type", [DigestType.CRC32, DigestType.HMAC, DigestType.CRC32C])
def test_every_bit_is_covered(digest_type: DigestType) -> None:
    body = package_entry(digest_type, KEY, 5, 9, 8, 100, b"payload")
    for bit in range(8 * len(body)):
        flipped = bytearray(body)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DigestMismatch, match="does not match"):  # the ids come after the digest
            verify_entry(digest_type, KEY, bytes(flipped), 5, 9)


@pytest.mark.parametrize("digest_type", ALL)
def test_then_the_ids(digest_type: DigestType) -> None:
    body = package_entry(digest_type, KEY, 5, 9, 8, 100, b"payload")
    with pytest.raises(DigestMismatch, match="of ledger 5") as caught:
        verify_entry(digest_type, KEY, body, 6, 10)
    assert (caught.value.ledger_id, caught.value.entry_id) == (6, 10)
    with pytest.raises(DigestMismatch, match="has id 9"):
        verify_entry(digest_type, KEY, body, 5, 10)


def test_another_password_does_not_verify() -> None:
    body = package_entry(DigestType.HMAC, KEY, 5, 9, 8, 100, b"payload")
    with pytest.raises(DigestMismatch):
        verify_entry(DigestType.HMAC, mac_key(b"guess"), body, 5, 9)


@pytest.mark.parametrize("digest_type", ALL)
def test_lac_packets(digest_type: DigestType) -> None:
    packet = package_lac(digest_type, KEY, 5, -1)
    assert verify_lac(digest_type, KEY, packet, 5) == -1
    assert verify_lac(digest_type, KEY, packet + b"extra", 5) == -1
    with pytest.raises(DigestMismatch, match="of ledger 5"):
        verify_lac(digest_type, KEY, packet, 6)
    for size in range(len(packet)):
        with pytest.raises(DigestMismatch):
            verify_lac(digest_type, KEY, packet[:size], 5)
    if digest_type is not DigestType.DUMMY:
        with pytest.raises(DigestMismatch, match="does not match"):
            verify_lac(digest_type, KEY, packet[:-1] + bytes((packet[-1] ^ 1,)), 5)
