"""Leases: turns of several processes, by a queue in one record that changes only by compare-and-swap.

The record of a lease holds its participants in order of arrival. The first one is the holder. Each participant has a
*token*, a number that grows with every arrival, and a *beat*, a counter that it raises with every write, at least three
times within its `ttl`. A participant whose beat another one has seen unchanged for the whole `ttl` is removed by it.

* No comparison of clocks. Each process measures the age of a beat on its own monotonic clock, from the moment at which
  it has read the beat for the first time.
* One holder. The holder counts from the moment before it sent its last successful write, and only up to `ttl` less a
  margin. The others count from a later moment, the whole `ttl`, and remove by compare-and-swap. So the lease of a
  holder ends before another process can have it, as long as clocks run at the same rate within the margin.
* Lost replies. Every attempt to write has a beat of its own. The beat that is read afterwards shows which attempt took
  effect, and when that one was sent.
* Tokens. The record stays when it is empty, so that a later holder always has a larger token than an earlier one.
* Shared leases. Participants that share are holders together: all that have only such participants before them.

A process can be suspended between the check of its lease and the work that the lease protects. What is protected must
therefore compare tokens, and refuse a smaller one than it has seen: this is called fencing.

Source: docs/explanation/logs.md, "Taking turns".
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from itertools import takewhile
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from bookies.encoding.documents import parse_json
from bookies.errors import InvalidArgument, MetadataCorrupt, NotSupported
from bookies.protocol.log.shares import Shares, pack_shares, parse_shares

FORMAT = 1
FORMAT_SHARED = 2  # of a record with participants that share, which an earlier version would take for queued ones
PARTICIPANTS_MAX = 100  # of one lease; they share a record
TTL_MIN_S, TTL_MAX_S = 1.0, 300.0
RENEWALS = 3  # within a ttl
MARGIN = 0.1  # of a ttl: a holder stops this much before its end, for clocks that run at different rates
WATCHING_MAX = 8  # participants that watch the record; those behind them read it when they renew
TEXT_LENGTH_MAX = 200


class Participant(Struct, frozen=True):
    """One process that has the lease or waits for it. `text`: says which one it is, for people.

    `is_shared`: it shares the lease with others of that kind. `is_ended`: another process has ended its turn.
    """

    id: str
    token: int
    beat: int
    ttl_ms: int
    text: str
    is_shared: bool = False
    is_ended: bool = False


class LeaseQueue(Struct, frozen=True):
    """Content of a lease's record. `next_token`: larger than every token so far. The first participant holds it.

    `shares`: what the processes of a shared consumer have divided; None: no process has shared it.
    """

    next_token: int = 1
    participants: tuple[Participant, ...] = ()
    shares: Shares | None = None

    @property
    def tokens(self) -> set[int]:
        """Return the tokens of the participants."""
        return {row.token for row in self.participants}

    @property
    def holder(self) -> Participant | None:
        return self.participants[0] if self.participants else None

    def ended(self) -> LeaseQueue | None:
        """Return the queue with the turns of all holders ended; None: no turn is left to end.

        They stay in the queue until they notice it, at their next renewal: before that no other process has the lease.
        """
        firsts = self.participants[:1]
        if self.holder is not None and self.holder.is_shared:
            firsts = tuple(takewhile(lambda row: row.is_shared, self.participants))
        if all(row.is_ended for row in firsts):
            return None
        ended = tuple(replace(row, is_ended=True) for row in firsts)
        return replace(self, participants=(*ended, *self.participants[len(firsts) :]))

    def without(self, ids: Collection[str]) -> LeaseQueue:
        """Return the queue without these participants."""
        return replace(self, participants=tuple(row for row in self.participants if row.id not in ids))


class _Seen(NamedTuple):
    """Another participant's beat. `since_s`: when it was read first. `is_alive`: an earlier beat was read before."""

    beat: int
    since_s: float
    is_alive: bool


