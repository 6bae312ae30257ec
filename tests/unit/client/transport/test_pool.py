"""Connections by bookie: what travels over which, reconnecting, failures, limits, fencing beside reading."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.fakes.world import World, in_world

from bookies.client.transport import BookiePool
from bookies.config import ClientConfig
from bookies.errors import (
    BookieReadOnly,
    BookieTimeout,
    BookieUnreachable,
    BookKeeperError,
    ClientClosed,
    DataUnknown,
    EntryNotFound,
    InvalidArgument,
    LedgerUnknownToBookie,
    ProtocolError,
    ReadFailed,
    RemoteProtocolError,
    Status,
    Unauthorized,
    WriteFailed,
)
from bookies.kernels import pack_add_frames, scan_records
from bookies.model import BookieId, DigestType
from bookies.protocol.pacing.read_rates import ReadLoad
from bookies.wire import digest
from bookies.wire.messages import (
    AddRequest,
    AddResponses,
    BareResponse,
    BatchReadRequest,
    BatchReadResponse,
    ForceLedgerResponse,
    GetBookieInfoResponse,
    Operation,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
)
from bookies.wire.v2 import add_head

B1, B2 = BookieId("b1"), BookieId("b2")
KEY = digest.master_key(b"")


class Sink:
    def __init__(self) -> None:
        self.acknowledged: list[int] = []
        self.failed: list[tuple[list[int], BookKeeperError]] = []

    def on_acknowledged(self, bookie: BookieId, entry_ids: Sequence[int]) -> None:
        self.acknowledged += entry_ids

    def on_failed(self, bookie: BookieId, entry_ids: Sequence[int], error: BookKeeperError) -> None:
        self.failed.append((list(entry_ids), error))


def frames(first: int, count: int, *, ledger_id: int = 7, size: int = 20, is_recovery: bool = False) -> bytes:
    head = add_head(KEY, is_recovery=is_recovery)
    return pack_add_frames(head, ledger_id, first, first - 1, 0, [b"p" * size] * count, DigestType.CRC32C, b"")[0]


async def pool_of(world: World, **settings: object) -> BookiePool:
    return (await world.client(**settings))._pool


async def settle() -> None:
    await asyncio.sleep(0.05)


# -- adds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", ["v2", "v3"])
@in_world(1)
async def test_adds_reach_the_bookie_and_are_acknowledged(world: World, wire: str) -> None:
    pool = await pool_of(world, wire=wire)
    sink = Sink()
    pool.send_adds(B1, 7, range(5), frames(0, 5), sink)
    pool.send_adds(B1, 7, range(5, 8), frames(5, 3), sink)
    assert pool.pending_size(B1) == len(frames(0, 5)) + len(frames(5, 3)) == pool.total_size
    assert pool.pending_size(B2) == 0
    await settle()
    assert sink.acknowledged == list(range(8))
    assert pool.total_size == 0
    stored = world.bookies[B1].ledgers[7].entries
    assert list(stored) == list(range(8))
    digest.verify_entry(DigestType.CRC32C, b"", stored[7], 7, 7)
    assert {request.version for request in world.bookies[B1].requests} == {2 if wire == "v2" else 3}


@in_world(1)
async def test_statuses_become_errors_with_their_facts(world: World) -> None:
    pool = await pool_of(world)
    for status, kind in [
        (Status.READ_ONLY, BookieReadOnly),
        (Status.UNAUTHORIZED, Unauthorized),
        (Status.IO_ERROR, WriteFailed),
        (Status.BAD_REQUEST, WriteFailed),
    ]:
        world.bookies[B1].intercept = lambda request, status=status: [
            AddResponses(2, status, request.adds.first_ledger_id, request.adds.entry_ids)
        ]
        sink = Sink()
        pool.send_adds(B1, 7, range(3, 5), frames(3, 2), sink)
        await settle()
        # The network may deliver the two adds in one piece or in two.
        assert [entry_id for ids, _ in sink.failed for entry_id in ids] == [3, 4]
        assert {type(error) for _, error in sink.failed} == {kind}
        error = sink.failed[0][1]
        assert (error.ledger_id, error.entry_id, error.bookie) == (7, 3, B1)


@in_world(2)
async def test_nobody_listens(world: World) -> None:
    pool = await pool_of(world)
    await world.take_down(B1)
    sink = Sink()
    pool.send_adds(B1, 7, range(5), frames(0, 5), sink)
    pool.send_adds(B1, 8, range(2), frames(0, 2, ledger_id=8), sink)
    with pytest.raises(BookieUnreachable, match=r"cannot connect at b1:3181: .*refused"):
        await pool.read_entry(B1, 7, 0)
    assert [ids for ids, _ in sink.failed] == [[0, 1, 2, 3, 4], [0, 1]]
    assert all(type(error) is BookieUnreachable for _, error in sink.failed)
    assert pool.is_suspect(B1)
    assert not pool.is_suspect(B2)
    assert pool.total_size == 0
    await world.listen(B1)
    pool.send_adds(B1, 7, range(5), frames(0, 5), sink)
    await settle()
    assert sink.acknowledged == list(range(5))
    await asyncio.sleep(11)
    assert not pool.is_suspect(B1)


@in_world(2)
async def test_a_mistake_in_finding_a_bookie_ends_its_connection_alone(world: World, monkeypatch: Any) -> None:
    """Each time, and at once: requests must not wait until they time out."""
    pool = await pool_of(world)
    resolve = pool._connector._resolve

    async def mistaken(bookie: BookieId) -> tuple[str, int]:
        assert bookie != B1
        return await resolve(bookie)

    monkeypatch.setattr(pool._connector, "_resolve", mistaken)
    sink = Sink()
    pool.send_adds(B2, 7, range(1), frames(0, 1), sink)
    for _ in range(2):
        with pytest.raises(BookieUnreachable, match="cannot connect: "):
            await pool.read_entry(B1, 7, 0)
    await settle()
    assert (sink.acknowledged, sink.failed) == ([0], [])


@in_world(1)
async def test_an_unknown_bookie(world: World) -> None:
    pool = await pool_of(world)
    with pytest.raises(BookieUnreachable, match="not registered"):
        await pool.read_entry(BookieId("b9"), 7, 0)


@in_world(1)
async def test_a_host_that_swallows_packets_fails_after_the_connect_timeout(world: World) -> None:
    pool = await pool_of(world, connect_timeout_ms=700, read_timeout_ms=9000)
    world.network.block("client0", "b1")
    begun = world.loop.time()
    with pytest.raises(BookieUnreachable):
        await pool.read_entry(B1, 7, 0)
    assert 0.6 < world.loop.time() - begun < 1.0
    world.network.heal()


@in_world(1)
async def test_a_lost_connection_is_made_again_by_the_next_request(world: World) -> None:
    pool = await pool_of(world)
    sink = Sink()
    pool.send_adds(B1, 7, range(3), frames(0, 3), sink)
    await settle()
    world.bookies[B1].intercept = lambda request: []
    pool.send_adds(B1, 7, range(3, 5), frames(3, 2), sink)
    read = asyncio.ensure_future(pool.read_entry(B1, 7, 1))
    await settle()
    world.bookies[B1].drop_connections()
    with pytest.raises(BookieUnreachable):
        await read
    assert [ids for ids, _ in sink.failed] == [[3, 4]]
    world.bookies[B1].intercept = lambda request: None
    assert (await pool.read_entry(B1, 7, 1)).entry_id == 1
    assert world.bookies[B1].connection_count == 2


@in_world(1)
async def test_a_retry_from_within_the_failure_opens_a_new_connection(world: World) -> None:
    pool = await pool_of(world)

    class Retrying(Sink):
        def on_failed(self, bookie: BookieId, entry_ids: Sequence[int], error: BookKeeperError) -> None:
            super().on_failed(bookie, entry_ids, error)
            pool.send_adds(B1, 7, entry_ids, frames(entry_ids[0], len(entry_ids)), self)

    sink = Retrying()
    world.bookies[B1].intercept = lambda request: []
    pool.send_adds(B1, 7, range(3), frames(0, 3), sink)
    await settle()
    world.bookies[B1].intercept = lambda request: None
    world.bookies[B1].drop_connections()
    await settle()
    assert sink.acknowledged == [0, 1, 2]
    assert len(sink.failed) == 1


@in_world(2)
async def test_closing_fails_everything_and_refuses_the_rest(world: World) -> None:
    pool = await pool_of(world)
    world.bookies[B1].intercept = lambda request: []
    sink = Sink()
    pool.send_adds(B1, 7, range(3), frames(0, 3), sink)
    read = asyncio.ensure_future(pool.read_lac(B1, 7))
    connecting = asyncio.ensure_future(pool.read_lac(B2, 7))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await pool.close()
    assert type(sink.failed[0][1]) is ClientClosed
    for each in (read, connecting):
        with pytest.raises(ClientClosed):
            await each
    with pytest.raises(ClientClosed):
        pool.send_adds(B1, 7, range(3), frames(0, 3), sink)
    with pytest.raises(ClientClosed):
        await pool.read_entry(B1, 7, 0)


# -- reads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", ["v2", "v3"])
@in_world(1)
async def test_reads(world: World, wire: str) -> None:
    pool = await pool_of(world, wire=wire)
    pool.send_adds(B1, 7, range(100), frames(0, 100), Sink())
    pool.send_adds(B1, 8, range(1), frames(0, 1, ledger_id=8), Sink())
    found = await asyncio.gather(*(pool.read_entry(B1, 7, entry_id) for entry_id in [*range(99, -1, -1), -1, 5, 5]))
    for entry_id, response in zip([*range(99, -1, -1), 99, 5, 5], found, strict=True):
        digest.verify_entry(DigestType.CRC32C, b"", bytes(response.body or b""), 7, entry_id)
    with pytest.raises(EntryNotFound) as raised:
        await pool.read_entry(B1, 7, 100)
    assert (raised.value.ledger_id, raised.value.entry_id, raised.value.bookie) == (7, 100, B1)
    with pytest.raises(LedgerUnknownToBookie):
        await pool.read_entry(B1, 9, 0)


@in_world(1)
async def test_batch_reads(world: World) -> None:
    pool = await pool_of(world)
    pool.send_adds(B1, 7, range(100), frames(0, 100, size=100), Sink())
    records = await pool.read_batch(B1, 7, 90, 50, 1 << 20)
    starts, problem = scan_records(records, 0, len(records), 1 << 20)
    assert (len(starts) - 1, problem) == (10, "end")
    record_size = 4 + 32 + 4 + 100
    assert len(await pool.read_batch(B1, 7, 0, 50, 10 * record_size)) == 10 * record_size
    assert len(await pool.read_batch(B1, 7, 0, 50, 1)) == record_size
    assert len(await pool.read_batch(B1, 7, 0, 3, 1 << 30)) == 3 * record_size
    asked = [request for request in world.bookies[B1].requests if isinstance(request, BatchReadRequest)]
    assert max(request.size_max for request in asked) <= ClientConfig().frame_size_max
    with pytest.raises(EntryNotFound):
        await pool.read_batch(B1, 7, 100, 5, 100)
    v3 = await pool_of(world, wire="v3")
    assert not v3.has_batch_reads
    with pytest.raises(InvalidArgument, match="read_entry"):
        await v3.read_batch(B1, 7, 0, 5, 100)


@in_world(3)
async def test_reads_time_out_and_the_bookie_becomes_suspect(world: World) -> None:
    store = await world.client(read_timeout_ms=700)
    pool = store._pool
    world.bookies[B1].intercept = lambda request: []
    begun = world.loop.time()
    with pytest.raises(BookieTimeout, match="may or may not"):
        await pool.read_entry(B1, 7, 0)
    assert 0.7 <= world.loop.time() - begun < 0.95
    assert pool.is_suspect(B1)
    assert store._watcher.candidates()[-1] == B1


@in_world(1)
async def test_answers_that_make_no_sense(world: World) -> None:
    pool = await pool_of(world)
    bookie = world.bookies[B1]
    bookie.intercept = lambda request: [ReadLacResponse(3, request.txn_id, Status.OK, 7)]
    with pytest.raises(RemoteProtocolError, match="ReadLacResponse"):
        await pool.force(B1, 7)
    bookie.intercept = lambda request: [BareResponse(3, request.txn_id, Operation.READ, Status.UNAUTHORIZED)]
    with pytest.raises(Unauthorized):
        await pool.long_poll(B1, 7, 3, 100)
    bookie.intercept = lambda request: [ReadLacResponse(3, request.txn_id, Status.UNKNOWN_LEDGER_STATE, 7)]
    with pytest.raises(DataUnknown):
        await pool.read_lac(B1, 7)
    bookie.intercept = lambda request: [ReadLacResponse(3, request.txn_id, Status.BAD_VERSION, 7)]
    with pytest.raises(ProtocolError):
        await pool.read_lac(B1, 7)
    bookie.intercept = lambda request: [BatchReadResponse(2, request.txn_id, Status.IO_ERROR, 7, 0)]
    with pytest.raises(ReadFailed):
        await pool.read_batch(B1, 7, 0, 5, 100)


@in_world(1)
async def test_the_lac_packet_of_a_bookie_without_entries_is_used_whatever_the_status(world: World) -> None:
    pool = await pool_of(world)
    world.bookies[B1].intercept = lambda request: [ReadLacResponse(3, request.txn_id, Status.IO_ERROR, 7, b"packet")]
    assert (await pool.read_lac(B1, 7)).lac_body == b"packet"


# -- fencing -------------------------------------------------------------------------------------------------------


@in_world(1)
async def test_a_fencing_read_beside_a_plain_one_takes_the_other_connection(world: World) -> None:
    pool = await pool_of(world)
    pool.send_adds(B1, 7, range(3), frames(0, 3), Sink())
    await settle()
    fenced = world.bookies[B1].ledgers[7]

    def plain_first(request: Request) -> Sequence[Response] | None:
        """The plain answer comes late, and at the worst moment."""
        if isinstance(request, ReadRequest) and not request.is_fencing:
            return []
        return None

    world.bookies[B1].intercept = plain_first
    plain = asyncio.ensure_future(pool.read_entry(B1, 7, -1))
    await settle()
    fencing = asyncio.ensure_future(pool.read_entry(B1, 7, -1, key=KEY))
    await settle()
    assert fenced.is_fenced
    assert fencing.done()
    assert not plain.done()
    [asked] = [each for each in world.bookies[B1].requests if isinstance(each, ReadRequest) and each.is_fencing]
    assert (asked.version, asked.master_key) == (3, KEY)
    v2 = next(each for each in world.bookies[B1].connections)
    v2.send(ReadResponse(2, 0, Status.OK, 7, -1, fenced.entries[2]))
    assert (await plain).body == fenced.entries[2]


@in_world(1)
async def test_fencing_alone_uses_v2_and_needs_the_right_key(world: World) -> None:
    pool = await pool_of(world)
    pool.send_adds(B1, 7, range(3), frames(0, 3), Sink())
    with pytest.raises(Unauthorized):
        await pool.read_entry(B1, 7, -1, key=digest.master_key(b"wrong"))
    await pool.read_entry(B1, 7, -1, key=KEY)
    await pool.read_batch(B1, 7, 0, 5, 1000, key=KEY)
    asked = [each for each in world.bookies[B1].requests if isinstance(each, ReadRequest | BatchReadRequest)]
    assert [(each.version, each.is_fencing) for each in asked] == [(2, True)] * 3
    assert [each.is_high_priority for each in asked] == [False, False, True]
    sink = Sink()
    pool.send_adds(B1, 7, range(3, 4), frames(3, 1), sink)
    pool.send_adds(B1, 7, range(4, 5), frames(4, 1, is_recovery=True), sink)
    await settle()
    assert [ids for ids, _ in sink.failed] == [[3]]
    assert sink.acknowledged == [4]
    recovery = [each for each in world.bookies[B1].requests if isinstance(each, AddRequest) and each.is_recovery]
    assert len(recovery) == 1


# -- the rest ------------------------------------------------------------------------------------------------------


@in_world(1)
async def test_what_only_v3_can_say(world: World) -> None:
    pool = await pool_of(world)
    pool.send_adds(B1, 7, range(10), frames(0, 10), Sink())
    await pool.write_lac(B1, 7, 9, KEY, digest.package_lac(DigestType.CRC32C, b"", 7, 9))
    found = await pool.read_lac(B1, 7)
    assert digest.verify_lac(DigestType.CRC32C, b"", found.lac_body or b"", 7) == 9
    assert found.last_entry_body == world.bookies[B1].ledgers[7].entries[9]
    await pool.force(B1, 7)
    assert await pool.bookie_info(B1) == (1000, 400)
    assert await pool.bookie_load(B1) == ReadLoad(70, {7: 60})
    assert await pool.list_entries(B1, 7) == [range(10)]
    assert (await pool.long_poll(B1, 7, 3, 1000)).entry_id == 4
    begun = world.loop.time()
    answer = await pool.long_poll(B1, 7, 9, 1000)
    assert (answer.entry_id, answer.max_lac, answer.body) == (-1, 9, None)
    assert 0.9 < world.loop.time() - begun < 1.2
    assert world.bookies[B1].connection_count == 2


@in_world(1)
async def test_errors_of_the_rest(world: World) -> None:
    pool = await pool_of(world, read_timeout_ms=300)
    world.bookies[B1].intercept = lambda request: [ForceLedgerResponse(3, request.txn_id, Status.IO_ERROR, 7)]
    with pytest.raises(WriteFailed):
        await pool.force(B1, 7)
    world.bookies[B1].intercept = lambda request: []
    with pytest.raises(BookieTimeout):
        await pool.bookie_info(B1)
    world.bookies[B1].intercept = lambda request: [GetBookieInfoResponse(3, request.txn_id, Status.OK, 1, 1)]
    assert await pool.bookie_load(B1) is None, "a bookie of Apache's"
    world.bookies[B1].intercept = lambda request: []
    with pytest.raises(BookieTimeout):
        await pool.long_poll(B1, 7, 0, 100)


@in_world(1)
async def test_repr(world: World) -> None:
    pool = await pool_of(world)
    assert repr(pool) == "<BookiePool bookies=0 connections=0 unanswered=0 bytes>"
    await pool.bookie_info(B1)
    assert repr(pool) == "<BookiePool bookies=1 connections=1 unanswered=0 bytes>"
