"""The endpoints of ledgers: create, append, read, tail, seal. The sequence number of an entry is its id in the ledger.

A ledger has one writer, in the process that created it. Another gateway cannot append to it, and answers with the way
out: seal it, which recovers it, and reports its last entry.
"""

from __future__ import annotations

from collections.abc import Mapping

from bookies.errors import BookKeeperError, InvalidArgument
from bookies.protocol.log.log_model import RAW
from bookies.protocol.log.records import Decoder
from bookies.protocol.rights import Role
from bookies.protocol.rights.users import LABELS_S
from bookies.web.apache_bookie import API
from bookies.web.data.forms import BINARY, BODIES, Page, page_response, parse_entries
from bookies.web.data.log_endpoints import BODY_SIZE_MAX, PASSWORD, READ, password_of, quorums_of, shape_of
from bookies.web.data.reading import HEARTBEAT_S, Reading, Tail
from bookies.web.data.writers import Writers, check_password, unknown
from bookies.web.messages import Problem, Request, Response, json_response
from bookies.web.routes import Route
from bookies.web.shared_client import SharedClient

_LEDGER = f"{API}/ledgers/{{ledger}}"
_ENTRIES = f"{_LEDGER}/entries"
LEDGERS_MAX = 10_000  # whose labels are kept


