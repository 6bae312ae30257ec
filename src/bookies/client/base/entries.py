"""Results of reads: single entries, and batches of verified entries that stay in their receive buffer."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct

from bookies import kernels
from bookies.errors import InvalidArgument
from bookies.protocol.log import Position

_length_at = struct.Struct(">q").unpack_from
_LENGTH_OFFSET = 4 + 24  # of the accumulated length in a record, which begins with its length word


class Entry(NamedTuple):
    """One entry. `length`: payload bytes of the ledger up to and including this entry."""

    id: int
    payload: bytes
    length: int
    ledger_id: int

    @property
    def position(self) -> Position:
        """The entry's position in a log."""
        return Position(self.ledger_id, self.id)


class LastConfirmedAndEntry(NamedTuple):
    """Result of waiting for an entry. `entry`: None if it was not confirmed in time, or is not in the ledger."""

    last_add_confirmed: int
    entry: Entry | None


class EntryBatch(Struct, frozen=True):
    """Verified consecutive entries of one ledger, still in wire form.

    `starts`: offsets in `data` of the records (uint32 length, header, digest, payload), and the end of the last record.
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
        """Id of the last entry."""
        return self.first_entry_id + len(self.starts) - 2

    @property
    def entry_ids(self) -> range:
        """Ids of the entries."""
        return range(self.first_entry_id, self.first_entry_id + len(self.starts) - 1)

    @property
    def size(self) -> int:
        """Bytes of the records, including headers and digests."""
        return self.starts[-1] - self.starts[0]

    def payloads(self) -> list[bytes]:
        """Return the payload of each entry."""
        data, skip = self.data, 4 + self.header_size
        return [data[start + skip : end] for start, end in pairwise(self.starts)]

    def lengths(self) -> list[int]:
        """Return the ledger's accumulated length after each entry, in payload bytes."""
        data = self.data
        return [_length_at(data, start + _LENGTH_OFFSET)[0] for start in self.starts[:-1]]

    def entries(self) -> Iterator[Entry]:
        """Iterate over the entries; each is built when it is requested."""
        return kernels.entries(Entry, self.ledger_id, self.first_entry_id, self.data, self.starts, self.header_size)

    def arrow_buffers(self) -> tuple[bytes, bytes]:
        """Return (concatenated payloads, int32 offsets in native order): Arrow's layout of a binary column."""
        data, offsets = kernels.gather_payloads([(self.data, self.starts)], self.header_size)
        return data, offsets.tobytes()

    def slice(self, first: int, last: int) -> EntryBatch:
        """Return the entries with ids first..last, sharing the data.

        Raises `InvalidArgument` for ids outside the batch.
        """
        if not self.first_entry_id <= first <= last <= self.last_entry_id:
            raise InvalidArgument(
                f"slice({first}, {last}): must be first <= last, both of the batch's entries, "
                f"{self.first_entry_id} to {self.last_entry_id}"
            )
        at = first - self.first_entry_id
        return EntryBatch(
            self.ledger_id, first, self.data, self.starts[at : last - self.first_entry_id + 2], self.header_size
        )
