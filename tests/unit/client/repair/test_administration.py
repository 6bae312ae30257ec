"""Checking ledgers, and copying what a lost bookie held, over fake bookies that speak the wire protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import pytest
from tests.fakes.world import World, in_world

from bookies.client.client import Client
from bookies.client.repair import Administration
from bookies.client.repair.replication import CopyProgress
from bookies.errors import (
    BookieUnreachable,
    ClientClosed,
    DigestMismatch,
    EntryNotFound,
    FragmentNotFinished,
    InvalidArgument,
    LedgerFenced,
    LedgerNotFound,
    LedgerUnknownToBookie,
    NotEnoughBookies,
    ReplicationFailed,
    Status,
    VersionConflict,
)
from bookies.model import BookieId, BookieMode, LedgerMetadata, LedgerState
from bookies.protocol.quorums import write_set
from bookies.protocol.repair import Fragment
from bookies.protocol.repair.fragments import ReplicaState
from bookies.wire.digest import master_key
from bookies.wire.messages import AddRequest, AddResponses, BatchReadRequest

PASSWORD = b"s3cret"
OK, MISSING, UNAVAILABLE = ReplicaState.OK, ReplicaState.MISSING, ReplicaState.UNAVAILABLE


async def written(store: Client, count: int = 10, quorums: str = "3/3/2", *, seal: bool = True, size: int = 10) -> int:
    """A ledger with `count` entries; its id."""
    ensemble, write_quorum, ack_quorum = map(int, quorums.split("/"))
    writer = await store.create(
        ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum, password=PASSWORD, digest="hmac"
    )
    if count:
        await writer.append_many([b"%0*d" % (size, entry_id) for entry_id in range(count)])
    if seal:
        await writer.seal()
    else:
        await asyncio.sleep(0.5)
        await writer.close()
    return writer.ledger_id


def states(check: Any, fragment: int = 0) -> list[ReplicaState]:
    return [replica.state for replica in check.fragments[fragment].replicas]


async def remove(world: World, bookie: BookieId) -> None:
    """The bookie stops for good: unreachable, and not registered any more."""
    await world.take_down(bookie)
    await world._drivers[world._names.index(bookie)].unregister(bookie)


def assert_replicated(world: World, record: LedgerMetadata, last: int) -> None:
    """I-2 and I-18: every bookie that the record names holds what it has to, as the writer packaged it."""
    for entry_id in range(last + 1):
        ensemble = record.ensemble_at(entry_id)
        copies = set()
        for position in write_set(entry_id, len(ensemble), record.write_quorum):
            body = world.bookies[ensemble[position]].ledgers[record.ledger_id].entries[entry_id]
            copies.add(bytes(body))
        assert len(copies) == 1, "byte by byte the same"


def spare_of(world: World, record: LedgerMetadata) -> list[BookieId]:
    return [bookie for bookie in world.bookies if bookie not in record.last_ensemble]


# -- checking ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("percentage", [0, 30, 100])
@pytest.mark.parametrize("quorums", ["3/3/2", "3/2/2", "1/1/1"])
@pytest.mark.parametrize("wire", ["v2", "v3"])
@in_world()
async def test_a_complete_ledger(world: World, quorums: str, percentage: float, wire: str) -> None:
    store = await world.client(wire=wire)
    ledger_id = await written(store, 200, quorums)
    check = await store.administration().check_ledger(ledger_id, percentage=percentage)
    assert check.is_ok
    assert check.fewest_replicas == int(quorums[2])
    assert check.metadata.is_closed


@in_world()
async def test_ledgers_without_entries(world: World) -> None:
    store = await world.client()
    administration = store.administration()
    for seal in (True, False):
        check = await administration.check_ledger(await written(store, 0, seal=seal))
        assert check.is_ok
        assert [len(fragment.replicas) for fragment in check.fragments] == ([] if seal else [3])
    assert (await administration.check_ledger(await written(store, 0))).fewest_replicas is None
    with pytest.raises(LedgerNotFound):
        await administration.check_ledger(99)
    with pytest.raises(InvalidArgument, match="percentage"):
        await administration.check_ledger(0, percentage=101)


@in_world()
async def test_what_is_missing_damaged_or_gone_is_found(world: World) -> None:
    store = await world.client()
    ledger_id = await written(store, 50)
    a, b, c = (await store.metadata(ledger_id)).last_ensemble
    administration = store.administration()
    del world.bookies[b].ledgers[ledger_id].entries[25]
    assert (await administration.check_ledger(ledger_id)).is_ok, "only the first and the last are read"
    check = await administration.check_ledger(ledger_id, percentage=100)
    assert not check.is_ok
    assert check.fewest_replicas == 2
    bad = check.fragments[0].replicas[1]
    assert (bad.bookie, bad.state, bad.entry_id) == (b, MISSING, 25)
    assert isinstance(bad.error, EntryNotFound)
    world.bookies[a].corrupt(ledger_id, 49)
    check = await administration.check_ledger(ledger_id)
    bad = check.fragments[0].replicas[0]
    assert (bad.state, bad.entry_id) == (MISSING, 49)
    assert isinstance(bad.error, DigestMismatch)
    await remove(world, c)
    check = await administration.check_ledger(ledger_id)
    assert states(check) == [MISSING, OK, UNAVAILABLE]
    assert check.fewest_replicas == 1


@in_world()
async def test_a_bookie_that_is_registered_and_does_not_answer(world: World) -> None:
    store = await world.client()
    ledger_id = await written(store)
    a = (await store.metadata(ledger_id)).last_ensemble[0]
    await world.take_down(a)
    check = await store.administration().check_ledger(ledger_id)
    assert states(check) == [UNAVAILABLE, OK, OK]
    assert isinstance(check.fragments[0].replicas[0].error, BookieUnreachable)


@in_world()
async def test_an_open_ledger_is_checked_up_to_what_is_confirmed(world: World) -> None:
    store = await world.client()
    ledger_id = await written(store, 10, seal=False)
    check = await store.administration().check_ledger(ledger_id)
    assert check.is_ok
    assert not check.fragments[0].fragment.is_finished
    for bookie in world.bookies:
        await world.take_down(bookie)
    check = await store.administration().check_ledger(ledger_id)
    assert states(check) == [UNAVAILABLE] * 3


@in_world()
async def test_a_peer_that_knows_no_batch_reads(world: World) -> None:
    """It closes the connection; then single reads do."""
    store = await world.client()
    ledger_id = await written(store, 50)
    for bookie in world.bookies.values():

        def drop(request: Any, bookie: Any = bookie) -> list[Any] | None:
            if isinstance(request, BatchReadRequest):
                bookie.drop_connections()
                return []
            return None

        bookie.intercept = drop
    assert (await store.administration().check_ledger(ledger_id, percentage=100)).is_ok


# -- what is stored where ------------------------------------------------------------------------------------------


@in_world(4)
async def test_lists(world: World) -> None:
    store = await world.client()
    ledger_id = await written(store, 50)
    administration = store.administration()
    b = (await store.metadata(ledger_id)).last_ensemble[1]
    [spare] = spare_of(world, await store.metadata(ledger_id))
    entries = world.bookies[b].ledgers[ledger_id].entries
    assert await administration.list_entries(b, ledger_id) == [range(50)]
    assert await administration.missing_entries(b, ledger_id) == []
    for entry_id in (0, 20, 21):
        del entries[entry_id]
    assert await administration.missing_entries(b, ledger_id) == [range(1), range(20, 22)]
    assert await administration.missing_entries(spare, ledger_id) == []
    del world.bookies[b].ledgers[ledger_id]
    assert await administration.missing_entries(b, ledger_id) == [range(50)]
    assert await administration.are_entries_stored(ledger_id, b)
    assert not await administration.are_entries_stored(ledger_id, spare)
    assert not await administration.are_entries_stored(99, b)
    assert list(await administration.ledgers_on([b])) == [ledger_id]
    assert await administration.ledgers_on([spare]) == {}


@in_world()
async def test_entries_as_they_are_stored(world: World) -> None:
    store = await world.client()
    administration = store.administration()
    ledger_id = await written(store, 5)
    record = await store.metadata(ledger_id)
    stored = world.bookies[record.last_ensemble[0]].ledgers[ledger_id].entries
    assert [entry async for entry in administration.read_stored(ledger_id)] == list(stored.items())
    assert [entry_id async for entry_id, _ in administration.read_stored(ledger_id, 1, 3)] == [1, 2, 3]
    beyond = administration.read_stored(ledger_id, 3, 9)
    assert [(await anext(beyond))[0], (await anext(beyond))[0]] == [3, 4]
    with pytest.raises(EntryNotFound, match="last add confirmed"):
        await anext(beyond)
    for bookie in record.last_ensemble:
        del world.bookies[bookie].ledgers[ledger_id].entries[2]
    assert [entry_id async for entry_id, _ in administration.read_stored(ledger_id)] == [0, 1]
    with pytest.raises(EntryNotFound, match="no replica can be read"):
        [_ async for _ in administration.read_stored(ledger_id, 0, 4)]


@in_world()
async def test_ledgers_are_opened_and_recovered_without_their_password(world: World) -> None:
    store = await world.client()
    administration = store.administration()
    ledger_id = await written(store, 5, seal=False)
    reader = await administration.open(ledger_id)
    assert [entry.payload async for entry in reader.read()][-1:] == [b"%010d" % reader.last_add_confirmed]
    await reader.close()
    record = await administration.recover(ledger_id)
    assert (record.state, record.last_entry_id) == (LedgerState.CLOSED, 4)


@in_world()
async def test_bookies(world: World) -> None:
    administration = (await world.client()).administration()
    b1 = BookieId("b1")
    seen: list[tuple[str, ...]] = []
    watch = administration.watch_bookies(BookieMode.WRITABLE, lambda bookies: seen.append(bookies.bookies))
    await remove(world, b1)
    await asyncio.sleep(0.1)
    watch.cancel()
    assert seen[-1] == ("b2", "b3")
    assert (await administration.bookies(BookieMode.WRITABLE)).bookies == ("b2", "b3")
    assert (await administration.bookies(BookieMode.READ_ONLY)).bookies == ()
    assert (await administration.bookies()).bookies == ("b1", "b2", "b3")
    assert await administration.bookie_info(b1) is None
    info = await administration.bookie_info(BookieId("b2"))
    assert info is not None
    assert info.rpc_address() == ("b2", 3181)


# -- replicating a fragment ----------------------------------------------------------------------------------------


async def checked_fragment(administration: Administration, ledger_id: int) -> tuple[Fragment, list[int]]:
    [verdict] = (await administration.check_ledger(ledger_id)).fragments
    return verdict.fragment, verdict.bad_positions


@pytest.mark.parametrize("quorums", ["3/3/2", "3/2/2"])
@pytest.mark.parametrize("wire", ["v2", "v3"])
@in_world(4)
async def test_a_fragment_is_copied_and_then_the_record_says_so(world: World, quorums: str, wire: str) -> None:
    store = await world.client(wire=wire)
    ledger_id = await written(store, 300, quorums)
    before = await store.metadata(ledger_id)
    lost = before.last_ensemble[1]
    [spare] = spare_of(world, before)
    await remove(world, lost)
    administration = store.administration()
    fragment, bad = await checked_fragment(administration, ledger_id)
    assert bad == [1]
    news: list[CopyProgress] = []
    move = await administration.replicate_fragment(fragment, bad, progress=news.append)
    assert move.replacements == ((1, lost, spare),)
    record = await store.metadata(ledger_id)
    assert record.last_ensemble == (before.last_ensemble[0], spare, before.last_ensemble[2])
    assert (record.last_entry_id, record.length) == (before.last_entry_id, before.length)
    assert_replicated(world, record, 299)
    assert list(world.bookies[spare].ledgers[ledger_id].entries) == list(fragment.stored(1)), "D-22"
    adds = [request for request in world.bookies[spare].requests if isinstance(request, AddRequest)]
    assert all(request.is_recovery for request in adds)
    assert news[-1].entries == len(fragment.stored(1))
    assert news[-1].size > 0
    assert (await administration.check_ledger(ledger_id, percentage=100)).is_ok


@in_world()
async def test_entries_that_were_lost_are_copied_back_in_place(world: World) -> None:
    """Three bookies, all in the ensemble: there is nobody else."""
    store = await world.client()
    ledger_id = await written(store, 100)
    before = await store.metadata(ledger_id)
    wiped = before.last_ensemble[2]
    del world.bookies[wiped].ledgers[ledger_id]
    administration = store.administration()
    fragment, bad = await checked_fragment(administration, ledger_id)
    with pytest.raises(NotEnoughBookies):
        await administration.replicate_fragment(fragment, bad)
    await administration.replicate_fragment(fragment, bad, in_place=True)
    assert await store.metadata(ledger_id) == before
    assert_replicated(world, before, 99)


@in_world(4)
async def test_a_target_on_which_the_ledger_is_fenced_takes_copies(world: World) -> None:
    """X-71."""
    store = await world.client()
    ledger_id = await written(store, 10)
    record = await store.metadata(ledger_id)
    [spare] = spare_of(world, record)
    with pytest.raises(LedgerUnknownToBookie):
        await store._pool.read_entry(spare, ledger_id, 0, key=master_key(PASSWORD))
    assert world.bookies[spare].ledgers[ledger_id].is_fenced
    await remove(world, record.last_ensemble[0])
    administration = store.administration()
    await administration.replicate_fragment(*await checked_fragment(administration, ledger_id))
    assert spare in (await store.metadata(ledger_id)).last_ensemble


@in_world(4)
async def test_a_copy_that_is_refused_changes_no_record_and_can_be_repeated(world: World) -> None:
    """X-72: the target's garbage collection is faster than we are."""
    store = await world.client()
    ledger_id = await written(store, 3000)
    before = await store.metadata(ledger_id)
    [spare] = spare_of(world, before)
    await remove(world, before.last_ensemble[0])
    administration = store.administration()
    fragment, bad = await checked_fragment(administration, ledger_id)
    refused: list[int] = []

    def refuse(request: Any) -> list[Any] | None:
        if isinstance(request, AddRequest) and request.adds.entry_ids[-1] >= 2000:
            refused.extend(request.adds.entry_ids)
            return [AddResponses(request.version, Status.FENCED, ledger_id, request.adds.entry_ids, request.txn_ids)]
        return None

    world.bookies[spare].intercept = refuse
    with pytest.raises(LedgerFenced):
        await administration.replicate_fragment(fragment, bad)
    assert refused
    assert await store.metadata(ledger_id) == before
    world.bookies[spare].intercept = lambda request: None
    await administration.replicate_fragment(fragment, bad)
    assert_replicated(world, await store.metadata(ledger_id), 2999)


