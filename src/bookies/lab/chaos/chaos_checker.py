"""Promises that `bk chaos` checks, from the clients' histories and the ledgers' contents at the end.

none lost        every acknowledged append is readable at the end, with the right content
none vanished    no reader saw an entry that the ledger does not have at the end
none invented    a ledger has only entries that a client appended
one end          all clients, and the last check, received the same end of a ledger
enough copies    every entry of a ledger is on at least an ack quorum of its bookies
in time          every operation ended within its bound plus `SLACK_S`; the time during which its process was
                 stopped does not count, and an operation of a killed process need not end
documented       no operation raised an undocumented error
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from bookies.admin.shared.replicas import count_replicas
from bookies.errors import BookKeeperError, RecoveryFailed
from bookies.lab.chaos.chaos_history import payload_of
from bookies.model import LedgerMetadata
from bookies.runtime.histogram import Histogram

if TYPE_CHECKING:
    from bookies.client.client import Client

SLACK_S = 5.0
RECOVER_S, READ_S = 60.0, 120.0  # time-outs of the last check, after all faults are healed
AT_ONCE = 4  # ledgers that the last check reads concurrently


class Story(Struct):
    """One ledger as the clients saw it; -1: no entry. `ends`: (last entry, length) -> first client that received it."""

    started: int = -1
    acked: int = -1
    seen: int = -1
    ends: dict[tuple[int, int], str] = field(default_factory=dict)


class Checker:
    """Checker of all clients' histories, line by line. `violations` are sentences."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.stories: dict[int, Story] = {}
        self.outcomes: dict[str, Counter[str]] = {}
        self.latencies: dict[str, Histogram] = {}
        self.counts: Counter[str] = Counter()
        self._open: dict[tuple[str, int], dict[str, Any]] = {}
        self._stops: dict[str, list[tuple[float, float | None]]] = {}

    def violated(self, promise: str, text: str) -> None:
        self.violations.append(f"{promise}: {text}")

    # -- processes -----------------------------------------------------------------------------------------------
    def stopped(self, client: str) -> None:
        self._stops.setdefault(client, []).append((time.monotonic(), None))

    def continued(self, client: str) -> None:
        begin, _ = self._stops[client].pop()
        self._stops[client].append((begin, time.monotonic()))

    def killed(self, client: str) -> None:
        """Forget the pending operations of a killed client: they need not end."""
        for key in [key for key in self._open if key[0] == client]:
            del self._open[key]
            self.counts["operations cut off by a kill"] += 1

    def overdue(self) -> list[str]:
        """Return clients with an operation that exceeds its bound. Each such operation is one violation."""
        now = time.monotonic()
        late = []
        for (client, number), begun in list(self._open.items()):
            if now - begun["t"] - self._stopped_s(client, begun["t"], now) > begun["bound_s"] + SLACK_S:
                del self._open[client, number]
                late.append(client)
                self.violated("in time", f"{client}: {begun['kind']} has not ended {now - begun['t']:.1f} s later")
        return late

    def _stopped_s(self, client: str, begin: float, end: float) -> float:
        return sum(
            max(0.0, min(end, end if stop_end is None else stop_end) - max(begin, stop_begin))
            for stop_begin, stop_end in self._stops.get(client, ())
        )

    # -- facts ---------------------------------------------------------------------------------------------------
    def take(self, client: str, facts: Iterable[dict[str, Any]]) -> None:
        """Check the next lines of one client's history."""
        for fact in facts:
            match fact["e"]:
                case "begin":
                    self._open[client, fact["op"]] = fact
                case "end":
                    self._take_end(client, fact)
                case "wrong":
                    self.violated(
                        "documented" if "must not" in fact["text"] else "content", f"{client}: {fact['text']}"
                    )
                case event:
                    self._take_story(client, event, fact)

    def _take_end(self, client: str, fact: dict[str, Any]) -> None:
        operation, seconds = fact["kind"], fact["s"]
        self.outcomes.setdefault(operation, Counter())[fact["outcome"]] += 1
        if fact["outcome"] == "ok":
            self.latencies.setdefault(operation, Histogram()).record(seconds)
        begun = self._open.pop((client, fact["op"]), None)
        if begun is None:
            return  # It was overdue, and was reported then.
        stopped_s = self._stopped_s(client, begun["t"], fact["t"])
        if seconds - stopped_s > begun["bound_s"] + SLACK_S:
            self.violated("in time", f"{client}: {operation} took {seconds:.1f} s ({stopped_s:.1f} s stopped)")

    def _take_story(self, client: str, event: str, fact: dict[str, Any]) -> None:
        story = self.stories.setdefault(fact["ledger"], Story())
        last = fact["last"]
        if event == "started":
            story.started = max(story.started, last)
        elif event == "acked":
            story.acked = max(story.acked, last)
            self.counts["entries acknowledged"] += last - fact["first"] + 1
        elif event == "seen":
            story.seen = max(story.seen, last)
        else:
            assert event == "end_of", event
            self.ended(fact["ledger"], client, last, fact["length"])

    def ended(self, ledger_id: int, client: str, last: int, length: int) -> None:
        """Record that a client received `last` as the ledger's last entry and `length` as its size in bytes."""
        ends = self.stories.setdefault(ledger_id, Story()).ends
        ends.setdefault((last, length), client)
        if len(ends) > 1:
            texts = "; ".join(f"{name}: entry {end}, {size} bytes" for (end, size), name in ends.items())
            self.violated("one end", f"clients received different ends of ledger {ledger_id}: {texts}")


