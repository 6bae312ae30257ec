"""What reads deliver: single entries, and batches of verified entries that stay in the buffer they arrived in."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from bookies import kernels
from bookies.errors import InvalidArgument
from bookies.protocol.log import Position

_length_at = struct.Struct(">q").unpack_from
_LENGTH_OFFSET = 4 + 24  # of the accumulated length, behind the record's length word


class Entry(NamedTuple):
    """One entry. `length`: payload bytes of the ledger up to and including this entry."""

    id: int
    payload: bytes
    length: int
    ledger_id: int

    @property
    def position(self) -> Position:
        """Where it is in a log."""
        return Position(self.ledger_id, self.id)


class LastConfirmedAndEntry(NamedTuple):
    """What a wait for an entry led to. `entry`: None when it was not confirmed in time, or is not in the ledger."""

    last_add_confirmed: int
    entry: Entry | None


@dataclass(frozen=True, slots=True)
class EntryBatch:
    """Verified consecutive entries of one ledger, still in wire form.

    `starts`: offsets in `data` of the records (uint32 length, header, digest, payload) and the end of the last;
    `header_size`: bytes of an entry body before its payload. `data` may hold more than these entries.
    """

    ledger_id: int
    first_entry_id: int
    data: bytes
    starts: Sequence[int]
    header_size: int

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def last_entry_id(self) -> int:
        return self.first_entry_id + len(self.starts) - 2

    @property
    def entry_ids(self) -> range:
        return range(self.first_entry_id, self.first_entry_id + len(self.starts) - 1)

    @property
    def size(self) -> int:
        """Bytes of the records, headers and digests included."""
        return self.starts[-1] - self.starts[0]

    def payloads(self) -> list[bytes]:
        """The payload of each entry."""
        data, skip = self.data, 4 + self.header_size
        return [data[start + skip : end] for start, end in pairwise(self.starts)]

    def lengths(self) -> list[int]:
        """The ledger's accumulated length after each entry."""
        data = self.data
        return [_length_at(data, start + _LENGTH_OFFSET)[0] for start in self.starts[:-1]]

    def entries(self) -> Iterator[Entry]:
        """The entries one by one, built as they are taken."""
        return kernels.entries(Entry, self.ledger_id, self.first_entry_id, self.data, self.starts, self.header_size)

    def arrow_buffers(self) -> tuple[bytes, bytes]:
        """(payloads one after the other, int32 offsets in native order): Arrow's layout of a binary column."""
        data, offsets = kernels.gather_payloads([(self.data, self.starts)], self.header_size)
        return data, offsets.tobytes()

    def slice(self, first: int, last: int) -> EntryBatch:
        """The entries with ids first..last, sharing the data. Raises `InvalidArgument` for ids that are not here."""
        if not self.first_entry_id <= first <= last <= self.last_entry_id:
            raise InvalidArgument(
                f"slice({first}, {last}): must be first <= last, both of the batch's entries, "
                f"{self.first_entry_id} to {self.last_entry_id}"
            )
        at = first - self.first_entry_id
        return EntryBatch(
            self.ledger_id, first, self.data, self.starts[at : last - self.first_entry_id + 2], self.header_size
        )