@in_world(5)
async def test_a_damaged_copy_is_never_spread(world: World) -> None:
    store = await world.client()
    ledger_id = await written(store, 10)
    record = await store.metadata(ledger_id)
    a, b, c = record.last_ensemble
    world.bookies[b].corrupt(ledger_id, 5)
    await remove(world, a)
    administration = store.administration()
    fragment, bad = await checked_fragment(administration, ledger_id)
    await administration.replicate_fragment(fragment, bad)
    [spare] = [each for each in (await store.metadata(ledger_id)).last_ensemble if each not in (a, b, c)]
    copies = world.bookies[spare].ledgers[ledger_id].entries
    assert copies == world.bookies[c].ledgers[ledger_id].entries
    world.bookies[c].corrupt(ledger_id, 5)
    world.bookies[spare].corrupt(ledger_id, 5)
    fragment, _ = await checked_fragment(administration, ledger_id)
    with pytest.raises(DigestMismatch, match="no replica can be read"):
        await administration.replicate_fragment(fragment, [2])


@in_world(4)
async def test_a_fragment_that_may_grow_is_refused(world: World) -> None:
    """X-70."""
    store = await world.client()
    ledger_id = await written(store, 10, seal=False)
    administration = store.administration()
    [verdict] = (await administration.check_ledger(ledger_id)).fragments
    with pytest.raises(FragmentNotFinished):
        await administration.replicate_fragment(verdict.fragment, [0])


