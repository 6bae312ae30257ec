"""Members of a shared consumer: exclusion of others, and random schedules against a model of the log."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from bookies.protocol.log import Position
from bookies.protocol.log.lease import Candidate, LeaseQueue
from bookies.protocol.log.member import Member
from bookies.protocol.log.shares import RANGES_MAX, Offer, Range, Shares

LEDGERS, LENGTH = 4, 50
ENTRIES = [Position(ledger_id, entry_id) for ledger_id in range(LEDGERS) for entry_id in range(LENGTH)]
TTL_S = 3.0


class Record:
    def __init__(self, queue: LeaseQueue | None = None) -> None:
        self.queue = queue or LeaseQueue()

    def step(self, candidate: Candidate, now_s: float) -> None:
        candidate.seen(self.queue, now_s)
        changed = candidate.change(now_s)
        if changed is not None:
            self.queue = changed
            candidate.seen(changed, now_s)


def member(name: str, *, waits: bool = True, size: int = 10) -> Member:
    return Member(name, name, TTL_S, waits=waits, claim_size=size)


def test_members_hold_the_lease_together_and_exclude_others() -> None:
    record, a, b, alone = Record(), member("a"), member("b", waits=False), Candidate("c", "c", TTL_S, waits=True)
    record.step(a, 0.0)
    record.step(b, 0.0)
    record.step(alone, 0.0)
    assert (a.is_holder, b.is_holder, alone.is_holder) == (True, True, False)
    late, refused = member("late"), member("refused", waits=False)
    record.step(late, 0.5)
    record.step(refused, 0.5)
    assert (late.place, late.is_holder, late.watches, refused.place) == (3, False, True, -1)
    late.asks, late.offer = True, Offer(None, 0, 0, 9)
    record.step(alone, 1.5)
    record.step(refused, 1.5)
    assert refused.refusal is not None
    assert refused.refusal.text == "c"
    for other in (a, b):
        left = other.left(record.queue)
        assert left is not None
        record.queue = left
    record.step(alone, 2.0)
    record.step(late, 2.1)
    assert (alone.is_holder, late.is_holder, late.claim) == (True, False, None)


def test_a_write_commits_claims_and_renews() -> None:
    record, a, b = Record(LeaseQueue(shares=Shares(ENTRIES[0], ENTRIES[0]))), member("a"), member("b")
    record.step(a, 0.0)
    a.asks, a.offer = True, Offer(ENTRIES[0], 0, 0, 49)
    record.step(a, 0.1)
    assert a.claim == Range(0, 0, 9, 1)
    a.handled = Position(0, 4)
    assert a.claim == Range(0, 4, 9, 1)
    record.step(a, 0.2)
    assert (record.queue.shares, a.is_full) == (a.shares, False)
    assert (a.shares.position, a.shares.cursor) == (Position(0, 4), ENTRIES[0])
    a.saves = True
    a.seen(record.queue, 0.3)
    changed = a.change(0.3)
    assert changed is not None
    assert a.moves_cursor(changed)
    a.seen(changed, 0.3)
    assert (a.shares.cursor, a.moves_cursor(changed)) == (Position(0, 4), False)
    record.queue = changed
    a.handled = Position(0, 10)
    assert a.claim is None
    record.step(a, 0.4)
    assert not a.is_reset
    record.step(b, 0.5)
    a.offer = Offer(Position(0, 10), 0, 10, 49)
    record.step(a, 0.5)
    record.step(b, 1.0)
    assert (b.has_free, a.claim) == (False, Range(0, 10, 19, 1))
    record.step(b, 4.0)
    assert b.has_free
    a.seen(record.queue, 4.0)
    assert (a.token, a.claim, a.is_reset) == (0, None, False)


def test_a_range_that_is_taken_away() -> None:
    record, a = Record(LeaseQueue(shares=Shares(ENTRIES[0], ENTRIES[0]))), member("a")
    record.step(a, 0.0)
    a.asks, a.offer = True, Offer(ENTRIES[0], 0, 0, 49)
    record.step(a, 0.1)
    record.queue = LeaseQueue(record.queue.next_token, record.queue.participants, Shares())
    record.step(a, 0.2)
    assert a.is_reset
    full = Shares(ENTRIES[0], ENTRIES[0], (Range(0, 0, 0, 1),) * RANGES_MAX)
    a.seen(LeaseQueue(2, record.queue.participants, full), 0.3)
    assert a.is_full


def test_a_later_range_does_not_begin_where_an_earlier_one_ended() -> None:
    """The cursor was moved back when all was handled: the next range has the entries before again."""
    record, a = Record(LeaseQueue(shares=Shares(ENTRIES[0], ENTRIES[0]))), member("a", size=20)
    record.step(a, 0.0)
    a.asks, a.offer = True, Offer(ENTRIES[0], 0, 0, 9)
    record.step(a, 0.1)
    a.asks, a.handled = False, Position(0, 10)
    record.step(a, 0.2)
    assert a.shares == Shares(ENTRIES[0], Position(0, 10))
    record.queue = replace(record.queue, shares=Shares(ENTRIES[5], ENTRIES[5]))
    a.asks, a.offer = True, Offer(ENTRIES[5], 0, 5, 49)
    record.step(a, 0.3)
    assert (a.is_reset, a.claim) == (False, Range(0, 5, 24, 1))
    record.step(a, 2.0)
    assert a.shares == Shares(ENTRIES[5], Position(0, 25), (Range(0, 5, 24, 1),))


class Run:
    """Random processes that share a log: writes that lose, replies that are lost, deaths, long pauses.

    `handled`: the entries that a process has handled, in the order of the commits that the record shows.
    """

    def __init__(self, seed: int, *, ignores_versions: bool = False) -> None:
        self.random = Random(seed)
        self.record, self.version, self.now_s = LeaseQueue(shares=Shares(ENTRIES[0], ENTRIES[0])), 0, 0.0
        self.handled: set[Position] = set()
        self.repeated = self.lost = 0
        self.ignores_versions = ignores_versions
        self.members = [self.enter(number) for number in range(4)]
        self.read: dict[str, tuple[LeaseQueue, int]] = {}

    def enter(self, number: int) -> Member:
        return member(f"{number}/{self.random.random()}", size=self.random.choice((3, 10, 100)))

    def run(self) -> None:
        while self.position < len(ENTRIES) and self.now_s < 5_000:
            self.now_s += self.random.choice((0.01, 0.1, 0.3))
            number = self.random.randrange(len(self.members))
            chance = self.random.random()
            if chance < 0.01:
                self.members[number] = self.enter(number)  # The one before has died.
            elif chance < 0.02:
                self.now_s += self.random.uniform(0, 2 * TTL_S)
            else:
                self.step(self.members[number], number)

    @property
    def position(self) -> int:
        return self.index(self.record.shares.position if self.record.shares else None)

    def index(self, position: Position | None) -> int:
        assert position is not None
        return position.ledger_id * LENGTH + position.entry_id

    def step(self, process: Member, number: int) -> None:
        """Read the record, or write what was derived from an earlier reading."""
        name = process._row.id
        if name not in self.read or self.random.random() < 0.2:
            queue, version = self.record, self.version
            process.seen(queue, self.now_s)
            if process.claim is not None and process.held_until_s > self.now_s:
                self.handle(process, process.claim)
            process.asks, process.offer = True, self.offer(process)
            process.saves = self.random.random() < 0.3
            self.read[name] = queue, version
            return
        queue, version = self.read.pop(name)
        if process.token and process.token not in queue.tokens:
            return
        before = self.position
        changed = process.change(self.now_s)
        if process.token == 0 and changed is not None and process.handled is not None:
            self.lost += 1
            self.members[number] = self.enter(number)  # It was taken for dead: a lease is not entered twice.
            return
        if changed is None or (version != self.version and not self.ignores_versions):
            return
        self.record, self.version = changed, self.version + 1
        assert self.position >= before, "the position goes back"
        assert self.handled.issuperset(ENTRIES[: self.position]), "an entry is skipped"
        if self.random.random() < 0.9:
            process.seen(changed, self.now_s)

    def handle(self, process: Member, claim: Range) -> None:
        count = self.random.randint(0, claim.last - claim.first + 1)
        entries = [Position(claim.ledger_id, claim.first + offset) for offset in range(count)]
        self.repeated += len(self.handled.intersection(entries))
        self.handled.update(entries)
        process.handled = Position(claim.ledger_id, claim.first + count)

    def offer(self, process: Member) -> Offer | None:
        at = self.index(process.shares.next)
        if at >= len(ENTRIES):
            return None
        first = ENTRIES[at]
        return Offer(process.shares.next, *first, min(LENGTH - 1, first.entry_id + self.random.randrange(20)))


def test_each_entry_is_handled_at_least_once_and_no_commit_skips_one() -> None:
    repeated = lost = 0
    for seed in range(40):
        run = Run(seed)
        run.run()
        assert run.position == len(ENTRIES), f"{seed}: it stands still"
        assert run.handled == set(ENTRIES), seed
        repeated, lost = repeated + run.repeated, lost + run.lost
    assert min(repeated, lost) > 20


def sweep(**faults: bool) -> None:
    for seed in range(40):
        Run(seed, **faults).run()


def test_a_mutant_that_writes_without_a_condition_is_found() -> None:
    with pytest.raises(AssertionError):
        sweep(ignores_versions=True)


def test_a_mutant_that_commits_with_an_old_token_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    committed = Shares.committed

    def any_token(self: Shares, token: int, before: Position) -> Shares:
        for row in self.ranges:
            if row.has_end(before):
                self = committed(self, row.token, Position(row.ledger_id, row.last + 1))
        return self

    monkeypatch.setattr(Shares, "committed", any_token)
    with pytest.raises(AssertionError):
        sweep()
