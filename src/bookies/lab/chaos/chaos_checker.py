"""What must hold in `bk chaos`, from what every client wrote down and what is in the ledgers at the end.

none lost        every acknowledged append is readable at the end, with the right content
none vanished    no reader saw an entry that the ledger does not have at the end
none invented    a ledger has no entry that nobody appended
one end          everybody who was told the end of a ledger was told the same, and so is whoever asks at the end
enough copies    every entry of a ledger is on at least an ack quorum of its bookies
in time          every operation ended within its bound and `SLACK_S`; the time during which its process was
                 stopped does not count, and one whose process was killed need not end
documented       no operation raised an error that is none of the documented ones
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bookies.admin.shared.histogram import Histogram
from bookies.admin.shared.replicas import count_replicas
from bookies.errors import BookKeeperError
from bookies.lab.chaos.chaos_history import payload_of
from bookies.model import LedgerMetadata

if TYPE_CHECKING:
    from bookies.client.client import Client

SLACK_S = 5.0
RECOVER_S, READ_S = 60.0, 120.0  # of the last check, when nothing is broken any more
AT_ONCE = 4  # ledgers that the last check looks at


@dataclass
class Story:
    """One ledger as the clients saw it; -1: no entry. `ends`: (last entry, length) -> who was told that."""

    started: int = -1
    acked: int = -1
    seen: int = -1
    ends: dict[tuple[int, int], str] = field(default_factory=dict)


class Checker:
    """Takes the facts of all clients as they come; `violations` are sentences."""

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
        """The operations that it had under way need not end."""
        for key in [key for key in self._open if key[0] == client]:
            del self._open[key]
            self.counts["operations cut off by a kill"] += 1

    def overdue(self) -> list[str]:
        """Clients that have an operation under way for too long; each operation is a violation, once."""
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
        """The next lines of one client's history."""
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
        kind, seconds = fact["kind"], fact["s"]
        self.outcomes.setdefault(kind, Counter())[fact["outcome"]] += 1
        if fact["outcome"] == "ok":
            self.latencies.setdefault(kind, Histogram()).record(seconds)
        begun = self._open.pop((client, fact["op"]), None)
        if begun is None:
            return  # It was overdue, and has ended after all.
        stopped_s = self._stopped_s(client, begun["t"], fact["t"])
        if seconds - stopped_s > begun["bound_s"] + SLACK_S:
            self.violated("in time", f"{client}: {kind} took {seconds:.1f} s ({stopped_s:.1f} s stopped)")

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

    def ended(self, ledger_id: int, who: str, last: int, length: int) -> None:
        """`who` was told that the ledger ends at entry `last` and has `length` bytes."""
        ends = self.stories.setdefault(ledger_id, Story()).ends
        ends.setdefault((last, length), who)
        if len(ends) > 1:
            told = "; ".join(f"{name}: entry {end}, {size} bytes" for (end, size), name in ends.items())
            self.violated("one end", f"ledger {ledger_id} was told to end at different places: {told}")


class LastCheck:
    """Recover and read every ledger when nothing is broken any more, and compare with what the clients saw."""

    def __init__(self, checker: Checker, label: tuple[str, str], *, counts_copies: bool = True) -> None:
        self._checker = checker
        self._label = label
        self._counts_copies = counts_copies
        self.ensemble_changes = self.entries = self.ledgers = 0

    async def run(self, client: Client) -> None:
        records = [each async for each in client.ledgers(label=self._label)]
        self.ledgers = len(records)
        lost = self._checker.stories.keys() - {each.ledger_id for each in records}
        for ledger_id in sorted(lost):
            self._checker.violated("none lost", f"there is no ledger {ledger_id} any more")
        remaining = iter(records)

        async def check_some() -> None:
            for record in remaining:
                try:
                    await self._check(client, record.ledger_id)
                except (BookKeeperError, TimeoutError) as error:
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
            text = f"of ledger {ledger_id}, ack quorum {metadata.ack_quorum}: {dict(copies)} (copies: entries)"
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
            # A recovery with nothing to write back that cannot read the last entry publishes another one (D-10).
            self._checker.counts["inexact lengths"] += 1
