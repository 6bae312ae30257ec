"""Fuzz targets: configuration files, the control endpoint, the HTTP server, records and positions of Spark."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
from tests.fuzz.target import Target, accepted, check, equal

from bookies.apache.client import client_options
from bookies.apache.properties import parse_properties
from bookies.apache.server import bookie_options
from bookies.bookie.control import ControlServer
from bookies.client.read.offloaded import parse_index
from bookies.client.transport.handshake import read_credentials
from bookies.encoding.envelope import Record
from bookies.encoding.record_sets import count_of, pack_sets, parse_set
from bookies.errors import ConfigError, InvalidArgument, LogRecordCorrupt, MetadataCorrupt
from bookies.metadata.etcd import etcd_options
from bookies.metadata.zookeeper import zk_options
from bookies.protocol.log.log_model import parse_position
from bookies.protocol.placement.topology import parse_fault_domains, parse_location, parse_location_lines
from bookies.protocol.rights import parse_users
from bookies.runtime.events import Events
from bookies.runtime.ports import Clock, Disk, Runtime
from bookies.spark.base import envelope, offsets, options, selection
from bookies.spark.write import unchanged
from bookies.units import parse_duration, parse_size
from bookies.web.access import Access
from bookies.web.connection import HttpConnection, Service
from bookies.web.messages import Request, Response, json_response
from bookies.web.routes import Route, Routes

# -- configuration -----------------------------------------------------------------------------------------------------


class Host:
    """A machine with one address, without a name."""

    def address_of(self, interface: str | None) -> str:
        if interface is not None:
            raise OSError(19, "No such device")
        return "10.0.0.1"

    def name_of(self, address: str) -> str:
        return address


def properties(data: bytes) -> None:
    """Apache's configuration files, of a bookie and of a client."""
    given = parse_properties(data.decode("utf-8", "replace"))
    check(all(key == key.strip() or "\\" in str(data) for key in given), "a key with spaces around it", given)
    accepted(ConfigError, bookie_options, given, Host())
    accepted(ConfigError, client_options, given)


def _properties() -> list[bytes]:
    server = "bookiePort=3181\nledgerDirectories=/a,/b\nzkServers=h:2181;g:2181\nzkLedgersRootPath=/ledgers\n"
    server += "journalWriteBufferSizeKB = 64\ndiskUsageThreshold: 0.95\\\n5\n! c\nadvertisedAddress=${zkServers}\n"
    client = "metadataServiceUri=zk+null://h:2181/l\nreadEntryTimeout=5\nspeculativeReadTimeout=0\nclientRole=x\n"
    return [
        server.encode(),
        client.encode(),
        b"bookieId=\\u0041\\t\nmajorCompactionInterval=1e999\nminorCompactionThreshold=nan",
    ]


class File:
    """A disk with one file."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read_bytes(self, path: str) -> bytes:
        return self._data


def settings_files(data: bytes) -> None:
    """Our own files of credentials and options, and texts of settings."""
    disk = cast(Disk, File(data))
    for read in (read_credentials, etcd_options.read_options):
        accepted(ConfigError, read, disk, "options.toml")
    accepted(ConfigError, zk_options.parse_options, "options.toml", data)
    text = data.decode("utf-8", "replace")
    accepted(ConfigError, parse_users, text)
    accepted(ConfigError, parse_fault_domains, text)
    accepted(ConfigError, parse_location_lines, text, "lines")
    location = accepted(ConfigError, parse_location, text)
    if location is not None:
        equal(parse_location(location), location, "a canonical location has another canonical form")
    duration, size = parse_duration(text), parse_size(text)
    check(duration is None or duration >= 0, "a negative duration", duration)
    check(size is None or size >= 0, "a negative size", size)
    accepted(InvalidArgument, parse_position, text)


def _settings_files() -> list[bytes]:
    return [
        b'[users]\nfred = "secret"\n', b'username = "u"\npassword = "p"\n', b"b1=/r1/r2,b2=r3", b"h /r # c\n", b"7:9",
        b'digest = "u:p"\n[tls]\nauthority = "/a"\ncheck_host_name = false\n[sasl]\nmechanism = "GSSAPI"\n',
        b'user = "u"\npassword = "p"\n[tls]\n', b"1.5h", b"64k", b"a = " + b"[" * 1500, b"9" * 1500,
    ]  # fmt: skip


# -- control endpoint --------------------------------------------------------------------------------------------------


class Transport(asyncio.Transport):
    """Collects what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.is_closed = True


TOKEN = f"{7:032x}"


