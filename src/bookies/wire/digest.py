"""Entries and LAC packets: packaging, verification, and the keys derived from a password. Source: wire-protocol 4."""

from __future__ import annotations

import hashlib
import struct

from msgspec import Struct

from bookies import kernels
from bookies.errors import DigestMismatch
from bookies.model import ENTRY_HEADER_SIZE, DigestType

LAC_HEADER_SIZE = 16  # bytes: ledger id, last add confirmed (int64 each)

_HEADER = struct.Struct(">qqqq")  # ledger, entry, last add confirmed, accumulated length
_LAC_HEADER = struct.Struct(">qq")


class EntryHeader(Struct, frozen=True):
    """The verified head of an entry body. `length`: payload bytes of the ledger up to and with this entry."""

    ledger_id: int
    entry_id: int
    last_add_confirmed: int
    length: int
    payload_offset: int


def master_key(password: bytes) -> bytes:
    """Return the 20 bytes that authorise adds, explicit LACs and fencing; an empty password is hashed too."""
    return hashlib.sha1(b"ledger" + password).digest()


def mac_key(password: bytes) -> bytes:
    """Return the key of HMAC digests, which a bookie cannot derive from the master key."""
    return hashlib.sha1(b"mac" + password).digest()


def package_entry(
    digest_type: DigestType,
    mac_key: bytes,
    ledger_id: int,
    entry_id: int,
    last_add_confirmed: int,
    length: int,
    payload: bytes,
) -> bytes:
    """Return the entry body. `length` includes this payload."""
    header = _HEADER.pack(ledger_id, entry_id, last_add_confirmed, length)
    digest: bytes = kernels.digest(digest_type, mac_key, header, payload)
    return header + digest + payload


def verify_entry(
    digest_type: DigestType, mac_key: bytes, body: bytes, ledger_id: int, entry_id: int | None
) -> EntryHeader:
    """Check an entry body: size, digest, ledger id, entry id, in this order.

    `entry_id` None accepts any: the entry was asked for as the last one. Raises DigestMismatch.
    """
    body = bytes(body)
    offset = ENTRY_HEADER_SIZE + digest_type.size
    problem = DigestMismatch
    if len(body) < offset:
        raise problem(f"entry body of {len(body)} bytes", ledger_id=ledger_id, entry_id=entry_id)
    expected = kernels.digest(digest_type, mac_key, body[:ENTRY_HEADER_SIZE], body[offset:])
    if body[ENTRY_HEADER_SIZE:offset] != expected:
        raise problem(f"{digest_type.name} does not match", ledger_id=ledger_id, entry_id=entry_id)
    owner, found_id, last_add_confirmed, length = _HEADER.unpack_from(body)
    if owner != ledger_id:
        raise problem(f"entry is of ledger {owner}", ledger_id=ledger_id, entry_id=entry_id)
    if entry_id is not None and found_id != entry_id:
        raise problem(f"entry has id {found_id}", ledger_id=ledger_id, entry_id=entry_id)
    return EntryHeader(owner, found_id, last_add_confirmed, length, offset)


def package_lac(digest_type: DigestType, mac_key: bytes, ledger_id: int, last_add_confirmed: int) -> bytes:
    """Return the packet of an explicit LAC. Source: wire-protocol 4.5."""
    header = _LAC_HEADER.pack(ledger_id, last_add_confirmed)
    digest: bytes = kernels.digest(digest_type, mac_key, header, b"")
    return header + digest


def verify_lac(digest_type: DigestType, mac_key: bytes, body: bytes, ledger_id: int) -> int:
    """Return the last add confirmed in a packet; bytes after its digest are ignored. Raises DigestMismatch."""
    body = bytes(body)
    end = LAC_HEADER_SIZE + digest_type.size
    if len(body) < end:
        raise DigestMismatch(f"LAC packet of {len(body)} bytes", ledger_id=ledger_id)
    if body[LAC_HEADER_SIZE:end] != kernels.digest(digest_type, mac_key, body[:LAC_HEADER_SIZE], b""):
        raise DigestMismatch(f"the {digest_type.name} digest of a LAC packet does not match", ledger_id=ledger_id)
    owner, last_add_confirmed = _LAC_HEADER.unpack_from(body)
    if owner != ledger_id:
        raise DigestMismatch(f"LAC packet is of ledger {owner}", ledger_id=ledger_id)
    return int(last_add_confirmed)
