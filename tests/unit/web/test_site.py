"""The endpoints of a bookie: probes, metrics, Apache's shapes and statuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from email.utils import parsedate_to_datetime

from prometheus_client.parser import text_string_to_metric_families
from tests.unit.bookie.conftest import adds

from bookies.client.client import Client
from bookies.config import ClientConfig
from bookies.metadata.embedded import MemoryDriver
from bookies.model import BookieMode
from bookies.wire.messages import ReadRequest

from .conftest import Site

API = "/api/v1"
Serve = Callable[..., None]


async def client_of(site: Site) -> Client:
    runtime = site.world.runtime("client")
    return await Client(runtime, MemoryDriver(site.world.metadata, runtime), ClientConfig()).open_session()


def test_probes_answer_before_the_start_and_after_it(serve: Serve) -> None:
    async def body(site: Site) -> None:
        assert (await site.get("/livez")).status == 200
        startup = await site.get("/startupz")
        assert (startup.status, startup.json["phase"]) == (503, "replay")
        assert (await site.get("/readyz")).json["conditions"][0]["name"] == "started"
        assert (await site.get(f"{API}/bookie/is_ready")).status == 503
        assert (await site.get(f"{API}/bookie/info")).status == 503
        await site.world.on_bookie(site.server.start())
        assert (await site.get("/startupz")).status == 200
        assert (await site.get("/readyz")).json["ok"] is True
        ready = await site.get(f"{API}/bookie/is_ready/")
        assert (ready.status, ready.body) == (200, b"OK")
        assert (await site.get("/heartbeat")).body == b"OK\n"

    serve(body, is_started=False)


def test_a_read_only_bookie_is_ready_but_not_healthy(serve: Serve) -> None:
    async def body(site: Site) -> None:
        await site.world.on_bookie(site.server.hold_read_only(True))
        assert (await site.get("/readyz")).status == 200
        health = await site.get("/healthz")
        assert health.status == 503
        (writable,) = [row for row in health.json["conditions"] if row["name"] == "writable"]
        assert writable["next"].startswith("`bk bookie")
        state = (await site.get(f"{API}/bookie/state")).json
        assert (state["running"], state["readOnly"], state["healthy"]) == (True, True, False)
        assert (await site.get(f"{API}/bookie/state/readonly")).json == {"readOnly": True}

    serve(body)


def test_a_lost_session_does_not_make_a_serving_bookie_unready(serve: Serve) -> None:
    async def body(site: Site) -> None:
        site.server.state.registration_lost()
        assert (await site.get("/readyz")).status == 200
        unmet = [row["name"] for row in (await site.get("/healthz")).json["conditions"] if not row["holds"]]
        assert unmet == ["registered"]
        site.server.state.registered(BookieMode.WRITABLE)

    serve(body)


def test_a_scrape_shows_what_was_served(serve: Serve) -> None:
    async def body(site: Site) -> None:
        raw = await site.world.connect(site.server)
        await raw.add(adds(1, range(10)))
        await raw.ask(ReadRequest(2, 0, 1, 3))
        scrape = await site.get("/metrics")
        assert scrape.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert parsedate_to_datetime(scrape.headers["date"]).year == 2023  # when the simulator's clock begins
        samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(scrape.body.decode())
            for sample in family.samples
        }
        good = (("success", "true"),)
        assert samples["bookkeeper_server_ADD_ENTRY_REQUEST_count", good] == 10
        assert samples["bookkeeper_server_ADD_ENTRY_REQUEST", (("quantile", "0.99"), *good)] > 0
        assert samples["bookkeeper_server_READ_ENTRY_REQUEST_count", good] == 1
        assert samples["bookkeeper_server_ADD_ENTRY_IN_PROGRESS", ()] == 0
        assert samples["bookie_SERVER_STATUS", ()] == 1
        assert samples["bookie_journal_JOURNAL_ADD_ENTRY_count", (("journalIndex", "0"), *good)] >= 1
        assert samples["bookie_write_cache_count", ()] == 10
        assert samples["bookies_entries_added_total", ()] == 10
        assert samples["bookies_connections", ()] == 1
        assert samples["bookie_ledger_dir__ledgers_usage", ()] >= 0
        assert samples["bookies_metrics_failed_total", ()] == 0
        raw.transport.close()

    serve(body)


def test_failed_adds_are_counted_as_failures(serve: Serve) -> None:
    async def body(site: Site) -> None:
        await site.world.on_bookie(site.server.hold_read_only(True))
        raw = await site.world.connect(site.server)
        await raw.add(adds(1, range(3)))
        assert site.server.served is not None
        assert site.server.served.adds.failed.count == 3
        assert site.server.served.adds_received == site.server.served.adds_answered == 3
        raw.transport.close()

    serve(body)


def test_metadata_of_ledgers_has_apaches_shape_and_no_password(serve: Serve) -> None:
    async def body(site: Site) -> None:
        client = await client_of(site)
        writer = await client.create(ensemble=1, write_quorum=1, ack_quorum=1, password=b"secret", labels={"app": "x"})
        await writer.append_many([b"one", b"two", b"\xff\xfe"])
        await writer.seal()
        ledger_id = writer.ledger_id
        found = (await site.get(f"{API}/ledger/metadata?ledger_id={ledger_id}")).json[str(ledger_id)]
        assert found["state"] == "CLOSED"
        assert (found["lastEntryId"], found["length"], found["password"]) == (2, 8, "")
        assert found["allEnsembles"] == {"0": [{"id": "b1"}]}
        assert found["customMetadata"]["app"] == "eA=="
        read = await site.get(f"{API}/ledger/read?ledger_id={ledger_id}")
        assert read.json == {"0": "one", "1": "two", "2": "base64://4="}
        page = await site.get(f"{API}/ledger/read?ledger_id={ledger_id}&page=1")
        assert page.json["Entries for page: "] == "1"
        assert (await site.get(f"{API}/ledger/read?ledger_id=77")).status == 404
        assert (await site.get(f"{API}/ledger/metadata")).status == 400
        await client.close()

    serve(body)


def test_lists_of_ledgers_are_paged_as_apache_pages_them(serve: Serve) -> None:
    async def body(site: Site) -> None:
        client = await client_of(site)
        for _ in range(250):
            await client.create(ensemble=1, write_quorum=1, ack_quorum=1)
        everything = (await site.get(f"{API}/ledger/list")).json
        assert len(everything) == 250
        assert set(everything.values()) == {None}
        pages = []
        for page in (1, 2, 3, 4):
            answer = await site.get(f"{API}/ledger/list?print_metadata=true&page={page}")
            pages.append(answer.json)
        assert [len(page) for page in pages] == [99, 100, 51, 0]
        assert [ledger for page in pages for ledger in page] == list(everything)
        assert all(isinstance(value, str) for value in pages[0].values())
        decoded = (await site.get(f"{API}/ledger/list?print_metadata=true&decode_meta=true&page=1")).json
        assert next(iter(decoded.values()))["state"] == "OPEN"
        await client.close()

    serve(body)


def test_apaches_endpoints_about_the_bookie(serve: Serve) -> None:
    async def body(site: Site) -> None:
        mark = (await site.get(f"{API}/bookie/last_log_mark")).json
        assert [key.startswith("LastLogMark: Journal Id - ") for key in mark] == [True]
        files = (await site.get(f"{API}/bookie/list_disk_file?file_type=journal")).json
        assert list(files) == ["journal files"]
        assert files["journal files"].endswith(".txn\t")
        assert (await site.get(f"{API}/bookie/list_disk_file?type=nonsense")).status == 400
        info = (await site.get(f"{API}/bookie/info")).json
        assert info["freeSpace"] <= info["totalSpace"]
        assert (await site.get(f"{API}/bookie/gc")).json == {"is_in_force_gc": "false"}
        (details,) = (await site.get(f"{API}/bookie/gc_details")).json
        assert details["majorCompactionCounter"] == 0
        suspended = (await site.get(f"{API}/bookie/gc/suspend_compaction")).json
        assert suspended == {"isMajorGcSuspended": "false", "isMinorGcSuspended": "false"}
        settings = (await site.get(f"{API}/config/server_config")).json
        assert settings["bookie_id"] == "b1"
        assert all(isinstance(value, str) for value in settings.values())

    serve(body, gc_interval_ms=60_000)


def test_apaches_endpoints_about_the_cluster(serve: Serve) -> None:
    async def body(site: Site) -> None:
        assert (await site.get(f"{API}/bookie/list_bookies?print_hostnames=true")).json == {"b1": "bookie"}
        assert (await site.get(f"{API}/bookie/list_bookies")).json == {"b1": None}
        assert (await site.get(f"{API}/bookie/list_bookies?type=ro")).json == {}
        spaces = (await site.get(f"{API}/bookie/list_bookie_info")).json
        assert list(spaces) == ["b1", "ClusterInfo: "]
        cluster = (await site.get(f"{API}/bookie/cluster_info")).json
        assert (cluster["totalBookiesCount"], cluster["auditorElected"]) == (1, False)
        assert (await site.get(f"{API}/autorecovery/status")).json == {"enabled": True}
        assert (await site.get(f"{API}/autorecovery/who_is_auditor")).status == 404
        marked = f"{API}/autorecovery/list_under_replicated_ledger"
        assert (await site.get(marked)).json["detail"] == "No under replicated ledgers found"
        recovery = site.server.metadata.recovery
        await recovery.mark(5, ["b9"], None)
        await recovery.mark(6, ["b8"], None)
        assert (await site.get(marked)).json == [5, 6]
        assert (await site.get(f"{marked}?printmissingreplica=true&missingreplica=b9")).json == {"5": ["b9"]}
        assert (await site.get(f"{marked}?excludingmissingreplica=b9")).json == [6]
        await recovery.set_lost_bookie_delay_s(90)
        delay = await site.get(f"{API}/autorecovery/lost_bookie_recovery_delay")
        assert delay.body == b"lostBookieRecoveryDelay value: 90"

    serve(body)


def test_the_registration_and_the_ready_line_name_the_http_server(serve: Serve) -> None:
    async def body(site: Site) -> None:
        info = await site.server.metadata.bookie_info(site.server.bookie_id)
        assert info is not None
        assert [(endpoint.id, endpoint.port) for endpoint in info.endpoints] == [("bookie", 3181), ("httpserver", 8080)]

    serve(body)


def test_stopping_reports_unready_at_once(serve: Serve) -> None:
    async def body(site: Site) -> None:
        client = await site.connect()
        assert (await client.get("/readyz")).status == 200
        await site.world.on_bookie(site.server.stop())
        answer = await client.get("/readyz")
        assert answer.status == 503
        assert (await client.get(f"{API}/bookie/state")).json["shuttingDown"] is True
        await asyncio.sleep(0)

    serve(body)
