"""The control endpoint of a running bookie: a table of calls, one JSON object a line, for `bk bookie gc` and others.

It listens on a free loopback port. `control.json` in every ledger directory, beside `current`, holds the address and
a random token that every request has to name; only the bookie's user can read the file. A request is `{"token": ..,
"call": .., "arguments": {..}}`, its answer `{"result": ..}` or `{"error": ..}`.
"""

from __future__ import annotations

import asyncio
import json
import posixpath
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

from bookies.bookie.latency import Latency
from bookies.bookie.live_settings import LiveSettings
from bookies.encoding.documents import parse_json
from bookies.errors import BookKeeperError, InvalidArgument, StorageError
from bookies.protocol.repair.owed import OwedCounts
from bookies.runtime.ports import Listener, Runtime
from bookies.storage.disks.directories import CONTROL_FILE
from bookies.storage.entry_log.entry_log_format import parse_file_name
from bookies.storage.gc import CollectionLoop
from bookies.storage.gc.collection_policy import Compaction
from bookies.storage.identity.cookie import CURRENT
from bookies.storage.scrub import Scrubber
from bookies.storage.store import LedgerStore

LINE_SIZE_MAX = 64 * 1024
TOKEN_BITS = 128
COLLECTION_CALLS = ("gc", "compact", "suspend", "orphans", "undelete", "space", "why", "encryption")
SCRUB_CALLS = ("scrub", "suspend_scrub")

Call = Callable[..., Awaitable[object]]


def control_calls(collector: CollectionLoop) -> Mapping[str, Call]:
    """Return all calls that a bookie answers."""

    async def gc(*, force: bool = False, wait: bool = False, surplus: bool = False) -> object:
        await collector.collect(is_forced=force, is_awaited=wait, with_surplus=surplus)
        return collector.space()

    async def compact(*, kind: str, wait: bool = False) -> object:
        await collector.compact(Compaction(kind), is_awaited=wait)
        return collector.space()

    async def suspend(*, suspended: bool) -> object:
        await collector.compactions.hold_up(is_suspended=suspended)
        return None

    async def undelete(*, ledger: int) -> object:
        await collector.undelete(ledger)
        return None

    async def orphans() -> object:
        return await collector.orphans()

    async def space() -> object:
        return collector.space()

    async def why(*, log: str) -> object:
        name = posixpath.basename(log)
        file_id = parse_file_name(name if name.endswith(".log") else f"{name}.log")
        if file_id is None:
            raise InvalidArgument(f"{log}: not an entry log; name a file like 1f.log, or its hexadecimal id")
        named = await collector.logs_named(file_id)
        if len(named) > 1 and log not in named.values():
            raise InvalidArgument(f"{log}: {' and '.join(named.values())} have this id; name one with its path")
        named = {log_id: path for log_id, path in named.items() if len(named) == 1 or path == log}
        if not named:
            raise InvalidArgument(f"{log}: this bookie has no such entry log; it may have been removed or compacted")
        return collector.why(next(iter(named)))

    async def encryption(*, renew: bool = False, wait: bool = False) -> object:
        if renew:
            await collector.re_encrypt(is_awaited=wait)
        return await collector.compactions.recoding.describe()

    return {
        "encryption": encryption,
        "gc": gc,
        "compact": compact,
        "suspend": suspend,
        "orphans": orphans,
        "undelete": undelete,
        "space": space,
        "why": why,
    }


def storage_calls(store: LedgerStore) -> Mapping[str, Call]:
    """Return the calls about the storage as a whole."""

    async def disks() -> object:
        return store.disk_status()

    return {"disks": disks}


def owed_calls(store: LedgerStore, counts: OwedCounts) -> Mapping[str, Call]:
    """Return the call about entries that the bookie has lost and fetches."""

    async def owed() -> object:
        return {
            "lost_directories": ", ".join(store.left_out) or None,
            "is_settled": not store.has_unknown_ledgers,  # it is known which ledgers the bookie had
            "ledgers_in_limbo": len(store.limbo),
            "entries_owed": counts.left.entries,
            "owed_bytes": counts.left.size,
            "open_ledgers": counts.left.open_ledgers,
            "remaining_s": None if counts.remaining_s is None else round(counts.remaining_s, 1),
            "entries_found": counts.found_entries,
            "found_bytes": counts.found_size,
            "entries_fetched": counts.fetched_entries,
            "fetched_bytes": counts.fetched_size,
            "ledger": counts.describe(),
        }

    return {"owed": owed}


def latency_calls(latency: Latency | None, bookie: str) -> Mapping[str, Call]:
    """Return the call about slow requests, which raises an error unless the bookie times its requests."""
    if latency is None:
        return refused_calls(("slow",), "the record of slow requests", "slow_request_ms")

    async def slow(*, since_s: float) -> object:
        return latency.report(bookie, since_s)

    return {"slow": slow}


