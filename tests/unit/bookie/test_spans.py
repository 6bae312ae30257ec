"""Spans of traced requests at a bookie, by OpenTelemetry's own implementation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from bookies.bookie.served import MADE_MAX, PAUSE_S
from bookies.errors import ConfigError, Status
from bookies.wire.messages import ReadRequest

from .conftest import World, adds

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACE_ID, SPAN_ID = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


def spans_of(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    spans = exporter.get_finished_spans()
    names = [span.name for span in spans]
    assert len(set(names)) == len(names), names
    return dict(zip(names, spans, strict=True))


def check_stages(spans: dict[str, ReadableSpan], name: str) -> None:
    """The request's span is a child of the client's, and its stages lie end to end in it."""
    whole = spans[name]
    assert whole.parent is not None
    assert (whole.parent.trace_id, whole.parent.span_id, whole.parent.is_remote) == (TRACE_ID, SPAN_ID, True)
    assert whole.kind is trace.SpanKind.SERVER
    at = whole.start_time
    stages = [span for span in spans.values() if span.name.startswith(f"{name}.")]
    assert stages
    for stage in stages:
        assert stage.parent is not None
        assert stage.parent.span_id == whole.context.span_id
        assert stage.start_time is not None
        assert at is not None
        assert abs(stage.start_time - at) < 1000, stage.name
        at = stage.end_time
    assert at is not None
    assert whole.end_time is not None
    assert abs(at - whole.end_time) < 1000


def test_a_traced_add_and_read_have_spans_with_their_stages(world: World, exporter: InMemorySpanExporter) -> None:
    async def body(world: World) -> None:
        server = await world.start(spans=True)
        client = await world.connect(server)
        await client.add(adds(1, range(3), version=3))
        await client.add(adds(1, [3], version=3, trace=TRACE))
        read = await client.ask(ReadRequest(3, 8, 1, 3, trace=TRACE))
        assert read.status is Status.OK
        await client.ask(ReadRequest(3, 9, 1, 2))
        assert not exporter.get_finished_spans(), "made while requests were served"
        await asyncio.sleep(2 * PAUSE_S)
        spans = spans_of(exporter)
        assert list(spans) == [
            "Bookie.add.queue", "Bookie.add.sync", "Bookie.add.answer", "Bookie.add",
            "Bookie.read.memory", "Bookie.read",
        ]  # fmt: skip
        check_stages(spans, "Bookie.add")
        check_stages(spans, "Bookie.read")
        expected = {"bookies.bookie": "b1", "bookies.ledger": 1, "bookies.entry": 3}
        assert dict(spans["Bookie.add"].attributes or {}) == expected
        client.transport.close()

    world.run(body)


def test_requests_that_fail_have_a_span_without_stages(world: World, exporter: InMemorySpanExporter) -> None:
    async def body(world: World) -> None:
        server = await world.start(spans=True)
        client = await world.connect(server)
        assert (await client.ask(ReadRequest(3, 8, 77, 0, trace=TRACE))).status is not Status.OK
        await server.hold_read_only(True)
        (refused,) = await client.add(adds(1, [0], version=3, trace=TRACE))
        assert refused.status is Status.READ_ONLY
        client.transport.close()

    world.run(body)  # The end of the bookie makes what is left.
    spans = spans_of(exporter)
    assert sorted(spans) == ["Bookie.add", "Bookie.read"]
    assert all(span.status.status_code is trace.StatusCode.ERROR for span in spans.values())


def test_a_flood_of_traced_requests_is_served_and_mostly_forgotten(
    world: World, exporter: InMemorySpanExporter
) -> None:
    async def body(world: World) -> None:
        server = await world.start(spans=True)
        client = await world.connect(server)
        await client.add(adds(1, [0], version=3))
        client.send(*(ReadRequest(3, number, 1, 0, trace=TRACE) for number in range(MADE_MAX + 30)))
        for _ in range(MADE_MAX + 30):
            assert (await client.response("v3")).status is Status.OK
        await asyncio.sleep(2 * PAUSE_S)
        reads = [span for span in exporter.get_finished_spans() if span.name == "Bookie.read"]
        assert len(reads) == MADE_MAX
        assert dict(reads[0].attributes or {})["bookies.dropped"] == 30
        assert "bookies.dropped" not in dict(reads[1].attributes or {})
        client.transport.close()

    world.run(body)


def test_a_bookie_without_the_setting_ignores_traces(world: World, exporter: InMemorySpanExporter) -> None:
    async def body(world: World) -> None:
        server = await world.start(http_port=8080)
        client = await world.connect(server)
        (added,) = await client.add(adds(1, [0], version=3, trace=TRACE))
        assert added.status is Status.OK
        assert (await client.ask(ReadRequest(3, 8, 1, 0, trace=TRACE))).status is Status.OK
        client.transport.close()

    world.run(body)
    assert not exporter.get_finished_spans()


def test_spans_need_an_implementation_that_is_set_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)

    async def body(world: World) -> None:
        with pytest.raises(ConfigError, match=r"no SDK of OpenTelemetry is set up.*opentelemetry-instrument"):
            await world.start(spans=True)
        world.forget_last()
        monkeypatch.setitem(__import__("sys").modules, "opentelemetry", None)
        with pytest.raises(ConfigError, match="the extra otel"):
            await world.start(spans=True)
        world.forget_last()

    world.run(body)
