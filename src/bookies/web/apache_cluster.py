"""Apache's endpoints about the cluster: bookies, ledgers, auto-recovery. Source: operations 1.2 to 1.5.

They read the metadata store through the session of the process. What needs bookies goes through one client, which is
opened for the first such request.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from bookies.errors import BookKeeperError, EntryNotFound
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import READ_AT_ONCE, Versioned
from bookies.metadata.interface.recovery_store import Mark
from bookies.model import BookieId, BookieMode, LedgerMetadata
from bookies.protocol.rights import Role
from bookies.runtime.ports import Clock
from bookies.web.apache_bookie import API
from bookies.web.messages import JSON, Problem, Request, Response, json_array, json_object, json_response, text
from bookies.web.routes import Route

if TYPE_CHECKING:
    from bookies.client.client import Client

LEDGERS_PER_PAGE = 100  # of a list with metadata; Apache's first page has one ledger less
ENTRIES_MAX = 1000  # entries of one answer
ENTRIES_SIZE_MAX = 8 << 20  # bytes of their payloads
SPACE_AGE_S = 5.0  # longest age of the bookies' answers about their disks
DriverOf = Callable[[], MetadataDriver | None]


class ClusterEndpoints:
    """The endpoints about the cluster. `driver`: the session with the metadata store, None while there is none.

    `client`: returns the shared client. Raises `BookKeeperError`.
    """

    def __init__(self, driver: DriverOf, client: Callable[[], Awaitable[Client]], clock: Clock) -> None:
        self._driver_of = driver
        self._client = client
        self._clock = clock
        self._spaces: tuple[float, dict[BookieId, tuple[int, int]]] = (float("-inf"), {})
        auto = f"{API}/autorecovery"
        self.routes = (
            Route(
                f"{API}/bookie/list_bookies",
                "registered bookies",
                self._bookies,
                "type=ro for read-only ones, print_hostnames=true",
            ),
            Route(
                f"{API}/bookie/list_bookie_info", "disks of the writable bookies, and their sum", self._spaces_of_all
            ),
            Route(f"{API}/bookie/cluster_info", "numbers of bookies, and the auditor", self._cluster),
            Route(
                f"{API}/ledger/list",
                "ids of all ledgers, with their metadata if asked for",
                self._ledgers,
                "print_metadata=true, decode_meta=true, page=N",
                is_list=True,
            ),
            Route(f"{API}/ledger/metadata", "metadata of a ledger", self._metadata, "ledger_id=N"),
            Route(
                f"{API}/ledger/read",
                "entries of a ledger, at most 1000 or 8 MiB; `X-Bk-Last`: the last confirmed entry",
                self._entries,
                "ledger_id=N, start_entry_id=0, end_entry_id=-1, page=N",
                role=Role.READER,
            ),
            Route(f"{auto}/status", "whether auto-recovery is enabled", self._enabled),
            Route(
                f"{auto}/list_under_replicated_ledger",
                "marked ledgers; 404 if there is none",
                self._marked,
                "missingreplica=ID, excludingmissingreplica=ID, printmissingreplica=true",
                is_list=True,
            ),
            Route(f"{auto}/who_is_auditor", "the auditor; 404 if none is elected", self._auditor),
            Route(f"{auto}/lost_bookie_recovery_delay", "seconds until a bookie counts as lost", self._delay),
        )

    @property
    def _driver(self) -> MetadataDriver:
        driver = self._driver_of()
        if driver is None:
            raise Problem(503, "there is no session with the metadata store", "bk status", {"Retry-After": "5"})
        return driver

    # -- bookies -------------------------------------------------------------------------------------------------
    async def _bookies(self, request: Request) -> Response:
        mode = BookieMode.READ_ONLY if request.query.get("type") == "ro" else BookieMode.WRITABLE
        bookies = (await self._driver.bookies(mode)).bookies
        if not request.flag("print_hostnames"):
            return json_response(dict.fromkeys(bookies))
        hosts: dict[str, str | None] = {}
        for start in range(0, len(bookies), READ_AT_ONCE):
            part = bookies[start : start + READ_AT_ONCE]
            hosts |= zip(part, await asyncio.gather(*map(self._host_of, part)), strict=True)
        return json_response(hosts)

    async def _host_of(self, bookie: BookieId) -> str | None:
        info = await self._driver.bookie_info(bookie)
        address = info.rpc_address() if info is not None else None
        return None if address is None else address[0]

    async def _spaces_of_all(self, request: Request) -> Response:
        spaces = await self._space_by_bookie()
        if not spaces:
            raise Problem(404, "Not found any Bookie info.")
        rows: dict[str, str] = {bookie: f": {_space(free, total)}," for bookie, (total, free) in spaces.items()}
        total = sum(total for total, _ in spaces.values())
        rows["ClusterInfo: "] = _space(sum(free for _, free in spaces.values()), total)
        return json_response(rows)

    async def _space_by_bookie(self) -> dict[BookieId, tuple[int, int]]:
        """Return (total, free) bytes of each writable bookie that answers, at most `SPACE_AGE_S` old."""
        asked_at, spaces = self._spaces
        if self._clock.monotonic() - asked_at <= SPACE_AGE_S:
            return spaces
        client = await self._client()
        bookies = (await self._driver.bookies(BookieMode.WRITABLE)).bookies
        spaces = {}
        for start in range(0, len(bookies), READ_AT_ONCE):
            part = bookies[start : start + READ_AT_ONCE]
            answers = await asyncio.gather(*map(client.bookie_space, part), return_exceptions=True)
            for bookie, answer in zip(part, answers, strict=True):
                if isinstance(answer, tuple):
                    spaces[bookie] = answer
                elif not isinstance(answer, BookKeeperError):
                    raise answer
        self._spaces = self._clock.monotonic(), spaces
        return spaces

    async def _cluster(self, request: Request) -> Response:
        driver = self._driver
        modes, known = await driver.modes(), (await driver.all_bookies()).bookies
        writable = sum(mode is BookieMode.WRITABLE for mode in modes.values())
        auditor = await driver.recovery.auditor()
        has_marks = False
        async for ids in driver.recovery.marked_ids():
            if has_marks := bool(ids):
                break
        facts = {
            "auditorElected": auditor is not None,
            "auditorId": auditor or "",
            "clusterUnderReplicated": has_marks,
            "ledgerReplicationEnabled": await driver.recovery.is_enabled(),
            "totalBookiesCount": len({*known, *modes}),
            "writableBookiesCount": writable,
            "readonlyBookiesCount": len(modes) - writable,
            "unavailableBookiesCount": len({*known} - {*modes}),
        }
        return json_response(facts)

    # -- ledgers -------------------------------------------------------------------------------------------------
    async def _ledgers(self, request: Request) -> Response:
        with_metadata = request.flag("print_metadata") or request.flag("decode_meta")
        page = request.number("page", 0)
        if page < 0:
            raise Problem(400, f"page={page}: pages count from 1")
        if not with_metadata:
            return Response(200, json_object(self._ids(0, None)), JSON)
        # Apache counts the ledgers from 1, so its first page ends one earlier than the others.
        first = max(0, (page - 1) * LEDGERS_PER_PAGE - 1)
        count = None if page == 0 else LEDGERS_PER_PAGE - (page == 1)
        is_decoded = request.flag("decode_meta")
        return Response(200, json_object(self._records(first, count, is_decoded=is_decoded)), JSON)

    async def _ids(self, first: int, count: int | None) -> AsyncIterator[tuple[str, object]]:
        async for ids in self._selected(first, count):
            for ledger_id in ids:
                yield str(ledger_id), None

    async def _records(self, first: int, count: int | None, *, is_decoded: bool) -> AsyncIterator[tuple[str, object]]:
        """Yield the records as objects, or as text: Apache's clients read the values as text or null."""
        driver = self._driver
        async for ids in self._selected(first, count):
            for start in range(0, len(ids), READ_AT_ONCE):
                part = ids[start : start + READ_AT_ONCE]
                for ledger_id, record in zip(part, await driver.read_ledgers(part), strict=True):
                    if isinstance(record, Versioned):
                        value = metadata_object(record.metadata)
                        yield str(ledger_id), value if is_decoded else json.dumps(value)
                    elif record is not None:
                        yield str(ledger_id), None  # its record cannot be read

    async def _selected(self, first: int, count: int | None) -> AsyncIterator[Sequence[int]]:
        """Yield the ids of ledgers from the `first`-th on, in ranges."""
        passed = 0
        async for ids in self._driver.ledger_ids():
            stop = None if count is None else max(0, first + count - passed)
            part = ids[max(0, first - passed) : stop]
            if part:
                yield part
            passed += len(ids)
            if count is not None and passed >= first + count:
                return

    async def _metadata(self, request: Request) -> Response:
        ledger_id = request.number("ledger_id")
        record = await self._driver.read_ledger(ledger_id)
        return json_response({str(ledger_id): metadata_object(record.metadata)})

    async def _entries(self, request: Request) -> Response:
        """Read entries without the caller's password, as Apache does; see docs/reference/http.md."""
        ledger_id = request.number("ledger_id")
        first, last = request.number("start_entry_id", 0), request.number("end_entry_id", -1)
        page = request.number("page", 0)
        if page:
            if page < 0 or "start_entry_id" in request.query:
                raise Problem(400, "page counts from 1, and excludes start_entry_id")
            first, last = (page - 1) * ENTRIES_MAX, page * ENTRIES_MAX - 1
        record = (await self._driver.read_ledger(ledger_id)).metadata
        client = await self._client()
        rows: dict[str, str] = {"Entries for page: ": str(page)} if page else {}
        async with client.open(ledger_id, password=record.password or b"") as ledger:
            headers = {"X-Bk-Last": str(ledger.last_add_confirmed)}
            end = ledger.last_add_confirmed if last < 0 else min(last, ledger.last_add_confirmed)
            if end - first >= ENTRIES_MAX:
                raise _too_much(ledger_id, first)
            if first > end:
                return replace(json_response(rows), headers=headers)
            size = 0
            try:
                async for batch in ledger.read_batches(first, end):
                    for entry_id, payload in enumerate(batch.payloads(), batch.first_entry_id):
                        size += len(payload)
                        if size > ENTRIES_SIZE_MAX:
                            raise _too_much(ledger_id, entry_id)
                        rows[str(entry_id)] = payload_text(payload)
            except EntryNotFound as error:
                raise Problem(404, str(error), f"bk ledger explain {ledger_id}:{error.entry_id}") from error
        return replace(json_response(rows), headers=headers)

    # -- auto-recovery -------------------------------------------------------------------------------------------
    async def _enabled(self, request: Request) -> Response:
        return json_response({"enabled": await self._driver.recovery.is_enabled()})

    async def _marked(self, request: Request) -> Response:
        with_replicas = "printmissingreplica" in request.query
        # pulsarctl sends both names in every request, without a value if it means all ledgers.
        marks = self._wanted_marks(request.query.get("missingreplica"), request.query.get("excludingmissingreplica"))
        first = await anext(marks, None)
        if first is None:
            raise Problem(404, "No under replicated ledgers found")
        if with_replicas:
            return Response(200, json_object(_replicas_by_ledger(first, marks)), JSON)
        return Response(200, json_array(_ids_of(first, marks)), JSON)

    async def _wanted_marks(self, missing: str | None, not_missing: str | None) -> AsyncIterator[Mark]:
        async for page in self._driver.recovery.marks():
            for mark in page:
                if (not missing or missing in mark.replicas) and (not not_missing or not_missing not in mark.replicas):
                    yield mark

    async def _auditor(self, request: Request) -> Response:
        auditor = await self._driver.recovery.auditor()
        if auditor is None:
            raise Problem(404, "No auditor elected", "bk recovery status")
        return (
            json_response({"auditor": auditor})
            if request.query.get("format") == "json"
            else text(f"Auditor: {auditor}")
        )

    async def _delay(self, request: Request) -> Response:
        delay_s = await self._driver.recovery.lost_bookie_delay_s()
        if delay_s is None:
            raise Problem(404, "lostBookieRecoveryDelay is not set: the first auditor sets it", "bk recovery delay")
        return text(f"lostBookieRecoveryDelay value: {delay_s}")


