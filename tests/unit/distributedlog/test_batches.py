"""Batches of several processes: all or none, once, and what is left after aborts and crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import pytest
from msgspec.structs import replace
from tests.fakes.distributedlog import Place, in_namespace

from bookies.distributedlog.batches import ENTRY_SIZE, SKEW_MS, Batches, Mark, PartWriter, Quorums, parse_mark
from bookies.distributedlog.model.segment_list import Segments
from bookies.distributedlog.parts import LogParts
from bookies.distributedlog.store import Ownership
from bookies.errors import LogEnded, LogFenced, LogInUse, MetadataCorrupt, TransactionRefused
from bookies.metadata.zookeeper.zookeeper_port import Operation
from bookies.protocol.log.log_model import Written
from bookies.protocol.log.transaction import Origin, Transaction

STORES = pytest.mark.parametrize("has_zookeeper", [True, False], ids=["zookeeper", "embedded"])
KINDS = pytest.mark.parametrize("kind", ["lost_replies", "lost_requests"])
GRACE_MS = 500_000
LIMIT_S = 20.0


async def append(part: PartWriter, values: Sequence[bytes]) -> None:
    await part.append_packed(b"".join(values), [0, *accumulate(map(len, values))])


class Job:
    """An application that writes batches to the log `orders`, each with two parts."""

    def __init__(self, batches: Batches, app: str = "job", query: str = "", *, is_kept: bool = True) -> None:
        self.batches, self.app, self.query, self.is_kept = batches, app, query, is_kept

    async def part(self, version: int, values: Sequence[bytes], txid: int | None = None) -> tuple[Written, ...]:
        planned = await self.batches.next_txid() if txid is None else txid
        part = self.batches.part(
            Origin(self.app, version, self.query, 0, "0"), planned, Quorums(1, 1, 1), 1000, GRACE_MS
        )
        await append(part, values)
        return await part.finish()

    def transaction(self, version: int, *parts: tuple[Written, ...]) -> Transaction:
        written = tuple(ledger for part in parts for ledger in part)
        return Transaction(self.app, version, self.query, {"orders": written}, {}, is_kept=self.is_kept)

    async def write(self, version: int, *values: Sequence[bytes]) -> Transaction:
        return self.transaction(version, *[await self.part(version, part) for part in values])

    async def commit(self, txn: Transaction, *, is_fencing: bool = False) -> bool:
        return await self.batches.commit(txn, is_fencing=is_fencing, timeout=LIMIT_S)


async def job_of(place: Place, app: str = "job", query: str = "", *, is_kept: bool = True) -> Job:
    namespace = await place.namespace()
    await namespace.log("orders").create(exist_ok=True)
    return Job(namespace.batches("orders"), app, query, is_kept=is_kept)


async def payloads(place: Place) -> list[bytes]:
    async with (await place.log()).open() as reader:
        return [record.payload async for record in reader.read()]


async def ledgers(place: Place) -> set[int]:
    client = (await place.namespace()).client
    return {metadata.ledger_id async for metadata in client.ledgers()}


async def listed(place: Place) -> set[int]:
    return {segment.ledger_id for segment in await (await place.log()).segments()}


@STORES
def test_parts_become_segments_at_once(has_zookeeper: bool) -> None:
    async def act(place: Place) -> None:
        async with (await place.log()).lead() as writer:
            await writer.append(b"first", txid=70)
        job = await job_of(place)
        txn = await job.write(1, [b"a", b"b"], [b"c" * 600, b"", b"d" * 600], [])
        assert await payloads(place) == [b"first"]
        assert await job.commit(txn)
        log = await place.log()
        async with log.open() as reader:
            records = [record async for record in reader.read()]
        assert [record.payload for record in records] == [b"first", b"a", b"b", b"c" * 600, b"", b"d" * 600]
        assert [record.txid for record in records] == [70] + [71] * 5
        assert [record.sequence_id for record in records] == list(range(6))
        assert await log.count() == 6
        assert (await log.find(71)).segment == 2
        async with log.lead(lock_timeout=0) as writer:
            await writer.append(b"last")
            assert writer.last_txid == 72
        assert (await payloads(place))[-1] == b"last"

    in_namespace(act, has_zookeeper=has_zookeeper)


@STORES
def test_an_attempt_that_lands_while_the_next_one_reads(has_zookeeper: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ledgers stay: the list was read before, and the mark afterwards."""

    async def act(place: Place) -> None:
        job = await job_of(place)
        txn = await job.write(1, [b"a"])
        before = [await job.batches._parts.segments()]
        assert await job.commit(txn)
        segments = LogParts.segments

        async def late(parts: LogParts, watch: Callable[[], None] | None = None) -> Segments:
            return before.pop() if before else await segments(parts, watch)

        monkeypatch.setattr(LogParts, "segments", late)
        assert not await job.commit(txn)
        assert before == []
        assert await payloads(place) == [b"a"]

    in_namespace(act, has_zookeeper=has_zookeeper)