class Candidate:
    """State of one process that wants a lease, or has it. Times are of its own monotonic clock, in seconds.

    `waits`: it joins the queue; otherwise it takes the lease only when no live process has it or waits for it.
    The caller reads the record, calls `seen` after the reply, calls `change` just before it writes the result by
    compare-and-swap, and `seen` again with what was written.
    """

    def __init__(self, candidate_id: str, text: str, ttl_s: float, *, waits: bool, is_shared: bool = False) -> None:
        self.token = 0  # 0: it is not in the queue
        self.is_ended = False  # another process has ended the turn
        self._row = Participant(candidate_id, 0, 0, int(ttl_s * 1000), text, is_shared)
        self._ttl_s = ttl_s
        self.waits = waits
        self._queue = LeaseQueue()
        self._sent_s: dict[int, float] = {}  # times of the attempts, by beat, since the last one that took effect
        self._renewed_s = 0.0  # when the last attempt that took effect was sent
        self._others: dict[str, _Seen] = {}

    @property
    def place(self) -> int:
        """Return its place in the queue, 0 for the holder; -1: it is not in the queue."""
        return next((place for place, row in enumerate(self._queue.participants) if row.id == self._row.id), -1)

    @property
    def is_holder(self) -> bool:
        """Report whether the record names it as a holder."""
        place = self.place
        return place >= 0 and self._blocking(self._queue.participants[:place]) is None

    def _blocking(self, rows: Iterable[Participant]) -> Participant | None:
        """Return the first of these participants that does not share the lease with it."""
        return next((row for row in rows if not (row.is_shared and self._row.is_shared)), None)

    def _may_join(self, queue: LeaseQueue) -> bool:
        has_room = len(queue.participants) < PARTICIPANTS_MAX
        return has_room and (self.waits or self._blocking(queue.participants) is None)

    @property
    def watches(self) -> bool:
        """Report whether a change of the record may concern it soon. A holder only renews."""
        return not self.is_holder and self.place < WATCHING_MAX

    @property
    def held_until_s(self) -> float:
        """Return when its lease ends unless it is renewed; 0 if it is not the holder."""
        return self._renewed_s + self._ttl_s * (1 - MARGIN) if self.is_holder else 0.0

    def seen(self, queue: LeaseQueue, now_s: float) -> None:
        """Note the content of the record, at the moment when its reader has it."""
        self._queue = queue
        self._others = {row.id: self._sight(row, now_s) for row in queue.participants if row.id != self._row.id}
        if (place := self.place) < 0:
            self.token = 0  # Others took it for dead, or the record was deleted.
            return
        own = queue.participants[place]
        self.token, self.is_ended = own.token, own.is_ended
        if own.beat in self._sent_s:
            self._renewed_s = self._sent_s[own.beat]
            self._sent_s = {beat: sent_s for beat, sent_s in self._sent_s.items() if beat > own.beat}

    def _sight(self, other: Participant, now_s: float) -> _Seen:
        before = self._others.get(other.id)
        if before is not None and before.beat == other.beat:
            return before
        return _Seen(other.beat, now_s, before is not None)

    @property
    def refusal(self) -> Participant | None:
        """Return the live holder that keeps it out of the queue; None: it is in the queue, or may still get there.

        A holder proves that it lives by another beat, within a third of its `ttl`.
        """
        holder = self._blocking(self._queue.participants) or self._queue.holder
        if self.place >= 0 or holder is None or self._may_join(self._queue):
            return None
        return holder if self._others[holder.id].is_alive else None

    def change(self, now_s: float) -> LeaseQueue | None:
        """Return what to write to the record; None: nothing is due. Removes the dead, and renews or joins."""
        dead = {row.id for row in self._queue.participants if self._is_dead(row, now_s)}
        left = self._queue.without(dead)
        if self.place < 0:
            if not self._may_join(left):
                return None
            self._beat(now_s, left.next_token)
            joined = left if left.participants else self._without_shares(left)
            return replace(joined, next_token=left.next_token + 1, participants=(*left.participants, self._row))
        content = self._content(left)
        if not dead and content == left and not self.is_ended and now_s < self._renewal_s:
            return None
        self._beat(now_s, self.token)
        rows = tuple(self._row if row.id == self._row.id else row for row in left.participants)
        return replace(content, participants=rows)

    def _content(self, queue: LeaseQueue) -> LeaseQueue:
        """Return the queue with what else this process changes in the record."""
        return self._without_shares(queue) if self.is_holder else queue

    def _without_shares(self, queue: LeaseQueue) -> LeaseQueue:
        """Return the queue without the shares of earlier processes, unless this one shares the lease.

        One that has the lease alone may move the cursor back to where it was. Entries after it that others have handled
        are delivered again then.
        """
        return queue if self._row.is_shared or queue.shares is None else replace(queue, shares=None)

    def _beat(self, now_s: float, token: int) -> None:
        self._row = replace(self._row, beat=self._row.beat + 1, token=token)
        self._sent_s[self._row.beat] = now_s

    @property
    def _renewal_s(self) -> float:
        return self._renewed_s + self._ttl_s / RENEWALS

    def _dead_s(self, other: Participant) -> float:
        return self._others[other.id].since_s + other.ttl_ms / 1000

    def _is_dead(self, other: Participant, now_s: float) -> bool:
        return other.id != self._row.id and now_s >= self._dead_s(other)

    def next_s(self, now_s: float) -> float:
        """Return when the record has to be read again, if no watch reports a change before."""
        times = [self._dead_s(row) for row in self._queue.participants if row.id != self._row.id]
        if self.place < 0:  # Then others remove those that are dead already.
            return min([now_s + self._ttl_s / RENEWALS, *(time_s for time_s in times if time_s > now_s)])
        return min([self._renewal_s, *times])

    def left(self, queue: LeaseQueue) -> LeaseQueue | None:
        """Return the queue without this process; None: it is not in it."""
        if all(row.id != self._row.id for row in queue.participants):
            return None
        left = queue.without((self._row.id,))
        return self._without_shares(left) if self.is_holder else left