@in_world(5)
async def test_a_plan_that_is_out_of_date_is_refused_before_anything_is_copied(world: World) -> None:
    store = await world.client()
    ledger_id = await written(store, 10)
    await remove(world, (await store.metadata(ledger_id)).last_ensemble[0])
    administration = store.administration()
    fragment, bad = await checked_fragment(administration, ledger_id)
    await administration.replicate_fragment(fragment, bad)
    with pytest.raises(VersionConflict, match="other bookies"):
        await administration.replicate_fragment(fragment, bad)


@in_world(4)
async def test_the_pace_is_kept(world: World) -> None:
    store = await world.client()
    ledger_id = await written(store, 1000, size=1000)
    await remove(world, (await store.metadata(ledger_id)).last_ensemble[0])
    administration = store.administration()
    fragment, bad = await checked_fragment(administration, ledger_id)
    begun = world.loop.time()
    await administration.replicate_fragment(fragment, bad, bytes_per_s=100_000)
    assert world.loop.time() - begun == pytest.approx(10.5, rel=0.1)
    with pytest.raises(InvalidArgument):
        await administration.replicate_fragment(fragment, bad, bytes_per_s=-1)


@in_world(5)
async def test_cancelling_leaves_the_record_alone(world: World) -> None:
    store = await world.client()
    ledger_id = await written(store, 1000, "4/2/2", size=1000)
    before = await store.metadata(ledger_id)
    await remove(world, before.last_ensemble[0])
    administration = store.administration()
    fragment, bad = await checked_fragment(administration, ledger_id)
    with pytest.raises(TimeoutError):
        await administration.replicate_fragment(fragment, bad, bytes_per_s=100_000, timeout=1)
    with pytest.raises(TimeoutError):
        await administration.replicate_fragment(fragment, bad, timeout=0.01)
    assert await store.metadata(ledger_id) == before


