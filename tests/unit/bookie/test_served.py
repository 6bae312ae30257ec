"""What a bookie counts of the requests that it serves: by type, by outcome, once per batch."""

from __future__ import annotations

from bookies.bookie.served import Served
from bookies.errors import Status
from bookies.wire.messages import (
    BatchReadRequest,
    ForceLedgerRequest,
    GetBookieInfoRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
)

from .conftest import KEY, World, adds
from .test_latency import latency_of

HTTP = {"http_port": 8080}  # enables the counts; no server listens in these tests


def test_each_type_of_request_is_counted_by_outcome(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start(**HTTP)
        served = server.served
        assert served is not None
        client, client3 = await world.connect(server), await world.connect(server)  # of protocols v2 and v3
        await client.add(adds(1, range(5)))
        await client3.add(adds(2, range(3), version=3, is_recovery=True))
        await client.ask(ReadRequest(2, 0, 1, 0))
        await client3.ask(ReadRequest(3, 1, 1, 1))
        assert (await client.ask(ReadRequest(2, 0, 1, 99))).status is Status.NO_ENTRY
        await client.ask(ReadRequest(2, 0, -1, 0))
        await client.ask(BatchReadRequest(2, 5, 1, 0, 3, 10_000))
        await client.ask(ReadRequest(2, 0, 1, 0, KEY, is_fencing=True))
        await client.add(adds(1, [7]))
        await client3.ask(ReadLacRequest(3, 2, 2))
        await client3.ask(ForceLedgerRequest(3, 3, 2))
        await client3.ask(GetBookieInfoRequest(3, 4, 3))
        await client3.ask(ListEntriesRequest(3, 5, 2))
        counts = {
            name: (outcomes.succeeded.count, outcomes.failed.count)
            for name in (
                "adds",
                "recovery_adds",
                "reads",
                "fencing_reads",
                "lac_reads",
                "forces",
                "info_requests",
                "lists",
            )
            for outcomes in [getattr(served, name)]
        }
        assert counts == {
            "adds": (5, 1),
            "recovery_adds": (3, 0),
            "reads": (3, 2),
            "fencing_reads": (1, 0),
            "lac_reads": (1, 0),
            "forces": (1, 0),
            "info_requests": (1, 0),
            "lists": (1, 0),
        }
        assert served.adds_received == served.adds_answered == 9
        assert served.read_size > 0
        client.transport.close()
        client3.transport.close()

    world.run(body)


def test_a_bookie_without_an_http_server_counts_no_requests(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        assert server.served is None
        client = await world.connect(server)
        await client.add(adds(1, range(5)))
        assert server.store.stats()["entries_added"] == 5
        assert server.store.stats()["bytes_added"] > 400
        client.transport.close()

    world.run(body)


def test_reads_of_one_batch_are_one_record() -> None:
    now = 1.0
    served = Served(lambda: now, latency_of())
    served.began_s = served.clock()
    for _ in range(3):
        served.read_now(100)
    assert served.reads.succeeded.count == 0
    now = 1.5
    served.end_reads()
    assert (served.reads.succeeded.count, served.reads.succeeded.sum, served.read_size) == (3, 1.5, 300)
    assert served.answered_now == 0


def test_a_group_of_the_journal_counts_as_often_as_it_has_records(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start(**HTTP)
        client = await world.connect(server)
        await client.add(adds(1, range(5)))
        client.send(*(adds(number, [0]) for number in range(10, 30)))
        for _ in range(20):
            await client.frame()
        parts = server.store.parts
        assert parts is not None
        (journal,) = parts.journals
        assert journal.times.syncs.count == journal.group_count
        assert journal.times.adds.count == journal.times.record_count >= journal.group_count
        assert journal.times.adds.sum >= journal.times.syncs.sum
        assert journal.waiting_s() == 0
        client.transport.close()

    world.run(body)
