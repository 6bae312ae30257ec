"""A schema registry with Confluent's HTTP interface, in a thread: schemas in memory, and faults on request."""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeRegistry:
    """`requests`: method and path of each request. `failures`: statuses for the next requests.

    redirect: address of the server that each answer names instead.
    """

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.requests: list[str] = []
        self.failures: list[int] = []
        self.refusal = ""
        self.redirect = ""
        self.authorization: str | None = None

    def add(self, subject: str, schema: str, kind: str = "AVRO") -> int:
        same = [number for number, known in self.schemas.items() if known["schema"] == schema]
        number = same[0] if same else len(self.schemas) + 1
        if not same:
            self.schemas[number] = {"schema": schema, "schemaType": kind}
        self.subjects.setdefault(subject, []).append(number)
        return number

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        parts = [urllib.parse.unquote(part) for part in urllib.parse.urlsplit(path).path.split("/") if part]
        if self.failures:
            return self.failures.pop(0), {"message": "out of order"}
        if parts[:2] == ["schemas", "ids"]:
            known = self.schemas.get(int(parts[2]))
            return (200, known) if known is not None else (404, {"error_code": 40403, "message": "no schema"})
        subject = parts[2] if parts[0] == "compatibility" else parts[1]
        numbers = self.subjects.get(subject, [])
        if method == "POST" and parts[0] == "subjects":
            return 200, {"id": self.add(subject, body["schema"], body.get("schemaType", "AVRO"))}
        if not numbers:
            return 404, {"error_code": 40401, "message": "no subject"}
        if parts[0] == "compatibility":
            return 200, {"is_compatible": not self.refusal, "messages": [self.refusal]}
        return 200, {"id": numbers[-1], "version": len(numbers), "subject": subject} | self.schemas[numbers[-1]]


@contextmanager
def fake_registry() -> Iterator[tuple[FakeRegistry, str]]:
    """Run a registry, and yield it with its address."""
    registry = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._do("GET", None)

        def do_POST(self) -> None:
            self._do("POST", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _do(self, method: str, body: Any) -> None:
            registry.requests.append(f"{method} {self.path}")
            registry.authorization = self.headers["Authorization"]
            status, content = registry.answer(method, self.path, body)
            data = json.dumps(content).encode()
            self.send_response(302 if registry.redirect else status)
            if registry.redirect:
                self.send_header("Location", registry.redirect + self.path)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield registry, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