@in_world(5)
async def test_a_ledger_is_repaired(world: World) -> None:
    store = await world.client()
    writer = await store.create(ensemble=3, write_quorum=3, ack_quorum=2)
    await writer.append_many([b"x"] * 20)
    first = writer.metadata.last_ensemble
    await remove(world, first[0])
    await writer.append_many([b"y"] * 20)
    await asyncio.sleep(1)
    administration = store.administration()
    entries = world.bookies[first[1]].ledgers[writer.ledger_id].entries
    for entry_id in (0, 30):
        del entries[entry_id]
    [move] = await administration.repair_ledger(writer.ledger_id, percentage=100, lost=[first[0]])
    assert (move.first, [each.old == each.new for each in move.replacements]) == (0, [True, False])
    assert 0 in entries
    assert 30 not in entries, "its fragment may still grow"
    await writer.seal()
    [move] = await administration.repair_ledger(writer.ledger_id, percentage=100)
    assert move.first > 0
    assert_replicated(world, await store.metadata(writer.ledger_id), 39)
    assert await administration.repair_ledger(writer.ledger_id, percentage=100) == ()
    last = (await store.metadata(writer.ledger_id)).last_ensemble
    for bookie, entry_id in zip(last, (25, 30, 35), strict=True):
        del world.bookies[bookie].ledgers[writer.ledger_id].entries[entry_id]
    [move] = await administration.repair_ledger(writer.ledger_id, percentage=100)
    assert len(move.replacements) == 3, "each lacks another entry"
    assert_replicated(world, await store.metadata(writer.ledger_id), 39)
    for bookie in last:
        del world.bookies[bookie].ledgers[writer.ledger_id].entries[39]
    with pytest.raises(ReplicationFailed, match="1 could not be") as caught:
        await administration.repair_ledger(writer.ledger_id)
    assert [type(each) for each in caught.value.causes] == [EntryNotFound]


