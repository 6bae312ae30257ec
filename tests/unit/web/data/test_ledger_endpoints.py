"""Ledgers over HTTP: one writer, entry ids as sequence numbers, and what other gateways answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.unit.web.data.test_log_endpoints import ask, events

from bookies.web.data.forms import LINES

from .conftest import ONE, Site

Serve = Callable[..., None]
TWO = b'{"text":"a"}\n{"text":"b"}'


def test_a_ledger_from_creation_to_deletion(serve: Serve) -> None:
    async def body(site: Site) -> None:
        made = await site.call("POST", "/ledgers", {**ONE, "labels": {"app": "curl"}}, role="writer")
        ledger = f"/ledgers/{made.json['ledger']}"
        assert (made.status, made.headers["location"]) == (201, f"/api/v1{ledger}")
        first = await site.call("POST", f"{ledger}/entries", TWO, Content_Type=LINES)
        assert (first.status, first.json) == (201, {"first": 0, "last": 1, "next": 2, "repeated": 0})
        again = await site.call("POST", f"{ledger}/entries", TWO, Content_Type=LINES, Bk_Sequence="0")
        assert (again.status, again.json["repeated"]) == (200, 2)
        overlap = await site.call("POST", f"{ledger}/entries", TWO, Content_Type=LINES, Bk_Sequence="1")
        assert (overlap.status, overlap.json["repeated"]) == (201, 1)
        gap = await site.call("POST", f"{ledger}/entries", b"x", Bk_Sequence="9")
        assert (gap.status, gap.headers["bk-expected"]) == (409, "3")
        page = (await site.call("GET", f"{ledger}/entries?from=1", role="reader")).json
        assert ([row["text"] for row in page["entries"]], page["next"], page["end"]) == (["b", "b"], "3", True)
        assert (await site.call("GET", f"{ledger}/entries?from=3")).json["entries"] == []
        assert (await site.call("GET", f"{ledger}/entries/0")).body == b"a"
        assert (await site.call("GET", f"{ledger}/entries/3")).status == 404
        tail = await site.connect()
        ask(tail, f"{ledger}/tail?from=2")
        assert await events(tail, 1) == [("2", "b")]
        sealed = await site.call("POST", f"{ledger}/seal")
        assert sealed.json["last"] == 2
        await tail.until(lambda: b"event: end" in tail.received)
        assert (await site.call("POST", f"{ledger}/seal")).json["last"] == 2
        assert (await site.call("POST", f"{ledger}/entries", b"x", Bk_Sequence="2")).status == 200
        late = await site.call("POST", f"{ledger}/entries", b"x", Bk_Sequence="3")
        assert (late.status, late.headers["bk-last"]) == (409, "2")
        assert (await site.call("GET", "/ledgers?label=app%3Dcurl")).status in (200, 422)
        assert (await site.call("DELETE", ledger)).status == 200
        assert (await site.call("GET", f"{ledger}/entries")).status == 404
        for target in ("/ledgers/x/entries", f"{ledger}/entries/x", f"{ledger}/entries?from=-1"):
            assert (await site.call("GET", target)).status == 400

    serve(body)


def test_another_gateway_says_how_to_go_on(serve: Serve) -> None:
    async def body(site: Site) -> None:
        host, block = await site.start()
        ledger = f"/ledgers/{(await site.call('POST', '/ledgers', ONE)).json['ledger']}"
        await site.call("POST", f"{ledger}/entries", b"a")
        elsewhere = await site.call("POST", f"{ledger}/entries", b"a", Bk_Sequence="0", host=host)
        assert (elsewhere.status, "/seal recovers" in elsewhere.json["next"]) == (409, True)
        assert (await site.call("POST", f"{ledger}/seal", host=host)).json["last"] == 0
        lost = await site.call("POST", f"{ledger}/entries", b"b", Bk_Sequence="1")
        assert (lost.status, lost.headers.get("bk-outcome")) == (503, "unknown")
        assert (await site.call("POST", f"{ledger}/entries", b"a", Bk_Sequence="0")).status == 200
        assert (await site.call("POST", f"{ledger}/entries", b"b", Bk_Sequence="1")).status == 409
        await block.__aexit__(None, None, None)

    serve(body)


def test_passwords_room_and_ends(serve: Serve) -> None:
    async def body(site: Site) -> None:
        host, block = await site.start()
        made = await site.call("POST", "/ledgers", ONE, Bk_Ledger_Password="p", host=host)
        entries = f"/ledgers/{made.json['ledger']}/entries"
        assert (await site.call("POST", entries, b"a", host=host)).status == 403
        assert (await site.call("POST", entries, b"a", host=host, Bk_Ledger_Password="p")).status == 201
        keyed = await site.call("POST", entries, b'{"text":"a","key":"k"}', host=host, Content_Type=LINES)
        assert keyed.status == 422
        await block.__aexit__(None, None, None)  # seals
        assert (await site.call("POST", entries, b"b", Bk_Ledger_Password="p")).headers["bk-last"] == "0"
        assert (await site.call("GET", entries)).status == 403
        await site.call("POST", "/ledgers", ONE)
        full = await site.call("POST", "/ledgers", ONE)
        assert (full.status, full.headers["retry-after"]) == (429, "10")
        await asyncio.sleep(3700)  # an idle ledger is sealed
        assert (await site.call("POST", "/ledgers", ONE)).status == 201
        assert (await site.call("POST", "/ledgers", {**ONE, "labels": "x"})).status == 400

    serve(body, gateway_writers_max=1)