async def _ids_of(first: Mark, others: AsyncIterator[Mark]) -> AsyncIterator[object]:
    yield first.ledger_id
    async for mark in others:
        yield mark.ledger_id


async def _replicas_by_ledger(first: Mark, others: AsyncIterator[Mark]) -> AsyncIterator[tuple[str, object]]:
    yield str(first.ledger_id), list(first.replicas)
    async for mark in others:
        yield str(mark.ledger_id), list(mark.replicas)


def _too_much(ledger_id: int, entry_id: int) -> Problem:
    return Problem(
        413,
        f"the answer would hold more than {ENTRIES_MAX:,} entries or {ENTRIES_SIZE_MAX >> 20} MiB",
        f"name end_entry_id, or use `bk ledger read {ledger_id} --first {entry_id}`",
    )


def _space(free: int, total: int) -> str:
    return f"{{Free: {free}{_short(free)}, Total: {total}{_short(total)}}}"


def _short(size: int) -> str:
    """Return a size as Apache's tool adds it: units of 1000, rounded down to three digits; nothing below 1000."""
    for factor, unit in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "KB")):
        if size >= factor:
            digits = f"{size * 1000 // factor / 1000:.3f}".rstrip("0").rstrip(".")
            return f"({digits}{unit})"
    return ""


