"""What the entries of a ledger come to, in one number; and the part of a ledger's record that says where a copy is.

`Content` is made in pieces, by any number of tasks, and joined: the CRC of two buffers in a row follows from those of
the two. It covers all payloads, and after them the ledger's accumulated length behind each entry, so the payloads and
where each of them ends. The same entries have the same number, in whatever files or cluster they are.

An offloaded ledger has a label in its record (`LABEL`), written by compare-and-swap once the copy was read back. That
the bookies need not keep theirs is a second label (`DELETED`), set later and by another job: until then nothing was
given up. From then on no bookie has anything of the ledger that could be missing, moved or lost (`is_given_up`, which
`protocol/repair/fragments.py` asks for everybody), until it was restored; while it is, a third label (`RESTORING`) is in the
place of the second one. Source: spark 5.3.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from bookies.errors import LedgerClosed, MetadataCorrupt, VersionConflict
from bookies.kernels import crc32c
from bookies.model import Ensemble, LedgerMetadata
from bookies.protocol.ledger.ledger import changed_record

LABEL = "bookies.offload"
DELETED = "bookies.offload.bookies-deleted"
RESTORING = "bookies.offload.restoring"
PARQUET = "parquet"
_POLYNOMIAL = 0x82F63B78  # of CRC-32C, lowest power first
LENGTH_SIZE = 8  # bytes of an accumulated length


@dataclass(frozen=True, slots=True)
class Content:
    """Of consecutive entries. `size`: bytes of their payloads; `payloads`, `ends`: CRC-32C, finished."""

    rows: int = 0
    size: int = 0
    payloads: int = 0
    ends: int = 0

    def extended(self, data: bytes, ends: bytes) -> Content:
        """With these entries behind it. `data`: their payloads; `ends`: accumulated lengths, int64 little-endian."""
        return Content(
            self.rows + len(ends) // LENGTH_SIZE,
            self.size + len(data),
            crc32c(data, self.payloads),
            crc32c(ends, self.ends),
        )

    def joined(self, other: Content) -> Content:
        """With those of `other` behind it."""
        return Content(
            self.rows + other.rows,
            self.size + other.size,
            joined_crc(self.payloads, other.payloads, other.size),
            joined_crc(self.ends, other.ends, other.rows * LENGTH_SIZE),
        )

    @property
    def crc(self) -> int:
        """Of everything."""
        return joined_crc(self.payloads, self.ends, self.rows * LENGTH_SIZE)


def joined_crc(first: int, second: int, size: int) -> int:
    """The CRC-32C of two buffers one behind the other, from those of each; `size`: bytes of the second one."""
    # Appending a zero byte is a linear map of the 32 bits; that of `size` bytes is made by squaring.
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
    """Of a matrix over two elements, given by its columns."""
    total = 0
    for bit in range(vector.bit_length()):
        if vector >> bit & 1:
            total ^= matrix[bit]
    return total


# -- the record ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Offload:
    """A copy of a ledger. `uri`: its directory; `crc`: `Content.crc`; `index`: CRC-32C of its index file."""

    attempt: str
    uri: str
    format: str
    rows: int
    bytes: int
    crc: int
    index: int
    at_ms: int


def offload_of(record: LedgerMetadata) -> Offload | None:
    """Where a ledger's copy is. Raises `MetadataCorrupt`."""
    data = record.custom_metadata.get(LABEL)
    if data is None:
        return None
    try:
        return Offload(**json.loads(data))
    except (ValueError, TypeError) as error:
        raise MetadataCorrupt(f"label {LABEL} cannot be read: {error}", ledger_id=record.ledger_id) from error


def is_given_up(record: LedgerMetadata) -> bool:
    """Whether the entries are to be read from the copy: the bookies need not have them any more, or not yet again."""
    labels = record.custom_metadata
    return record.is_closed and LABEL in labels and (DELETED in labels or RESTORING in labels)