def mode_calls(
    describe: Callable[[], dict[str, object]], hold_read_only: Callable[[bool], Awaitable[dict[str, object]]]
) -> Mapping[str, Call]:
    """Return the calls about a bookie's mode; see `BookieServer`, which has these methods."""

    async def state() -> object:
        return describe()

    async def hold(*, read_only: bool) -> object:
        return await hold_read_only(read_only)

    return {"state": state, "hold": hold}


def settings_calls(settings: LiveSettings) -> Mapping[str, Call]:
    """Return the calls about settings."""

    async def show() -> object:
        return settings.rows()

    async def change(*, values: Mapping[str, object], dry_run: bool = False) -> object:
        return settings.change(values, dry_run=dry_run)

    return {"settings": show, "set": change}


def scrub_calls(scrubber: Scrubber) -> Mapping[str, Call]:
    """Return the calls about the scrub."""

    async def scrub(*, now: bool = False) -> object:
        if now:
            await scrubber.start_pass()
        return scrubber.status()

    async def suspend_scrub(*, suspended: bool) -> object:
        await scrubber.hold_up(is_suspended=suspended)
        return scrubber.status()

    return {"scrub": scrub, "suspend_scrub": suspend_scrub}


def refused_calls(names: Sequence[str], part: str, setting: str) -> Mapping[str, Call]:
    """Return calls of a disabled part; each raises an error that names the setting."""

    async def refuse(**arguments: object) -> object:
        raise InvalidArgument(f"{part} is disabled ({setting} = 0): restart the bookie with another value")

    return dict.fromkeys(names, refuse)


class ControlServer:
    """Serves the calls, to which others may be added meanwhile, until `stop`."""

    def __init__(self, runtime: Runtime, calls: Mapping[str, Call], bookie: str) -> None:
        self._runtime = runtime
        self._calls = calls
        self._bookie = bookie
        self._token = f"{runtime.random.getrandbits(TOKEN_BITS):032x}"
        self._listener: Listener | None = None
        self._connections: dict[_Connection, None] = {}

    async def start(
        self, directories: Sequence[str], http_address: tuple[str, int] | None = None
    ) -> Mapping[str, Exception]:
        """Listen, and write the file beside each `current` that exists; return errors by directory. Raises: OSError.

        `http_address`: of the bookie's HTTP server, which the file names too.
        """
        self._listener = await self._runtime.network.listen("127.0.0.1", 0, self._accept)
        host, port = self._listener.address
        facts: dict[str, object] = {"bookie": self._bookie, "host": host, "port": port, "token": self._token}
        if http_address is not None:
            facts["http"] = list(http_address)
        text = json.dumps(facts).encode() + b"\n"
        disk = self._runtime.disk
        failed: dict[str, Exception] = {}
        for directory in directories:
            try:
                if disk.is_directory(posixpath.join(directory, CURRENT)):  # otherwise the disk is not mounted
                    disk.replace_bytes(posixpath.join(directory, CONTROL_FILE), text, is_private=True)
            except (OSError, StorageError) as error:
                failed[directory] = error
        return failed

    def stop(self) -> None:
        """Stop answering. The file stays; a reader of it gets no connection."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in list(self._connections):
            connection.close()

    def _accept(self) -> asyncio.BaseProtocol:
        return _Connection(self._answer, self._connections)

    async def _answer(self, line: bytes) -> dict[str, object]:
        try:
            request = parse_json(line)
            token, name, arguments = request["token"], request["call"], request.get("arguments", {})
        except (ValueError, KeyError, TypeError, AttributeError):
            return {"error": "not a request"}
        if token != self._token:
            return {"error": "wrong token: the bookie has restarted since the token was read"}
        call = self._calls.get(name) if isinstance(name, str) else None
        if call is None:
            return {"error": f"no call named {name!r}; available: {', '.join(self._calls)}"}
        try:
            return {"result": await call(**arguments)}
        except (BookKeeperError, OSError, TypeError, ValueError) as error:
            return {"error": str(error)}


class _Connection(asyncio.Protocol):
    """One connection; answers requests one after the other."""

    def __init__(
        self, answer: Callable[[bytes], Awaitable[dict[str, object]]], open_connections: dict[_Connection, None]
    ) -> None:
        self._answer = answer
        self._open = open_connections
        self._buffer = b""
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._open[self] = None

    def data_received(self, data: bytes) -> None:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            task = asyncio.get_running_loop().create_task(self._respond(line), name="control call")
            self._tasks[task] = None
            task.add_done_callback(lambda done: self._tasks.pop(done, None))
        if len(self._buffer) > LINE_SIZE_MAX:
            self.close()

    async def _respond(self, line: bytes) -> None:
        answer: dict[str, Any] = await self._answer(line)
        if self._transport is not None:
            self._transport.write(json.dumps(answer).encode() + b"\n")

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._open.pop(self, None)
        for task in list(self._tasks):
            task.cancel()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
