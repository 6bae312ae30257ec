"""The requests of pulsarctl, of BookKeeper Visual Manager and of Pulsar's charts, and what they can decode.

A decoder in Go accepts null for every type, and refuses any other type than the one it names. Source: pulsarctl
`pkg/bookkeeper`; operations 1.5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest

from bookies.model import BookieId

from .conftest import Answer, Site
from .test_apache_changes import written
from .test_site import client_of

API = "/api/v1"
Serve = Callable[..., None]
Shape = Any  # a type; [shape]: list; {str or int: shape}: map; {"name": shape}: struct, whose other names are ignored

ADDRESS = {"port": int, "hostname": str}
LEDGER = {
    "metadataFormatVersion": int, "ensembleSize": int, "writeQuorumSize": int, "ackQuorumSize": int, "length": int,
    "lastEntryId": int, "ctime": int, "state": str, "digestType": str, "allEnsembles": {int: [ADDRESS]},
    "password": str, "customMetadata": {str: str},
}  # fmt: skip
GC_STATUS = {
    **dict.fromkeys(("forceCompacting", "majorCompacting", "minorCompacting"), bool),
    **dict.fromkeys(("lastMajorCompactionTime", "lastMinorCompactionTime"), int),
    **dict.fromkeys(("majorCompactionCounter", "minorCompactionCounter"), int),
}
STATE = dict.fromkeys(("running", "readOnly", "shuttingDown", "availableForHighPriorityWrites"), bool)


def decode(value: Any, shape: Shape) -> None:
    """Fail unless Go can decode the value into this type."""
    if value is None:
        return
    if isinstance(shape, type):
        assert type(value) is shape, (value, shape)
    elif isinstance(shape, list):
        assert type(value) is list
        for part in value:
            decode(part, shape[0])
    else:
        assert type(value) is dict, (value, shape)
        key_type = next(iter(shape))
        for key, part in value.items():
            if isinstance(key_type, type):
                key_type(key)
                decode(part, shape[key_type])
            elif key in shape:
                decode(part, shape[key])


async def pulsarctl(site: Site, method: str, path: str, body: object = None, **query: object) -> Answer:
    """Send a request as pulsarctl does. It takes 200 to 204 as success."""
    target = f"{API}{path}" + (f"?{urlencode(query)}" if query else "")
    headers = {"Accept": "application/json", "User-Agent": "pulsarctl", "Authorization": "Bearer administrator"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    answer = await site.get(target, method=method, body=body, **headers)
    assert 200 <= answer.status <= 204, (path, answer.status, answer.body)
    return answer


@pytest.mark.parametrize(
    ("path", "query", "shape"),
    [
        ("/ledger/list", {"print_metadata": "false"}, {int: str}),
        ("/ledger/list", {"print_metadata": "true"}, {int: str}),
        ("/ledger/metadata", {"ledger_id": 0}, {int: LEDGER}),
        ("/ledger/read", {"ledger_id": 0}, {str: str}),
        ("/ledger/read", {"ledger_id": 0, "start_entry_id": 1, "end_entry_id": 1}, {str: str}),
        ("/bookie/last_log_mark", {}, {str: str}),
        ("/bookie/list_disk_file", {"file_type": ""}, {str: str}),
        ("/bookie/list_disk_file", {"file_type": "journal"}, {str: str}),
        ("/bookie/gc", {}, {str: str}),
        ("/bookie/gc_details", {}, [GC_STATUS]),
        ("/bookie/state", {}, STATE),
        ("/bookie/list_bookies", {"type": "rw", "print_hostnames": "true"}, {str: str}),
        ("/bookie/list_bookies", {"type": "ro", "print_hostnames": "false"}, {str: str}),
        ("/bookie/list_bookie_info", {}, {str: str}),
        ("/autorecovery/list_under_replicated_ledger", {"missingreplica": "", "excludingmissingreplica": ""}, [int]),
        (
            "/autorecovery/list_under_replicated_ledger",
            {"missingreplica": "b9", "excludingmissingreplica": "", "printmissingreplica": "true"},
            {int: [str]},
        ),
    ],
)
def test_pulsarctl_reads(serve: Serve, path: str, query: dict[str, object], shape: Shape) -> None:
    async def body(site: Site) -> None:
        client = await client_of(site)
        ledger_id = await written(client, b"one", b"\xff")
        await site.server.metadata.recovery.mark(ledger_id, [BookieId("b9")], 1)
        given = {name: ledger_id if name == "ledger_id" else value for name, value in query.items()}
        answer = await pulsarctl(site, "GET", path, **given)
        assert answer.json or query.get("type") == "ro"  # no bookie is read-only
        decode(answer.json, shape)
        await client.close()

    serve(body, users=True, gc_interval_ms=600_000)


def test_pulsarctl_changes(serve: Serve) -> None:
    async def body(site: Site) -> None:
        client = await client_of(site)
        ledger_id = await written(client, b"one")
        await pulsarctl(site, "PUT", "/bookie/gc")
        await pulsarctl(site, "PUT", "/bookie/state/readonly", {"readOnly": True})
        await pulsarctl(site, "PUT", "/bookie/state/readonly", {"readOnly": False})
        await pulsarctl(site, "PUT", "/autorecovery/lost_bookie_recovery_delay", {"delay_seconds": 10})
        delay = await pulsarctl(site, "GET", "/autorecovery/lost_bookie_recovery_delay")
        assert delay.body == b"lostBookieRecoveryDelay value: 10"
        await pulsarctl(site, "DELETE", "/ledger/delete", ledger_id=ledger_id)
        await pulsarctl(site, "PUT", "/autorecovery/bookie", {"bookie_src": ["b9"], "delete_cookie": False})
        await client.close()

    serve(body, users=True, gc_interval_ms=600_000)


def test_visual_manager_finds_the_server_by_the_registration(serve: Serve) -> None:
    async def body(site: Site) -> None:
        info = await site.server.metadata.bookie_info(site.server.bookie_id)
        assert info is not None
        (endpoint,) = [point for point in info.endpoints if point.id == "httpserver"]
        assert (endpoint.protocol, endpoint.host, endpoint.port) == ("http", "bookie", 8080)
        decode((await site.call("viewer", "GET", f"{API}/bookie/gc_details")).json, [GC_STATUS])
        assert (await site.call("viewer", "GET", f"{API}/bookie/gc")).json == {"is_in_force_gc": "false"}
        assert (await site.call("operator", "PUT", f"{API}/bookie/gc")).status == 200

    serve(body, users=True, gc_interval_ms=600_000)


def test_probes_of_charts_need_no_user(serve: Serve) -> None:
    async def body(site: Site) -> None:
        for path in (f"{API}/bookie/state", f"{API}/bookie/is_ready", "/heartbeat"):
            answer = await site.get(path, host="10.0.0.7:8000", User_Agent="kube-probe/1.30")
            assert answer.status == 200, path
        scrape = await site.get("/metrics", host="bookie-0.bookie:8000", Accept="text/plain;version=0.0.4;q=0.5,*/*")
        assert scrape.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"

    serve(body, users=True, http_open_metrics=True)