class LastCheck:
    """Check after the healing: recover and read every ledger, and compare with what the clients saw."""

    def __init__(self, checker: Checker, label: tuple[str, str], *, counts_copies: bool = True) -> None:
        self._checker = checker
        self._label = label
        self._counts_copies = counts_copies
        self.ensemble_changes = self.entries = self.ledgers = 0

    async def run(self, client: Client, gone: frozenset[str] = frozenset()) -> None:
        """Check all ledgers. `gone`: bookies of Apache's that do not start any more. The end of an open ledger that has
        an ack quorum on them cannot be decided; it counts, but not as lost.
        """
        records = [record async for record in client.ledgers(label=self._label)]
        self.ledgers = len(records)
        lost = self._checker.stories.keys() - {record.ledger_id for record in records}
        for ledger_id in sorted(lost):
            self._checker.violated("none lost", f"ledger {ledger_id} does not exist any more")
        remaining = iter(records)

        async def check_some() -> None:
            for record in remaining:
                try:
                    await self._check(client, record.ledger_id)
                except (BookKeeperError, TimeoutError) as error:
                    gone_count = len(gone.intersection(record.last_ensemble))
                    if isinstance(error, RecoveryFailed) and gone_count >= record.ack_quorum:
                        self._checker.counts["ledgers without Apache's bookies"] += 1
                        continue
                    text = f"ledger {record.ledger_id} cannot be read back: {type(error).__name__}: {error}"
                    self._checker.violated("none lost", text)

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(check_some())

    async def _check(self, client: Client, ledger_id: int) -> None:
        async with client.recover(ledger_id, timeout=RECOVER_S) as ledger:
            metadata = ledger.metadata
            self._checker.ended(ledger_id, "the last check", metadata.last_entry_id, metadata.length)
            following = length = 0
            async with asyncio.timeout(READ_S):
                async for batch in ledger.read_batches():
                    for entry_id, payload in enumerate(batch.payloads(), batch.first_entry_id):
                        if entry_id != following or payload != payload_of(ledger_id, entry_id):
                            self._wrong_content(ledger_id, entry_id, following, payload)
                        following = entry_id + 1
                        length += len(payload)
        self._compare(metadata, following, length)
        copies = await count_replicas(client, metadata) if self._counts_copies else {}
        if copies and min(copies) < metadata.ack_quorum:
            text = f"ledger {ledger_id}, ack quorum {metadata.ack_quorum}: {dict(copies)} (copies: entries)"
            self._checker.violated("enough copies", text)
        self.ensemble_changes += len(metadata.ensembles) - 1
        self.entries += following

    def _wrong_content(self, ledger_id: int, entry_id: int, expected_id: int, payload: bytes) -> None:
        text = f"ledger {ledger_id}: read entry {entry_id} as {payload[:60]!r} where {expected_id} was expected"
        self._checker.violated("none lost", text)

    def _compare(self, metadata: LedgerMetadata, count: int, length: int) -> None:
        story = self._checker.stories.get(metadata.ledger_id, Story())
        name = f"ledger {metadata.ledger_id} ends at entry {metadata.last_entry_id}"
        violated = self._checker.violated
        if count != metadata.last_entry_id + 1:
            violated("none lost", f"{name}, but {count} entries were read")
        if story.acked > metadata.last_entry_id:
            violated("none lost", f"{name}, but {story.acked} was acknowledged")
        if story.seen > metadata.last_entry_id:
            violated("none vanished", f"{name}, but {story.seen} was read before")
        if metadata.last_entry_id > story.started:
            violated("none invented", f"{name}, but only those up to {story.started} were appended")
        if length != metadata.length:
            # D-10: a recovery that has no entry to write back and cannot read the last entry publishes another length.
            self._checker.counts["inexact lengths"] += 1
