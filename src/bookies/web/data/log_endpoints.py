"""The endpoints of logs: create, append, read, tail, cursors, truncate, delete."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import TypedDict, cast
from urllib.parse import quote

from bookies.client.log.log import Log
from bookies.client.log.sequenced import Appended
from bookies.encoding.envelope import Record
from bookies.errors import (
    BookKeeperError,
    InvalidArgument,
    LedgerNotFound,
    LogExists,
    LogRecordCorrupt,
    LogTruncated,
    SequenceGap,
)
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.cursors import Cursor
from bookies.protocol.log.log_model import ENVELOPE, SETS, Address, parse_address, parse_position
from bookies.protocol.log.records import Decoder
from bookies.protocol.log.sequences import CURSOR
from bookies.protocol.rights import Role
from bookies.units import parse_time
from bookies.web.apache_bookie import API
from bookies.web.data.forms import BINARY, BODIES, page_response, parse_entries
from bookies.web.data.reading import HEARTBEAT_S, Reading, Tail, bounded
from bookies.web.data.writers import LedElsewhere, LedLog, Writers, unknown
from bookies.web.messages import Problem, Request, Response, json_response
from bookies.web.routes import Handler, Route
from bookies.web.server import problem_of
from bookies.web.shared_client import SharedClient

BODY_SIZE_MAX = 4 << 20  # bytes of an append
NAMES, NAMES_MAX = 100, 1_000  # logs of a page
PASSWORD = "Bk-Ledger-Password=TEXT"
READ = f"from=POSITION, limit=1 to 1000, max_bytes=1 to 4194304, {PASSWORD}"
_LOG, _ENTRIES, _CURSOR = f"{API}/logs/{{log}}", f"{API}/logs/{{log}}/entries", f"{API}/logs/{{log}}/cursors/{{cursor}}"
_ETAG = re.compile(r'"([^"]*)"')


class LogEndpoints:
    """The endpoints of logs."""

    def __init__(self, client: SharedClient, writers: Writers, reading: Reading) -> None:
        self._client = client
        self._writers = writers
        self._reading = reading
        self.appended = 0  # entries
        self.repeated = 0  # entries that their log held already
        self.routes = (*self._log_routes(), *self._data_routes(), *self._cursor_routes())

    def _log_routes(self) -> Sequence[Route]:
        shape = "ensemble=3, write_quorum=N, ack_quorum=N, digest=crc32c, record_format=envelope, raw or sets, "
        shape += "compression=zstd or lz4"
        return (
            Route(f"{API}/logs", "names of the logs, ascending", self._list, "prefix=TEXT, after=NAME, limit=100"),
            Route(_LOG, "settings, beginning and ledgers of a log", self._show, labels=_labels),
            Route(_LOG, "create a log", self._create, method="PUT", role=Role.OPERATOR, body=shape, labels=_labels),
            Route(
                _LOG,
                "delete a log for ever; a dry run reports its size",
                self._delete,
                f"dry_run=true, {PASSWORD}",
                "DELETE",
                Role.ADMINISTRATOR,
                labels=_labels,
            ),
            Route(
                f"{_LOG}/truncate",
                "delete the entries before a position, which no cursor may need",
                self._truncate,
                PASSWORD,
                "POST",
                Role.OPERATOR,
                "before=POSITION",
                labels=_labels,
            ),
        )

    def _data_routes(self) -> Sequence[Route]:
        sequence = "Bk-Writer=NAME, Bk-Sequence=number of the first entry"
        return (
            Route(
                _ENTRIES,
                "append entries; with a writer and a sequence number each one once, however often it is sent",
                self._append,
                f"{sequence}, {PASSWORD}",
                "POST",
                Role.WRITER,
                BODIES,
                body_max=BODY_SIZE_MAX,
                labels=_labels,
            ),
            Route(
                _ENTRIES, "read a page of entries", self._read, f"since=TIME, {READ}", role=Role.READER, labels=_labels
            ),
            Route(
                f"{_ENTRIES}/{{position}}",
                "read one entry, raw",
                self._read_one,
                PASSWORD,
                role=Role.READER,
                labels=_labels,
            ),
            Route(
                f"{_LOG}/tail",
                "follow the log by Server-Sent Events; without a position from now on",
                self._tail,
                f"from=POSITION, Last-Event-ID=POSITION, {PASSWORD}",
                role=Role.READER,
                labels=_labels,
            ),
        )

    def _cursor_routes(self) -> Sequence[Route]:
        def change(help: str, handler: Handler, method: str, parameters: str = "", body: str = "") -> Route:
            return Route(_CURSOR, help, handler, parameters, method, Role.READER, body, labels=_labels)

        return (
            Route(f"{_LOG}/cursors", "the cursors of a log", self._cursors, labels=_labels),
            Route(_CURSOR, "a cursor; its position is the `ETag`", self._cursor, labels=_labels),
            change("create or move a cursor", self._move, "PUT", "If-Match=ETAG", "position=POSITION"),
            change("delete a cursor, which holds back no truncation then", self._delete_cursor, "DELETE"),
        )

    async def _log(self, request: Request) -> Log:
        return (await self._client.get()).log(request.values["log"], password=password_of(request))

    # -- logs ----------------------------------------------------------------------------------------------------
    async def _list(self, request: Request) -> Response:
        limit, after = bounded(request, "limit", NAMES, NAMES_MAX), request.query.get("after", "")
        names = await (await self._client.get()).logs(request.query.get("prefix", ""))
        rest = [name for name in names if name > after]
        return json_response({"logs": rest[:limit], "next": rest[limit - 1] if len(rest) > limit else ""})

    async def _show(self, request: Request) -> Response:
        log = await self._log(request)
        return json_response(_facts(log.name, await log.manifest()))

    async def _create(self, request: Request) -> Response:
        given = shape_of(request, "record_format", "compression")
        log = await self._log(request)
        status, record_format = 201, str(given.get("record_format", ENVELOPE))
        compression = cast(str | None, given.get("compression"))
        try:
            await log.create(**quorums_of(given), record_format=record_format, compression=compression)
        except LogExists:
            manifest = await log.manifest()
            same = {**_facts(log.name, manifest), "digest": manifest.digest.name.lower()}
            if any(same[name] != value for name, value in {**given, "record_format": record_format}.items()):
                raise
            status = 200
        return json_response(_facts(log.name, await log.manifest()), status, before={})

    async def _delete(self, request: Request) -> Response:
        log = await self._log(request)
        facts = _facts(log.name, await log.manifest())
        if request.is_dry_run:
            return json_response({"would_delete": facts})
        led = self._writers.logs.pop(log.name, None)
        if led is not None:
            await led.writer.abandon()
        await log.delete()
        return json_response({"deleted": log.name}, before=facts)

    async def _truncate(self, request: Request) -> Response:
        log = await self._log(request)
        before = _position(str(request.document().get("before", "")))
        led = self._writers.logs.get(log.name)
        facts = _facts(log.name, await log.manifest())
        await (log if led is None else led.writer).truncate(before)  # the leader knows what is confirmed
        return json_response(_facts(log.name, await log.manifest()), before=facts)

    # -- entries -------------------------------------------------------------------------------------------------
    async def _append(self, request: Request) -> Response:
        records = parse_entries(request)
        writer, number = request.headers.get("bk-writer"), request.headers.get("bk-sequence")
        if (writer is None) != (number is None):
            raise Problem(400, "Bk-Writer and Bk-Sequence belong together: one is missing")
        if number is not None and not (number.isascii() and number.isdigit() and len(number) < 20):
            raise Problem(400, f"Bk-Sequence: {number!r} is no whole number from 0 on")
        numbers = None if writer is None or number is None else (writer, int(number))
        return await self._writers.append(self._appended(request, records, numbers), len(request.body))

    async def _appended(self, request: Request, records: list[Record], numbers: tuple[str, int] | None) -> Response:
        name, password = request.values["log"], password_of(request)
        attempts_left = 1 if numbers is None else 2  # numbered entries may be sent again: they are stored once
        failure: BookKeeperError | None = None  # of the first attempt, whose outcome is unknown
        while True:
            try:
                led = await self._writers.lead(name, password)
                if numbers is not None:
                    await led.numbered()
            except (LedElsewhere, Problem, BookKeeperError) as error:  # This attempt has sent nothing.
                raise _not_led(name, error, failure) from error
            try:
                first, last, repeated = await _send(led, records, numbers)
                break
            except SequenceGap as error:
                raise Problem(409, str(error), headers={"Bk-Expected": str(error.expected)}) from error
            except InvalidArgument as error:
                raise Problem(422, str(error)) from error
            except BookKeeperError as error:
                self._writers.lost(led, error)
                attempts_left -= 1
                if not attempts_left:
                    raise unknown(503, str(error)) from error
                failure = error
        self.appended += len(records) - repeated
        self.repeated += repeated
        facts = {
            "first": None if first is None else str(first),
            "last": None if last is None else str(last),
            "next": None if last is None else str(last.next),
            "repeated": repeated,
        }
        headers = {} if numbers is not None else {"Bk-Delivery": "at-least-once"}
        is_new = repeated < len(records)
        return json_response(facts, 201 if is_new else 200, headers)

    async def _read(self, request: Request) -> Response:
        start, since = request.query.get("from"), request.query.get("since")
        log = await self._log(request)
        if since is not None:
            start = await _start_of(log, start, since)
        async with self._reading.turns, log.open() as reader:
            try:
                address = None if start is None else _address(start)
                entries = reader.read(address)
                slot = 0 if address is None else address.slot
                page = await self._reading.page(request, entries.batches(), _text, entries.decode, slot)
            except LogRecordCorrupt as error:
                raise _corrupt(error) from error
            except LogTruncated as error:
                raise _truncated(error, await reader.refresh()) from error
        return page_response(request, page if page.following else page._replace(following=start or ""))

    async def _read_one(self, request: Request) -> Response:
        address = _address(request.values["position"])
        position = address.position
        log = await self._log(request)
        manifest = await log.manifest()
        extent = manifest.find(position)
        if extent is None or position.entry_id < extent.first:
            raise _truncated(LogTruncated(f"position {position} is not in log {log.name}"), manifest)
        payload = None
        if extent.stored is None:
            # Not there: a compaction or roll-up has replaced it meanwhile, or it is lost.
            with contextlib.suppress(LedgerNotFound):
                client, password = await self._client.get(), password_of(request)
                async with client.open(position.ledger_id, password=password) as ledger:
                    payload = (await ledger.read_entry(position.entry_id)).payload
        payload = await _replaced(log, position) if payload is None else payload
        self._reading.entries += 1
        decode = Decoder(log.name, manifest.record_format)
        record = next(decode.records(position.ledger_id, (position.entry_id,), (payload,), address.slot), None)
        if record is None or address.slot >= decode.count(payload):
            raise Problem(404, f"entry {position} has {decode.count(payload):,} records: {address} is not among them")
        return Response(200, record.value or b"", BINARY, {"ETag": f'"{address}"'})

    async def _tail(self, request: Request) -> Response:
        self._reading.check_tails()
        last, start = request.headers.get("last-event-id"), request.query.get("from")
        address = _address(last) if last else _address(start) if start else None
        reader = await (await self._log(request)).open()
        if last and address is not None:
            ledger_id, entry_id, slot = address
            is_set = reader.manifest.record_format == SETS
            address = Address(ledger_id, entry_id, slot + 1) if is_set else Address(ledger_id, entry_id + 1)
        entries = reader.tail(address, timeout=HEARTBEAT_S)
        slot = 0 if address is None else address.slot
        return Tail(self._reading, reader, entries.batches(), _text, entries.decode, slot).response()

    # -- cursors -------------------------------------------------------------------------------------------------
    async def _cursors(self, request: Request) -> Response:
        cursors = await (await self._log(request)).cursors()
        return json_response([_cursor_facts(cursor) for cursor in cursors.values()])

    async def _cursor(self, request: Request) -> Response:
        return _cursor_response(await self._present(request))

    async def _present(self, request: Request) -> Cursor:
        name = request.values["cursor"]
        cursors = await (await self._log(request)).cursors()
        if name not in cursors:
            raise Problem(404, f"log {request.values['log']} has no cursor {name}: PUT creates it")
        return cursors[name]

    async def _move(self, request: Request) -> Response:
        name = _own(request.values["cursor"])
        position = _position(str(request.document().get("position", "")))
        match = request.headers.get("if-match")
        expected = None
        if match is not None:
            tag = _ETAG.fullmatch(match.strip())
            if tag is None:
                raise Problem(400, f"If-Match: {match!r} is not the ETag of a cursor")
            expected = _position(tag[1])
        await (await self._log(request)).move_cursor(name, position, expected=expected)
        return json_response(
            {"cursor": name, "position": str(position)}, headers={"ETag": f'"{position}"'}, before=match or {}
        )

    async def _delete_cursor(self, request: Request) -> Response:
        cursor = await self._present(request)
        await (await self._log(request)).delete_cursor(_own(cursor.name))
        return json_response({"deleted": cursor.name}, before=_cursor_facts(cursor))


async def _replaced(log: Log, position: Position) -> bytes:
    """Return the payload of an entry that a compaction or roll-up has put into another ledger. Raises `Problem`."""
    async with log.open() as reader:
        try:
            async for entry in reader.read(position):
                if entry.position == position:
                    return entry.payload
                break
        except LogTruncated as error:
            raise _truncated(error, await reader.refresh()) from error
    raise Problem(
        404, f"log {log.name} has no entry {position}: a compaction has removed it, or its ledger ends before"
    )


async def _start_of(log: Log, start: str | None, since: str) -> str | None:
    """Return the position of a time. Raises `Problem`."""
    moment = parse_time(since, 0.0)
    if moment is None or moment <= 0:
        raise Problem(400, f"since: {since!r} is no time such as 2026-11-27T10:00Z")
    if start is not None:
        raise Problem(400, "from and since contradict each other: give one of them")
    position = await log.at(moment)
    return None if position is None else str(position)


class Quorums(TypedDict, total=False):
    """Shape of a ledger."""

    ensemble: int
    write_quorum: int
    ack_quorum: int
    digest: str


def shape_of(request: Request, *others: str) -> dict[str, object]:
    """Return the JSON object of a creation. `others`: accepted besides `Quorums`. Raises `Problem`."""
    given = request.document()
    accepted = (*Quorums.__annotations__, *others)
    if extra := given.keys() - set(accepted):
        raise Problem(400, f"{', '.join(sorted(extra))}: not accepted; there are {', '.join(accepted)}")
    return given


def quorums_of(given: dict[str, object]) -> Quorums:
    """Return the part that every ledger has; the client checks the values."""
    return cast(Quorums, {name: given[name] for name in Quorums.__annotations__ if name in given})


def password_of(request: Request) -> bytes:
    """Return the password of a ledger, or of the ledgers of a log."""
    return request.headers.get("bk-ledger-password", "").encode()


async def _send(led: LedLog, records: Sequence[Record], numbers: tuple[str, int] | None) -> Appended:
    """Append entries, with the writer and the number of the first one if there are any."""
    if numbers is not None:
        return await (await led.numbered()).append(*numbers, records)
    epoch = led.writer.epoch
    last = await led.writer.append_many(records)
    # Otherwise they may be in two ledgers, or share entries.
    is_one = led.writer.epoch == epoch and led.writer.manifest.record_format != SETS
    return Appended(Position(last.ledger_id, last.entry_id - len(records) + 1) if is_one else None, last, 0)


def _text(ledger_id: int, entry_id: int, slot: int = 0) -> str:
    return str(Address(ledger_id, entry_id, slot))


def _address(text: str) -> Address:
    try:
        return parse_address(text)
    except InvalidArgument as error:
        raise Problem(400, str(error)) from None


def _position(text: str) -> Position:
    try:
        return parse_position(text)
    except InvalidArgument as error:
        raise Problem(400, str(error)) from None


def _own(cursor: str) -> str:
    if cursor == CURSOR:
        raise Problem(403, f"the cursor {CURSOR} belongs to the gateways, which need the entries after it")
    return cursor


def _facts(name: str, manifest: Manifest) -> dict[str, object]:
    beginning = manifest.beginning
    return {
        "log": name,
        "record_format": manifest.record_format,
        "compression": manifest.compression,
        "ensemble": manifest.ensemble,
        "write_quorum": manifest.write_quorum,
        "ack_quorum": manifest.ack_quorum,
        "begins": None if beginning is None else _text(beginning.ledger_id, beginning.first),
        "ledgers": len(manifest.extents),
        "epoch": manifest.epoch,
        "held": manifest.held or None,
    }


def _not_led(name: str, error: LedElsewhere | Problem | BookKeeperError, failure: BookKeeperError | None) -> Problem:
    """Return the answer to an append to a log that could not be led. `failure`: of an earlier attempt, which may have
    stored the entries."""
    if failure is not None:
        return unknown(503, str(failure))
    if isinstance(error, LedElsewhere):
        return _elsewhere(name, error.leader)
    return error if isinstance(error, Problem) else problem_of(error)


def _elsewhere(name: str, leader: str) -> Problem:
    """Return the answer to an append to a log that another process leads."""
    detail = f"{leader} leads log {name}: this gateway has stored nothing"
    if not leader.startswith(("http://", "https://")):
        return Problem(503, detail, "end that program, or append with it", {"Retry-After": "10"})
    location = f"{leader}{_ENTRIES.replace('{log}', quote(name, safe=''))}"
    return Problem(307, detail, "repeat the request there, or here if it does not answer", {"Location": location})


def _truncated(error: LogTruncated, manifest: Manifest) -> Problem:
    beginning = manifest.beginning
    headers = {} if beginning is None else {"Bk-Begin": _text(beginning.ledger_id, beginning.first)}
    return Problem(410, str(error), "read from the position in Bk-Begin", headers)


def _corrupt(error: LogRecordCorrupt) -> Problem:
    """Return the answer to a read that begins at an entry that is no record."""
    assert error.ledger_id is not None
    assert error.entry_id is not None
    following = (error.entry_id + 1, 0) if error.slot is None else (error.entry_id, error.slot + 1)
    headers = {"Bk-Next": _text(error.ledger_id, *following)}
    return Problem(422, str(error), "continue from the position in Bk-Next", headers)


def _cursor_facts(cursor: Cursor) -> dict[str, object]:
    return {"cursor": cursor.name, "position": str(cursor.position), "moved_ms": cursor.moved_ms}


def _cursor_response(cursor: Cursor) -> Response:
    return json_response(_cursor_facts(cursor), headers={"ETag": f'"{cursor.position}"'})


async def _labels(request: Request) -> Mapping[str, bytes]:
    """Return the label that the ledgers of a log have."""
    return {"log": request.values["log"].encode()}
