"""`Segment`: the data and name of a segment's znode, in all five versions. Source: distributedlog 2.4, 2.5."""

from __future__ import annotations

import re

from msgspec import Struct

from bookies.distributedlog.formats.dlsn import Dlsn
from bookies.errors import MetadataCorrupt, NotSupported

VERSION = 5
ENVELOPED_SINCE, SEQUENCE_IDS_SINCE = 4, 5
ACTIVE, PARTLY_TRUNCATED, TRUNCATED = 0, 1, 2
IN_PROGRESS, COMPLETED = "inprogress_", "logrecs_"
_STATUS_MASK = 3
_IN_PROGRESS_COUNTS = {1: 3, 2: 4, 3: 6, 4: 6, 5: 7}
_COMPLETED_COUNTS = {1: 5, 2: 8, 3: 10, 4: 10, 5: 11}
_NUMBERS = re.compile(r"-?\d{1,20}(;-?\d{1,20})*")


class Segment(Struct, frozen=True):
    """One segment of a log: one ledger. `name`: of its znode.

    `lssn`: its number in the log; 0: unassigned (version 1). `first_txid`: the transaction id that it was started with;
    that of its first record may be larger. `last_txid`, `completed_ms`, `last_entry`, `last_slot`: None or -1 while it
    is in progress. `record_count`: user records, of a completed segment. `min_entry`, `min_slot`: the first record that
    is not truncated. `start_sequence_id`: user records of the log before it; -1: unknown.
    """

    name: str
    version: int
    ledger_id: int
    lssn: int
    first_txid: int
    last_txid: int | None = None
    completed_ms: int | None = None
    record_count: int = 0
    last_entry: int = -1
    last_slot: int = -1
    min_entry: int = 0
    min_slot: int = 0
    start_sequence_id: int = -1
    status: int = ACTIVE
    region: int = 0

    @property
    def is_completed(self) -> bool:
        return self.last_txid is not None

    @property
    def is_enveloped(self) -> bool:
        """True if its entries have envelopes."""
        return self.version >= ENVELOPED_SINCE

    @property
    def truncation(self) -> int:
        """`ACTIVE`, `PARTLY_TRUNCATED`, `TRUNCATED`, or 3: unknown."""
        return self.status & _STATUS_MASK

    @property
    def first_dlsn(self) -> Dlsn:
        return Dlsn(self.lssn, 0, 0)

    @property
    def last_dlsn(self) -> Dlsn:
        """The address of the last record; of an empty segment, and of one in progress, entry -1."""
        return Dlsn(self.lssn, self.last_entry, self.last_slot)

    @property
    def min_dlsn(self) -> Dlsn:
        """The least address that may be read."""
        return Dlsn(self.lssn, self.min_entry, self.min_slot)

    @property
    def exposed_start_sequence_id(self) -> int:
        """The start sequence id, or a number derived from the sequence number where it is unknown, as Apache's."""
        if self.version >= SEQUENCE_IDS_SINCE and self.start_sequence_id >= 0:
            return self.start_sequence_id
        return -(1 << 63) + (self.lssn << 32)

    def pack(self) -> bytes:
        """Return the data of the znode."""
        word = self.version
        if self.version > 1:
            word |= (self.status & 0xFF) << 8 | (self.region & 0xF) << 28
        if self.is_completed:
            word |= self.record_count << 32
        numbers = [word, self.ledger_id, self.first_txid]
        if self.last_txid is not None:
            assert self.completed_ms is not None
            numbers += [self.last_txid, self.completed_ms]
        if self.version >= 2:
            numbers.append(self.lssn)
            if self.is_completed:
                numbers += [self.last_entry, self.last_slot]
        if self.version >= 3:
            numbers += [self.min_entry, self.min_slot]
        if self.version >= SEQUENCE_IDS_SINCE:
            numbers.append(self.start_sequence_id)
        return ";".join(map(str, numbers)).encode()


def parse_segment(name: str, data: bytes) -> Segment:
    """Return the segment. Raises `MetadataCorrupt`, `NotSupported` (a later version)."""
    text = data.decode("ascii", "replace")
    if not _NUMBERS.fullmatch(text):
        raise MetadataCorrupt(f"segment {name}: {text!r} is not a list of numbers")
    numbers = [int(number) for number in text.split(";")]
    word = numbers[0]
    version, count = word & 0xFF, len(numbers)
    if version not in _COMPLETED_COUNTS:
        raise NotSupported(f"segment {name} has version {version} of its metadata; versions 1 to {VERSION} are known")
    is_completed = count == _COMPLETED_COUNTS[version]
    if not is_completed and count != _IN_PROGRESS_COUNTS[version]:
        expected = f"{_IN_PROGRESS_COUNTS[version]} or {_COMPLETED_COUNTS[version]}"
        raise MetadataCorrupt(f"segment {name}: {count} numbers in version {version}; expected {expected}")
    status, region = ((word >> 8) & 0xFF, (word >> 28) & 0xF) if version > 1 else (ACTIVE, 0)
    values: dict[str, int] = {"status": status, "region": region, "ledger_id": numbers[1], "first_txid": numbers[2]}
    rest = numbers[3:]
    names: list[str] = []
    if is_completed:
        values["record_count"] = (word >> 32) & 0xFFFFFFFF
        names += ["last_txid", "completed_ms"]
    if version >= 2:
        names += ["lssn", "last_entry", "last_slot"] if is_completed else ["lssn"]
    if version >= 3:
        names += ["min_entry", "min_slot"]
    if version >= SEQUENCE_IDS_SINCE:
        names.append("start_sequence_id")
    values |= zip(names, rest, strict=True)
    values.setdefault("lssn", 0)
    return Segment(name=name, version=version, **values)


def segment_name(lssn: int, *, is_completed: bool) -> str:
    """Return the name of a segment's znode."""
    return f"{COMPLETED if is_completed else IN_PROGRESS}{lssn:018d}"


def is_segment_name(name: str) -> bool:
    """Report whether a child of the list is a segment, by its name. Data alone tells its state."""
    return name.startswith((IN_PROGRESS, COMPLETED))
