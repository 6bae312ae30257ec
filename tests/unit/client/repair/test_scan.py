"""Scanning one replica, and writing single entries again, over fake bookies that speak the wire protocol."""

from __future__ import annotations

from random import Random

import pytest
from tests.fakes.world import World, in_world
from tests.unit.client.repair.test_administration import assert_replicated, written

from bookies.client.repair.scan import ReplicaScan
from bookies.errors import DigestMismatch, FragmentNotFinished, InvalidArgument, LedgerNotFound, Status
from bookies.model import BookieId
from bookies.protocol.pacing import RateLimit
from bookies.wire.messages import BatchReadRequest, BatchReadResponse, ListEntriesRequest, ListEntriesResponse


def bad_ids(scan: ReplicaScan) -> list[int]:
    return [entry_id for run in scan.bad for entry_id in range(run.first, run.last + 1)]


@pytest.mark.parametrize("wire", ["v2", "v3"])
@pytest.mark.parametrize("quorums", ["3/3/2", "3/2/2", "1/1/1"])
@pytest.mark.parametrize("seed", range(3))
@in_world()
async def test_exactly_the_bad_entries_are_found(world: World, wire: str, quorums: str, seed: int) -> None:
    random = Random(seed)
    store = await world.client(wire=wire)
    ledger_id = await written(store, 500, quorums)
    administration = store.administration()
    _, [fragment] = await administration.fragments(ledger_id)
    record = await store.metadata(ledger_id)
    for position, bookie in enumerate(fragment.ensemble):
        ids = fragment.stored(position)
        held = world.bookies[bookie].ledgers[ledger_id].entries
        missing = random.sample(list(ids), 20)
        corrupt = [each for each in random.sample(list(ids), 20) if each not in missing]
        for each in missing:
            del held[each]
        for each in corrupt:
            world.bookies[bookie].corrupt(ledger_id, each)
        visited: list[int] = []
        scan = await administration.scan_replica(
            record,
            bookie,
            ids,
            visit=lambda batch, visited=visited: visited.extend(batch.entry_ids),  # type: ignore[misc]
        )
        assert bad_ids(scan) == sorted([*missing, *corrupt])
        assert sorted(visited) == [each for each in ids if each in held and each not in corrupt]
        assert scan.entries == len(visited)
        assert scan.size > 0
        assert scan.stopped is None
        listed = await administration.scan_replica(record, bookie, ids, is_listing=True)
        assert bad_ids(listed) == sorted(missing)
        assert listed.entries == len(ids) - len(missing)


@in_world()
async def test_a_lost_replica_costs_a_few_questions_and_not_one_for_each_entry(world: World) -> None:
    store = await world.client()
    ledger_id = await written(store, 2000)
    record = await store.metadata(ledger_id)
    bookie = record.last_ensemble[0]
    del world.bookies[bookie].ledgers[ledger_id]
    asked = len(world.bookies[bookie].requests)
    scan = await store.administration().scan_replica(record, bookie, range(2000))
    assert [(run.first, run.last) for run in scan.bad] == [(0, 1999)]
    assert len(world.bookies[bookie].requests) - asked <= 4


@in_world()
async def test_a_list_that_lacks_what_can_be_read_is_not_believed(world: World) -> None:
    store = await world.client()
    ledger_id = await written(store, 100)
    record = await store.metadata(ledger_id)
    bookie = record.last_ensemble[0]

    def forget(request: object) -> list[ListEntriesResponse] | None:
        if isinstance(request, ListEntriesRequest):
            return [ListEntriesResponse(3, request.txn_id, Status.NO_LEDGER, request.ledger_id)]
        return None

    world.bookies[bookie].intercept = forget  # type: ignore[assignment]
    scan = await store.administration().scan_replica(record, bookie, range(100))
    assert (scan.bad, scan.entries) == ([], 100)


@in_world()
async def test_a_bookie_that_is_gone_is_no_finding_and_one_that_is_busy_is_asked_again(world: World) -> None:
    store = await world.client()
    ledger_id = await written(store, 100)
    record = await store.metadata(ledger_id)
    busy, gone, _ = record.last_ensemble
    refused = 0

    def refuse(request: object) -> list[BatchReadResponse] | None:
        nonlocal refused
        if isinstance(request, BatchReadRequest) and refused < 2:
            refused += 1
            return [
                BatchReadResponse(2, request.txn_id, Status.TOO_MANY_REQUESTS, request.ledger_id, request.entry_id, b"")
            ]
        return None

    world.bookies[busy].intercept = refuse  # type: ignore[assignment]
    await world.take_down(gone)
    administration = store.administration()
    scan = await administration.scan_replica(record, busy, range(100))
    assert (scan.bad, scan.entries, scan.stopped, refused) == ([], 100, None, 2)
    scan = await administration.scan_replica(record, gone, range(100))
    assert (scan.bad, scan.entries) == ([], 0)
    assert scan.stopped is not None
    assert (await administration.scan_replica(record, gone, range(100), is_listing=True)).stopped is not None


@in_world()
async def test_a_scan_keeps_to_its_pace(world: World) -> None:
    store = await world.client()
    ledger_id = await written(store, 100, size=1000)
    record = await store.metadata(ledger_id)
    begin = world.loop.time()
    await store.administration().scan_replica(record, record.last_ensemble[0], range(100), pace=RateLimit(10_000.0))
    assert 10 <= world.loop.time() - begin <= 15


@pytest.mark.parametrize("quorums", ["3/3/2", "3/2/2"])
@in_world()
async def test_renewed_entries_are_as_their_writer_sent_them(world: World, quorums: str) -> None:
    store = await world.client()
    ledger_id = await written(store, 300, quorums)
    administration = store.administration()
    record, [fragment] = await administration.fragments(ledger_id)
    bookie = fragment.ensemble[1]
    ids = list(fragment.stored(1))
    for each in ids[10:20]:
        del world.bookies[bookie].ledgers[ledger_id].entries[each]
    world.bookies[bookie].corrupt(ledger_id, ids[50])
    scan = await administration.scan_replica(record, bookie, ids)
    runs = [range(run.first, run.last + 1) for run in scan.bad]
    assert await administration.renew_entries(ledger_id, bookie, runs) == 11
    assert (await administration.scan_replica(record, bookie, ids)).bad == []
    assert_replicated(world, record, 299)
    assert await store.metadata(ledger_id) == record
    with pytest.raises(InvalidArgument, match="there is no bookie b9"):
        await administration.renew_entries(ledger_id, BookieId("b9"), runs)
    with pytest.raises(InvalidArgument, match="must be a LedgerMetadata"):
        await administration.scan_replica(None, BookieId("b1"), [0])  # type: ignore[arg-type]


@in_world()
async def test_what_has_no_good_copy_left_is_not_renewed(world: World) -> None:
    store = await world.client()
    ledger_id = await written(store, 20)
    administration = store.administration()
    record = await store.metadata(ledger_id)
    for bookie in record.last_ensemble:
        world.bookies[bookie].corrupt(ledger_id, 7)
    with pytest.raises(DigestMismatch, match="no replica can be read"):
        await administration.renew_entries(ledger_id, record.last_ensemble[0], [range(7, 8)])
    with pytest.raises(LedgerNotFound):
        await administration.renew_entries(99, record.last_ensemble[0], [range(7, 8)])
    growing = await written(store, 20, seal=False)
    with pytest.raises(FragmentNotFinished):
        await administration.renew_entries(growing, record.last_ensemble[0], [range(7, 8)])
