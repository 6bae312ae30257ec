"""The writer's buffer: which records share an entry, and when an entry is sent. Source: distributedlog 4.4, 4.5.

Pure. A record waits as long as entries are in flight, at most `delay_s`, so that many small records share an entry
when the bookies are the bottleneck, and a single one is sent at once.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from bookies.distributedlog.formats.entries import ENTRY_SIZE_MAX, ENVELOPE_SIZE, RECORD_HEADER_SIZE, NewRecord

T = TypeVar("T")


class RecordBuffer(Generic[T]):
    """Records that are not sent yet, each with its owner's tag. `entry_size`: bytes of records that make an entry."""

    def __init__(self, entry_size: int) -> None:
        self._entry_size = min(entry_size, ENTRY_SIZE_MAX - ENVELOPE_SIZE)
        self._records: deque[tuple[NewRecord, T]] = deque()
        self.size = 0  # bytes of its records

    def __len__(self) -> int:
        return len(self._records)

    @property
    def first(self) -> NewRecord:
        """The record that is sent next."""
        return self._records[0][0]

    def add(self, record: NewRecord, tag: T) -> None:
        """Append a record."""
        self._records.append((record, tag))
        self.size += RECORD_HEADER_SIZE + len(record.payload)

    def put_back(self, records: list[tuple[NewRecord, T]]) -> None:
        """Put records that were taken back to the front, in their order."""
        self._records.extendleft(reversed(records))
        self.size += sum(record.size for record, _ in records)

    def clear(self) -> list[tuple[NewRecord, T]]:
        """Remove all records and return them."""
        records = list(self._records)
        self._records.clear()
        self.size = 0
        return records

    def is_due(self, in_flight: int, waited: bool) -> bool:
        """Report whether an entry is sent now. `waited`: its oldest record has waited for the delay."""
        return bool(self._records) and (waited or in_flight == 0 or self.size >= self._entry_size)

    def take(self) -> list[tuple[NewRecord, T]]:
        """Remove and return the records of the next entry: at least one. Records that do not count stay alone."""
        records = self._records
        taken = [records.popleft()]
        size = taken[0][0].size
        if taken[0][0].user_count:
            while records and records[0][0].user_count:
                following = RECORD_HEADER_SIZE + len(records[0][0].payload)
                if size + following > self._entry_size:
                    break
                taken.append(records.popleft())
                size += following
        self.size -= size
        return taken


def needs_control(unseen: bool, buffered: int, in_flight: int) -> bool:
    """Report whether a control record is sent, so that readers see the last user record. `unseen`: no entry was sent
    after it was acknowledged."""
    return unseen and buffered == 0 and in_flight == 0
