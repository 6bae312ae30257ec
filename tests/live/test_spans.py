"""One trace from an application in one process to a bookie in another."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from bookies.bookie.server import BookieServer
from bookies.client.blocking.blocking import LoopThread
from bookies.config import BookieConfig
from bookies.metadata.uri import connect
from bookies.runtime import aio

pytestmark = pytest.mark.live
CLIENT = Path(__file__).with_name("traced.py")


def test_appends_and_reads_have_spans_at_the_bookie_below_those_of_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    uri, thread = f"file:{tmp_path}/metadata", LoopThread()
    (tmp_path / "metadata").mkdir()

    async def begin() -> BookieServer:
        driver = connect(uri, aio.runtime())
        await driver.open()
        await driver.initialize_cluster()
        directories = {
            "journal_directories": (f"{tmp_path}/journal",),
            "ledger_directories": (f"{tmp_path}/ledgers",),
        }
        server = BookieServer(aio.runtime(), BookieConfig(bookie_id="b1", port=0, spans=True, **directories), driver)
        await server.start()
        return server

    async def end() -> None:
        await server.stop()
        await server.metadata.close()

    server = thread.call(begin())
    try:
        client = subprocess.run([sys.executable, CLIENT, uri], capture_output=True, text=True, timeout=60, check=True)
    finally:
        thread.call(end())
        thread.stop()
    facts = json.loads(client.stdout)
    sent = facts["spans"]
    below = {
        (span.name, (span.attributes or {})["bookies.entry"]): [f"{span.parent.trace_id:x}", f"{span.parent.span_id:x}"]
        for span in exporter.get_finished_spans()
        if span.parent is not None and span.parent.is_remote
    }
    assert below == {
        ("Bookie.add", 0): sent["LedgerWriter.append"],
        ("Bookie.add", 10): sent["LedgerWriter.append_many"],
        ("Bookie.read", 10): sent["LedgerReader.read_entry"],
    }
    assert {trace_id for trace_id, _ in sent.values()} == {sent["order"][0]}
    names = [span.name for span in exporter.get_finished_spans()]
    assert [names.count(f"Bookie.add.{stage}") for stage in ("queue", "sync", "answer")] == [2, 2, 2]