async def _answered(data: bytes) -> None:
    """Every line gets one answer, a JSON object, whatever is in it."""

    async def echo(**arguments: Any) -> object:
        return {name: repr(value) for name, value in arguments.items()}

    accepts: list[Callable[[], asyncio.BaseProtocol]] = []

    async def listen(host: str, port: int, accept: Callable[[], asyncio.BaseProtocol]) -> object:
        accepts.append(accept)
        return SimpleNamespace(address=(host, 1), close=lambda: None)

    runtime = SimpleNamespace(
        network=SimpleNamespace(listen=listen), random=SimpleNamespace(getrandbits=lambda n: 7), disk=None
    )
    server = ControlServer(cast(Runtime, runtime), {"echo": echo}, "b1")
    await server.start([])
    connection, transport = cast(asyncio.Protocol, accepts[0]()), Transport()
    connection.connection_made(transport)
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    for piece in (data[: len(data) // 2], data[len(data) // 2 :]):
        connection.data_received(piece)
    for _ in range(4):
        await asyncio.sleep(0)
    lines = data.count(b"\n")
    answers = transport.written.splitlines()
    check(len(answers) == lines, "lines without an answer", lines, answers, problems)
    check(all(isinstance(json.loads(answer), dict) for answer in answers), "an answer is no object", answers)
    server.stop()


def control(data: bytes) -> None:
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(_answered(data.replace(b"TOKEN", TOKEN.encode())[:4096]))
    finally:
        loop.close()


class HttpTransport(Transport):
    """A connection that accepts everything."""

    abort = Transport.close

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def _served(data: bytes) -> None:
    """Requests are answered or refused: no input raises an error that is not a `Problem`."""
    problems: list[object] = []
    clock = cast(Clock, SimpleNamespace(monotonic=lambda: 0.0))
    access = Access(None, ["a"], clock, scheme="http", open_metrics=False)

    async def handler(request: Request) -> Response:
        return json_response({"body": request.document(), "path": request.path, "page": request.number("page", 0)})

    routes = Routes([Route("/x/{y}/z", "", handler), Route("/x", "", handler, method="POST")], "bookie")

    async def handle(request: Request) -> Response:
        access.check_source(request, changes=request.method not in ("GET", "HEAD"))
        match = routes.find(request)
        if match is None:
            raise routes.refusal(request)
        return await match[0].handler(request)

    service = SimpleNamespace(
        admit=lambda request: 1 << 20, reserve=lambda size: True, handle=handle, date=lambda: "now"
    )
    noted = SimpleNamespace(
        error=lambda *words, **fields: problems.append(fields), warning=lambda *words, **fields: None
    )
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    connection, transport = (
        HttpConnection(cast(Service, service), cast(Events, noted), lambda ended: None),
        HttpTransport(),
    )
    connection.connection_made(transport)
    for piece in (data[: len(data) // 2], data[len(data) // 2 :]):
        if not transport.is_closed:
            connection.data_received(piece)
        for _ in range(6):
            await asyncio.sleep(0)
    connection.connection_lost(None)
    check(not problems, "an error in the server", problems)
    check(not transport.written or transport.written.startswith(b"HTTP/1.1 "), "no response", transport.written)


def http(data: bytes) -> None:
    """One connection of the HTTP server."""
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(_served(data))
    finally:
        loop.close()


def _http() -> list[bytes]:
    return [
        b"GET /x/%ff/z?page=1&y=%zz HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\n\r\n",
        b'POST /x HTTP/1.1\r\nHost: [::1]:1\r\nContent-Length: 7\r\nOrigin: null\r\n\r\n{"a":1}',
        b"POST /x HTTP/1.1\r\nHost: a\r\n"
        b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    ]


def _control() -> list[bytes]:
    request = b'{"token": "TOKEN", "call": "echo", "arguments": {"x": [1, "y", null]}}\n'
    odd = [
        b"[]\n",
        b'{"token": "TOKEN", "call": []}\n',
        b"[" * 3000 + b"\n",
        b"{}\n\n",
        b'{"token": "TOKEN", "call": "x"}\n',
    ]
    return [request, request[:-1], request + request, *odd]


# -- Spark -------------------------------------------------------------------------------------------------------------


def envelopes(data: bytes) -> None:
    """Records with key and headers. The input is cut into entries by its first byte."""
    size, rest = (data[0], data[1:]) if data else (1, b"")
    entries = [rest[at : at + size] for at in range(0, len(rest), max(1, size))][:8] if size else [rest]
    column = pa.array(entries, pa.binary())
    wrong = envelope.malformed(column)
    decoded = accepted(MetadataCorrupt, envelope.decode, column)
    equal(decoded is None, bool(wrong), "malformed() and decode() disagree")
    good = [entry for row, entry in enumerate(entries) if row not in wrong]
    columns = envelope.decode(pa.array(good, pa.binary()))
    packed = envelope.encode(*(columns[name] for name in ("value", "key", "headers", "timestamp")))
    again = envelope.decode(packed)
    for name, values in columns.items():
        check(values.cast(pa.int64()) == again[name].cast(pa.int64()) if name == "timestamp" else values == again[name],
              f"decode(encode(x)) is not x in {name}", values, again[name])  # fmt: skip


def record_set(data: bytes) -> None:
    """An entry of a log of record sets, as records and as columns."""
    records = accepted((LogRecordCorrupt, ConfigError), parse_set, data)
    if records is None:
        return
    rows = accepted(LogRecordCorrupt, records.rows)
    values = accepted(LogRecordCorrupt, records.values)
    equal(rows is None, values is None, "rows() and values() disagree")
    if rows is not None and values is not None:
        equal(list(rows.values), list(values), "rows() and values() differ")
        equal(len(values), count_of(data), "another number of records")
        fields = zip(values, rows.keys or [None] * len(values), rows.times or [None] * len(values), strict=True)
        again = pack_sets([Record(value, key, None, time_us) for value, key, time_us in fields], 0, records.time_us)
        equal([value for _, entry in again for value in parse_set(entry).values()], list(values), "packed differently")


def _record_sets() -> list[bytes]:
    records = [
        Record(b"value", b"k", [("h", None)], 7),
        Record(None, None, None, None),
        Record(b"x" * 40, None, None, 5),
    ]
    return [entry for codec in (0, 1, 2) for _, entry in pack_sets(records, codec, 5)]


def _envelopes() -> list[bytes]:
    value = pa.array([b"value", None], pa.binary())
    headers = pa.array([[{"key": "h", "value": b"x"}, {"key": "g", "value": None}], None], envelope.HEADERS_TYPE)
    times = pa.array([1_700_000_000_000_000, None], pa.int64()).cast(envelope.TIMESTAMP_TYPE)
    rows = envelope.encode(value, pa.array([b"key", None], pa.binary()), headers, times).to_pylist()
    return [b"\0" + row for row in rows] + [bytes([len(rows[1])]) + rows[1] * 3]


def positions(data: bytes) -> None:
    """Offsets of a streaming query, and options of the source that are JSON."""
    text = data.decode("utf-8", "replace")
    for name in ("startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp"):
        at = accepted(InvalidArgument, selection.where, {name: text}, "starting", "latest")
        if at is not None:
            accepted(InvalidArgument, selection.time_of, at, "orders")
            accepted(InvalidArgument, selection.check_named, at, SELECTED, "starting")
    for name in ("assign", "path", "paths", "ledgers"):
        accepted(InvalidArgument, selection.selection, {name: text})
    accepted(InvalidArgument, unchanged.parsed, text)
    accepted((ValueError, TypeError, KeyError), parse_index, data)
    content = accepted(InvalidArgument, options.json_object, {"x": text}, "x", "{}")
    if content is None:
        return
    offsets.symbol(content)
    offset = accepted(InvalidArgument, offsets.parse, content)
    if offset is not None:
        spelled = offset.to_json()
        equal(offsets.parse(spelled), offset, "parse(pack(x)) is not x")
        equal(offsets.parse(spelled).to_json(), spelled, "pack(parse(b)) is not b, for what we wrote")


def _positions() -> list[bytes]:
    return [
        b'{"logs": {"orders": [12, 3400]}, "v": 1}', b'{"ledgers": {"17": 250}, "v": 1, "tokens": {"a": "b"}}',
        b'{"from": {"logs": {"o": [0, 1]}}, "gone": {"ledgers": {"1": 2}}, "logs": {}, "v": 1}',
        b'{"logs": {"a": [0, null]}}', b'{"orders": 1795284255562}', b"17", b'[["p", 1, null]]',
        b'{"at": "latest", "v": 1}',
        b'{"v": 1, "logs": ' + b"[" * 1500, b'{"ledgers": {"1": 1e999}, "v": 1}', b'[["p", 1e999, 1]]',
    ]  # fmt: skip


SELECTED = selection.Selection(("orders",))
TARGETS = [
    Target("properties", properties, _properties, 1024),
    Target("settings-files", settings_files, _settings_files),
    Target("control", control, _control, 4096),
    Target("http", http, _http, 4096),
    Target("envelopes", envelopes, _envelopes, 512),
    Target("record-sets", record_set, _record_sets, 512),
    Target("positions", positions, _positions, 2048),
]