class LedgerEndpoints:
    """The endpoints of ledgers."""

    def __init__(self, client: SharedClient, writers: Writers, reading: Reading) -> None:
        self._client = client
        self._writers = writers
        self._reading = reading
        self.appended = 0  # entries
        self.repeated = 0  # entries that their ledger held already
        self._known: dict[int, tuple[Mapping[str, bytes], float]] = {}  # labels, and until when they are kept
        shape = "ensemble=3, write_quorum=N, ack_quorum=N, digest=crc32c, labels={NAME: VALUE}"
        sequence = "Bk-Sequence=id of the first entry"
        self.routes = (
            Route(
                f"{API}/ledgers",
                "create a ledger, which this gateway writes",
                self._create,
                PASSWORD,
                "POST",
                Role.WRITER,
                shape,
                labels=_given_labels,
            ),
            Route(
                _ENTRIES,
                "append entries; with a sequence number each one once, however often it is sent",
                self._append,
                f"{sequence}, {PASSWORD}",
                "POST",
                Role.WRITER,
                BODIES,
                body_max=BODY_SIZE_MAX,
                labels=self._labels,
            ),
            Route(
                _ENTRIES,
                "read a page of entries",
                self._read,
                READ.replace("POSITION", "ENTRY"),
                role=Role.READER,
                labels=self._labels,
            ),
            Route(
                f"{_ENTRIES}/{{entry}}",
                "read one entry, raw",
                self._read_one,
                PASSWORD,
                role=Role.READER,
                labels=self._labels,
            ),
            Route(
                f"{_LEDGER}/tail",
                "follow the ledger by Server-Sent Events up to its end; without an entry from now on",
                self._tail,
                f"from=ENTRY, Last-Event-ID=ENTRY, {PASSWORD}",
                role=Role.READER,
                labels=self._labels,
            ),
            Route(
                f"{_LEDGER}/seal",
                "seal the ledger, or recover it if another process writes it, which stops that one",
                self._seal,
                PASSWORD,
                "POST",
                Role.WRITER,
                labels=self._labels,
            ),
        )

    async def _labels(self, request: Request) -> Mapping[str, bytes]:
        """Return the labels of the ledger's record, which is read at most once a minute. Raises `LedgerNotFound`."""
        ledger_id, now = _ledger(request), self._writers.now()
        labels, until = self._known.get(ledger_id, ({}, now))
        if now >= until:
            versioned = await (await self._client.connected()).driver.read_ledger(ledger_id)
            labels = versioned.metadata.custom_metadata
            if len(self._known) >= LEDGERS_MAX:
                self._known.clear()
            self._known[ledger_id] = labels, now + LABELS_S
        return labels

    async def _create(self, request: Request) -> Response:
        given = shape_of(request, "labels")
        labels = given.get("labels", {})
        if not isinstance(labels, dict):
            raise Problem(400, "labels has to be an object of strings")
        self._writers.check_room_for_ledger()
        password = password_of(request)
        writer = await (await self._client.get()).create(**quorums_of(given), password=password, labels=labels)
        self._writers.add_ledger(writer, password)
        headers = {"Location": f"{API}/ledgers/{writer.ledger_id}"}
        return json_response({"ledger": writer.ledger_id}, 201, headers, before={})

    # -- appends -------------------------------------------------------------------------------------------------
    async def _append(self, request: Request) -> Response:
        records = parse_entries(request)
        if any(record.value is None or record.key is not None or record.headers is not None for record in records):
            raise Problem(422, "entries of a ledger are raw values, not null, without keys and headers")
        number = request.headers.get("bk-sequence")
        first = None if number is None else _whole("Bk-Sequence", number)
        appending = self._appended(request, [record.value or b"" for record in records], first)
        return await self._writers.append(appending, len(request.body))

    async def _appended(self, request: Request, entries: list[bytes], first: int | None) -> Response:
        ledger_id = _ledger(request)
        ledger = self._writers.ledgers.get(ledger_id)
        if ledger is None:
            return await self._not_written_here(request, ledger_id, entries, first)
        check_password(ledger.password, password_of(request), f"ledger {ledger_id}")
        async with ledger.turn:
            end = ledger.writer.last_add_confirmed + 1
            first = end if first is None else first
            if first > end:
                text = f"the next entry of ledger {ledger_id} is {end}, so {first} leaves a gap"
                raise Problem(409, text, headers={"Bk-Expected": str(end)})
            left = entries[end - first :]
            try:
                if left:
                    await ledger.writer.append_many(left)
            except InvalidArgument:
                raise
            except BookKeeperError as error:
                self._writers.ledgers.pop(ledger_id, None)
                await ledger.writer.close()
                raise unknown(503, f"{error}; the ledger has to be sealed now") from error
            ledger.used_s = self._writers.now()
        return self._done(first, len(entries), len(entries) - len(left))

    def _done(self, first: int, count: int, repeated: int) -> Response:
        self.appended += count - repeated
        self.repeated += repeated
        facts = {"first": first, "last": first + count - 1, "next": first + count, "repeated": repeated}
        return json_response(facts, 200 if repeated == count else 201)

    async def _not_written_here(
        self, request: Request, ledger_id: int, entries: list[bytes], first: int | None
    ) -> Response:
        """Answer an append to a ledger of another process, or of this one before it was started again."""
        password = password_of(request)
        async with (await self._client.get()).open(ledger_id, password=password) as reader:
            if reader.is_sealed and first is not None and first + len(entries) - 1 <= reader.last_add_confirmed:
                return self._done(first, len(entries), len(entries))
            if reader.is_sealed:
                last = reader.last_add_confirmed
                text = f"ledger {ledger_id} is sealed, and entry {last} is its last"
                raise Problem(409, text, "create another ledger", {"Bk-Last": str(last)})
        raise Problem(
            409,
            f"another process writes ledger {ledger_id}, or did before it ended",
            f"POST {API}/ledgers/{ledger_id}/seal recovers and seals it, and reports the last entry",
        )

    async def _seal(self, request: Request) -> Response:
        ledger_id, password = _ledger(request), password_of(request)
        ledger = self._writers.ledgers.get(ledger_id)
        if ledger is not None:
            check_password(ledger.password, password, f"ledger {ledger_id}")
            async with ledger.turn:
                last = await ledger.writer.seal()
            self._writers.ledgers.pop(ledger_id, None)
            await ledger.writer.close()
        else:
            async with (await self._client.get()).recover(ledger_id, password=password) as reader:
                last = reader.last_add_confirmed
        return json_response({"ledger": ledger_id, "last": last}, before={})

    # -- reads ---------------------------------------------------------------------------------------------------
    async def _read(self, request: Request) -> Response:
        first = request.number("from", 0)
        if first < 0:
            raise Problem(400, f"from={first}: entries are numbered from 0 on")
        client = await self._client.get()
        async with self._reading.turns, client.open(_ledger(request), password=password_of(request)) as reader:
            last = await reader.read_last_add_confirmed()
            page = Page((), str(first), is_end=True)
            if first <= last:
                batches = reader.read_batches(first, last)
                page = await self._reading.page(request, batches, _text, Decoder("", RAW))
        return page_response(request, page)

    async def _read_one(self, request: Request) -> Response:
        ledger_id, entry_id = _ledger(request), _whole("entry", request.values["entry"])
        async with (await self._client.get()).open(ledger_id, password=password_of(request)) as reader:
            entry = await reader.read_entry(entry_id)
        self._reading.entries += 1
        return Response(200, entry.payload, BINARY, {"ETag": f'"{ledger_id}:{entry_id}"'})

    async def _tail(self, request: Request) -> Response:
        self._reading.check_tails()
        last, start = request.headers.get("last-event-id"), request.query.get("from")
        first = _whole("Last-Event-ID", last) + 1 if last else _whole("from", start) if start else None
        reader = await (await self._client.get()).open(_ledger(request), password=password_of(request))
        batches = reader.tail(first, timeout=HEARTBEAT_S).batches()
        return Tail(self._reading, reader, batches, _text, Decoder("", RAW)).response()


def _ledger(request: Request) -> int:
    return _whole("ledger", request.values["ledger"])


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise Problem(400, f"{name}={text}: a whole number from 0 on is needed")
    return int(text)


def _text(ledger_id: int, entry_id: int, slot: int = 0) -> str:
    return str(entry_id)


async def _given_labels(request: Request) -> Mapping[str, bytes]:
    """Return the labels of a ledger that a request creates."""
    labels = request.document().get("labels", {})
    if not isinstance(labels, dict):
        raise Problem(400, "labels has to be an object of strings")
    try:
        return {str(name): str(value).encode() for name, value in labels.items()}
    except UnicodeEncodeError as error:
        raise Problem(400, f"a label has a lone surrogate: {error.reason}") from None