@STORES
def test_a_repeated_batch_is_recognized(has_zookeeper: bool) -> None:
    async def act(place: Place) -> None:
        job = await job_of(place)
        txn = await job.write(7, [b"a"])
        assert await job.commit(txn)
        assert not await job.commit(txn)
        assert not await job.commit(await job.write(7, [b"again"]))
        assert not await job.commit(await job.write(6, [b"earlier"]))
        assert await job.commit(await job.write(8, [b"b"]))
        assert await job.commit(job.transaction(9))
        assert await payloads(place) == [b"a", b"b"]
        assert await ledgers(place) == await listed(place)
        nameless = await job_of(place, "batch-1", is_kept=False)
        txn = await nameless.write(0, [b"c"])
        assert [await nameless.commit(txn), await nameless.commit(txn)] == [True, False]
        assert await payloads(place) == [b"a", b"b", b"c"]

    in_namespace(act, has_zookeeper=has_zookeeper)


def test_another_query_of_the_application_is_refused() -> None:
    async def act(place: Place) -> None:
        job = await job_of(place, query="q1")
        await job.commit(await job.write(3, [b"a"]))
        other = await job_of(place, query="q2")
        with pytest.raises(TransactionRefused, match=r"committed version 3 .* as query q1; this is query q2"):
            await other.commit(await other.write(0, [b"b"]))

    in_namespace(act)


def test_a_gap_in_the_numbers_of_a_query_is_refused() -> None:
    async def act(place: Place) -> None:
        job = await job_of(place, query="q1")
        await job.commit(await job.write(3, [b"a"]))
        later = replace(await job.write(5, [b"b"]), is_consecutive=True)
        with pytest.raises(TransactionRefused, match=r"commits batch 5 to log orders, whose last one is batch 3"):
            await job.commit(later)
        assert await payloads(place) == [b"a"]
        assert await job.commit(replace(await job.write(4, [b"c"]), is_consecutive=True))

    in_namespace(act)


