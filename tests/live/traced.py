"""A process that appends and reads with spans, and prints its ledger and its spans: name -> (trace id, span id)."""

from __future__ import annotations

import asyncio
import json
import sys

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import bookies


async def main(uri: str) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with bookies.connect(uri) as store:
        traced = bookies.metrics.trace(store, provider)
        with provider.get_tracer("shop").start_as_current_span("order"):
            async with traced.create(ensemble=1, write_quorum=1, ack_quorum=1) as ledger:
                await ledger.append(b"an order")
                await ledger.append_many([b"a line"] * 10)
            async with traced.open(ledger.ledger_id) as reader:
                await reader.read_entry(10)
    spans = {
        span.name: (f"{span.context.trace_id:x}", f"{span.context.span_id:x}") for span in exporter.get_finished_spans()
    }
    print(json.dumps({"ledger": ledger.ledger_id, "spans": spans}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