@in_world(6)
async def test_a_repair_that_is_only_planned_names_what_a_repair_does(world: World) -> None:
    """A bookie that takes entries gets its own again; a read-only one and a lost one are replaced."""
    store = await world.client()
    ledger_id = await written(store, 30)
    before = await store.metadata(ledger_id)
    wiped, read_only, lost = before.last_ensemble
    for bookie in (wiped, read_only):
        del world.bookies[bookie].ledgers[ledger_id].entries[0]
    driver = world._drivers[world._names.index(read_only)]
    info = await driver.bookie_info(read_only)
    assert info is not None
    await driver.register(read_only, BookieMode.READ_ONLY, info)
    await remove(world, lost)
    await asyncio.sleep(0.1)
    administration = store.administration()
    [plan] = await administration.repair_ledger(ledger_id, lost=[lost], dry_run=True)
    assert [each.old for each in plan.replacements if each.old == each.new] == [wiped]
    assert {each.old for each in plan.replacements if each.old != each.new} == {read_only, lost}
    assert await store.metadata(ledger_id) == before
    assert 0 not in world.bookies[wiped].ledgers[ledger_id].entries


@in_world()
async def test_a_repair_renews_only_what_is_missing(world: World) -> None:
    store = await world.client()
    ledger_id = await written(store, 200)
    bookie = (await store.metadata(ledger_id)).last_ensemble[1]
    for entry_id in (0, 70, 71):
        del world.bookies[bookie].ledgers[ledger_id].entries[entry_id]
    news: list[CopyProgress] = []
    await store.administration().repair_ledger(ledger_id, progress=news.append)
    assert news[-1].entries == 3
    assert_replicated(world, await store.metadata(ledger_id), 199)


@in_world(6)
async def test_a_repair_names_the_entries_that_no_bookie_has(world: World) -> None:
    store = await world.client()
    ledger_id = await written(store, 30)
    before = await store.metadata(ledger_id)
    for bookie in before.last_ensemble:
        await remove(world, bookie)
    with pytest.raises(ReplicationFailed) as caught:
        await store.administration().repair_ledger(ledger_id, lost=before.last_ensemble)
    [cause] = caught.value.causes
    assert isinstance(cause, BookieUnreachable)
    assert "entries 0 to 29" in str(cause)
    assert await store.metadata(ledger_id) == before
    with pytest.raises(LedgerNotFound):
        await store.administration().repair_ledger(99)


# -- recovering bookies --------------------------------------------------------------------------------------------


