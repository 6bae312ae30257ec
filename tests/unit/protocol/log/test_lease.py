"""Leases: one holder at a time, in order of arrival, whatever is lost, late or suspended; and their record."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

import pytest
from msgspec.structs import replace

from bookies.errors import InvalidArgument, MetadataCorrupt, NotSupported
from bookies.protocol.log import Position, lease
from bookies.protocol.log.lease import (
    PARTICIPANTS_MAX,
    Candidate,
    LeaseQueue,
    Participant,
    check_text,
    check_ttl,
    pack_queue,
    parse_queue,
)
from bookies.protocol.log.shares import Range, Shares

TTL_S = 10.0


class Store:
    """The record, and processes that work on it without delay."""

    def __init__(self) -> None:
        self.queue = LeaseQueue()

    def step(self, candidate: Candidate, now_s: float) -> None:
        candidate.seen(self.queue, now_s)
        changed = candidate.change(now_s)
        if changed is not None:
            self.queue = changed
            candidate.seen(changed, now_s)


def candidate(name: str, *, waits: bool = True, ttl_s: float = TTL_S) -> Candidate:
    return Candidate(name, f"process {name}", ttl_s, waits=waits)


def test_the_first_holds_and_renews_and_the_next_follows_when_it_leaves() -> None:
    store, a, b = Store(), candidate("a"), candidate("b")
    store.step(a, 0.0)
    store.step(b, 1.0)
    assert (a.place, a.token, a.held_until_s) == (0, 1, 9.0)
    assert (b.place, b.token, b.held_until_s) == (1, 2, 0.0)
    assert (a.watches, b.watches) == (False, True)
    before = store.queue
    store.step(a, 2.0)
    assert store.queue == before  # nothing is due
    store.step(a, a.next_s(2.0))
    assert a.held_until_s == pytest.approx(TTL_S / 3 + 9.0)
    left = a.left(store.queue)
    assert left is not None
    store.queue = left
    assert a.left(store.queue) is None
    store.step(b, 5.0)
    assert (b.place, b.token, b.held_until_s) == (0, 2, 14.0)  # its renewal was due
    store.step(a, 6.0)
    assert (a.place, a.token) == (1, 3)  # at the end, with a new token


def test_a_holder_alone_ends_the_shares_of_earlier_processes() -> None:
    shares = Shares(Position(1, 0), Position(1, 9), (Range(1, 4, 8, 0),))
    store, sharing = Store(), Candidate("s", "process s", TTL_S, waits=True, is_shared=True)
    store.queue = LeaseQueue(shares=shares)
    store.step(sharing, 0.0)
    assert store.queue.shares == shares
    alone = candidate("a")
    store.step(alone, 0.5)
    assert store.queue.shares == shares  # it waits
    store.queue = sharing.left(store.queue) or store.queue
    assert store.queue.shares == shares
    store.step(alone, 1.0)
    assert store.queue.shares is None
    for queue in (LeaseQueue(5, (), shares), LeaseQueue(5, (), None)):
        store.queue, other = queue, candidate("b")
        store.step(other, 2.0)
        assert store.queue.shares is None
        left = other.left(replace(store.queue, shares=shares))
        assert left is not None
        assert left.shares is None


def test_a_silent_holder_is_removed_after_its_ttl_and_not_before() -> None:
    store, a, b = Store(), candidate("a"), candidate("b", ttl_s=2.0)
    store.step(a, 0.0)
    store.step(b, 3.0)  # reads the beat of a for the first time
    for now_s in (4.0, 6.0, 8.0, 10.0, 12.9):
        store.step(b, now_s)
        assert b.place == 1
    assert b.next_s(12.9) == 13.0
    store.step(b, 13.0)
    assert (b.place, store.queue.holder) == (0, store.queue.participants[0])
    a.seen(store.queue, 13.0)
    assert (a.place, a.token, a.held_until_s) == (-1, 0, 0.0)


def test_a_lost_reply_is_recognized_by_the_beat_and_counts_from_when_it_was_sent() -> None:
    a = candidate("a")
    a.seen(LeaseQueue(), 0.0)
    first = a.change(0.0)
    assert first is not None
    a.seen(LeaseQueue(), 2.0)  # not yet
    second = a.change(2.0)
    assert second is not None
    assert first.participants[0].beat < second.participants[0].beat
    a.seen(first, 3.0)  # the first attempt was late, and has won
    assert a.held_until_s == 9.0
    a.seen(first, 4.0)
    assert a.held_until_s == 9.0


def test_without_waiting_a_live_holder_refuses_and_a_dead_one_is_replaced() -> None:
    store, a, b = Store(), candidate("a"), candidate("b", waits=False)
    store.step(a, 0.0)
    store.step(b, 1.0)
    assert b.refusal is None
    assert b.next_s(1.0) == pytest.approx(1.0 + TTL_S / 3)
    store.step(a, 4.0)
    store.step(b, 4.0)
    assert b.refusal is not None
    assert (b.refusal.text, b.place, b.watches) == ("process a", -1, True)
    c = candidate("c", waits=False)
    for now_s in (5.0, 14.9):
        store.step(c, now_s)
        assert c.place == -1
    store.step(c, 15.0)
    assert (c.place, c.refusal) == (0, None)
    d = candidate("d", waits=False)
    e = candidate("e")
    store.step(e, 16.0)
    store.step(d, 16.0)
    store.step(e, 20.0)
    store.step(d, 26.5)  # the first is dead, and the second will remove it
    assert d.place == -1
    assert d.next_s(26.5) == pytest.approx(26.5 + TTL_S / 3)


def test_the_queue_has_a_bound() -> None:
    store = Store()
    candidates = [candidate(str(number)) for number in range(PARTICIPANTS_MAX)]
    for each in candidates:
        store.step(each, 0.0)
    late = candidate("late")
    store.step(late, 1.0)
    assert (late.place, late.refusal) == (-1, None)
    assert [each.watches for each in candidates].count(True) == lease.WATCHING_MAX - 1
    store.step(candidates[0], 5.0)
    store.step(late, 5.0)
    assert late.refusal is not None


def test_the_record_survives_and_damage_is_reported() -> None:
    queue = LeaseQueue(8, (Participant("a", 6, 3, 10_000, "host:1"), Participant("b", 7, 1, 1_000, "host:2")))
    assert parse_queue("locks/x", pack_queue(queue)) == queue
    assert parse_queue("locks/x", pack_queue(LeaseQueue(8))) == LeaseQueue(8)
    for data in (b"", b"{}", b"[]", b'{"format":1,"next_token":1,"queue":[{}]}', b'{"format":"x"}'):
        with pytest.raises(MetadataCorrupt, match="locks/x"):
            parse_queue("locks/x", data)
    with pytest.raises(NotSupported):
        parse_queue("locks/x", b'{"format":3}')


def test_turns_that_another_process_ends() -> None:
    """Those who hold the lease notice, and stay in the queue till then. A turn that begins meanwhile is another one."""
    assert LeaseQueue().ended() is None
    rows = [Participant(name, token, 1, 10_000, name, token < 3) for token, name in enumerate("abcd", 1)]
    ended = LeaseQueue(5, tuple(rows)).ended()
    assert ended is not None
    assert [row.is_ended for row in ended.participants] == [True, True, False, False]
    assert ended.ended() is None
    assert parse_queue("consumers/l/c", pack_queue(ended)) == ended
    alone = LeaseQueue(5, tuple(rows[2:])).ended()
    assert alone is not None
    assert [row.is_ended for row in alone.participants] == [True, False]

    store, late, waiting = Store(), candidate("late"), candidate("waiting")
    store.step(late, 0.0)
    store.step(waiting, 0.0)
    ended = store.queue.ended()
    assert ended is not None
    late.seen(ended, 0.1)
    waiting.seen(ended, 0.1)
    assert (late.is_ended, late.is_holder, waiting.is_ended, waiting.is_holder) == (True, True, False, False)
    store.queue = ended
    store.step(late, 0.1)  # as one that waits, and has not seen that it has the lease: it begins after the end
    assert (late.is_ended, late.is_holder) == (False, True)


@pytest.mark.parametrize("ttl", [0.9, 301, True, "10", None, float("nan")])
def test_times_that_are_refused(ttl: object) -> None:
    with pytest.raises(InvalidArgument, match="ttl"):
        check_ttl(ttl)
    assert check_ttl(1) == 1.0


@pytest.mark.parametrize("text", ["", "x" * 201, "a\nb", 7])
def test_texts_that_are_refused(text: object) -> None:
    with pytest.raises(InvalidArgument, match="text"):
        check_text(text)
    assert check_text("a b") == "a b"


# -- random schedules ------------------------------------------------------------------------------------------------


class Process:
    """A participant over an unreliable store. Its clock begins anywhere."""

    def __init__(self, number: int, random: Random, ttl_s: float) -> None:
        self.offset_s = random.uniform(0, 1000)
        self.name = f"p{number}"
        self.candidate = Candidate(self.name, self.name, ttl_s, waits=True)
        self.is_alive = True
        self.is_leaving = False
        self.turn = 0  # of its requests: replies to earlier ones come too late


class Schedule:
    """Random processes on one record: requests and replies that are late or lost, pauses, deaths, releases.

    Checks at every moment of true time that at most one process counts itself as the holder, that tokens of holders
    grow, and that a process that arrived earlier and stayed is served earlier. `ignores_versions`: a mutant.
    """

    def __init__(self, seed: int, *, ignores_versions: bool = False) -> None:
        self.random = Random(seed)
        self.now_s = 0.0
        self.queue, self.version = LeaseQueue(), 0
        self.held: list[tuple[int, str]] = []  # tokens in the order in which they were first held
        self.deaths: dict[str, float] = {}
        self.violations: list[str] = []
        self._ignores_versions = ignores_versions
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.processes = [Process(number, self.random, self.random.choice((1.0, 2.0, 5.0))) for number in range(5)]
        for each in self.processes:
            self.at(self.random.uniform(0, 3), lambda each=each: self.read(each))  # type: ignore[misc]

    def at(self, delay_s: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._count, act))

    def delay_s(self) -> float:
        return self.random.choice((0.001, 0.001, 0.01, 0.1, self.random.uniform(0, 3)))

    def run(self, until_s: float) -> None:
        while self._events and self._events[0][0] < until_s:
            self.now_s, _, act = heapq.heappop(self._events)
            act()
            self.check()

    def check(self) -> None:
        holders = [
            each
            for each in self.processes
            if not each.is_leaving and self.now_s + each.offset_s < each.candidate.held_until_s
        ]
        if len(holders) > 1:
            self.violations.append(f"{self.now_s}: {[each.name for each in holders]} hold it")
        for each in holders:
            token = each.candidate.token
            if (token, each.name) not in self.held:
                if self.held and token <= self.held[-1][0]:
                    self.violations.append(f"{self.now_s}: token {token} after {self.held[-1][0]}")
                self.held.append((token, each.name))

    def read(self, process: Process) -> None:
        """A process asks for the record: it is read somewhat later, and the reply arrives somewhat later."""
        process.turn += 1
        turn = process.turn

        def reply() -> None:
            queue, version = self.queue, self.version
            self.at(self.delay_s(), lambda: self._read(process, turn, queue, version))

        if process.is_alive:
            self.at(self.delay_s(), reply)

    def _read(self, process: Process, turn: int, queue: LeaseQueue, version: int) -> None:
        if not process.is_alive or process.turn != turn:
            return
        now_s = self.now_s + process.offset_s
        process.candidate.seen(queue, now_s)
        changed = process.candidate.change(now_s)
        if process.is_leaving:
            changed = process.candidate.left(queue)
            if changed is None:  # It has left, and comes back later.
                process.is_leaving = False
                process.candidate = Candidate(f"{process.name}/{turn}", process.name, 2.0, waits=True)
                self.at(self.random.uniform(0, 5), lambda: self.read(process))
                return
        if changed is None:
            self._sleep(process, now_s)
            return
        self.at(self.delay_s(), lambda: self._write(process, turn, changed, version))
        if self.random.random() < 0.1:  # It gives up waiting for the reply, and reads again.
            self.at(0.5, lambda: self.read(process) if process.turn == turn else None)

    def _write(self, process: Process, turn: int, queue: LeaseQueue, version: int) -> None:
        succeeds = version == self.version or self._ignores_versions
        if succeeds:
            self.queue, self.version = queue, self.version + 1
        is_known = succeeds and self.random.random() < 0.9

        def receive() -> None:
            if not process.is_alive or process.turn != turn:
                return
            if is_known and not process.is_leaving:
                now_s = self.now_s + process.offset_s
                process.candidate.seen(queue, now_s)
                self._sleep(process, now_s)
            else:
                self.read(process)

        self.at(self.delay_s(), receive)

    def _sleep(self, process: Process, now_s: float) -> None:
        """Wait until something is due. A process may be suspended, die, or release the lease."""
        chance = self.random.random()
        if chance < 0.01 and process is not self.processes[0]:
            process.is_alive = False
            self.deaths[process.candidate._row.id] = self.now_s
            return
        process.is_leaving = chance < 0.2
        pause_s = self.random.uniform(0, 20) if 0.2 < chance < 0.24 else 0.0
        due_s = max(0.0, process.candidate.next_s(now_s) - now_s)
        self.at(min(due_s, 0.3) + 0.01 + pause_s, lambda: self.read(process))


def test_random_schedules_have_one_holder_and_growing_tokens() -> None:
    count = 0
    for seed in range(60):
        schedule = Schedule(seed)
        schedule.run(400.0)
        assert not schedule.violations, (seed, schedule.violations)
        count += len(schedule.held)
        alive = {each.name for each in schedule.processes if each.is_alive}
        assert schedule.held, seed
        assert {name for _, name in schedule.held} >= alive, f"{seed}: one was never served"
        late = [each for each in schedule.queue.participants if schedule.deaths.get(each.id, 150.0) < 100.0]
        assert not late, f"{seed}: the dead are still in the queue"
    assert count > 60 * 5


def violations_of(count: int = 60, **faults: bool) -> list[str]:
    schedules = [Schedule(seed, **faults) for seed in range(count)]
    for each in schedules:
        each.run(150.0)
    return [text for each in schedules for text in each.violations]


def test_a_mutant_that_writes_without_a_condition_is_found() -> None:
    assert violations_of(ignores_versions=True)


def test_a_mutant_that_removes_others_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    due_s = Candidate._dead_s
    monkeypatch.setattr(Candidate, "_dead_s", lambda self, other: due_s(self, other) - other.ttl_ms / 2000)
    assert violations_of()


def test_a_mutant_that_counts_its_lease_from_the_reply_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Candidate.seen

    def late(self: Candidate, queue: LeaseQueue, now_s: float) -> None:
        self._sent_s = dict.fromkeys(self._sent_s, now_s)
        seen(self, queue, now_s)

    monkeypatch.setattr(Candidate, "seen", late)
    assert violations_of()
