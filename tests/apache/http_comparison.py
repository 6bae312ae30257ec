"""Apache's HTTP server beside ours: the same requests to both, on the same directories one after the other.

`make apache` demands that they differ exactly where `http_requests.py` says why.
`python -m tests.apache.http_comparison` prints the other answers that differ, and with `--all` all answers.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.apache.apache import HERE, VERSION, jars
from tests.apache.http_requests import REQUESTS, HttpRequest
from tests.apache.zookeeper import zookeeper_server
from tests.interop.processes import Bookie, free_port, wait_until

import bookies
from bookies.metadata.uri import connect
from bookies.protocol.rights.users import hash_of
from bookies.runtime import aio

TOKEN = "bk_comparison"


class HttpAnswer(NamedTuple):
    status: int
    content_type: str
    body: str


class HttpBookie(Bookie):
    """A bookie of either kind with an HTTP server. `http_port` stays the same for both."""

    def __init__(self, folder: pathlib.Path, uri: str) -> None:
        self.http_port = free_port()
        settings = {
            "httpServerEnabled": "true",
            "httpServerClass": "org.apache.bookkeeper.http.vertx.VertxHttpServer",
            "httpServerHost": "127.0.0.1",
            "httpServerPort": self.http_port,
            "statsProviderClass": "org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider",
            "prometheusStatsHttpEnable": "true",
            "autoRecoveryDaemonEnabled": "true",
            "gcWaitTime": 3_600_000,
        }
        super().__init__("java", "b1", folder, uri, version=VERSION, settings=settings)
        self._users = folder / "users"
        self._users.write_text(f"admin administrator {hash_of(TOKEN)}\n")

    def _java(self) -> list[str]:
        command = super()._java()
        at = command.index("-cp") + 1
        command[at] += f":{jars(artifact='vertx-http-server', pom=HERE / 'http.xml')}/*"
        return command

    def _ours(self) -> list[str]:
        return [*super()._ours(), "--set", f"users_file={self._users}"]

    def send(self, request: HttpRequest, names: Mapping[str, str]) -> HttpAnswer:
        """Send a request, with the names of ledgers and of the bookie in it replaced."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=60)
        headers = {"Accept": "application/json", "Authorization": f"Bearer {TOKEN}"}
        path, body = (None if text is None else _filled(text, names) for text in (request.path, request.body))
        try:
            connection.request(request.method, path or "", body, headers)
            response = connection.getresponse()
            text = response.read().decode("utf-8", "replace")
            return HttpAnswer(response.status, response.headers.get("Content-Type", ""), text)
        finally:
            connection.close()

    def answers(self) -> bool:
        try:
            return self.send(HttpRequest("GET", "/api/v1/autorecovery/who_is_auditor"), {}).status == 200
        except OSError:
            return False


def _filled(text: str, names: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: names.get(match[1], match[0]), text)


def compare(folder: pathlib.Path) -> list[tuple[HttpRequest, HttpAnswer, HttpAnswer]]:
    """Send all requests to both servers. Return the answers, Apache's first."""
    with zookeeper_server(folder) as server:
        uri = f"zk+hierarchical://{server.address}/ledgers"
        asyncio.run(_new_cluster(uri))
        with bookies.blocking.connect(uri) as store:
            bookie = HttpBookie(folder / "b1", uri)
            recorded: list[list[HttpAnswer]] = []
            for kind in ("java", "ours"):
                bookie.kind = kind
                bookie.start()
                try:
                    wait_until(bookie.answers, f"the HTTP server of {kind} answers, and the bookie is the auditor")
                    names = _ledgers(store) | {"bookie": bookie.name}
                    recorded.append([bookie.send(request, names) for request in REQUESTS])
                finally:
                    bookie.stop()
    return list(zip(REQUESTS, *recorded, strict=True))


async def _new_cluster(uri: str) -> None:
    driver = connect(uri, aio.runtime(), may_create=True)
    await driver.open()
    await driver.initialize_cluster()
    await driver.close()


def _ledgers(store: Any) -> dict[str, str]:
    single = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}
    names = {}
    for name, payloads in (("text", [b"entry %d" % number for number in range(10)]), ("binary", [b"\xff\x00"])):
        with store.create(**single) as ledger:
            ledger.append_many(payloads)
            names[name] = str(ledger.ledger_id)
            ledger.seal()
    names["open"] = str(store.create(**single).ledger_id)
    return names


def differs(request: HttpRequest, theirs: HttpAnswer, ours: HttpAnswer) -> bool:
    """Report whether the answers differ in more than the values of the moment."""
    if theirs.status != ours.status:
        return True
    if theirs.status >= 400 or request.path == "/metrics":
        return False
    return shape(theirs.body) != shape(ours.body)


def shape(text: str) -> object:
    """Return JSON with the types of its values, and other text without numbers."""
    try:
        return _shape(json.loads(text))
    except ValueError:
        return re.sub(r"\d+", "0", text)


def _shape(value: object) -> object:
    if isinstance(value, dict):
        return {re.sub(r"[0-9a-f]*\d[0-9a-f]*", "0", key): _shape(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_shape(part) for part in value[:1]]
    if isinstance(value, str):
        if value.endswith("\t"):
            return ""  # a list of files, which may be empty
        return re.sub(r"[0-9a-f]*\d[0-9a-fKMGTB]*", "0", value)
    return type(value).__name__


def main() -> int:
    os.environ.setdefault("BOOKIES_APACHE_CACHE", str(pathlib.Path.home() / ".cache" / "bookies-apache"))
    with tempfile.TemporaryDirectory() as folder:
        compared = compare(pathlib.Path(folder))
    for row in compared:
        request, theirs, ours = row
        mark = "different" if differs(*row) else "equal"
        if bool(request.why) is not differs(*row) or "--all" in sys.argv:
            print(f"{mark:9} {request.name}\n    Apache {theirs}\n    ours   {ours}\n    {request.why}")
    return int(any(bool(request.why) is not differs(request, *answers) for request, *answers in compared))


if __name__ == "__main__":
    sys.exit(main())
