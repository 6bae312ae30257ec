"""Pages of slots in memory. Dirty pages stay until written; clean ones are an LRU cache within a budget.

A partial page has only slots that were set since it was added. It is dropped when it is written, because it cannot
answer reads.

Source: storage 5.2.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

from bookies.storage.index.index_format import SLOT_SIZE
from bookies.storage.index.index_ledger import Ledger, Page
from bookies.storage.index.slots import overlaid

PAGE_OVERHEAD = 300  # bytes of Python objects for each page


class PageCache:
    """Pages of all ledgers, which are also in `Ledger.pages`. `clean_size`, `dirty_size`: bytes."""

    def __init__(self, size_max: int) -> None:
        self.clean_size = 0
        self.dirty_size = 0
        self._size_max = size_max
        # In order of use, the oldest first. A dict would search for its first item among all that were removed.
        self._clean: OrderedDict[tuple[int, int], tuple[Ledger, Page]] = OrderedDict()

    @property
    def is_pressed(self) -> bool:
        """Report whether dirty pages should be written without waiting: they take more than half of the budget."""
        return self.dirty_size > self._size_max // 2

    def add(self, ledger: Ledger, number: int, data: bytes) -> Page:
        """Add a clean page and return it, evicting older ones if necessary."""
        page = ledger.pages[number] = Page(bytearray(data))
        self._add_clean(ledger, number, page)
        self.evict()
        return page

    def loaded(self, ledger: Ledger, number: int, stored: bytes) -> None:
        """Add a page as it is stored. A partial page in memory gets the slots that it lacks."""
        page = ledger.pages.get(number)
        assert page is None or page.is_partial
        if page is None:
            self.add(ledger, number, stored)
        else:
            self.complete(page, stored)

    def complete(self, page: Page, stored: bytes) -> None:
        """Add the stored slots to a partial page. Those in memory are newer."""
        data = overlaid(stored, page.first, page.data)
        self.dirty_size += len(data) - len(page.data)
        page.data, page.first, page.is_partial = data, 0, False

    def touch(self, ledger: Ledger, number: int) -> None:
        """Mark a clean page as recently used."""
        self._clean.move_to_end((ledger.ledger_id, number))

    def change(self, ledger: Ledger, number: int) -> bool:
        """Prepare a page for a change, copying it if it is frozen. Return whether it was clean until now."""
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
        """Replace slots of a page from slot `index` on. Call `change` first."""
        data, start = page.data, self._offset(page, index)
        end = start + len(slots)
        if len(data) < end:
            self.dirty_size += end - len(data)
            data.extend(bytes(end - len(data)))
        data[start:end] = slots
        page.low = index if page.low == page.high else min(page.low, index)
        page.high = max(page.high, index + len(slots) // SLOT_SIZE)

    def scatter_slots(self, page: Page, entry_ids: Sequence[int], page_first: int, slots: bytes) -> None:
        """Do as `set_slots` for ascending ids with gaps. `page_first`: the id of the page's first slot."""
        first, size = entry_ids[0], (entry_ids[-1] + 1 - entry_ids[0]) * SLOT_SIZE
        start = self._offset(page, first - page_first)
        numbers = array("q", bytes(page.data[start : start + size].ljust(size, b"\0")))
        for entry_id, number in zip(entry_ids, array("q", slots), strict=True):
            numbers[entry_id - first] = number
        self.set_slots(page, first - page_first, numbers.tobytes())

    def _offset(self, page: Page, index: int) -> int:
        """Return where a slot is in the page's data, which begins with it from now on if it began later."""
        start = (index - page.first) * SLOT_SIZE
        if start < 0:
            self.dirty_size -= start
            page.data[:0] = bytes(-start)
            page.first = index
        return max(0, start)

    def written(self, ledger: Ledger, number: int) -> None:
        """Mark the page clean, or drop it if it is partial, unless it has changed since it was frozen."""
        page = ledger.pages[number]
        if page.is_frozen:
            self.dirty_size -= len(page.data) + PAGE_OVERHEAD
            if page.is_partial:
                del ledger.pages[number]
            else:
                self._add_clean(ledger, number, page)

    def _add_clean(self, ledger: Ledger, number: int, page: Page) -> None:
        page.is_dirty = page.is_frozen = False
        page.low = page.high = 0
        self._clean[ledger.ledger_id, number] = ledger, page
        self.clean_size += len(page.data) + PAGE_OVERHEAD

    def evict(self) -> None:
        """Drop the least recently used clean pages above the budget, but never the most recently used one."""
        while self.clean_size > max(0, self._size_max - self.dirty_size) and len(self._clean) > 1:
            (_, number), (ledger, page) = self._clean.popitem(last=False)
            del ledger.pages[number]
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