@in_world(7)
async def test_all_ledgers_of_a_lost_bookie(world: World) -> None:
    store = await world.client()
    ledgers = [await written(store, 40, quorums) for quorums in ("3/3/2", "3/2/2", "2/2/2", "5/3/2", "1/1/1")]
    open_one = await written(store, 20, "5/5/3", seal=False)
    # Only a replica that exists can be copied.
    single = (await store.metadata(ledgers.pop())).last_ensemble[0]
    lost = next(bookie for bookie in world.bookies if bookie != single)
    await remove(world, lost)
    administration = store.administration()
    touched = await administration.ledgers_on([lost])
    assert open_one in touched
    plan = await administration.recover_bookies([lost], dry_run=True)
    assert {move.ledger_id for move in plan.moves} == set(touched)
    assert [move.ledger_id for move in plan.moves if move.needs_sealing] == [open_one]
    assert {each: await store.metadata(each) for each in touched} == touched, "nothing was done"
    news: list[CopyProgress] = []
    report = await administration.recover_bookies([lost], progress=news.append)
    # The recovery of the open one may have replaced the bookie by writing its entries back.
    assert set(touched) - {open_one} <= {move.ledger_id for move in report.moves} <= set(touched)
    assert report.skipped == ()
    assert report.entries == news[-1].entries > 0
    assert report.size == news[-1].size > 0
    assert (news[-1].ledgers_done, news[-1].ledgers) == (len(touched), len(touched))
    assert await administration.ledgers_on([lost]) == {}
    for ledger_id in touched:
        record = await store.metadata(ledger_id)
        assert record.is_closed
        assert_replicated(world, record, record.last_entry_id)
        assert (await administration.check_ledger(ledger_id, percentage=100)).is_ok


@in_world(4)
async def test_open_ledgers_can_be_left_alone(world: World) -> None:
    store = await world.client()
    ledger_id = await written(store, 20, "3/3/2", seal=False)
    lost = (await store.metadata(ledger_id)).last_ensemble[0]
    await remove(world, lost)
    administration = store.administration()
    report = await administration.recover_bookies([lost], skip_open=True)
    assert report.skipped == (ledger_id,)
    assert report.moves == ()
    assert (await store.metadata(ledger_id)).state is LedgerState.OPEN


@in_world(5)
async def test_finished_fragments_of_a_ledger_that_goes_on(world: World) -> None:
    """Its writer has replaced the bookie already, so it is not disturbed."""
    store = await world.client()
    writer = await store.create(ensemble=3, write_quorum=3, ack_quorum=2)
    await writer.append_many([b"x"] * 20)
    lost = writer.metadata.last_ensemble[0]
    await remove(world, lost)
    await writer.append_many([b"y"] * 20)
    await asyncio.sleep(1)
    assert len(writer.metadata.ensembles) == 2
    administration = store.administration()
    [move] = (await administration.recover_bookies([lost])).moves
    assert move.first == 0
    assert await writer.append(b"goes on") == 40
    await writer.seal()
    record = await store.metadata(writer.ledger_id)
    assert lost not in [bookie for _, ensemble in record.ensembles for bookie in ensemble]
    assert_replicated(world, record, 40)


@in_world(5)
async def test_what_cannot_be_copied_is_said_and_the_rest_is_done(world: World) -> None:
    store = await world.client()
    good = await written(store, 20, "3/3/2")
    lost = (await store.metadata(good)).last_ensemble[0]
    bad = await written(store, 20, "3/3/2")
    while lost not in (await store.metadata(bad)).last_ensemble:
        bad = await written(store, 20, "3/3/2")
    for bookie in (await store.metadata(bad)).last_ensemble:
        del world.bookies[bookie].ledgers[bad]
    await remove(world, lost)
    administration = store.administration()
    before = await store.metadata(bad)
    with pytest.raises(ReplicationFailed, match="1 could not be") as caught:
        await administration.recover_bookies([lost])
    assert [(type(each), each.ledger_id) for each in caught.value.causes] == [(BookieUnreachable, bad)]
    assert await store.metadata(bad) == before
    assert lost not in (await store.metadata(good)).last_ensemble
    with pytest.raises(ReplicationFailed):
        await administration.recover_bookies([lost], ledger_id=bad, skip_unrecoverable=True)
    with pytest.raises(LedgerNotFound):
        await administration.recover_bookies([lost], ledger_id=99)
    with pytest.raises(InvalidArgument, match="at least one"):
        await administration.recover_bookies([])


@in_world(6)
async def test_ledgers_that_cannot_be_recovered_are_said_or_skipped(world: World) -> None:
    store = await world.client()
    ledger_id = await written(store, 20, "3/3/2", seal=False)
    ensemble = (await store.metadata(ledger_id)).last_ensemble
    for bookie in ensemble:
        await remove(world, bookie)
    administration = store.administration()
    with pytest.raises(ReplicationFailed) as caught:
        await administration.recover_bookies(ensemble)
    assert len(caught.value.causes) == 1
    report = await administration.recover_bookies(ensemble, skip_unrecoverable=True)
    assert report.skipped == (ledger_id,)


