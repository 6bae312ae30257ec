"""Spans of a traced client, by OpenTelemetry's own implementation."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.fakes.world import play

import bookies
from bookies.errors import InvalidArgument, LedgerNotFound


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
