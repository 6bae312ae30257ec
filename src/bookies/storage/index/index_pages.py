"""Pages of slots in memory: what has to be written stays, of the rest the most recently used within a budget.

Source: storage 5.2.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from bookies.storage.index.index_format import SLOT_SIZE
from bookies.storage.index.index_ledger import Ledger, Page

PAGE_OVERHEAD = 300  # bytes of Python objects for each page


class PageCache:
    """Pages of all ledgers; each is in its ledger's `pages` too. `clean_size`, `dirty_size`: bytes."""

    def __init__(self, size_max: int) -> None:
        self.clean_size = 0
        self.dirty_size = 0
        self._size_max = size_max
        self._clean: dict[tuple[int, int], tuple[Ledger, Page]] = {}  # the least recently used first

    @property
    def is_pressed(self) -> bool:
        """Dirty pages take more than half of the budget."""
        return self.dirty_size > self._size_max // 2

    def add(self, ledger: Ledger, number: int, data: bytes) -> None:
        """Add a clean page, at the expense of older ones."""
        page = ledger.pages[number] = Page(data)
        self._add_clean(ledger, number, page)
        self.evict()

    def touch(self, ledger: Ledger, number: int) -> None:
        """A clean page is used."""
        key = ledger.ledger_id, number
        if (clean := self._clean.pop(key, None)) is not None:
            self._clean[key] = clean

    def change(self, ledger: Ledger, number: int) -> bool:
        """The page is about to change; whether it was clean until now."""
        page = ledger.pages[number]
        if page.is_frozen:
            page.data = bytearray(page.data)
            page.is_frozen = False
        if page.is_dirty:
            return False
        page.is_dirty = True
        del self._clean[ledger.ledger_id, number]
        size = len(page.data) + PAGE_OVERHEAD
        self.clean_size -= size
        self.dirty_size += size
        return True

    def set_slots(self, page: Page, index: int, slots: bytes) -> None:
        """Replace slots of a page that `change` was told of, from slot `index` on."""
        data, start = page.data, index * SLOT_SIZE
        end = start + len(slots)
        if len(data) < end:
            self.dirty_size += end - len(data)
            data.extend(bytes(end - len(data)))
        data[start:end] = slots

    def scatter_slots(self, page: Page, entry_ids: Sequence[int], page_first: int, slots: bytes) -> None:
        """As `set_slots`, of entries with gaps between them: ascending ids; `page_first`: that of the first slot."""
        first = entry_ids[0]
        start, size = (first - page_first) * SLOT_SIZE, (entry_ids[-1] + 1 - first) * SLOT_SIZE
        numbers = array("q", bytes(page.data[start : start + size].ljust(size, b"\0")))
        for entry_id, number in zip(entry_ids, array("q", slots), strict=True):
            numbers[entry_id - first] = number
        self.set_slots(page, first - page_first, numbers.tobytes())

    def written(self, ledger: Ledger, number: int) -> None:
        """The page was written as it was when it was frozen. Unless it has changed since, it is clean."""
        page = ledger.pages[number]
        if page.is_frozen:
            self.dirty_size -= len(page.data) + PAGE_OVERHEAD
            self._add_clean(ledger, number, page)

    def _add_clean(self, ledger: Ledger, number: int, page: Page) -> None:
        page.is_dirty = page.is_frozen = False
        self._clean[ledger.ledger_id, number] = ledger, page
        self.clean_size += len(page.data) + PAGE_OVERHEAD

    def evict(self) -> None:
        """Drop the least recently used clean pages above the budget, but never the youngest."""
        while self.clean_size > max(0, self._size_max - self.dirty_size) and len(self._clean) > 1:
            (key, (ledger, page)) = next(iter(self._clean.items()))
            del self._clean[key], ledger.pages[key[1]]
            self.clean_size -= len(page.data) + PAGE_OVERHEAD

    def forget(self, ledger: Ledger) -> None:
        """Drop all pages of a ledger, dirty ones too."""
        for number, page in ledger.pages.items():
            size = len(page.data) + PAGE_OVERHEAD
            if page.is_dirty:
                self.dirty_size -= size
            else:
                del self._clean[ledger.ledger_id, number]
                self.clean_size -= size
        ledger.pages.clear()