@in_world(5)
async def test_which_bookies_may_be_recovered(world: World) -> None:
    store = await world.client()
    ledger_id = await written(store, 20)
    record = await store.metadata(ledger_id)
    live = record.last_ensemble[0]
    administration = store.administration()
    nobody = BookieId("b77")
    for dry_run in (False, True):
        for force in (False, True):
            with pytest.raises(InvalidArgument, match=r"there is no bookie b77.*b1, b2, b3, b4"):
                await administration.recover_bookies([nobody, live], dry_run=dry_run, force=force)
    for chosen in (None, ledger_id):
        with pytest.raises(InvalidArgument, match=rf"{live} is registered as writable.*stop it.*force=True"):
            await administration.recover_bookies([live], ledger_id=chosen)
    for wrong in (live, None, 5, [None], [""]):
        with pytest.raises(InvalidArgument):
            await administration.recover_bookies(wrong)  # type: ignore[arg-type]
    assert await store.metadata(ledger_id) == record
    assert len((await administration.recover_bookies([live], dry_run=True)).moves) == 1
    assert len((await administration.recover_bookies([live], force=True)).moves) == 1
    # One without a cookie, as after a decommission, but with entries.
    gone = (await store.metadata(ledger_id)).last_ensemble[0]
    await remove(world, gone)
    driver = world._drivers[0]
    await driver.delete_cookie(gone, (await driver.read_cookie(gone))[1])
    assert len((await administration.recover_bookies([gone])).moves) == 1
    with pytest.raises(InvalidArgument, match=f"there is no bookie {gone}"):
        await administration.recover_bookies([gone])


@in_world(4)
async def test_a_plan_has_also_what_cannot_be_done(world: World) -> None:
    store = await world.client()
    lost = BookieId("b1")
    wide = await written(store, 20, "4/4/3")  # on all bookies, so that nobody can take a place
    small = await written(store, 20, "2/2/2")
    while lost not in (await store.metadata(small)).last_ensemble:
        small = await written(store, 20, "2/2/2")
    unknown = await written(store, 20, "3/3/2", seal=False)
    for bookie in world.bookies.values():
        bookie.ledgers.pop(unknown, None)
    others = [each for each in await store.administration().ledgers_on([lost]) if each not in (wide, small)]
    await remove(world, lost)
    report = await store.administration().recover_bookies([lost], dry_run=True)
    assert small in {move.ledger_id for move in report.moves}
    [obstacle] = [each for each in report.obstacles if each.ledger_id == wide]
    assert (obstacle.first, obstacle.last) == (0, 19)
    assert isinstance(obstacle.error, NotEnoughBookies)
    planned = {move.ledger_id for move in report.moves} | {each.ledger_id for each in report.obstacles}
    assert planned == {wide, small, *others}
    with pytest.raises(ReplicationFailed, match=f"of ledger {wide}: none of the 3 writable bookies"):
        await store.administration().recover_bookies([lost])


@in_world(5)
async def test_a_target_that_is_dead_is_passed_over(world: World) -> None:
    store = await world.client(read_timeout_ms=500, add_timeout_ms=500)
    ledger_id = await written(store, 50)
    administration = store.administration()
    for round_number in range(4):
        record = await store.metadata(ledger_id)
        lost = record.last_ensemble[round_number % 3]
        target = spare_of(world, record)[round_number % 2]
        await world.take_down(target)  # It stays registered.
        check = await administration.check_ledger(ledger_id)
        fragment = check.fragments[0].fragment
        move = await administration.replicate_fragment(fragment, [fragment.ensemble.index(lost)])
        assert move.replacements[0].new != target
        await world.listen(target)
    assert_replicated(world, await store.metadata(ledger_id), 49)
    spares = spare_of(world, await store.metadata(ledger_id))
    for spare in spares:
        await world.take_down(spare)
    fragment = (await administration.check_ledger(ledger_id)).fragments[0].fragment
    with pytest.raises(BookieUnreachable) as failure:
        await administration.replicate_fragment(fragment, [0])
    assert all(spare in str(failure.value) for spare in spares)
    assert_replicated(world, await store.metadata(ledger_id), 49)