def may_be_forgotten(record: LedgerMetadata) -> bool:
    """Whether a bookie may delete what it has of the ledger: of one that is being restored that is not so any more."""
    return is_given_up(record) and DELETED in record.custom_metadata


def is_coming_back(record: LedgerMetadata) -> bool:
    """Whether entries are being written to bookies that the record does not name yet."""
    return is_given_up(record) and RESTORING in record.custom_metadata


def offloaded_to(record: LedgerMetadata) -> str | None:
    """Where the only copy is, for people: its URI, or `files` if the label cannot be read; None: it is on bookies."""
    if not is_given_up(record):
        return None
    try:
        found = offload_of(record)
    except MetadataCorrupt:
        found = None
    return "files" if found is None else found.uri


def offloaded(record: LedgerMetadata, copy: Offload) -> LedgerMetadata | None:
    """The record that names a copy; None: it does. Raises `LedgerClosed`, `VersionConflict`: it names another one, or
    this is a copy of something else."""
    found = offload_of(record)
    if found is not None:
        if found.attempt == copy.attempt:
            return None
        raise VersionConflict(f"the record names copy {found.attempt} by now", ledger_id=record.ledger_id)
    if not record.is_closed:
        raise LedgerClosed("it is not sealed, so it has no end to copy to", ledger_id=record.ledger_id)
    if (copy.rows, copy.bytes) != (record.last_entry_id + 1, record.length):
        raise VersionConflict(
            f"the copy has {copy.rows:,} entries of {copy.bytes:,} bytes, the ledger {record.last_entry_id + 1:,} of "
            f"{record.length:,}",
            ledger_id=record.ledger_id,
        )
    return labelled(record, {LABEL: json.dumps(asdict(copy), separators=(",", ":")).encode()})


def given_up(record: LedgerMetadata, attempt: str, now_ms: int) -> LedgerMetadata | None:
    """The record that lets the bookies forget the entries; None: it does. Raises `VersionConflict`."""
    found = offload_of(record)
    if found is None or found.attempt != attempt:
        raise VersionConflict("the copy that was checked is not the one that is named", ledger_id=record.ledger_id)
    return None if is_given_up(record) else labelled(record, {DELETED: str(now_ms).encode()})


def labelled(record: LedgerMetadata, labels: Mapping[str, bytes], without: tuple[str, ...] = ()) -> LedgerMetadata:
    """The record with more labels, and without some."""
    kept = {name: value for name, value in record.custom_metadata.items() if name not in without}
    return changed_record(record, custom_metadata=kept | dict(labels))


def restoring(record: LedgerMetadata) -> LedgerMetadata | None:
    """The record of a ledger that is being written to bookies again: they must not forget it now; None: it is so."""
    if DELETED not in record.custom_metadata:
        return None
    return labelled(record, {RESTORING: record.custom_metadata[DELETED]}, without=(DELETED,))


def restored(
    record: LedgerMetadata, attempt: str, ensembles: tuple[tuple[int, Ensemble], ...]
) -> LedgerMetadata | None:
    """The record of a ledger that is on these bookies again; None: it is on bookies. Raises `VersionConflict`."""
    if RESTORING not in record.custom_metadata and DELETED not in record.custom_metadata:
        return None
    found = offload_of(record)
    if found is None or found.attempt != attempt or DELETED in record.custom_metadata:
        raise VersionConflict("the ledger was offloaded again meanwhile", ledger_id=record.ledger_id)
    return labelled(record, {}, without=(RESTORING,)).replace(ensembles=ensembles)


def kept(record: LedgerMetadata, attempt: str) -> LedgerMetadata | None:
    """The record of a ledger that bookies still have, without a copy, which was of no use; None: it names none.

    Raises `VersionConflict`.
    """
    found = offload_of(record)
    if found is None:
        return None
    if found.attempt != attempt or DELETED in record.custom_metadata:
        raise VersionConflict("the ledger was offloaded again meanwhile", ledger_id=record.ledger_id)
    return labelled(record, {}, without=(LABEL, RESTORING))
