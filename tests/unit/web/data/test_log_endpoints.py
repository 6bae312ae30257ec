"""Logs over HTTP: create, append once, read in pages, tail, cursors, truncate, delete."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.web.conftest import PORT, HttpClient

from bookies.client.log import Log, LogWriter
from bookies.protocol.log.sequences import CURSOR
from bookies.web.data.forms import BINARY, LINES, PREFIXED

from .conftest import API, ONE, Site

Serve = Callable[..., None]
ENTRIES = "/logs/orders/entries"


async def create(site: Site, **shape: Any) -> None:
    assert (await site.call("PUT", "/logs/orders", {**ONE, **shape})).status == 201


async def texts(site: Site, target: str = ENTRIES) -> list[str]:
    return [row["text"] for row in (await site.call("GET", target)).json["entries"]]


def test_a_log_is_created_listed_shown_and_deleted(serve: Serve) -> None:
    async def body(site: Site) -> None:
        await create(site)
        assert (await site.call("PUT", "/logs/orders", ONE)).status == 200
        other = await site.call("PUT", "/logs/orders", {**ONE, "record_format": "raw"})
        assert (other.status, "already exists" in other.json["detail"]) == (409, True)
        assert (await site.call("PUT", "/logs/a", {**ONE, "record_format": "raw"})).status == 201
        for wrong, status in (({"size": 3}, 400), ({"ensemble": "3"}, 422), ({"ensemble": 0}, 422)):
            assert (await site.call("PUT", "/logs/b", wrong)).status == status
        assert (await site.call("PUT", "/logs/-b", ONE)).status == 422
        assert (await site.call("GET", "/logs")).json == {"logs": ["a", "orders"], "next": ""}
        assert (await site.call("GET", "/logs?limit=1")).json == {"logs": ["a"], "next": "a"}
        assert (await site.call("GET", "/logs?after=a&prefix=o")).json["logs"] == ["orders"]
        shown = (await site.call("GET", "/logs/orders")).json
        assert (shown["record_format"], shown["ensemble"], shown["ledgers"]) == ("envelope", 1, 0)
        await site.call("POST", ENTRIES, b"x")
        assert (await site.call("DELETE", "/logs/orders?dry_run=true")).json["would_delete"]["ledgers"] == 1
        assert (await site.call("DELETE", "/logs/orders")).json == {"deleted": "orders"}
        assert (await site.call("DELETE", "/logs/orders")).status == 404
        for method, target in (("GET", ENTRIES), ("POST", ENTRIES), ("GET", "/logs/orders/tail")):
            assert (await site.call(method, target, b"x" if method == "POST" else None)).status == 404

    serve(body)


def test_appends_are_read_in_pages_and_one_by_one(serve: Serve) -> None:
    async def body(site: Site) -> None:
        await create(site)
        first = await site.call("POST", ENTRIES, b"zero")
        assert (first.status, first.headers["bk-delivery"], first.json["repeated"]) == (201, "at-least-once", 0)
        lines = b"\n".join(json.dumps({"text": f"{number}", "key": "k"}).encode() for number in range(1, 6))
        more = (await site.call("POST", ENTRIES, lines, Content_Type=LINES)).json
        assert more["first"] == first.json["next"]
        target, pages = f"{ENTRIES}?limit=4", []
        while True:
            page = await site.call("GET", target)
            pages.append([row["text"] for row in page.json["entries"]])
            target = f"{ENTRIES}?limit=4&from={page.headers['bk-next']}"
            if page.json["end"]:
                break
        assert pages == [["zero", "1", "2", "3"], ["4", "5"]]
        assert (await site.call("GET", target)).json == {"entries": [], "next": more["next"], "end": True}
        small = (await site.call("GET", f"{ENTRIES}?max_bytes=1")).json
        assert ([row["text"] for row in small["entries"]], small["end"]) == (["zero"], False)
        raw = await site.call("GET", f"{ENTRIES}?limit=2", Accept=PREFIXED)
        assert raw.body == b"\0\0\0\4zero\0\0\0\x011"
        one = await site.call("GET", f"{ENTRIES}/{more['last']}")
        assert (one.body, one.headers["content-type"], one.headers["etag"]) == (b"5", BINARY, f'"{more["last"]}"')
        for target, status in (
            (f"{ENTRIES}/{more['next']}", 404),
            (f"{ENTRIES}/99:0", 410),
            (f"{ENTRIES}?from=99:0", 410),
            (f"{ENTRIES}/x", 400),
            (f"{ENTRIES}?from=x", 400),
            (f"{ENTRIES}?limit=0", 400),
            (f"{ENTRIES}?max_bytes=x", 400),
        ):
            assert (await site.call("GET", target)).status == status, target

    serve(body)


def test_entries_are_read_one_by_one_where_a_compaction_or_a_roll_up_has_put_them(serve: Serve) -> None:
    async def body(site: Site) -> None:
        client = await site.client()
        log = client.log("orders")
        await log.create(ensemble=1, write_quorum=1, ack_quorum=1, record_format="envelope", compaction="key")
        positions = []
        for number in range(4):
            async with log.lead() as writer:
                positions += [await writer.append(b"%d" % number, key=key) for key in (b"a", b"own%d" % number)]
        assert (await log.compact()).removed == 3
        assert (await log.roll_up()).runs == 1
        answers = [await site.call("GET", f"{ENTRIES}/{position}") for position in (*positions, positions[1].next)]
        expected = [404, 200] * 3 + [200, 200, 404]
        assert [answer.status for answer in answers] == expected
        assert [answer.body for answer in answers if answer.status == 200] == [b"0", b"1", b"2", b"3", b"3"]
        assert f"has no entry {positions[0]}: a compaction has removed it" in answers[0].json["detail"]
        await client.close()

    serve(body)


def test_a_page_begins_at_a_time(serve: Serve) -> None:
    async def body(site: Site) -> None:
        await create(site)
        assert (await site.call("GET", f"{ENTRIES}?since=2020-01-01T00:00Z")).json["entries"] == []
        await site.call("POST", ENTRIES, b"zero")
        row = (await site.call("GET", f"{ENTRIES}?since=2020-01-01T00:00Z")).json["entries"][0]
        assert row["text"] == "zero"
        await asyncio.sleep(60)
        assert (await site.call("GET", f"{ENTRIES}?since=2999-01-01T00:00Z")).json["entries"] == []
        for wrong in ("soon", "10m", f"2020-01-01T00:00Z&from={row['position']}"):
            assert (await site.call("GET", f"{ENTRIES}?since={wrong}")).status == 400

    serve(body)


def test_a_repeated_number_is_answered_with_the_same_position_by_any_gateway(serve: Serve) -> None:
    async def body(site: Site) -> None:
        await create(site)
        _, block = await site.start()

        async def append(number: int, value: bytes, **arguments: str) -> Any:
            return await site.call("POST", ENTRIES, value, Bk_Writer="w", Bk_Sequence=str(number), **arguments)

        answers = []
        for number in range(3):
            first, again = [await append(number, b"%d" % number) for _ in range(2)]
            assert (first.status, again.status) == (201, 200), again.body
            other = await append(number, b"%d" % number, host="gateway2")
            assert (other.status, other.headers["location"]) == (307, f"http://gateway1:{PORT}{API}{ENTRIES}")
            assert "http://gateway1:8080 leads log orders: this gateway has stored nothing" in other.json["detail"]
            assert (again.json["first"], again.json["repeated"]) == (first.json["first"], 1)
            answers.append(first.json["first"])
        assert len(set(answers)) == 3
        gap = await append(7, b"7")
        assert (gap.status, gap.headers["bk-expected"]) == (409, "3")
        row = (await site.call("GET", f"{ENTRIES}?from={answers[2]}")).json["entries"][0]
        assert (row["text"], row["writer"], row["sequence"]) == ("2", "w", 2)
        for _ in range(9):
            assert (await append(2, b"2", host="gateway2")).status == 307
            await asyncio.sleep(10)  # the first gateway is idle: it stores the numbers and releases the log
            if (await append(2, b"2", host="gateway2")).status == 200:
                break
        assert (await append(2, b"2", host="gateway2")).json["first"] == answers[2]
        assert (await append(3, b"3")).headers["location"] == f"http://gateway2:{PORT}{API}{ENTRIES}"
        await block.__aexit__(None, None, None)
        assert (await append(2, b"2")).json["first"] == answers[2]
        assert await texts(site) == ["0", "1", "2"]

    serve(body)


def test_what_an_append_refuses(serve: Serve) -> None:
    async def body(site: Site) -> None:
        await create(site)
        await site.call("PUT", "/logs/raw", {**ONE, "record_format": "raw"})
        numbered = {"Bk_Writer": "w", "Bk_Sequence": "0"}
        for target, data, headers, status in (
            (ENTRIES, b"x", {"Bk_Writer": "w"}, 400),
            (ENTRIES, b"x", {"Bk_Sequence": "1"}, 400),
            (ENTRIES, b"x", {**numbered, "Bk_Sequence": "-1"}, 400),
            (ENTRIES, b"x", {**numbered, "Bk_Writer": "a b"}, 422),
            (ENTRIES, b"{}", {"Content_Type": LINES}, 400),
            (ENTRIES, b"x" * (5 << 20), {}, 413),
            ("/logs/raw/entries", b"x", numbered, 422),
            ("/logs/raw/entries", b'{"text":"a","key":"k"}', {"Content_Type": LINES}, 422),
            ("/logs/none/entries", b"x", {}, 404),
        ):
            answer = await site.call("POST", target, data, **headers)
            assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json"), headers
        await site.call("PUT", "/logs/secret", ONE)
        assert (await site.call("POST", "/logs/secret/entries", b"x", Bk_Ledger_Password="p")).status == 201
        assert (await site.call("POST", "/logs/secret/entries", b"x", Bk_Ledger_Password="q")).status == 403
        assert (await site.call("POST", "/logs/secret/entries", b"x")).status == 403
        assert (await site.call("GET", "/logs/secret/entries", Bk_Ledger_Password="p")).json["entries"] != []
        assert (await site.call("GET", "/logs/secret/entries")).status == 403
        assert await texts(site) == []

    serve(body)


async def events(client: HttpClient, count: int) -> list[tuple[str, str]]:
    """Wait for events of a tail; their ids and texts."""

    def seen() -> list[tuple[str, str]]:
        blocks = [block.splitlines() for block in client.received.decode().replace("\r\n", "\n").split("\n\n")]
        found = []
        for block in blocks:
            ids = [line[4:] for line in block if line.startswith("id: ")]
            data = [line[6:] for line in block if line.startswith("data: {")]
            if ids and data:
                found.append((ids[0], json.loads(data[0])["text"]))
        return found

    await client.until(lambda: len(seen()) >= count)
    return seen()


def ask(client: HttpClient, target: str, *lines: str) -> None:
    head = [f"GET {API}{target} HTTP/1.1", "Host: localhost", "Authorization: Bearer reader", *lines]
    client.send(("\r\n".join(head) + "\r\n\r\n").encode())


def test_a_tail_resumes_after_the_last_event_and_ends_with_the_gateway(serve: Serve) -> None:
    async def body(site: Site) -> None:
        await create(site)
        host, block = await site.start()
        begin = (await site.call("POST", ENTRIES, b"a")).json
        tail = await site.connect(host)
        ask(tail, f"/logs/orders/tail?from={begin['first']}")
        assert [text for _, text in await events(tail, 1)] == ["a"]
        await site.call("POST", ENTRIES, b"b\nb")
        seen = await events(tail, 2)
        assert [text for _, text in seen] == ["a", "b\nb"]
        tail.transport.close()
        await site.call("POST", ENTRIES, b"c")
        again = await site.connect(host)
        ask(again, "/logs/orders/tail", f"Last-Event-ID: {seen[-1][0]}")
        assert [text for _, text in await events(again, 1)] == ["c"]
        await again.until(lambda: b": nothing new" in again.received)  # a heartbeat
        metrics = (await site.call("GET", "/metrics", host=host)).body.decode()
        assert re.search(
            r"^bookies_gateway_tails [12]$", metrics, re.MULTILINE
        )  # the end of the first may be unnoticed
        await block.__aexit__(None, None, None)
        await again.end()
        assert again.received.endswith(b"0\r\n\r\n")  # complete, not cut off

    serve(body)


def test_record_sets_are_read_record_by_record(serve: Serve) -> None:
    async def body(site: Site) -> None:
        made = await site.call("PUT", "/logs/orders", {**ONE, "record_format": "sets", "compression": "lz4"})
        assert (made.status, made.json["compression"]) == (201, "lz4")
        appended = await site.call(
            "POST", ENTRIES, b"\n".join(b'{"text": "%d"}' % at for at in range(5)), Content_Type=LINES
        )
        assert (appended.status, appended.json["first"]) == (201, None)
        begin = appended.json["last"]
        page = (await site.call("GET", f"{ENTRIES}?limit=2")).json
        assert [row["position"] for row in page["entries"]] == [begin, f"{begin}:1"]
        assert (page["next"], page["end"]) == (f"{begin}:2", False)
        assert await texts(site, f"{ENTRIES}?from={page['next']}") == ["2", "3", "4"]
        assert (await site.call("GET", f"{ENTRIES}/{begin}:4")).body == b"4"
        assert (await site.call("GET", f"{ENTRIES}/{begin}:5")).status == 404
        host, _ = await site.start()
        tail = await site.connect(host)
        ask(tail, "/logs/orders/tail", f"Last-Event-ID: {begin}:2")
        assert await events(tail, 2) == [(f"{begin}:3", "3"), (f"{begin}:4", "4")]

    serve(body)


def test_client_and_gateway_exchange_records_and_pass_an_entry_that_is_none(serve: Serve) -> None:
    async def body(site: Site) -> None:
        await create(site)
        client = await site.client()
        async with client.log("orders").lead() as writer:
            first = await writer.append(b"v", key=b"k", headers={"h": b"1", "n": None}, timestamp=1.5)
            bad = await writer.append_entries([b"bare"])
            await writer.append(b"w")
        page = (await site.call("GET", ENTRIES)).json
        assert page == {
            "entries": [
                {"position": str(first), "text": "v", "key": "k", "headers": {"h": "1", "n": None}, "time_ms": 1500}
            ],
            "next": str(bad), "end": False,
        }  # fmt: skip
        refused = await site.call("GET", f"{ENTRIES}?from={bad}")
        assert (refused.status, refused.headers["bk-next"]) == (422, str(bad.next))
        assert f"log orders has no record at ledger {bad.ledger_id}, entry 1: " in refused.json["detail"]
        assert (await site.call("GET", f"{ENTRIES}/{bad}")).status == 422
        assert await texts(site, f"{ENTRIES}?from={bad.next}") == ["w"]
        tail = await site.connect()
        ask(tail, f"/logs/orders/tail?from={first}")
        assert [text for _, text in await events(tail, 2)] == ["v", "w"]
        assert f"id: {bad}\nevent: error\ndata: ".encode() in tail.received
        tail.transport.close()
        own = {"text": "x", "key": "k", "headers": {"h": "1"}}
        position = (await site.call("POST", ENTRIES, json.dumps(own).encode(), Content_Type=LINES)).json["first"]
        async with client.log("orders").lead(), client.log("orders").open() as reader:  # seals the gateway's ledger
            found = [record async for record in reader.read(bad.next).records()]
        assert (str(found[1].position), found[1].value, found[1].key, found[1].headers) == (
            position, b"x", b"k", [("h", b"1")],
        )  # fmt: skip
        assert found[1].timestamp_us is not None
        (row,) = (await site.call("GET", f"{ENTRIES}?from={position}")).json["entries"]
        assert row == {"position": position, **own, "time_ms": found[1].timestamp_us // 1000}
        await client.close()

    serve(body)


def test_a_client_that_does_not_read_its_tail_stops_it_and_is_cut(serve: Serve) -> None:
    async def body(site: Site) -> None:
        await create(site)
        begin = (await site.call("POST", ENTRIES, b"begin")).json
        tail = await site.connect()
        ask(tail, f"/logs/orders/tail?from={begin['first']}")
        await events(tail, 1)
        tail.transport.pause_reading()
        for _ in range(40):
            assert (await site.call("POST", ENTRIES, b"x" * 100_000)).status == 201
        await asyncio.sleep(300)
        metrics = (await site.call("GET", "/metrics")).body.decode()
        (line,) = [line for line in metrics.splitlines() if line.startswith("bookies_gateway_tails ")]
        assert float(line.split()[1]) == 0
        tail.transport.abort()

    serve(body)


def test_tails_are_bounded(serve: Serve) -> None:
    async def body(site: Site) -> None:
        await create(site)
        tails = [await site.connect() for _ in range(2)]
        for tail in tails:
            ask(tail, "/logs/orders/tail")
            await tail.until(lambda tail=tail: b"retry:" in tail.received)  # type: ignore[misc]
        assert (await site.call("GET", "/logs/orders/tail")).status == 429
        for tail in tails:
            tail.transport.close()

    serve(body, gateway_tails_max=2)


def test_cursors_are_moved_by_the_consumer_that_knows_where_they_are(serve: Serve) -> None:
    async def body(site: Site) -> None:
        await create(site)
        appended = (await site.call("POST", ENTRIES, b'{"text":"a"}\n{"text":"b"}', Content_Type=LINES)).json
        cursor = "/logs/orders/cursors/billing"
        assert (await site.call("GET", cursor)).status == 404
        made = await site.call("PUT", cursor, {"position": appended["first"]}, role="reader")
        assert (made.status, made.headers["etag"]) == (200, f'"{appended["first"]}"')
        refused = await site.call("POST", "/logs/orders/truncate", {"before": appended["last"]})
        assert (refused.status, "billing" in refused.json["detail"]) == (409, True)
        moved = await site.call("PUT", cursor, {"position": appended["next"]}, If_Match=made.headers["etag"])
        assert moved.status == 200
        late = await site.call("PUT", cursor, {"position": appended["last"]}, If_Match=made.headers["etag"])
        assert (late.status, "another consumer" in late.json["detail"]) == (412, True)
        assert (await site.call("GET", cursor)).json["position"] == appended["next"]
        assert [row["cursor"] for row in (await site.call("GET", "/logs/orders/cursors")).json] == ["billing"]
        for document, headers in (({}, {}), ({"position": "x"}, {}), ({"position": "1:0"}, {"If_Match": "x"})):
            assert (await site.call("PUT", cursor, document, **headers)).status == 400  # type: ignore[arg-type]
        assert (await site.call("PUT", cursor, {"position": "99:0"})).status == 410
        truncated = await site.call("POST", "/logs/orders/truncate", {"before": appended["last"]})
        assert (truncated.status, truncated.json["begins"]) == (200, appended["last"])
        gone = await site.call("GET", f"{ENTRIES}?from={appended['first']}")
        assert (gone.status, gone.headers["bk-begin"]) == (410, appended["last"])
        assert (await site.call("DELETE", cursor)).json == {"deleted": "billing"}
        await site.call("POST", ENTRIES, b"x", Bk_Writer="w", Bk_Sequence="0")
        for method in ("PUT", "DELETE"):
            own = await site.call(method, f"/logs/orders/cursors/{CURSOR}", {"position": appended["last"]})
            assert own.status == 403

    serve(body)


def test_truncation_through_the_leading_gateway_is_not_held_back_by_its_own_cursor(serve: Serve) -> None:
    async def body(site: Site) -> None:
        await create(site)
        appended = (await site.call("POST", ENTRIES, b"a", Bk_Writer="w", Bk_Sequence="0")).json
        assert (await site.call("POST", "/logs/orders/truncate", {"before": appended["next"]})).status == 200
        again = await site.call("POST", ENTRIES, b"a", Bk_Writer="w", Bk_Sequence="0")
        assert (again.status, again.json["first"]) == (200, appended["first"])

    serve(body)


def test_another_leader_makes_an_outcome_unknown_unless_the_entries_have_numbers(serve: Serve) -> None:
    async def body(site: Site) -> None:
        await create(site)
        numbered = {"Bk_Writer": "w", "Bk_Sequence": "0"}
        first = await site.call("POST", ENTRIES, b"a", **numbered)
        client = await site.client()
        for number in (1, 2):
            async with client.log("orders").lead():
                pass
            if number == 1:
                lost = await site.call("POST", ENTRIES, b"lost")  # without a number the gateway must not repeat it
                assert (lost.status, lost.headers["bk-outcome"], lost.headers["retry-after"]) == (503, "unknown", "1")
            second = await site.call("POST", ENTRIES, b"b", **{**numbered, "Bk_Sequence": str(number)})
            assert second.status == 201
        assert (await site.call("POST", ENTRIES, b"a", **numbered)).json["first"] == first.json["first"]
        assert await texts(site) == ["a", "b", "b"]
        await client.close()

    serve(body)


def test_a_repetition_that_another_leader_prevents_leaves_the_outcome_unknown(serve: Serve) -> None:
    async def body(site: Site) -> None:
        await create(site)
        await site.call("POST", ENTRIES, b"a", Bk_Writer="w", Bk_Sequence="0")
        client = await site.client()
        log = client.log("orders")
        waiting = asyncio.create_task(waited(log))  # for its turn, which it gets when the gateway has lost the lead
        await asyncio.sleep(1)
        async with log.lead():  # without a turn
            pass
        answer = await site.call("POST", ENTRIES, b"b", Bk_Writer="w", Bk_Sequence="1")
        assert (answer.status, answer.headers.get("bk-outcome")) == (503, "unknown")
        assert "the entries may or may not be stored" in answer.json["detail"]
        again = await site.call("POST", ENTRIES, b"b", Bk_Writer="w", Bk_Sequence="1")
        assert (again.status, "bk-outcome" in again.headers) == (503, False)  # nothing was sent
        await (await waiting).close()
        await client.close()

    serve(body)


async def waited(log: Log) -> LogWriter:
    return await log.lead(wait=True, text="batch:7")


def test_a_gateway_waits_for_a_log_only_while_it_gets_appends_and_not_for_a_deleted_one(serve: Serve) -> None:
    async def body(site: Site) -> None:
        await create(site)
        client = await site.client()
        log = client.log("orders")
        async with log.lead(wait=True, text="batch:7"):
            refused = await site.call("POST", ENTRIES, b"a")
            assert (refused.status, refused.headers["retry-after"]) == (503, "10")
            assert refused.json["detail"] == "batch:7 leads log orders: this gateway has stored nothing"
            assert "bk-outcome" not in refused.headers
            await asyncio.sleep(75)
        assert await log.leader() is None  # the gateway was idle, and has left the queue
        assert (await site.call("POST", ENTRIES, b"a")).status == 201
        assert await log.leader() == f"http://gateway1:{PORT}"
        _, block = await site.start()
        assert (await site.call("POST", ENTRIES, b"b", host="gateway2")).status == 307
        assert (await site.call("DELETE", "/logs/orders")).status == 200
        assert (await site.call("POST", ENTRIES, b"b", host="gateway2")).status == 404
        await block.__aexit__(None, None, None)
        await client.close()

    serve(body)


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"gateway_url": "https://logs.example:443"}, "https://logs.example:443"),
        ({"http_host": "0.0.0.0", "http_insecure": True}, f"http://{os.uname().nodename}:{PORT}"),
        ({"http_host": "::1"}, f"http://[::1]:{PORT}"),
    ],
)
def test_the_address_of_a_gateway(serve: Serve, settings: dict[str, Any], url: str) -> None:
    async def body(site: Site) -> None:
        await create(site)
        host, block = await site.start(**settings)
        assert (await site.call("POST", ENTRIES, b"a", host=host)).status == 201
        assert (await site.call("POST", ENTRIES, b"a")).headers["location"] == url + API + ENTRIES
        await block.__aexit__(None, None, None)

    serve(body)


@pytest.mark.parametrize("is_sent", [False, True])
def test_the_audit_has_changes_and_sums_of_data(serve: Serve, caplog: pytest.LogCaptureFixture, is_sent: bool) -> None:
    async def body(site: Site) -> None:
        await create(site)
        for _ in range(3 if is_sent else 0):
            await site.call("POST", ENTRIES, b"secret", role="writer")

    with caplog.at_level("INFO", "bookies.audit"):
        serve(body)
    lines = [record.getMessage() for record in caplog.records if record.name == "bookies.audit"]
    assert len([line for line in lines if "audit.changed" in line]) == 1
    received = [line for line in lines if "audit.received" in line]
    assert len(received) == is_sent
    assert all("who=writer-user" in line and "secret" not in line for line in received)
