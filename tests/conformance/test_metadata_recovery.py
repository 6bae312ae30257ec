"""What every metadata driver must do for auto-recovery. Source: metadata 8 and 11, rows 18 to 29."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator, Sequence

import pytest
from tests.conformance.test_metadata import Cluster, Driver, Kind, Seen, expire, ledger

from bookies.errors import ClientClosed, InvalidArgument, SessionExpired, VersionConflict
from bookies.metadata.embedded import EmbeddedDriver
from bookies.metadata.formats.recovery_formats import pack_mark
from bookies.metadata.interface import RecoveryStore
from bookies.metadata.interface.recovery_store import UNREAD, AuditKind, Candidacy, LedgerLock
from bookies.metadata.shared.nodes import Key, Put, Table
from bookies.metadata.shared.recovery import PAGE_COUNT, SharedRecovery, Vote
from bookies.model import BookieId, LedgerState

A, B, C = BookieId("bk-a:3181"), BookieId("bk-b:3181"), BookieId("bk-c:3181")
MANY = 10_000
PATIENCE_S = 180.0  # for many, on a real server of a busy machine
# Neighbours, and ids that are apart at each level of the tree that ZooKeeper has them in.
IDS = [0, 5, 0x1_0000, 0x1_0001, 12_345_678, (1 << 31) - 1, (1 << 32) + 1, (1 << 48) + 7, (1 << 63) - 1]


@pytest.fixture(params=["memory", "embedded", "zookeeper-hierarchical", "etcd"])
def kind(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Kind:
    return Kind(request.param, tmp_path)


async def mark_many(driver: Driver, ledger_ids: Sequence[int]) -> None:
    if isinstance(driver, EmbeddedDriver):  # which takes a commit on the disk for each, otherwise
        places = driver.recovery.nodes.places
        marks = [Key(Table.NODES, places.mark(ledger_id)) for ledger_id in ledger_ids]
        driver.database.commit([], [Put(mark, pack_mark([A], 1)) for mark in marks])
        return
    for first in range(0, len(ledger_ids), 200):
        await asyncio.gather(*(driver.recovery.mark(each, [A], 1) for each in ledger_ids[first : first + 200]))


async def ids_in(pages: AsyncIterator[Sequence[int]]) -> list[int]:
    return [each async for page in pages for each in page]


async def taken(recovery: RecoveryStore, ledger_id: int, *, needs_mark: bool = True) -> LedgerLock:
    lock = await recovery.lock(ledger_id, "host.example", needs_mark=needs_mark)
    assert lock is not None
    return lock


async def taken_at_last(recovery: RecoveryStore, ledger_id: int, *, needs_mark: bool = True) -> LedgerLock:
    while True:
        lock = await recovery.lock(ledger_id, "host.example", needs_mark=needs_mark)
        if lock is not None:
            return lock
        await asyncio.sleep(0.001)  # The store tells when a lock is free; our own driver may be a moment behind.


def vote_of(driver: Driver) -> Vote:
    """Of the only candidacy in a driver."""
    recovery = driver.recovery
    assert isinstance(recovery, SharedRecovery)
    (place,) = recovery._votes
    return Vote(0, place)


async def remove_by_hand(driver: Driver, place: str) -> None:
    recovery = driver.recovery
    assert isinstance(recovery, SharedRecovery)
    assert await recovery.nodes.delete(place, None)


# -- marks -----------------------------------------------------------------------------------------------------------


def test_a_mark_grows_when_something_is_added(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = (await cluster.driver()).recovery, (await cluster.driver()).recovery
        assert await one.mark_of(5) is None
        assert await one.mark(5, [B, B], 1000)
        first = await two.mark_of(5)
        assert first is not None
        assert (first.ledger_id, first.replicas, first.ctime_ms) == (5, (B,), 1000)
        assert not await two.mark(5, [B], 2000)
        assert not await two.mark(5, [], 2000)
        assert await one.mark_of(5) == first
        assert await two.mark(5, [A, B, C], 2000)
        second = await one.mark_of(5)
        assert second is not None
        assert (second.replicas, second.ctime_ms) == ((B, A, C), 2000)
        assert second.version > first.version
        assert not await one.unmark(first)
        assert await one.unmark(second)
        assert not await one.unmark(second)
        assert await two.mark_of(5) is None
        assert await two.mark(5, [], None)
        third = await one.mark_of(5)
        assert third is not None
        assert (third.replicas, third.ctime_ms) == ((), None)
        assert third.version > second.version
        assert not await one.unmark(second)

    kind.run(body)


def test_damage_that_a_mark_names_already_is_written_again(kind: Kind) -> None:
    """So that the repair that has passed it cannot delete the mark."""

    async def body(cluster: Cluster) -> None:
        one, two = (await cluster.driver()).recovery, (await cluster.driver()).recovery
        await one.mark(5, [A, B], 1000)
        lock, first = await taken(one, 5), await two.mark_of(5)
        assert first is not None
        assert await two.mark(5, [B], 2000, is_damage=True)
        second = await two.mark_of(5)
        assert second is not None
        assert (second.replicas, second.ctime_ms) == ((A, B), 2000)
        assert second.version > first.version
        assert not await one.done(lock)
        assert await two.mark_of(5) == second

    kind.run(body)


def test_a_mark_stands_for_the_same_damage_unless_a_repair_may_have_passed_it(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = (await cluster.driver()).recovery, (await cluster.driver()).recovery
        assert await two.mark(5, [A], 1000, is_damage=True)
        assert not await two.mark(5, [A], 2000, is_damage=True, stands_ms=1000)
        assert await two.mark(5, [A], 3000, is_damage=True, stands_ms=2000)  # another process has written it
        assert await two.mark(5, [B], 4000, is_damage=True, stands_ms=3000)
        lock = await taken(one, 5)
        assert await two.mark(5, [A], 5000, is_damage=True, stands_ms=4000)
        assert not await one.done(lock)
        lock = await taken(one, 5)
        assert await one.done(lock)
        assert await two.mark(5, [A], 6000, is_damage=True, stands_ms=5000)

    kind.run(body)


def test_what_many_add_at_once_is_all_there(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        stores = [(await cluster.driver()).recovery for _ in range(4)]
        bookies = [BookieId(f"bk-{number}:3181") for number in range(len(stores))]
        marked = await asyncio.gather(
            *(store.mark(7, [bookie], 1) for store, bookie in zip(stores, bookies, strict=True))
        )
        assert marked == [True] * len(stores)
        found = await stores[0].mark_of(7)
        assert found is not None
        assert sorted(found.replicas) == bookies

    kind.run(body)


def test_marks_are_listed_by_ledger(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = (await cluster.driver()).recovery, (await cluster.driver()).recovery
        assert await ids_in(one.marked_ids()) == []
        for ledger_id in reversed(IDS):
            await one.mark(ledger_id, [A], ledger_id % 1000)
        assert await ids_in(two.marked_ids()) == IDS
        marks = [mark async for page in two.marks() for mark in page]
        assert [(mark.ledger_id, mark.replicas, mark.ctime_ms) for mark in marks] == [(i, (A,), i % 1000) for i in IDS]
        assert [await two.mark_of(each) for each in IDS] == marks
        for mark in marks[1:]:
            assert await two.unmark(mark)
        assert await ids_in(one.marked_ids()) == IDS[:1]

    kind.run(body)


def test_only_what_is_needed_of_the_marks_is_read(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        store = (await cluster.driver()).recovery
        for ledger_id in IDS:
            await store.mark(ledger_id, [A], 1)
        wanted = IDS[1]
        marks = [mark async for page in store.marks(lambda ledger_id: ledger_id == wanted) for mark in page]
        assert [mark.ledger_id for mark in marks] == IDS
        assert await store.mark_of(wanted) == marks[1]
        assert all(mark.version == UNREAD or mark.replicas == (A,) for mark in marks)

    kind.run(body)


def test_many_marks_come_in_pages(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        driver = await cluster.driver()
        await mark_many(driver, [701 * n for n in range(MANY)])
        found = []
        async for page in driver.recovery.marks():
            assert 0 < len(page) < 2 * PAGE_COUNT
            found += [mark.ledger_id for mark in page]
        assert found == [701 * n for n in range(MANY)]
        assert await ids_in(driver.recovery.marked_ids()) == found

    kind.run(body, patience_s=PATIENCE_S)


# -- locks -----------------------------------------------------------------------------------------------------------


def test_a_lock_is_had_by_one(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = (await cluster.driver()).recovery, (await cluster.driver()).recovery
        await one.mark(5, [A], 1)
        lock = await taken(one, 5)
        mark = await one.mark_of(5)
        assert mark is not None
        assert (lock.ledger_id, lock.owner, lock.mark_version) == (5, "host.example", mark.version)
        assert one.is_held(lock)
        assert await one.lock(5, "host.example", needs_mark=True) is None
        assert await two.lock(5, "other.example", needs_mark=False) is None
        assert await two.locks() == {5: "host.example"}
        await one.unlock(lock)
        assert not one.is_held(lock)
        await one.unlock(lock)
        assert await one.locks() == {}
        second = await taken(two, 5)
        await one.unlock(lock)
        assert list(await one.locks()) == [5]
        await two.unlock(second)
        assert await one.mark_of(5) == mark

    kind.run(body)


def test_a_lock_may_need_a_mark(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        recovery = (await cluster.driver()).recovery
        assert await recovery.lock(5, "host.example", needs_mark=True) is None
        assert await recovery.locks() == {}
        lock = await taken(recovery, 5, needs_mark=False)
        assert lock.mark_version is None
        with pytest.raises(InvalidArgument, match="without a mark"):
            await recovery.done(lock)
        assert list(await recovery.locks()) == [5]
        await recovery.unlock(lock)
        assert await recovery.locks() == {}

    kind.run(body)


def test_a_lock_at_the_version_that_was_listed(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = (await cluster.driver()).recovery, (await cluster.driver()).recovery
        await one.mark(5, [A], 1)
        await one.mark(6, [A], 1)
        [first, second] = [mark async for page in two.marks() for mark in page]
        lock = await two.lock(5, "two", needs_mark=True, mark_version=first.version)
        assert lock is not None
        assert await one.lock(5, "one", needs_mark=True, mark_version=first.version) is None
        assert await one.locked_ids() == [5]
        assert await two.done(lock)
        assert await one.locked_ids() == []
        assert await one.mark_of(5) is None
        gone = await one.lock(5, "one", needs_mark=True, mark_version=first.version)
        assert gone is not None  # Nobody looks; in the end it turns out.
        assert not await one.done(gone)
        lock = await one.lock(6, "one", needs_mark=True, mark_version=second.version)
        assert lock is not None
        assert await two.mark(6, [B], 2)
        assert not await one.done(lock)
        assert await one.locked_ids() == []
        mark = await one.mark_of(6)
        assert mark is not None
        assert mark.replicas == (A, B)

    kind.run(body)


def test_everybody_who_stands_for_auditor_has_a_place(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two, other = [(await cluster.driver()).recovery for _ in range(3)]
        assert await one.queue_position() == (0, 1)
        first = await one.campaign(A, lambda: None)
        assert await one.queue_position() == (0, 1)
        second = await two.campaign(B, lambda: None)
        assert [await each.queue_position() for each in (one, two, other)] == [(0, 2), (1, 2), (0, 1)]
        assert [await each.candidates() for each in (one, other)] == [[A, B], [A, B]]
        await first.resign()
        assert [await each.queue_position() for each in (one, two)] == [(0, 1), (0, 1)]
        assert await other.candidates() == [B]
        await second.resign()
        assert await other.candidates() == []

    kind.run(body)


def test_of_many_who_want_a_lock_one_gets_it(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        stores = [(await cluster.driver()).recovery for _ in range(4)]
        await stores[0].mark(5, [A], 1)
        attempts = [store.lock(5, f"host-{at}", needs_mark=True) for at, store in enumerate(stores * 2)]
        got = [lock for lock in await asyncio.gather(*attempts) if lock is not None]
        assert len(got) == 1
        assert await stores[0].locks() == {5: got[0].owner}

    kind.run(body)


def test_what_is_done_is_not_marked_any_more(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = (await cluster.driver()).recovery, (await cluster.driver()).recovery
        await two.mark(5, [A], 1)
        assert await one.done(await taken(one, 5))
        assert await two.mark_of(5) is None
        assert await two.locks() == {}
        assert await two.lock(5, "other.example", needs_mark=True) is None

    kind.run(body)


def test_damage_that_is_noticed_during_a_repair_stays_marked(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = (await cluster.driver()).recovery, (await cluster.driver()).recovery
        await two.mark(5, [A], 1)
        lock = await taken(one, 5)
        assert not await two.mark(5, [A], 2)  # no damage and nothing new, so it does not stand in the way
        assert await two.mark(5, [B], 3)
        assert not await one.done(lock)
        assert not one.is_held(lock)
        mark = await two.mark_of(5)
        assert mark is not None
        assert mark.replicas == (A, B)
        again = await taken(two, 5)
        assert again.mark_version == mark.version
        assert await two.done(again)

        await one.mark(5, [A], 4)
        lock, mark = await taken(one, 5), await one.mark_of(5)
        assert mark is not None
        assert await two.unmark(mark)
        assert await two.mark(5, [A], 4)  # another one, though it looks the same
        assert not await one.done(lock)
        assert await one.mark_of(5) is not None

    kind.run(body)


def test_locks_go_with_the_session(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        holder, other = await cluster.driver(), await cluster.driver()
        lost, work = Seen(), Seen()
        holder.on_session_expired(lost)
        await other.recovery.mark(5, [A], 1)
        await other.recovery.mark(6, [A], 1)
        lock = await taken(holder.recovery, 5)
        other.recovery.watch_marks(work)
        await work.wait_for(bool)
        count = len(work.values)
        await expire(holder)
        await work.wait_for(lambda values: len(values) > count)
        second = await taken(other.recovery, 5)
        third = None
        with contextlib.suppress(SessionExpired):  # unless it has heard of the loss before
            third = await taken(holder.recovery, 6)
        await lost.wait_for(bool)
        assert len(lost.values) == 1
        assert not holder.recovery.is_held(lock)
        assert not await holder.recovery.done(lock)
        await holder.recovery.unlock(lock)
        assert await other.recovery.mark_of(5) is not None
        assert (await other.recovery.locks())[5] == "host.example"
        if third is None:
            third = await taken(holder.recovery, 6)
        assert await holder.recovery.done(third)
        assert await other.recovery.done(second)

    kind.run(body)


def test_under_a_lock_nothing_is_written_once_it_is_lost(kind: Kind) -> None:
    """Whatever its holder believes at that moment."""

    async def body(cluster: Cluster) -> None:
        holder, other = await cluster.driver(), await cluster.driver()
        made = await holder.create_ledger(ledger(5))
        lock = await taken(holder.recovery, 5, needs_mark=False)
        sealed = made.metadata.replace(state=LedgerState.CLOSED, last_entry_id=-1, length=0)
        written = await holder.write_ledger(made.metadata.replace(state=LedgerState.IN_RECOVERY), made.version, lock)
        with pytest.raises(VersionConflict):
            await holder.write_ledger(sealed, made.version, lock)
        await expire(holder)
        with pytest.raises(SessionExpired):
            await holder.write_ledger(sealed, written.version, lock)
        second = await taken_at_last(other.recovery, 5, needs_mark=False)
        with pytest.raises(SessionExpired):
            await holder.write_ledger(sealed, written.version, lock)
        assert await other.read_ledger(5) == written
        written = await other.write_ledger(sealed, written.version, second)
        assert (await holder.read_ledger(5)).metadata.is_closed

    kind.run(body)


def test_locks_and_votes_go_when_the_driver_is_closed(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        holder, other = await cluster.driver(), await cluster.driver()
        await taken(holder.recovery, 5, needs_mark=False)
        await holder.recovery.campaign(A, lambda: None)
        assert await other.recovery.auditor() == A
        assert list(await other.recovery.locks()) == [5]
        await holder.close()
        assert await other.recovery.locks() == {}
        assert await other.recovery.auditor() is None

    kind.run(body)


def test_who_gives_up_waiting_for_a_lock_leaves_none(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = (await cluster.driver()).recovery, (await cluster.driver()).recovery
        await one.mark(5, [A], 1)
        for steps in range(12):
            attempt = asyncio.ensure_future(one.lock(5, "host.example", needs_mark=True))
            for _ in range(steps):
                await asyncio.sleep(0)
            attempt.cancel()
            outcome = (await asyncio.gather(attempt, return_exceptions=True))[0]
            if isinstance(outcome, LedgerLock):
                await one.unlock(outcome)
            for recovery in (two, one):
                await recovery.unlock(await taken_at_last(recovery, 5))

    kind.run(body)


# -- watching for work -----------------------------------------------------------------------------------------------


def test_marks_and_freed_locks_are_told(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        worker, other = (await cluster.driver()).recovery, (await cluster.driver()).recovery
        work = Seen()
        watch = worker.watch_marks(work)
        await work.wait_for(bool)
        for ledger_id in (5, 6, (1 << 40) + 1, 5):
            count = len(work.values)
            await other.mark(ledger_id, [A], 1)
            await work.wait_for(lambda values, count=count: len(values) > count)
            lock = await taken(other, ledger_id)
            if ledger_id != 5:
                count = len(work.values)
                await other.unlock(lock)
                await work.wait_for(lambda values, count=count: len(values) > count)
                lock = await taken(other, ledger_id)
            await other.done(lock)
        watch.cancel()
        watch.cancel()
        count = len(work.values)
        await other.mark(77, [A], 1)
        assert await worker.mark_of(77) is not None
        assert len(work.values) == count

    kind.run(body)


# -- the switch, the delay, the checks -------------------------------------------------------------------------------


def test_the_switch(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = (await cluster.driver()).recovery, (await cluster.driver()).recovery
        told = Seen()
        two.watch_switch(told)
        assert await one.is_enabled()
        assert not await one.enable()
        for _ in range(2):
            count = len(told.values)
            assert await one.disable()
            assert not await two.disable()
            assert not await two.is_enabled()
            await told.wait_for(lambda values, count=count: len(values) > count)
            count = len(told.values)
            assert await two.enable()
            assert not await one.enable()
            assert await one.is_enabled()
            await told.wait_for(lambda values, count=count: len(values) > count)

    kind.run(body)


def test_the_delay_is_told_also_when_the_same_is_written(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = (await cluster.driver()).recovery, (await cluster.driver()).recovery
        assert await one.lost_bookie_delay_s() is None
        assert await one.init_lost_bookie_delay_s(30) == 30
        assert await two.init_lost_bookie_delay_s(40) == 30
        told = Seen()
        two.watch_lost_bookie_delay(told)
        await told.wait_for(bool)
        for delay_s in (60, 60, 60, 0):
            count = len(told.values)
            await one.set_lost_bookie_delay_s(delay_s)
            await told.wait_for(lambda values, count=count: len(values) > count)
            assert await two.lost_bookie_delay_s() == delay_s
        for delay_s in (-1, 1 << 31):
            with pytest.raises(InvalidArgument):
                await one.set_lost_bookie_delay_s(delay_s)
            with pytest.raises(InvalidArgument):
                await one.init_lost_bookie_delay_s(delay_s)

    kind.run(body)


def test_the_delay_can_be_set_before_it_is_begun_with(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = (await cluster.driver()).recovery, (await cluster.driver()).recovery
        await one.set_lost_bookie_delay_s(7)
        assert await two.init_lost_bookie_delay_s(40) == 7

    kind.run(body)


def test_checks_remember_when_they_were_done(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = (await cluster.driver()).recovery, (await cluster.driver()).recovery
        for at, check in enumerate(AuditKind):
            assert await one.checked_at_ms(check) is None
            await one.set_checked_at_ms(check, 1_700_000_000_000 + at)
        assert [await two.checked_at_ms(check) for check in AuditKind] == [1_700_000_000_000 + at for at in range(3)]
        await two.set_checked_at_ms(AuditKind.REPLICAS, 5)
        assert await one.checked_at_ms(AuditKind.REPLICAS) == 5

    kind.run(body)


# -- the auditor -----------------------------------------------------------------------------------------------------


class Candidate:
    """Stands for auditor, and remembers what it was told."""

    def __init__(self, driver: Driver, bookie: BookieId) -> None:
        self.driver = driver
        self.bookie = bookie
        self.told = Seen()
        self.candidacy: Candidacy | None = None

    async def stand(self) -> None:
        self.candidacy = await self.driver.recovery.campaign(self.bookie, self.hear)

    def hear(self) -> None:
        self.told(self.is_leader)

    @property
    def is_leader(self) -> bool:
        return self.candidacy is not None and self.candidacy.is_leader

    async def leads(self, is_leader: bool = True) -> None:
        await self.told.wait_for(lambda _: self.is_leader is is_leader)

    async def resign(self) -> None:
        assert self.candidacy is not None
        await self.candidacy.resign()


async def candidates(cluster: Cluster) -> list[Candidate]:
    found = [Candidate(await cluster.driver(), bookie) for bookie in (A, B, C)]
    for each in found:
        await each.stand()
    return found


def test_the_first_candidate_leads_and_the_others_follow_in_order(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        observer = (await cluster.driver()).recovery
        assert await observer.auditor() is None
        first, second, third = await candidates(cluster)
        assert [each.is_leader for each in (first, second, third)] == [True, False, False]
        assert await observer.auditor() == A
        await second.resign()  # who does not lead
        await second.resign()
        await first.resign()
        assert not first.is_leader
        await third.leads()
        assert await observer.auditor() == C
        await second.stand()
        await first.stand()
        assert [each.is_leader for each in (first, second, third)] == [False, False, True]
        await third.resign()
        await second.leads()
        assert not first.is_leader
        assert await observer.auditor() == B
        assert third.told.values == [True, False]

    kind.run(body)


def test_whose_session_is_lost_leads_no_more(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        first, second, third = await candidates(cluster)
        observer = (await cluster.driver()).recovery
        await expire(first.driver)
        await first.leads(False)
        await second.leads()
        assert await observer.auditor() == B
        await first.told.wait_for(lambda values: values == [True, False])
        # It stands again, behind the others.
        await second.resign()
        await third.leads()
        await third.resign()
        await first.leads()
        assert await observer.auditor() == A

    kind.run(body)


def test_whose_vote_is_taken_away_leads_no_more(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        first, second, third = await candidates(cluster)
        await remove_by_hand(third.driver, vote_of(first.driver).place)
        await first.leads(False)
        await second.leads()
        await remove_by_hand(first.driver, vote_of(third.driver).place)  # one that does not lead votes again, too
        await second.resign()
        await first.leads()
        await first.resign()
        await third.leads()

    kind.run(body)


def test_who_gives_up_standing_leaves_no_vote(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        driver, other = await cluster.driver(), await cluster.driver()
        for steps in range(12):
            attempt = asyncio.ensure_future(driver.recovery.campaign(A, lambda: None))
            for _ in range(steps):
                await asyncio.sleep(0)
            attempt.cancel()
            outcome = (await asyncio.gather(attempt, return_exceptions=True))[0]
            if isinstance(outcome, Candidacy):
                await outcome.resign()
            candidate = Candidate(other, B)
            await candidate.stand()
            await candidate.leads()
            await candidate.resign()

    kind.run(body)


# -- a closed driver -------------------------------------------------------------------------------------------------


def test_a_closed_driver_refuses(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        driver = await cluster.driver()
        recovery = driver.recovery
        lock = await taken(recovery, 5, needs_mark=False)
        candidacy = await recovery.campaign(A, lambda: None)
        await driver.close()
        for call in (
            recovery.mark(5, [A], 1),
            recovery.mark_of(5),
            recovery.lock(5, "host.example", needs_mark=False),
            recovery.locks(),
            recovery.locked_ids(),
            recovery.queue_position(),
            recovery.is_enabled(),
            recovery.lost_bookie_delay_s(),
            recovery.auditor(),
            recovery.candidates(),
            recovery.campaign(A, lambda: None),
            ids_in(recovery.marked_ids()),
        ):
            with pytest.raises(ClientClosed):
                await call
        for watch in (recovery.watch_marks, recovery.watch_switch, recovery.watch_lost_bookie_delay):
            with pytest.raises(ClientClosed):
                watch(lambda: None)
        await recovery.unlock(lock)
        await candidacy.resign()

    kind.run(body)