def check_ttl(ttl: object) -> float:
    """Return the seconds after which a silent participant is removed. Raises `InvalidArgument`."""
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not TTL_MIN_S <= ttl <= TTL_MAX_S:
        raise InvalidArgument(f"ttl={ttl!r}: must be a number of seconds, {TTL_MIN_S:g} to {TTL_MAX_S:g}")
    return float(ttl)


def check_text(text: object) -> str:
    """Return the text that names a participant. Raises `InvalidArgument`."""
    if not isinstance(text, str) or not 0 < len(text) <= TEXT_LENGTH_MAX or not text.isprintable():
        raise InvalidArgument(f"text={text!r}: must be 1 to {TEXT_LENGTH_MAX} printable characters")
    return text


# -- the record ------------------------------------------------------------------------------------------------------


def pack_queue(queue: LeaseQueue) -> bytes:
    """Return the stored record: JSON, one line."""
    rows = [
        {"id": row.id, "token": row.token, "beat": row.beat, "ttl_ms": row.ttl_ms, "text": row.text}
        | ({"shared": True} if row.is_shared else {})
        | ({"ended": True} if row.is_ended else {})
        for row in queue.participants
    ]
    is_shared = any(row.is_shared for row in queue.participants)
    content: dict[str, Any] = {"format": FORMAT_SHARED if is_shared else FORMAT, "next_token": queue.next_token}
    content["queue"] = rows
    if queue.shares is not None:
        content["shares"] = pack_shares(queue.shares)
    return json.dumps(content, separators=(",", ":")).encode()


def parse_queue(record: str, data: bytes) -> LeaseQueue:
    """Parse a stored record. `record`: its name, for errors. Raises `MetadataCorrupt`, `NotSupported`."""
    try:
        content: dict[str, Any] = parse_json(data)
        if content["format"] > FORMAT_SHARED:
            raise NotSupported(f"record {record} has format {content['format']}: this version reads {FORMAT_SHARED}")
        shares = parse_shares(content["shares"]) if "shares" in content else None
        return LeaseQueue(int(content["next_token"]), tuple(map(_parse_participant, content["queue"])), shares)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise MetadataCorrupt(f"record {record} of a lease cannot be read: {error!r}") from error


def _parse_participant(row: Mapping[str, Any]) -> Participant:
    numbers = int(row["token"]), int(row["beat"]), int(row["ttl_ms"])
    flags = bool(row.get("shared", False)), bool(row.get("ended", False))
    return Participant(str(row["id"]), *numbers, str(row["text"]), *flags)