@in_world(4)
async def test_what_replicate_fragment_refuses(world: World) -> None:
    store = await world.client()
    administration = store.administration()
    ledger_id = await written(store, 5)
    fragment = (await administration.check_ledger(ledger_id)).fragments[0].fragment
    for wrong in (None, ledger_id, (0, 4)):
        with pytest.raises(InvalidArgument, match="must be a Fragment"):
            await administration.replicate_fragment(wrong, [0])  # type: ignore[arg-type]
    for positions in ([], "0", None, [3], [-1], [0, 0], ["0"], [True], 0):
        with pytest.raises(InvalidArgument, match="positions="):
            await administration.replicate_fragment(fragment, positions)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="exclude="):
        await administration.replicate_fragment(fragment, [0], exclude="b1")
    with pytest.raises(InvalidArgument, match="in_place="):
        await administration.replicate_fragment(fragment, [0], in_place=1)  # type: ignore[arg-type]
    for first, last in ((-1, 2), (0, -2), (3, 2)):
        with pytest.raises(InvalidArgument):
            administration.read_stored(ledger_id, first, last)
    assert [each async for each, _ in administration.read_stored(ledger_id, 3)] == [3, 4]


@in_world(4)
async def test_decommissioning(world: World) -> None:
    store = await world.client()
    ledger_id = await written(store, 20)
    leaving = (await store.metadata(ledger_id)).last_ensemble[0]
    administration = store.administration()
    with pytest.raises(InvalidArgument, match="stop it first"):
        await administration.decommission(leaving)
    await remove(world, leaving)
    report = await administration.decommission(leaving)
    assert len(report.moves) == 1
    assert not await administration.are_entries_stored(ledger_id, leaving)
    assert (await administration.decommission(leaving)).moves == ()


# -- what happens meanwhile ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("quorums", ["3/3/2", "4/2/2"])
@pytest.mark.parametrize("delay_s", [0.0005, 0.001, 0.003])
@in_world(6)
async def test_a_client_that_is_closed_ends_everything(world: World, quorums: str, delay_s: float) -> None:
    """Nothing goes on, and it is not taken for a bookie's failure."""
    first = await world.client()
    ledger_id = await written(first, 2000, quorums, size=1000)
    lost = (await first.metadata(ledger_id)).last_ensemble[0]
    operations: list[Callable[[Administration], Coroutine[Any, Any, Any]]] = [
        lambda administration: administration.recover_bookies([lost], force=True, bytes_per_s=100_000),
        lambda administration: administration.recover_bookies([lost], force=True),
        lambda administration: administration.check_ledger(ledger_id, percentage=100),
        lambda administration: administration.repair_ledger(ledger_id, bytes_per_s=100_000),
    ]
    del world.bookies[lost].ledgers[ledger_id].entries[0]
    for operation in operations:
        store = await world.client()
        task = asyncio.create_task(operation(store.administration()))
        await asyncio.sleep(delay_s)
        assert not task.done()
        await store.close()
        with pytest.raises(ClientClosed):
            await task


@in_world(4)
async def test_ledgers_that_are_deleted_meanwhile(world: World) -> None:
    store = await world.client()
    ledgers = [await written(store, 1000, size=1000) for _ in range(3)]
    lost = (await store.metadata(ledgers[0])).last_ensemble[0]
    await remove(world, lost)
    administration = store.administration()
    touched = list(await administration.ledgers_on([lost]))
    deleting: list[asyncio.Task[None]] = []

    def delete(news: CopyProgress) -> None:
        if news.entries and not deleting:
            deleting.extend(asyncio.create_task(store.delete(each)) for each in touched)

    report = await administration.recover_bookies([lost], progress=delete, bytes_per_s=1_000_000)
    assert report.moves == ()
    assert deleting
    listed = administration._driver.ledger_ids

    async def list_one_more() -> AsyncIterator[Sequence[int]]:
        async for ids in listed():
            yield ids
        yield [touched[0]]

    administration._driver.ledger_ids = list_one_more  # type: ignore[method-assign]
    assert touched[0] not in await administration.ledgers_on(list(world.bookies))


@in_world(4)
async def test_a_bookie_that_is_named_again_is_not_decommissioned(world: World) -> None:
    store = await world.client()
    ledger_id = await written(store, 20)
    record = await store.metadata(ledger_id)
    leaving = record.last_ensemble[0]
    await remove(world, leaving)
    administration = store.administration()

    async def create() -> None:
        await administration._driver.create_ledger(record.replace(ledger_id=99))

    creating: list[asyncio.Task[None]] = []

    def name_again(news: CopyProgress) -> None:
        if not creating:
            creating.append(asyncio.create_task(create()))

    with pytest.raises(ReplicationFailed, match="names the bookie again") as caught:
        await administration.decommission(leaving, progress=name_again, bytes_per_s=1000)
    assert (caught.value.ledger_id, caught.value.bookie) == (99, leaving)
