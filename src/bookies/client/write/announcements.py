"""`LedgerAnnouncements`: sends the last add confirmed of one writer to the bookies that `protocol` chooses.

Best effort: safety does not depend on it. An announcement that failed for a reason that may pass is repeated with
growing pauses, because the next entry or the seal may be far off.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from bookies.client.transport.unanswered import Outcome
from bookies.client.write.adds import AddPool
from bookies.client.write.closing import LedgerCloser, OpenLedger
from bookies.client.write.lac_announcer import LacAnnouncer
from bookies.errors import BookKeeperError
from bookies.model import BookieId
from bookies.protocol.ledger.announcement import Announcements
from bookies.wire.messages import WriteLacResponse


class AnnouncingWriter(Protocol):
    """The member of a writer that its announcements need."""

    @property
    def pending_count(self) -> int: ...


class LedgerAnnouncements:
    """The announcements of one writer, which `LacAnnouncer` calls. See `protocol.ledger.announcement`."""

    __slots__ = ("_announcer", "_closer", "_ledger", "_pool", "_rule", "_writer")

    def __init__(
        self,
        writer: AnnouncingWriter,
        ledger: OpenLedger,
        closer: LedgerCloser,
        pool: AddPool,
        announcer: LacAnnouncer,
    ) -> None:
        self._writer = writer
        self._announcer = announcer
        self._ledger = ledger
        self._closer = closer
        self._pool = pool
        self._rule = Announcements()

    @property
    def has_readers(self) -> bool:
        """Report whether readers are taken to wait for this ledger's entries."""
        return self._rule.has_readers

    @property
    def is_busy(self) -> bool:
        """Report whether entries are in flight or queued."""
        return self._writer.pending_count > 0

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that may be announced: it and all before it are durable on their ack quorums (I-13)."""
        return self._ledger.pipeline.last_add_confirmed

    def news(self) -> int | None:
        """Return the last add confirmed, if no bookie was told it and no queued entry is about to carry it."""
        last_add_confirmed = self.last_add_confirmed
        has_queued = self._writer.pending_count > self._ledger.pipeline.pending_count
        return None if has_queued or not self.is_untold(last_add_confirmed) else last_add_confirmed

    def is_untold(self, last_add_confirmed: int) -> bool:
        """Report whether no bookie was told this last add confirmed, or a later one."""
        return self._rule.is_news(last_add_confirmed, self._ledger.channel.piggybacked)

    def at_once(self) -> bool:
        """Tell the bookie at which readers wait; report whether there was news."""
        return self._announce(self._rule.at_once)

    def when_idle(self) -> bool:
        """Tell the bookies of the last entry that were not told; report whether there were any."""
        return self._announce(self._rule.when_idle)

    @property
    def repeats(self) -> int:
        """Return how often the last announcement was repeated."""
        return self._rule.repeats

    def repeat(self) -> None:
        """Tell the last add confirmed again to bookies whose announcement failed, unless it is superseded."""
        self._announce(lambda last_add_confirmed, carried, *_: self._rule.repeat(last_add_confirmed, carried))

    def _announce(self, choose: Callable[[int, int, int, int], Sequence[int]]) -> bool:
        record, pipeline, channel, _ = self._ledger
        if not pipeline.is_open or self._closer.is_sealing:
            return False
        metadata, ensemble = record.current.metadata, pipeline.ensemble
        last_add_confirmed = self.last_add_confirmed
        positions = choose(last_add_confirmed, channel.piggybacked, len(ensemble), metadata.write_quorum)
        if not positions:
            return False
        body = channel.frames.lac_body(last_add_confirmed)
        for position in positions:
            with contextlib.suppress(BookKeeperError):
                answer = self._pool.start_write_lac(
                    ensemble[position], metadata.ledger_id, last_add_confirmed, channel.frames.master_key, body
                )
                self._rule.sent()
                answered = partial(self._answered, ensemble[position], position, last_add_confirmed)
                answer.add_done_callback(partial(answered, position == self._rule.first))
        return True

    def _answered(
        self,
        bookie: BookieId,
        position: int,
        last_add_confirmed: int,
        is_first: bool,
        answer: asyncio.Future[Outcome],
    ) -> None:
        has_readers = False
        if not answer.cancelled():
            try:
                response = self._pool.check(bookie, answer.result(), WriteLacResponse)
                has_readers = is_first if response.has_readers is None else response.has_readers
            except BookKeeperError as error:
                if (
                    error.retriable
                    and self._ledger.pipeline.is_open
                    and self._rule.failed(position, last_add_confirmed)
                ):
                    self._announcer.failed(self)
        self._rule.answered(is_first=is_first, has_readers=has_readers)
