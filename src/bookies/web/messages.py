"""Requests and responses of the HTTP server, and errors in the form of RFC 9457."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from http import HTTPStatus
from typing import Any

from msgspec import Struct, field

from bookies.encoding.documents import parse_json
from bookies.protocol.rights import User
from bookies.wire.auth import Subject

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
PROBLEM = "application/problem+json"
PIECE_SIZE = 16 << 10  # bytes of a streamed body that are sent together


class Request(Struct, frozen=True):
    """One request. `path`: without a trailing slash; `host`: that header; `headers`: by their names in lower case.

    `peer`: the client's address. `subject`: of its certificate. `user`: who sends it, once that is known. `values`: of
    the placeholders in the endpoint's path.
    """

    method: str
    path: str
    query: Mapping[str, str]
    host: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    peer: str = ""
    subject: Subject | None = None
    user: User | None = None
    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_dry_run(self) -> bool:
        """Report whether the request asks what would happen. Raises `Problem`."""
        if "dry_run" in self.query:
            return self.flag("dry_run")
        return self.method != "GET" and str(self.document().get("dry_run", "")).lower() in ("true", "1")

    def document(self) -> dict[str, Any]:
        """Return the JSON object in the body; {} if there is no body. Raises `Problem`."""
        if not self.body.strip():
            return {}
        try:
            value = parse_json(self.body)
        except ValueError as error:
            raise Problem(400, f"the body is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise Problem(400, "the body has to be one JSON object")
        return value

    def number(self, name: str, default: int | None = None) -> int:
        """Return a whole number from the query. Raises `Problem` if it is missing without a default, or malformed."""
        text = self.query.get(name)
        if text is None and default is not None:
            return default
        try:
            return int(text or "")
        except ValueError:
            raise Problem(400, f"{name}={text or ''}: a whole number is needed") from None

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a switch from the query: true or false."""
        text = self.query.get(name)
        return default if text is None else text.lower() in ("true", "1")


Body = bytes | AsyncIterator[bytes]


class Response(Struct, frozen=True):
    """One response. A `body` that is iterated over is sent as it is made. `before`, `after`: of a change, for audit."""

    status: int
    body: Body
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict)
    before: object = None
    after: object = None


class Problem(Exception):
    """An error of a request. `detail`: what failed and why; `next_step`: a command or a setting, or empty."""

    def __init__(self, status: int, detail: str, next_step: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.next_step = next_step
        self.headers = headers or {}

    def response(self, path: str) -> Response:
        facts = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "instance": path,
        }
        if self.next_step:
            facts["next"] = self.next_step
        return Response(self.status, json.dumps(facts).encode() + b"\n", PROBLEM, self.headers)


def text(body: str, status: int = 200) -> Response:
    return Response(status, body.encode())


def json_response(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None, *, before: object = None
) -> Response:
    """Return a small value as JSON. Long lists are streamed: see `json_object`. `before`: of a change, for audit."""
    data = json.dumps(value, indent=2).encode() + b"\n"
    return Response(status, data, JSON, headers or {}, before, None if before is None else value)


async def json_object(items: AsyncIterator[tuple[str, object]]) -> AsyncIterator[bytes]:
    """Yield one JSON object, a few KiB at a time, from its keys and values."""
    async for piece in _pieces(items, "{", "}", lambda item: f"{json.dumps(item[0])}:{json.dumps(item[1])}"):
        yield piece


async def json_array(items: AsyncIterator[object]) -> AsyncIterator[bytes]:
    """Yield one JSON array, a few KiB at a time."""
    async for piece in _pieces(items, "[", "]", json.dumps):
        yield piece


async def _pieces(
    items: AsyncIterator[Any], opening: str, closing: str, form: Callable[[Any], str]
) -> AsyncIterator[bytes]:
    parts, size, separator = [opening], 0, ""
    async for item in items:
        piece = separator + form(item)
        parts.append(piece)
        size += len(piece)
        separator = ",\n"
        if size >= PIECE_SIZE:
            yield "".join(parts).encode()
            parts, size = [], 0
    yield "".join([*parts, closing, "\n"]).encode()
