"""Which bookies a writer tells its last add confirmed (LAC) without an entry. No IO.

An entry carries the LAC of the moment at which it was sent, so readers know an entry as confirmed only when the next
one is sent. If none follows at once, the writer announces the LAC itself. A reader that lacks one entry asks the first
bookie of that entry's write set and waits there, so one message to that bookie is enough. The others are told when the
writer has been idle for a while, for readers that ask in another order.

A bookie of ours says in its answer whether readers waited for the announcement. Another bookie does not, and counts as
one where readers wait. A reader does not wait between two questions, so the writer goes on until some announcements in
a row have found no reader.

An announcement that failed is repeated, until it succeeds or a later LAC is announced or carried by an entry.

Source: client-protocol 2.15 and 3.6.
"""

from __future__ import annotations

from collections.abc import Sequence

from bookies.protocol.quorums.quorum import write_set

MISSES_MAX = 16  # announcements in a row without a waiting reader, after which the ledger has none
UNANSWERED_MAX = 8  # announcements without an answer, above which only idle writers announce


class Announcements:
    """State of one writer's announcements: what was told, and whether readers wait for more."""

    __slots__ = ("_elsewhere_left", "_failed", "_left", "_told", "_told_all", "_unanswered", "first", "repeats")

    def __init__(self) -> None:
        self._told = -1  # the LAC that was announced last
        self._told_all = -1  # the same to the whole write set
        self.first = -1  # the position at which readers of that announcement wait first
        self._left = 0  # announcements to the first bookie that may still find no reader
        self._elsewhere_left = 0  # to another bookie
        self._unanswered = 0
        self._failed: dict[int, None] = {}  # positions that were not told, although the LAC was announced
        self.repeats = 0  # of the LAC that was announced last

    @property
    def has_readers(self) -> bool:
        """Report whether readers are taken to wait, and bookies answer."""
        return (self._left > 0 or self._elsewhere_left > 0) and self._unanswered < UNANSWERED_MAX

    def is_news(self, last_add_confirmed: int, carried: int) -> bool:
        """Report whether no bookie was told this LAC. `carried`: the LAC in the newest entry that was sent."""
        return last_add_confirmed > max(self._told, carried)

    def at_once(self, last_add_confirmed: int, carried: int, ensemble_size: int, write_quorum: int) -> Sequence[int]:
        """Return the positions to tell now: where a reader that lacks the first untold entry waits."""
        if not self.is_news(last_add_confirmed, carried):
            return ()
        self._tell_first(last_add_confirmed, carried, ensemble_size)
        if not self._elsewhere_left:
            return (self.first,)
        return (self.first, *self._others(last_add_confirmed, ensemble_size, write_quorum))

    def when_idle(self, last_add_confirmed: int, carried: int, ensemble_size: int, write_quorum: int) -> Sequence[int]:
        """Return the positions that were not told: those of the write set, and where a reader waits."""
        if last_add_confirmed <= max(self._told_all, carried):
            return ()
        if last_add_confirmed == self._told:
            return self._others(last_add_confirmed, ensemble_size, write_quorum)
        self._tell_first(last_add_confirmed, carried, ensemble_size)
        return (self.first, *self._others(last_add_confirmed, ensemble_size, write_quorum))

    def _tell_first(self, last_add_confirmed: int, carried: int, ensemble_size: int) -> None:
        self.first = (max(self._told, carried) + 1) % ensemble_size
        self._told = last_add_confirmed
        self._failed, self.repeats = {}, 0

    def _others(self, last_add_confirmed: int, ensemble_size: int, write_quorum: int) -> tuple[int, ...]:
        self._told_all = last_add_confirmed
        positions = write_set(last_add_confirmed, ensemble_size, write_quorum)
        return tuple(position for position in positions if position != self.first)

    def failed(self, position: int, last_add_confirmed: int) -> bool:
        """Record that a bookie was not told this LAC; report whether to `repeat` that. A later LAC supersedes it."""
        if last_add_confirmed != self._told:
            return False
        self._failed[position] = None
        return True

    def repeat(self, last_add_confirmed: int, carried: int) -> Sequence[int]:
        """Return the positions to tell again."""
        positions, self._failed = tuple(self._failed), {}
        self.repeats += 1
        return positions if carried < last_add_confirmed == self._told else ()

    def sent(self) -> None:
        """Record an announcement to one bookie, which `answered` follows."""
        self._unanswered += 1

    def answered(self, *, is_first: bool, has_readers: bool) -> None:
        """Record an answer, or a failure, which found no readers. `is_first`: the bookie that readers ask first."""
        self._unanswered -= 1
        if is_first:
            self._left = MISSES_MAX if has_readers else max(0, self._left - 1)
        else:
            self._elsewhere_left = MISSES_MAX if has_readers else max(0, self._elsewhere_left - 1)
