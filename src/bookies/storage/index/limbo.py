"""Ledgers in limbo: entries or promises of them may be lost here, so none of their entries is reported as missing.

The state is a bit of each index header, so it outlasts restarts. Owned by the loop's thread. Source: storage 10.2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from bookies.storage.index.index_format import IndexHeader


class Limbo:
    """The ids of ledgers in limbo. `has_any`: set while there are any.

    `doubts`: by ledger, how often something of it was lost since the start, so what was held before says nothing now.
    """

    def __init__(self) -> None:
        self.has_any = asyncio.Event()
        self.doubts: dict[int, int] = {}
        self._ledger_ids: dict[int, None] = {}

    def follow(self, ledger_id: int, header: IndexHeader | None) -> None:
        """Note a ledger's present header; None: the ledger was deleted."""
        if header is not None and header.is_in_limbo:
            self._ledger_ids[ledger_id] = None
            self.has_any.set()
        elif self._ledger_ids.pop(ledger_id, ledger_id) is None and not self._ledger_ids:
            self.has_any.clear()

    def doubt(self, ledger_id: int) -> None:
        """Note that something of a ledger was lost: that it holds all entries has to be found out again."""
        self.doubts[ledger_id] = self.doubts.get(ledger_id, 0) + 1

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._ledger_ids))

    def __len__(self) -> int:
        return len(self._ledger_ids)

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._ledger_ids
