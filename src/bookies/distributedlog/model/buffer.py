"""The writer's buffer: which records share an entry, and when an entry is sent. Source: distributedlog 4.4, 4.5.

Pure. A record waits as long as entries are in flight, at most `delay_s`, so that many small records share an entry
when the bookies are the bottleneck, and a single one is sent at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from msgspec import Struct

from bookies.distributedlog.formats.entries import (
    CONTROL,
    END_OF_STREAM,
    ENTRY_SIZE_MAX,
    ENVELOPE_SIZE,
    TXID_MAX,
    pack_lone,
)
from bookies.kernels import EntryBuilder, SlotAppend

T = TypeVar("T")


class Batch(Struct, Generic[T], frozen=True):
    """Records that share an entry. `body`: their positions count from 1. `count`: those that readers count.
    `is_control`: its record only makes earlier ones visible."""

    tag: T
    body: bytes
    count: int
    first_txid: int
    last_txid: int
    is_control: bool = False

    @property
    def last_slot(self) -> int:
        """The slot of the last record."""
        return max(0, self.count - 1)


class RecordBuffer(Generic[T]):
    """Records that are not sent yet. `entry_size`: bytes of records that make an entry; `new_tag`: for each entry.

    `append_type`, `last_txid`: see `EntryBuilder`. `add_next`: its method, a call less for each record.
    """

    def __init__(
        self, append_type: type[SlotAppend], entry_size: int, last_txid: int, new_tag: Callable[[], T]
    ) -> None:
        self._entry_size = min(entry_size, ENTRY_SIZE_MAX - ENVELOPE_SIZE)
        self.builder = EntryBuilder(append_type, self._entry_size, last_txid)
        self.add_next = self.builder.add_next
        self._new_tag = new_tag
        self._closed: deque[Batch[T]] = deque()
        self._closed_size = 0

    def __len__(self) -> int:
        """Count the entries."""
        return len(self._closed) + bool(self.builder)

    @property
    def size(self) -> int:
        """Bytes of its records."""
        return self._closed_size + self.builder.size

    @property
    def first_txid(self) -> int:
        """The transaction id of the record that is sent next."""
        return self._closed[0].first_txid if self._closed else self.builder.first_txid

    def add(self, payload: bytes, txid: int, flags: int = 0, count: int = 1) -> Any:
        """Append a record, or a record set of `count` records. Return its append."""
        append = self.builder.add(payload, txid, flags, count)
        if append is None:
            self._close()
            self.builder.begin(self._new_tag())
            append = self.builder.add(payload, txid, flags, count)
        return append

    def add_end(self) -> T:
        """Append the record that ends a log, alone in its entry. Return its tag."""
        self._close()
        batch = Batch(self._new_tag(), pack_lone(TXID_MAX, END_OF_STREAM, b"endOfStream"), 0, TXID_MAX, TXID_MAX)
        self._closed.append(batch)
        self._closed_size += len(batch.body)
        return batch.tag

    def control(self, txid: int) -> Batch[T]:
        """Return the entry that makes earlier records visible; it is not in the buffer. `txid`: of the last one."""
        return Batch(self._new_tag(), pack_lone(txid, CONTROL, b"control"), 0, txid, txid, is_control=True)

    def _close(self) -> None:
        if self.builder:
            batch = Batch(*self.builder.take())
            self._closed.append(batch)
            self._closed_size += len(batch.body)

    def put_back(self, batches: list[Batch[T]]) -> None:
        """Put entries that were taken back to the front, in their order."""
        self._closed.extendleft(reversed(batches))
        self._closed_size += sum(len(batch.body) for batch in batches)

    def clear(self) -> list[Batch[T]]:
        """Remove all records and return them."""
        self._close()
        batches = list(self._closed)
        self._closed.clear()
        self._closed_size = 0
        return batches

    def is_due(self, in_flight: int, waited: bool) -> bool:
        """Report whether an entry is sent now. `waited`: its oldest record has waited for the delay."""
        if self._closed:
            return True
        return bool(self.builder) and (waited or in_flight == 0 or self.builder.size >= self._entry_size)

    def take(self) -> Batch[T]:
        """Remove and return the next entry. There is one. Records that do not count are alone in theirs."""
        if not self._closed:
            self._close()
        batch = self._closed.popleft()
        self._closed_size -= len(batch.body)
        return batch


def needs_control(unseen: bool, buffered: int, in_flight: int) -> bool:
    """Report whether a control record is sent, so that readers see the last user record. `unseen`: no entry was sent
    after it was acknowledged."""
    return unseen and buffered == 0 and in_flight == 0
