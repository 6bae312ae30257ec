"""`ReadContext`: the parts that all reads of one ledger share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Struct, field

from bookies.client.base.keys import Keys
from bookies.client.read.offloaded import OffloadedFetch
from bookies.client.transport import BookiePool
from bookies.client.transport.client_counts import FetchCounts
from bookies.config import ClientConfig
from bookies.model import LedgerMetadata
from bookies.protocol.ledger.read import StickyPosition


class ReadContext(Struct, frozen=True):
    """The bookies, keys and settings of the reads of one ledger.

    * `refresh`: reads the ledger's metadata again if no replica delivers, since bookies may have been replaced.
    * `learn`: takes in a last add confirmed that a bookie reports, and returns the one that the reader trusts.
    * `sticky`: the position to prefer, if every bookie has every entry.
    * `files`: for a record and entries first..last, returns the reads of entries that bookies may drop; None: only
      bookies are asked.
    * `counts`: counters to add to.
    """

    pool: BookiePool
    config: ClientConfig
    keys: Keys
    refresh: Callable[[], Awaitable[LedgerMetadata]]
    learn: Callable[[int], int] = int
    sticky: StickyPosition | None = None
    files: Callable[[LedgerMetadata, int, int], OffloadedFetch] | None = None
    counts: FetchCounts = field(default_factory=FetchCounts)
