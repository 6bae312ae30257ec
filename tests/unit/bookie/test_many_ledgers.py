"""Adds of many ledgers that arrive together are stored as one batch, and nobody can tell."""

from __future__ import annotations

from random import Random

import pytest

from bookies.errors import Status
from bookies.kernels import Adds
from bookies.storage.cache import write_cache
from bookies.wire import digest
from bookies.wire.messages import AddRequest, AddResponses, BareResponse, ReadRequest, ReadResponse, Request

from .conftest import KEY, RawClient, World, adds

OTHER_KEY = digest.master_key(b"other")

Found = dict[tuple[int, int], list[Status]]


@pytest.fixture(autouse=True, params=["mixed", "runs"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the cache as one mixed run of many ledgers and, as where there are fewer, as a run of each."""
    if request.param == "runs":
        monkeypatch.setattr(write_cache, "MIXED_MIN", 1 << 30)


async def answers(client: RawClient, count: int) -> Found:
    """By ledger and entry."""
    found: Found = {}
    for _ in range(count):
        answer = await client.response()
        assert isinstance(answer, AddResponses | BareResponse)
        entry_id = answer.entry_ids[0] if isinstance(answer, AddResponses) else answer.entry_id
        found.setdefault((answer.ledger_id, entry_id), []).append(answer.status)
    return found


async def stored(client: RawClient, ids: set[tuple[int, int]]) -> dict[tuple[int, int], bytes | Status]:
    found: dict[tuple[int, int], bytes | Status] = {}
    for ledger_id, entry_id in sorted(ids):
        answer = await client.ask(ReadRequest(2, 0, ledger_id, entry_id))
        assert isinstance(answer, ReadResponse)
        found[ledger_id, entry_id] = answer.status if answer.body is None else bytes(answer.body)
    return found


def test_ledgers_in_turn_are_one_group_of_the_journal(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        client = await world.connect(server)
        client.send(*(adds(ledger_id, [0]) for ledger_id in range(200)))  # The first of each brings its key.
        await answers(client, 200)
        before = server.store.stats()
        batches = [adds(ledger_id, [entry_id]) for entry_id in (1, 2) for ledger_id in range(200)]
        client.send(*batches)
        found = await answers(client, 400)
        assert found == {(ledger_id, entry_id): [Status.OK] for ledger_id in range(200) for entry_id in (1, 2)}
        after = server.store.stats()
        assert after["entries_added"] - before["entries_added"] == 400
        assert after["journal_groups"] - before["journal_groups"] <= 2
        assert server._reception.intake.adds_size == 0
        expected = {(each.adds.first_ledger_id, each.adds.entry_ids[0]): each.adds.records.body(0) for each in batches}
        assert await stored(client, set(expected)) == expected

    world.run(body)


@pytest.mark.parametrize("journals", [1, 3])
def test_what_is_special_is_answered_as_if_it_had_come_alone(journals: int) -> None:
    """The same requests, first frame by frame and then in as few reads as there can be."""
    rng = Random(4)
    requests: list[AddRequest] = []
    for _ in range(300):
        # 5 is fenced, from 40 on nobody knows them. Never one twice running: what merges is refused as a whole.
        ledgers = {1, 2, 3, 4, 5, 6, 7, 8, 40, 41, 42} - {each.adds.first_ledger_id for each in requests[-1:]}
        ledger_id = rng.choice(sorted(ledgers))
        first = rng.choice([0, 1, 2, 50, 5000, 1 << 40])
        ids = list(range(first, first + rng.choice([1, 1, 1, 3])))
        if rng.random() < 0.3:
            ids.reverse()
        key = OTHER_KEY if rng.random() < 0.1 else KEY
        recovers = rng.random() < 0.1
        requests.append(
            adds(ledger_id, ids, key=key, is_recovery=recovers, size=rng.randrange(20, 400))
        )  # Copies differ, too.
    ids_of = {(each.adds.first_ledger_id, entry_id) for each in requests for entry_id in each.adds.entry_ids}
    count = sum(len(each.adds.entry_ids) for each in requests)
    settings = {"journal_directories": tuple(f"/journal{number}" for number in range(journals))}

    async def play(world: World, *, together: bool) -> tuple[Found, dict[tuple[int, int], bytes | Status]]:
        server = await world.start(**settings)
        client = await world.connect(server)
        for ledger_id in range(1, 9):
            await client.add(adds(ledger_id, [0]))
        await client.ask(ReadRequest(2, 0, 5, -1, KEY, is_fencing=True))
        found: Found = {}
        if together:
            client.send(*requests)
            found = await answers(client, count)
        else:
            for request in requests:
                client.send(request)
                for key, statuses in (await answers(client, len(request.adds.entry_ids))).items():
                    found.setdefault(key, []).extend(statuses)
        assert server._reception.intake.adds_size == 0
        world.forget_last()
        await world.on_bookie(server.stop())
        again = await world.connect(await world.start(**settings))  # What was acknowledged is there for good.
        return {key: sorted(each, key=str) for key, each in found.items()}, await stored(again, ids_of)

    alone, together = World(), World()
    expected = alone.run(lambda world: play(world, together=False))
    found = together.run(lambda world: play(world, together=True))
    assert {k: (v, expected[0][k]) for k, v in found[0].items() if v != expected[0][k]} == {}
    assert {k: (v, expected[1][k]) for k, v in found[1].items() if v != expected[1][k]} == {}
    assert found == expected
    assert {status for each in found[0].values() for status in each} >= {
        Status.OK,
        Status.FENCED,
        Status.UNAUTHORIZED,
        Status.BAD_REQUEST,
    }


def test_a_ledger_that_is_not_in_memory_waits_for_its_header_and_holds_up_nobody(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        client = await world.connect(server)
        client.send(*(adds(ledger_id, [0]) for ledger_id in range(20)))
        await answers(client, 20)
        world.forget_last()
        await world.on_bookie(server.stop())
        client = await world.connect(await world.start())
        requests: list[Request] = [adds(ledger_id, [entry_id]) for entry_id in (1, 2) for ledger_id in range(25)]
        client.send(*requests)
        found = await answers(client, 50)
        assert found == {(ledger_id, entry_id): [Status.OK] for ledger_id in range(25) for entry_id in (1, 2)}

    world.run(body)


def test_a_read_only_bookie_refuses_each_of_them(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        client = await world.connect(server)
        client.send(*(adds(ledger_id, [0]) for ledger_id in range(10)))
        await answers(client, 10)
        await world.on_bookie(server.hold_read_only(True))
        client.send(*(adds(ledger_id, [1]) for ledger_id in range(10)))
        found = await answers(client, 10)
        assert found == {(ledger_id, 1): [Status.READ_ONLY] for ledger_id in range(10)}
        urgent = [adds(ledger_id, [1], is_high_priority=True, is_recovery=True) for ledger_id in range(10)]
        client.send(*urgent)
        assert await answers(client, 10) == {(ledger_id, 1): [Status.OK] for ledger_id in range(10)}
        assert server._reception.intake.adds_size == 0

    world.run(body)


def test_what_is_refused_beside_an_entry_is_not_kept_with_it(world: World) -> None:
    """The frames of one read are one buffer: a small entry must not hold what others sent, where nobody counts it."""

    async def body(world: World) -> None:
        server = await world.start()
        client = await world.connect(server)
        client.send(*(adds(ledger_id, [0]) for ledger_id in (1, 2, 3)))
        await answers(client, 3)
        await client.ask(ReadRequest(2, 0, 3, -1, KEY, is_fencing=True))
        for entry_id in range(1, 20):
            client.send(adds(3, [entry_id], size=60_000), adds(1, [entry_id]), adds(2, [entry_id], size=300))
            found = await answers(client, 3)
            assert found == {(3, entry_id): [Status.FENCED], (1, entry_id): [Status.OK], (2, entry_id): [Status.OK]}
        parts = server.store._open()
        held = {id(run.records.data): len(run.records.data) for each in (1, 2) for run in parts.cache.runs_of(each)}
        assert sum(held.values()) <= 2 * parts.cache.size

    world.run(body)


@pytest.mark.parametrize("failing", ["cache", "journal"])
def test_a_mistake_half_way_ends_one_connection_and_nothing_else(
    world: World, failing: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(world: World) -> None:
        server = await world.start(journal_directories=("/journal0", "/journal1"))
        client = await world.connect(server)
        client.send(*(adds(ledger_id, [0]) for ledger_id in range(4)))
        await answers(client, 4)
        parts = server.store._open()
        target, name = (parts.cache.current, "add") if failing == "cache" else (parts.journals[1], "append")

        class Broken:
            """In place of what fails: an insertion half way, or whatever goes to the second journal."""

            def __getattr__(self, attribute: str) -> object:
                return getattr(target, attribute)

            def add(self, adds: Adds) -> None:
                target.add(adds.picked((0, 1)))  # type: ignore[union-attr]
                raise ZeroDivisionError("a mistake")

            def append(self, *arguments: object) -> None:
                raise ZeroDivisionError("a mistake")

        if name == "add":
            parts.cache.current = Broken()  # type: ignore[assignment]
        else:
            parts.journals[1] = Broken()  # type: ignore[call-overload]
        client.send(*(adds(ledger_id, [1]) for ledger_id in range(4)))
        await client.closed()
        if name == "add":
            parts.cache.current = target  # type: ignore[assignment]
        else:
            parts.journals[1] = target  # type: ignore[call-overload]
        assert "request.broken" in caplog.text
        client = await world.connect(server)
        client.send(*(adds(ledger_id, [2]) for ledger_id in range(4)))  # The storage goes on, and answers these too.
        assert await answers(client, 4) == {(ledger_id, 2): [Status.OK] for ledger_id in range(4)}
        assert server._reception.intake.adds_size == 0

    world.run(body)


def test_recoveries_fill_a_cache_that_cannot_be_flushed_up_to_its_bound(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        client = await world.connect(server)
        client.send(*(adds(ledger_id, [0]) for ledger_id in range(4)))
        await answers(client, 4)
        parts = server.store._open()
        parts.checkpointer.flusher.problem = "no space"
        cache = parts.cache
        cache.snapshot = cache.current
        cache.current = type(cache.current)(cache.current.marks)
        cache.current.size = cache._half_size + cache._excess_size - 1000
        entry_ids = range(1, 51)
        urgent = {"is_high_priority": True, "is_recovery": True}
        client.send(*(adds(ledger_id, [entry_id], **urgent) for entry_id in entry_ids for ledger_id in range(4)))
        found = [status for each in (await answers(client, 200)).values() for status in each]
        assert 1 <= found.count(Status.OK) <= 4
        cache.snapshot = None
        parts.checkpointer.flusher.problem = ""

    world.run(body)


@pytest.mark.parametrize("first", [[5, 6, 9], [6, 5]])
def test_of_two_copies_in_one_read_the_later_one_counts(world: World, first: list[int]) -> None:
    """Also when the first is in a batch that is not stored with the others, because its ids are no range."""

    async def body(world: World) -> None:
        client = await world.connect(await world.start())
        client.send(adds(1, [0]), adds(2, [0]))
        await answers(client, 2)
        newer = adds(1, [5], size=200)
        client.send(adds(1, first, size=40), adds(2, [5]), newer, adds(2, [6]))
        await answers(client, len(first) + 3)
        assert await stored(client, {(1, 5)}) == {(1, 5): newer.adds.records.body(0)}

    world.run(body)