def payload_text(payload: bytes) -> str:
    """Return a payload as text; one that is not UTF-8 as `base64:` and its bytes in base64."""
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(payload).decode()}"


def metadata_object(metadata: LedgerMetadata) -> dict[str, object]:
    """Return a record in the shape of Apache's answers, without the password. Source: operations 1.3, 1.5."""
    return {
        "ledgerId": metadata.ledger_id,
        "metadataFormatVersion": metadata.format_version,
        "ensembleSize": metadata.ensemble_size,
        "writeQuorumSize": metadata.write_quorum,
        "ackQuorumSize": metadata.ack_quorum,
        "state": metadata.state.name,
        "length": metadata.length,
        "lastEntryId": metadata.last_entry_id,
        "ctime": -1 if metadata.ctime_ms is None else metadata.ctime_ms,
        "digestType": None if metadata.digest_type is None else metadata.digest_type.name,
        "password": "",
        "customMetadata": {
            name: base64.b64encode(value).decode() for name, value in sorted(metadata.custom_metadata.items())
        },
        "allEnsembles": {
            str(first): [_bookie_object(bookie) for bookie in ensemble] for first, ensemble in metadata.ensembles
        },
        "closed": metadata.is_closed,
        "ctoken": metadata.creator_token,
    }


def _bookie_object(bookie: BookieId) -> dict[str, object]:
    """Return a bookie as newer and older releases of Apache's tools read it."""
    host, colon, port = bookie.rpartition(":")
    return {"id": bookie} | ({"hostname": host, "port": int(port)} if colon and port.isdigit() else {})
