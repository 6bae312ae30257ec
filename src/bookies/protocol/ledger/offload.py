"""Offloaded ledgers: the checksum of a ledger's content, and the labels in its record that name its copy.

Any number of tasks compute pieces of a `Content`, which are then joined: the CRC of two adjacent buffers follows from
the CRCs of both. It covers all payloads, and after them the ledger's accumulated length after each entry; so it covers
where each payload ends. The same entries have the same checksum in any files or cluster.

An offloaded ledger has a label in its record (`LABEL`), written by compare-and-swap after the copy was read back.
Another job later sets a second label (`DELETED`): the bookies may delete the entries. Until then they keep all of them.
From then on no bookie has a replica of the ledger that could be missing, moved or lost (`is_given_up`, which
`protocol/repair/fragments.py` checks for all callers), until the ledger is restored. During the restore a third label
(`RESTORING`) replaces the second one. Before the files of a lost attempt are deleted, a label (`SWEPT`) says that no
record may name it any more. Source: spark 5.3.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from msgspec import Struct, to_builtins

from bookies.encoding.documents import parse_json
from bookies.errors import LedgerClosed, MetadataCorrupt, VersionConflict
from bookies.kernels import crc32c
from bookies.model import Ensemble, LedgerMetadata
from bookies.protocol.ledger.ledger import changed_record

LABEL = "bookies.offload"
DELETED = "bookies.offload.bookies-deleted"
RESTORING = "bookies.offload.restoring"
SWEPT = "bookies.offload.swept"  # names of attempts whose files may be gone, one on a line
PARQUET = "parquet"
_POLYNOMIAL = 0x82F63B78  # of CRC-32C, lowest power first
LENGTH_SIZE = 8  # bytes of an accumulated length


class Content(Struct, frozen=True):
    """Checksums of consecutive entries. `size`: bytes of their payloads; `payloads`, `ends`: CRC-32C, finished."""

    rows: int = 0
    size: int = 0
    payloads: int = 0
    ends: int = 0

    def extended(self, data: bytes, ends: bytes) -> Content:
        """Return the content with these entries appended.

        data: their payloads.
        ends: their accumulated lengths, int64 little-endian.
        """
        return Content(
            self.rows + len(ends) // LENGTH_SIZE,
            self.size + len(data),
            crc32c(data, self.payloads),
            crc32c(ends, self.ends),
        )

    def joined(self, other: Content) -> Content:
        """Return the content with the entries of `other` appended."""
        return Content(
            self.rows + other.rows,
            self.size + other.size,
            joined_crc(self.payloads, other.payloads, other.size),
            joined_crc(self.ends, other.ends, other.rows * LENGTH_SIZE),
        )

    @property
    def crc(self) -> int:
        """Return the CRC-32C of payloads and ends together."""
        return joined_crc(self.payloads, self.ends, self.rows * LENGTH_SIZE)


def joined_crc(first: int, second: int, size: int) -> int:
    """Return the CRC-32C of two adjacent buffers from the CRC of each. `size`: bytes of the second one."""
    # Appending a zero byte is a linear map of the 32 bits; squaring gives the map for `size` bytes.
    step = [_POLYNOMIAL, *(1 << bit for bit in range(31))]
    for _ in range(3):
        step = [_times(step, row) for row in step]
    while size:
        if size & 1:
            first = _times(step, first)
        size >>= 1
        if size:
            step = [_times(step, row) for row in step]
    return first ^ second


def _times(matrix: list[int], vector: int) -> int:
    """Return the product of a matrix over GF(2), given by its columns, and a vector."""
    total = 0
    for bit in range(vector.bit_length()):
        if vector >> bit & 1:
            total ^= matrix[bit]
    return total


# -- the record ------------------------------------------------------------------------------------------------------


class Offload(Struct, frozen=True):
    """Copy of a ledger in files. `uri`: its directory; `crc`: `Content.crc`; `index`: CRC-32C of its index file."""

    attempt: str
    uri: str
    format: str
    rows: int
    bytes: int
    crc: int
    index: int
    at_ms: int


def offload_of(record: LedgerMetadata) -> Offload | None:
    """Return the copy that a ledger's record names; None: it names none. Raises `MetadataCorrupt`."""
    data = record.custom_metadata.get(LABEL)
    if data is None:
        return None
    try:
        return Offload(**parse_json(data))
    except (ValueError, TypeError) as error:
        raise MetadataCorrupt(f"label {LABEL} cannot be read: {error}", ledger_id=record.ledger_id) from error


def is_given_up(record: LedgerMetadata) -> bool:
    """Report whether the entries are to be read from the copy: the bookies may have deleted them, or not yet restored
    them."""
    labels = record.custom_metadata
    return record.is_closed and LABEL in labels and (DELETED in labels or RESTORING in labels)


def may_be_forgotten(record: LedgerMetadata) -> bool:
    """Report whether a bookie may delete its entries of the ledger; not while the ledger is being restored."""
    return is_given_up(record) and DELETED in record.custom_metadata


