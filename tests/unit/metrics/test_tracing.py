"""Spans of a traced client, by OpenTelemetry's own implementation."""

from __future__ import annotations

import asyncio
from operator import itemgetter
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from tests.fakes.world import World, in_world, play

import bookies
from bookies.client.write.adds import TRACED_MAX
from bookies.errors import InvalidArgument, LedgerNotFound
from bookies.model import BookieId
from bookies.wire.messages import AddRequest, ReadRequest


def test_calls_have_spans_below_the_applications() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async def body(world: object) -> None:
        client = bookies.metrics.trace(await world.client(), provider)  # type: ignore[attr-defined]
        with provider.get_tracer("application").start_as_current_span("order") as order:
            async with client.create() as ledger:
                await ledger.append_many([b"x"] * 10)
                await ledger.append(b"twelve bytes")
            reader = await client.open(ledger.ledger_id)
            assert len([entry async for entry in reader.read()]) == 11
            await reader.close()
        with pytest.raises(LedgerNotFound):
            await client.metadata(10**9)
        spans = {span.name: span for span in exporter.get_finished_spans()}
        many = spans["LedgerWriter.append_many"]
        assert dict(many.attributes or {}) == {
            "bookies.ledger": ledger.ledger_id, "bookies.entries": 10, "bookies.result": 9,
        }  # fmt: skip
        assert dict(spans["LedgerWriter.append"].attributes or {})["bookies.bytes"] == 12
        for name in ("Client.create", "LedgerWriter.append_many", "Client.open", "LedgerReader.close"):
            assert spans[name].parent is not None
            assert spans[name].parent.span_id == order.get_span_context().span_id, name
        failed = spans["Client.metadata"]
        assert not failed.status.is_ok
        assert failed.events[0].name == "exception"

    play(body)


def test_what_is_no_client_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="expected a client"):
        bookies.metrics.trace(object())  # type: ignore[arg-type]


class Traced:
    """A traced client in a world of fake bookies, and the spans of the application and of the client."""

    def __init__(self, world: World) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self._world = world

    async def client(self, **settings: Any) -> bookies.Client:
        return bookies.metrics.trace(await self._world.client(**settings), self.provider)

    def traceparents(self, name: str) -> list[str]:
        """The identities of the finished spans of this name."""
        contexts = [span.context for span in self.exporter.get_finished_spans() if span.name == name]
        return [f"00-{context.trace_id:032x}-{context.span_id:016x}-01" for context in contexts]

    def received(self, kind: type) -> list[tuple[int, list[int], str]]:
        """The (version, entry ids, trace) of requests that b1 has received, of each ledger by entry."""
        received: dict[int, list[tuple[int, list[int], str]]] = {}
        for each in self._world.bookies[BookieId("b1")].requests:
            if isinstance(each, AddRequest) and kind is AddRequest:
                facts = each.version, list(each.adds.entry_ids), each.trace
                received.setdefault(each.adds.first_ledger_id, []).append(facts)
            elif isinstance(each, ReadRequest) and kind is ReadRequest:
                received.setdefault(each.ledger_id, []).append((each.version, [each.entry_id], each.trace))
        return [facts for ledger in received.values() for facts in sorted(ledger, key=itemgetter(1))]


@in_world()
async def test_bookies_learn_which_span_an_append_or_a_read_belongs_to(world: World) -> None:
    traced = Traced(world)
    client = await traced.client()
    async with client.create(ensemble=3, write_quorum=3, ack_quorum=3) as ledger:
        await ledger.append(b"one")
        await ledger.append_many([b"x"] * 10)
        await asyncio.gather(*(ledger.append(b"together") for _ in range(3)))
        one, *together = traced.traceparents("LedgerWriter.append")
        (many,) = traced.traceparents("LedgerWriter.append_many")
        assert traced.received(AddRequest) == [
            (3, [0], one),
            (2, list(range(1, 10)), ""),
            (3, [10], many),
            *((3, [11 + number], trace) for number, trace in enumerate(together)),
        ]
        assert sorted(together) == sorted(set(together))
    reader = await client.open(ledger.ledger_id)
    assert [entry.payload async for entry in reader.read(0, 2)] == [b"one", b"x", b"x"]
    await reader.read_entry(10)
    await reader.read_entry(11, parallel=True)
    await asyncio.sleep(1)  # virtual: bookies that answered first have not waited for those whose connection was new
    reads = traced.traceparents("LedgerReader.read_entry")
    assert [each for each in traced.received(ReadRequest) if each[0] == 3] == [
        *([(3, [10], reads[0])] if ledger.metadata.last_ensemble.index(BookieId("b1")) == 10 % 3 else []),
        (3, [11], reads[1]),
    ]


@in_world()
async def test_an_append_that_waits_for_memory_keeps_its_span(world: World) -> None:
    traced = Traced(world)
    client = await traced.client(memory_limit=100_000)
    async with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as ledger:
        await asyncio.gather(*(ledger.append(bytes(60_000)) for _ in range(3)))
    (bookie,) = (each for each in world.bookies.values() if each.requests)
    adds = [each for each in bookie.requests if isinstance(each, AddRequest)]
    assert sorted(each.trace for each in adds) == sorted(traced.traceparents("LedgerWriter.append"))
    assert [list(each.adds.entry_ids) for each in adds] == [[0], [1], [2]]


@in_world()
async def test_only_some_entries_of_a_batch_and_none_near_the_largest_size_carry_a_trace(world: World) -> None:
    traced = Traced(world)
    client = await traced.client()
    async with client.create() as ledger:
        await asyncio.gather(*(ledger.append(b"x") for _ in range(TRACED_MAX + 5)))
        received = traced.received(AddRequest)
        assert [(version, len(ids)) for version, ids, _ in received] == [(3, 1)] * TRACED_MAX + [(2, 5)]
    small = await traced.client(frame_size_max=10_000)
    async with small.create(ensemble=3, write_quorum=3, ack_quorum=3) as ledger:
        await ledger.append(bytes(9_900))
        await ledger.append(b"small")
    assert [version for version, _, _ in traced.received(AddRequest)[-2:]] == [2, 3]


@in_world()
async def test_an_advanced_ledger_and_one_with_deferred_sync_are_traced_too(world: World) -> None:
    traced = Traced(world)
    client = await traced.client()
    async with client.create(advanced=True) as ledger:
        await asyncio.gather(ledger.write(1, b"second"), ledger.write(0, b"first"))  # type: ignore[attr-defined]
    assert sorted(trace for _, _, trace in traced.received(AddRequest)) == sorted(
        traced.traceparents("AdvancedLedgerWriter.write")
    )
    async with client.create(deferred_sync=True) as deferred:
        await deferred.append_many([b"x"] * 3)
    assert traced.received(AddRequest)[2:] == [
        (3, [0, 1], ""),
        (3, [2], traced.traceparents("LedgerWriter.append_many")[0]),
    ]


@in_world()
async def test_spans_that_are_not_sampled_stay_with_the_application(world: World) -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    client = bookies.metrics.trace(await world.client(), provider)
    async with client.create() as ledger:
        await ledger.append(b"x")
    requests = [each for bookie in world.bookies.values() for each in bookie.requests if isinstance(each, AddRequest)]
    assert {(each.version, each.trace) for each in requests} == {(2, "")}