@STORES
def test_an_empty_batch_leaves_its_mark(has_zookeeper: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later run of the same version appends nothing, also if both begin at once."""

    async def act(place: Place) -> None:
        job = await job_of(place)
        before = [await job.batches._marking(job.transaction(1))]
        assert await job.commit(job.transaction(1))
        assert not await job.commit(job.transaction(1))
        assert not await job.commit(await job.write(1, [b"late"]))
        assert await job.commit(job.transaction(2))
        marking = Batches._marking

        async def late(batches: Batches, txn: Transaction) -> tuple[Mark | None, list[Operation]]:
            return before.pop() if before else await marking(batches, txn)

        monkeypatch.setattr(Batches, "_marking", late)
        assert not await job.commit(job.transaction(1))
        assert before == []
        async with (await place.log()).lead() as writer:
            await writer.append(b"x")
            if not has_zookeeper:  # There it has the lock.
                assert await job.commit(job.transaction(3))
            await writer.append(b"y")
        assert await payloads(place) == [b"x", b"y"]
        assert await ledgers(place) == await listed(place)
        nameless = await job_of(place, "batch-1", is_kept=False)
        assert [await nameless.commit(nameless.transaction(0)) for _ in range(2)] == [True, True]

    in_namespace(act, has_zookeeper=has_zookeeper)


@KINDS
def test_a_commit_whose_answer_is_lost_is_carried_out_once(kind: str) -> None:
    async def act(place: Place) -> None:
        job = await job_of(place)
        txn = await job.write(1, [b"a"], [b"b"])
        assert place.server is not None
        setattr(place.server, kind, 1)
        await job.commit(txn, is_fencing=True)
        assert getattr(place.server, kind) == 0
        assert await payloads(place) == [b"a", b"b"]
        assert not await job.commit(txn)

    in_namespace(act)


@STORES
def test_commits_of_two_applications_are_both_in_the_log(has_zookeeper: bool) -> None:
    async def act(place: Place) -> None:
        one, two = await job_of(place, "one"), await job_of(place, "two")
        txns = [one.transaction(1, await one.part(1, [b"1"], 10)), two.transaction(1, await two.part(1, [b"2"], 20))]
        jobs = [asyncio.ensure_future(job.commit(txn)) for job, txn in zip((one, two), txns, strict=True)]
        results = await asyncio.gather(*jobs, return_exceptions=True)
        assert results[1] is True  # The first one may come too late for its transaction id.
        assert await payloads(place) == ([b"1", b"2"] if results[0] is True else [b"2"])

    in_namespace(act, has_zookeeper=has_zookeeper)


def test_records_that_came_between_make_the_batch_refuse() -> None:
    async def act(place: Place) -> None:
        job = await job_of(place)
        txn = await job.write(1, [b"a"])
        async with (await place.log()).lead() as writer:
            await writer.append_many([b"x", b"y"])
        with pytest.raises(TransactionRefused, match=r"up to transaction id 2 since job:1 was planned with 1"):
            await job.commit(txn)
        await job.batches.abort(txn, timeout=LIMIT_S)
        assert await ledgers(place) == await listed(place)
        assert await job.commit(await job.write(1, [b"a"]))
        assert await payloads(place) == [b"x", b"y", b"a"]

    in_namespace(act)


@STORES
def test_a_leader_is_waited_for_refused_or_stopped(has_zookeeper: bool) -> None:
    async def act(place: Place) -> None:
        job = await job_of(place)
        leader = await (await place.log(owner="w1")).lead()
        await leader.append(b"x", txid=5)
        txn = await job.write(1, [b"a"])
        with pytest.raises(LogInUse, match="w1 has the lock" if has_zookeeper else "onOpenTail=fence"):
            await job.commit(txn)
        await job.batches.abort(txn, timeout=LIMIT_S)  # The leader is not disturbed: the ledgers are left.
        await leader.append(b"y", txid=6)
        txid = await job.batches.next_txid(is_fencing=True)
        assert txid == 7
        txn = job.transaction(1, await job.part(1, [b"a"], txid))
        assert await job.commit(txn, is_fencing=True)
        with pytest.raises(LogFenced):
            await leader.append(b"z")
        await leader.abandon()
        assert await payloads(place) == [b"x", b"y", b"a"]

    in_namespace(act, has_zookeeper=has_zookeeper)


def test_a_dead_leaders_segment_is_completed_by_the_commit() -> None:
    async def act(place: Place) -> None:
        leader = await (await place.log()).lead()
        await leader.append(b"x")
        await leader.abandon()
        job = await job_of(place)
        assert await job.commit(await job.write(1, [b"a"]))
        assert await payloads(place) == [b"x", b"a"]

    in_namespace(act)


def test_an_ended_log_and_lost_or_foreign_ledgers_are_refused() -> None:
    async def act(place: Place) -> None:
        job, namespace = await job_of(place), await place.namespace()
        lost = await job.write(1, [b"a"])
        await namespace.client.delete(lost.ledger_ids[0])
        with pytest.raises(TransactionRefused, match="does not exist any more"):
            await job.commit(lost)
        foreign = job.transaction(2, await job.part(1, [b"a"]))
        with pytest.raises(TransactionRefused, match="is not what job:2 wrote"):
            await job.commit(foreign)
        await (await (await place.log()).lead()).seal()
        with pytest.raises(LogEnded):
            await job.batches.next_txid()

    in_namespace(act)


@STORES
def test_an_abort_deletes_and_a_task_discards_what_it_wrote(has_zookeeper: bool) -> None:
    async def act(place: Place) -> None:
        job = await job_of(place)
        txn = await job.write(1, [b"a"], [b"b"])
        assert await job.commit(txn)
        await job.batches.abort(txn, timeout=LIMIT_S)
        assert await payloads(place) == [b"a", b"b"]
        part = job.batches.part(Origin("job", 2, "", 0, "0"), 9, Quorums(1, 1, 1), 10)
        for number in range(3):
            await append(part, [b"%d" % number * 8])
        await part.discard()
        await job.batches.abort(await job.write(2, [b"c"]), timeout=LIMIT_S)
        assert await ledgers(place) == await listed(place)

    in_namespace(act, has_zookeeper=has_zookeeper)


@STORES
def test_leftovers_of_dead_tasks_are_reaped(has_zookeeper: bool) -> None:
    async def act(place: Place) -> None:
        job, other = await job_of(place), await job_of(place, "other")
        left, foreign = await job.write(1, [b"zombie"]), await other.write(4, [b"orphan"])
        unsealed = job.batches.part(Origin("job", 1, "", 1, "1"), 1, Quorums(1, 1, 1), 1000)
        await append(unsealed, [b"open"])
        txn = await job.write(1, [b"a"])
        await job.commit(txn)
        assert await job.batches.reap(txn) == []  # They are young.
        await asyncio.sleep(100)
        assert set(await job.batches.reap(txn, 50_000)) > set(left.ledger_ids)
        assert await ledgers(place) == await listed(place) | set(foreign.ledger_ids)
        await asyncio.sleep(GRACE_MS / 1000)
        assert await job.batches.reap(txn) == []  # A clock may be late.
        async with (await place.log()).lead() as writer:
            await writer.append(b"led", txid=100)
            await asyncio.sleep(SKEW_MS / 1000)
            assert await job.batches.reap(txn) == []  # A leader is not stopped for that.
        assert await job.batches.reap(txn) == foreign.ledger_ids
        assert await payloads(place) == [b"a", b"led"]

    in_namespace(act, has_zookeeper=has_zookeeper, deadline_s=5000.0)


@STORES
def test_a_batch_that_has_expired_is_refused(has_zookeeper: bool) -> None:
    async def act(place: Place) -> None:
        job, other = await job_of(place), await job_of(place, "other")
        txn = await job.write(1, [b"late"])
        await asyncio.sleep(GRACE_MS / 1000)
        with pytest.raises(TransactionRefused, match="has expired: nothing was changed"):
            await job.commit(txn)
        assert await other.commit(await other.write(1, [b"a"]))
        assert await payloads(place) == [b"a"]

    in_namespace(act, has_zookeeper=has_zookeeper)


@STORES
def test_a_commit_that_is_suspended_while_its_batch_expires(
    has_zookeeper: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a lock the reaper waits for it. Without one, the commit is refused and its ledgers go."""

    async def act(place: Place) -> None:
        job, other = await job_of(place), await job_of(place, "other")
        await job.commit(txn := await job.write(1, [b"a"]))
        late = await other.write(1, [b"late"])
        append = Ownership.append

        async def suspended(ownership: Ownership, *change: Any) -> None:
            await asyncio.sleep((GRACE_MS + 2 * SKEW_MS) / 1000)
            await append(ownership, *change)

        monkeypatch.setattr(Ownership, "append", suspended)
        commit = asyncio.ensure_future(other.batches.commit(late, is_fencing=False, timeout=1e6))
        await asyncio.sleep((GRACE_MS + SKEW_MS) / 1000)
        assert await job.batches.reap(txn) == ([] if has_zookeeper else late.ledger_ids)
        if has_zookeeper:
            assert await commit
        else:
            with pytest.raises(TransactionRefused, match="does not exist any more"):
                await commit
        assert await payloads(place) == ([b"a", b"late"] if has_zookeeper else [b"a"])

    in_namespace(act, has_zookeeper=has_zookeeper, deadline_s=5000.0)


def test_large_parts_have_many_entries_and_ledgers() -> None:
    async def act(place: Place) -> None:
        job = await job_of(place)
        values = [bytes([number]) * (ENTRY_SIZE // 3) for number in range(20)]
        part = job.batches.part(Origin("job", 1, "", 0, "0"), 1, Quorums(3, 3, 2), 1 << 18)
        for start in range(0, 20, 5):
            await append(part, values[start : start + 5])
        txn = job.transaction(1, await part.finish())
        assert len(txn.ledger_ids) == 2
        await job.commit(txn)
        assert await payloads(place) == values

    in_namespace(act)


def test_a_damaged_mark_is_reported() -> None:
    assert parse_mark(b"7;q") == (7, "q")
    assert parse_mark(b"0;") == (0, "")
    with pytest.raises(MetadataCorrupt, match="is not the mark of a batch"):
        parse_mark(b"x;q")