def is_coming_back(record: LedgerMetadata) -> bool:
    """Report whether a restore writes entries to bookies that the record does not name yet."""
    return is_given_up(record) and RESTORING in record.custom_metadata


def offloaded_to(record: LedgerMetadata) -> str | None:
    """Return the URI of the only copy, for display; `files` if the label is unreadable; None: it is on bookies."""
    if not is_given_up(record):
        return None
    try:
        named = offload_of(record)
    except MetadataCorrupt:
        named = None
    return "files" if named is None else named.uri


def offloaded(record: LedgerMetadata, copy: Offload) -> LedgerMetadata | None:
    """Return the record that names a copy; None: it does already.

    Raises `LedgerClosed` (the ledger is not sealed), `VersionConflict` (the record names another copy, the copy does
    not have the ledger's entries, or it was swept).
    """
    named = offload_of(record)
    if named is not None:
        if named.attempt == copy.attempt:
            return None
        raise VersionConflict(f"the record already names copy {named.attempt}", ledger_id=record.ledger_id)
    if copy.attempt in swept_of(record).split("\n"):
        raise VersionConflict(f"the files of {copy.attempt} were swept: repeat the run", ledger_id=record.ledger_id)
    if not record.is_closed:
        raise LedgerClosed("the ledger is not sealed, so its last entry is not decided", ledger_id=record.ledger_id)
    if (copy.rows, copy.bytes) != (record.last_entry_id + 1, record.length):
        raise VersionConflict(
            f"the copy has {copy.rows:,} entries of {copy.bytes:,} bytes, the ledger {record.last_entry_id + 1:,} of "
            f"{record.length:,}",
            ledger_id=record.ledger_id,
        )
    return labelled(record, {LABEL: json.dumps(to_builtins(copy), separators=(",", ":")).encode()})


def swept_of(record: LedgerMetadata) -> str:
    """Return the names of the attempts that the record refuses, one on a line."""
    return record.custom_metadata.get(SWEPT, b"").decode(errors="replace")


def swept(record: LedgerMetadata, attempt: str) -> LedgerMetadata | None:
    """Return the record that refuses an attempt; None: it does already. Raises `VersionConflict`: it names it."""
    named = offload_of(record)
    if named is not None and named.attempt == attempt:
        raise VersionConflict(f"the record names copy {attempt}", ledger_id=record.ledger_id)
    before = swept_of(record)
    if attempt in before.split("\n"):
        return None
    return labelled(record, {SWEPT: f"{before}\n{attempt}".lstrip("\n").encode()})


def given_up(record: LedgerMetadata, attempt: str, now_ms: int) -> LedgerMetadata | None:
    """Return the record that lets the bookies delete the entries; None: it does already. Raises `VersionConflict`."""
    named = offload_of(record)
    if named is None or named.attempt != attempt:
        raise VersionConflict("the record names another copy than the one that was checked", ledger_id=record.ledger_id)
    return None if is_given_up(record) else labelled(record, {DELETED: str(now_ms).encode()})


def labelled(record: LedgerMetadata, labels: Mapping[str, bytes], without: tuple[str, ...] = ()) -> LedgerMetadata:
    """Return the record with `labels` added, and those in `without` removed."""
    kept = {name: value for name, value in record.custom_metadata.items() if name not in without}
    return changed_record(record, custom_metadata=kept | dict(labels))


def restoring(record: LedgerMetadata) -> LedgerMetadata | None:
    """Return the record of a ledger under restore: bookies must not delete its entries; None: it is so already."""
    if DELETED not in record.custom_metadata:
        return None
    return labelled(record, {RESTORING: record.custom_metadata[DELETED]}, without=(DELETED,))


def restored(
    record: LedgerMetadata, attempt: str, ensembles: tuple[tuple[int, Ensemble], ...]
) -> LedgerMetadata | None:
    """Return the record of a ledger restored to `ensembles`; None: it is on bookies. Raises `VersionConflict`."""
    if RESTORING not in record.custom_metadata and DELETED not in record.custom_metadata:
        return None
    named = offload_of(record)
    if named is None or named.attempt != attempt or DELETED in record.custom_metadata:
        raise VersionConflict("the ledger was offloaded again meanwhile", ledger_id=record.ledger_id)
    return labelled(record, {}, without=(RESTORING,)).replace(ensembles=ensembles)


def kept(record: LedgerMetadata, attempt: str) -> LedgerMetadata | None:
    """Return the record without its copy, of a ledger that bookies still hold; None: it names no copy.

    Raises `VersionConflict`.
    """
    named = offload_of(record)
    if named is None:
        return None
    if named.attempt != attempt or DELETED in record.custom_metadata:
        raise VersionConflict("the ledger was offloaded again meanwhile", ledger_id=record.ledger_id)
    return labelled(record, {}, without=(LABEL, RESTORING))
