"""Keys derived from a ledger's password: for verifying its entries, and for fencing and writing it."""

from __future__ import annotations

import hmac

from msgspec import Struct

from bookies.client.base.entries import EntryBatch
from bookies.errors import DigestMismatch, InvalidArgument, RemoteProtocolError, Unauthorized
from bookies.kernels import verify_records
from bookies.model import ENTRY_HEADER_SIZE, BookieId, DigestType, LedgerMetadata
from bookies.wire import digest

DIGESTS = {
    "crc32c": DigestType.CRC32C,
    "crc32": DigestType.CRC32,
    "hmac": DigestType.HMAC,
    "mac": DigestType.HMAC,
    "dummy": DigestType.DUMMY,
    "none": DigestType.DUMMY,
}


class Keys(Struct, frozen=True):
    """The keys of one ledger. `mac_key` verifies the entries of HMAC ledgers."""

    ledger_id: int
    digest_type: DigestType
    mac_key: bytes

    @property
    def header_size(self) -> int:
        """Bytes of an entry body before its payload."""
        return ENTRY_HEADER_SIZE + self.digest_type.size

    def verified(self, bookie: BookieId, data: bytes, first: int, last: int, start: int = 0) -> EntryBatch:
        """Return the verified entries at the front of records that a bookie sent for `first` up to `last`.

        The records begin at `data[start]`. Raises `DigestMismatch` if the first entry does not verify, and
        `RemoteProtocolError` if there is none.
        """
        count_max = last - first + 1
        starts, problem = verify_records(
            data, start, len(data), self.ledger_id, first, count_max, self.digest_type, self.mac_key
        )
        if len(starts) > 1:
            return EntryBatch(self.ledger_id, first, data, starts, self.header_size)
        if problem:
            raise DigestMismatch(
                f"entry does not verify ({problem})", ledger_id=self.ledger_id, entry_id=first, bookie=bookie
            )
        raise RemoteProtocolError("answer without entries", ledger_id=self.ledger_id, entry_id=first, bookie=bookie)


def keys_of(
    metadata: LedgerMetadata,
    password: bytes,
    digest_type: DigestType | None = None,
    *,
    is_autodetecting: bool = True,
) -> Keys:
    """Check the password locally and derive the keys. `digest_type` is used only if the metadata names none.

    Raises `Unauthorized`; without autodetection `DigestMismatch` if the metadata names another digest. Source:
    client-protocol 3.1.
    """
    if metadata.password is not None and not hmac.compare_digest(metadata.password, password):
        raise Unauthorized("wrong password: pass the one the ledger was created with", ledger_id=metadata.ledger_id)
    if not is_autodetecting and metadata.digest_type not in (None, digest_type or metadata.digest_type):
        assert metadata.digest_type is not None
        assert digest_type is not None
        raise DigestMismatch(
            f"its entries carry {metadata.digest_type.name.lower()} digests, not {digest_type.name.lower()}: "
            "leave digest= out",
            ledger_id=metadata.ledger_id,
        )
    resolved = metadata.digest_type or digest_type
    if resolved is None:
        raise InvalidArgument(
            f"ledger {metadata.ledger_id} was written before metadata named the digest: pass digest='crc32' or 'hmac'"
        )
    return Keys(metadata.ledger_id, resolved, digest.mac_key(password))


def digest_type_of(digest: str | DigestType) -> DigestType:
    """Return the digest type of that name. Raises `InvalidArgument`."""
    if isinstance(digest, DigestType):
        return digest
    digest_type = DIGESTS.get(digest.lower()) if isinstance(digest, str) else None
    if digest_type is None:
        raise InvalidArgument(f"digest={digest!r}: must be one of {', '.join(DIGESTS)}")
    return digest_type
