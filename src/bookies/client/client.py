"""`Client`: the ledgers of one cluster. Create, open, recover, delete and list them.

A client owns one session with the metadata store, one set of connections and one memory budget; its handles share them.
It takes a runtime and a driver instead of a URI, so that the same code runs in the simulator and in a process.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, Self
from weakref import WeakValueDictionary

from bookies.client.base import Opening
from bookies.client.base.arguments import TimeLimit, any_ledger_id, bookie_id, quorums, switch, whole_number
from bookies.client.base.fragment_placement import FragmentPlacement, placement_of
from bookies.client.base.free_space import FreeSpace
from bookies.client.base.keys import Keys, digest_type_of, keys_of
from bookies.client.base.locations import Locations
from bookies.client.base.metadata_loop import repeated
from bookies.client.log import Log
from bookies.client.log.log import LOGS
from bookies.client.log.transaction import TransactionContext
from bookies.client.read import LedgerReader
from bookies.client.read.offloaded import OffloadedFiles
from bookies.client.read.reader_state import CopyUse
from bookies.client.repair import Administration
from bookies.client.repair.ledger_access import LedgerAccess
from bookies.client.repair.recovery import RecoveryParts, recover_ledger
from bookies.client.repair.replica_tools import OWNER
from bookies.client.transport import BookiePool, BookieStatus, BookieWatcher
from bookies.client.transport.client_counts import ClientUsage
from bookies.client.transport.client_latency import ClientLatency
from bookies.client.turns.lease import ELECTIONS, LOCKS, TTL_S, Contest, Election, Lease
from bookies.client.write import AdvancedLedgerWriter, LedgerWriter, TracedLedgerWriter
from bookies.client.write.closing import SETTLE_S
from bookies.client.write.quorum_timeout import rules_of
from bookies.client.write.write_context import WriteContext
from bookies.config import ClientConfig, validate
from bookies.errors import (
    ClientClosed,
    InvalidArgument,
    LedgerExists,
    LedgerNotFound,
    MetadataCorrupt,
)
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import READ_AT_ONCE, Versioned
from bookies.metadata.interface.timed_driver import timed
from bookies.model import BookieId, DigestType, LedgerMetadata
from bookies.protocol.ledger.ledger import new_ledger
from bookies.protocol.ledger.offload import is_given_up
from bookies.protocol.log.log_model import check_log_name
from bookies.runtime.activities import LoopLag
from bookies.runtime.ports import Runtime, Worker

CREATE_ATTEMPTS_MAX = 100  # ids from the store that are already in use; more means that the id store is broken
TOKEN_BITS = 63
TIERS = ("auto", "bookies", "offloaded")


class Client:
    """The ledgers of one cluster, as `bookies.connect` returns it.

    `driver` is not open yet; the client opens it and closes it. All methods raise `ClientClosed` after `close`, and
    `MetadataError` if the metadata store does not answer.
    """

    def __init__(self, runtime: Runtime, driver: MetadataDriver, config: ClientConfig | None = None) -> None:
        self.config = validate(config or ClientConfig())
        if self.config.wire not in ("v2", "v3"):
            raise InvalidArgument(f"wire={self.config.wire!r}: must be 'v2' or 'v3'")
        self._runtime = runtime
        latency: ClientLatency | None = None
        self._lag: asyncio.Task[None] | None = None
        if self.config.slow_request_ms:
            latency = ClientLatency(runtime.clock, self.config.slow_request_ms / 1000)
            driver = timed(driver, runtime.clock.monotonic, latency.metadata_answered)
        self._driver = driver
        self._locations = Locations(runtime, self.config, driver)
        self._watcher = BookieWatcher(
            runtime,
            driver,
            lambda: self._pool.health.ailing(),
            self._locations,
            lambda bookie: self._pool.pending_size(bookie),
            self._free_space() if self.config.disk_weights else None,
        )
        self._pool = BookiePool(
            runtime,
            self.config,
            self._watcher.resolve,
            on_suspect=self._watcher.failed,
            nearby=self._locations.nearby,
        )
        self._pool.latency = latency
        self._writing = WriteContext.of(runtime, self.config, self._pool, driver, self._watcher)
        self._writers: WeakValueDictionary[int, LedgerWriter] = WeakValueDictionary()
        self.reads_own_appends = False  # a reader begins with what a writer of this client has confirmed
        self._allows_changes = self.config.ensemble_changes_allowed
        self._files: Worker | None = None  # reads files of offloaded ledgers, which blocks
        self._is_open = False
        self._is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open" if self._is_open else "not opened"
        return f"<Client {self._driver.uri} {state} {self._pool!r}>"

    async def open_session(self) -> Client:
        """Open the session with the metadata store. Raises `MetadataError` if there is no such store or cluster."""
        if not self._is_open:
            await self._driver.open()
            await self._watcher.start()
            if self._pool.latency is not None:
                lag = LoopLag(self._pool.latency.activities, self._pool.latency.stalled)
                self._lag = asyncio.get_running_loop().create_task(lag.run(), name="delay of the event loop")
            self._is_open = True
        return self

    async def close(self) -> None:
        """Close connections and session.

        Idempotent. Open writers are not sealed: recovery determines where their ledgers end. Waits at most a second
        for bookies that have not stored all entries of sealed ledgers yet.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if self._lag is not None:
            self._lag.cancel()
        await self._watcher.stop()
        self._writing.announcer.stop()
        writers = list(self._writers.values())
        for writer in writers:
            writer.client_closed()
        if self._files is not None:
            self._files.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                for writer in writers:
                    await writer.wait_whole()
        await self._writing.open_ledgers.stop()
        await self._pool.close()
        await self._driver.close()
        for writer in writers:
            await writer.client_stopped()

    async def __aenter__(self) -> Self:
        await self.open_session()
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _free_space(self) -> FreeSpace:
        interval_s = self.config.disk_weight_interval_ms / 1000
        return FreeSpace(lambda bookie: self._pool.bookie_info(bookie), interval_s, self.config.disk_weight_max)

    # -- ledgers -------------------------------------------------------------------------------------------------
    def create(
        self,
        *,
        ensemble: int = 3,
        write_quorum: int | None = None,
        ack_quorum: int | None = None,
        digest: str | DigestType = "crc32c",
        password: bytes = b"",
        labels: Mapping[str, str | bytes] | None = None,
        ledger_id: int | None = None,
        advanced: bool = False,
        deferred_sync: bool = False,
        bookies: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> Opening[LedgerWriter]:
        """Create a ledger and return its writer: `await store.create()` or `async with store.create() as ledger`.

        * `ensemble`: bookies that share the ledger.
        * `write_quorum`: replicas of each entry; default: `ensemble`.
        * `ack_quorum`: replicas on disk before an append is confirmed; default: a majority of the write quorum.
        * `digest`: crc32c, crc32, hmac or none.
        * `password`: required to open or recover the ledger.
        * `labels`: stored in the ledger's metadata.
        * `ledger_id`: an id that you choose; default: the next free id. Never reuse the id of a deleted ledger: bookies
          may still hold its entries, and readers could receive them. The metadata store refuses such an id
          (`MetadataDriver.create_ledger`).
        * `advanced`: the caller chooses entry ids, in any order, with `write` (see `AdvancedLedgerWriter`).
        * `deferred_sync`: bookies acknowledge appends before they are on disk; `force` confirms them. The writer ends
          if a bookie fails.
        * `bookies`: ids of the bookies of the first ensemble, in order, instead of the placement's choice; they replace
          `ensemble`.
        * `timeout`: seconds.

        Leaving the `async with` block seals the ledger; leaving it by an exception closes the writer without sealing.
        Raises `InvalidArgument`, `NotEnoughBookies`, `LedgerExists`.
        """
        named = tuple(map(BookieId, bookies or ()))
        if bookies is not None and (isinstance(bookies, str) or not 0 < len(named) == len(dict.fromkeys(named))):
            raise InvalidArgument(f"bookies={bookies!r}: must be a list of different bookie ids")
        ensemble, write_quorum, ack_quorum = quorums(len(named) if named else ensemble, write_quorum, ack_quorum)
        digest_type = digest_type_of(digest)
        _check_password(password)
        custom = _packed_labels(labels)
        ledger_id = None if ledger_id is None else whole_number("ledger_id", ledger_id)
        advanced, deferred_sync = switch("advanced", advanced), switch("deferred_sync", deferred_sync)

        async def make() -> LedgerWriter:
            self._check_open()
            size_min = write_quorum if self.config.opportunistic_striping else None
            chosen = named or await self._watcher.choose_ensemble(
                ensemble, size_min=size_min, write_quorum=write_quorum, ack_quorum=ack_quorum
            )
            token = self._runtime.random.getrandbits(TOKEN_BITS)
            point = self._pool.connection_count
            record = await self._create_record(
                lambda number: new_ledger(
                    number, chosen, write_quorum, ack_quorum, digest_type=digest_type, password=password
                ).replace(custom_metadata=custom, ctime_ms=self._runtime.clock.wall_ms(), creator_token=token),
                ledger_id,
            )
            plain = LedgerWriter if self._pool.present_trace is None else TracedLedgerWriter
            writer = (AdvancedLedgerWriter if advanced else plain)(
                self._writing,
                record,
                rules_of(self.config, domains=self._locations.domains, is_deferred_sync=deferred_sync),
                password,
                point,
            )
            writer.allow_ensemble_changes(self._allows_changes)
            self._writers[writer.ledger_id] = writer
            return writer

        return Opening(make, timeout, "create a ledger")

    def open(
        self,
        ledger_id: int,
        *,
        password: bytes = b"",
        digest: str | DigestType | None = None,
        tier: str = "auto",
        timeout: float | None = None,
    ) -> Opening[LedgerReader]:
        """Open a ledger for reading and tailing, sealed or not. Never disturbs its writer.

        * `digest`: used only if the ledger's metadata does not name one (written before 4.2).
        * `tier`: where entries of an offloaded ledger are read from: "bookies", "offloaded" (its Parquet files, which
          needs pyarrow), or "auto" (the files once the bookies may drop the entries).
        * `timeout`: seconds.

        Raises `LedgerNotFound`, `Unauthorized` (wrong password), `NotSupported` (not offloaded, or no pyarrow). Raises
        `ReadFailed` or `BookieTimeout` if the ledger is not sealed and too few of its bookies answer.
        """
        ledger_id = any_ledger_id(ledger_id)
        if tier not in TIERS:
            raise InvalidArgument(f"tier={tier!r}: must be one of {', '.join(TIERS)}")
        digest_type = None if digest is None else digest_type_of(digest)
        _check_password(password)

        async def make() -> LedgerReader:
            versioned = await self._read_record(ledger_id)
            keys = self._keys(versioned, password, digest_type)
            await self._locations.learn_for_reads(versioned.metadata.bookies)
            is_copy_first = tier == "offloaded" or (tier == "auto" and is_given_up(versioned.metadata))
            copy = None if tier == "bookies" else CopyUse(self._open_files, is_copy_first)
            reader = await LedgerReader.begin(self._pool, self._driver, self.config, keys, versioned, copy)
            if self.reads_own_appends and (writer := self._writers.get(ledger_id)) is not None:
                reader.learn(writer.last_add_confirmed)
            return reader

        return Opening(make, timeout, f"open ledger {ledger_id}")

    def _open_files(self, record: LedgerMetadata) -> tuple[Worker, OffloadedFiles]:
        """Return the copy that the record names, and the worker that reads it. See `reader_state.OpenFiles`."""
        files = OffloadedFiles(record)
        if self._files is None:
            self._files = self._runtime.workers.start("files")
        return self._files, files

    def recover(
        self,
        ledger_id: int,
        *,
        password: bytes = b"",
        digest: str | DigestType | None = None,
        timeout: float | None = None,
    ) -> Opening[LedgerReader]:
        """Recover a ledger whose writer has failed: fence it, find its last entry, seal it.

        Returns it open for reading.

        Every entry that was confirmed to the writer is kept. A writer that is still alive gets `LedgerFenced`. A ledger
        that is already sealed is only opened.

        `digest`: as in `open`. `timeout`: seconds.

        Raises `LedgerNotFound`, `Unauthorized`, `BookieTimeout`, and `RecoveryFailed` (too few bookies answered; no
        data is lost, repeat the call).
        """
        ledger_id = any_ledger_id(ledger_id)
        digest_type = None if digest is None else digest_type_of(digest)
        _check_password(password)

        async def make() -> LedgerReader:
            self._check_open()
            if ledger_id < 0:
                raise LedgerNotFound("ledger ids are 0 or more", ledger_id=ledger_id)
            await self._watcher.locate()
            parts = RecoveryParts(
                self._runtime,
                self.config,
                self._pool,
                self._driver,
                self._watcher.candidates,
                self._pool.counts.recoveries,
                self._pool.health.read_rank,
            )
            versioned = await recover_ledger(
                parts, ledger_id, password=password, digest_type=digest_type or DigestType.CRC32C
            )
            keys = self._keys(versioned, password, digest_type)
            return await LedgerReader.begin(self._pool, self._driver, self.config, keys, versioned)

        return Opening(make, timeout, f"recover ledger {ledger_id}")

    async def delete(self, ledger_id: int, *, timeout: float | None = None) -> None:
        """Delete a ledger permanently. Bookies free its space later. Succeeds if the ledger does not exist.

        Recover the ledger first if its writer may be alive; otherwise the writer continues to confirm entries that
        cannot be read.
        """
        self._check_open()
        ledger_id = whole_number("ledger_id", ledger_id)
        async with TimeLimit(timeout, f"delete ledger {ledger_id}"):
            await repeated(self._runtime, partial(self._driver.delete_ledger, ledger_id))

    async def metadata(self, ledger_id: int, *, timeout: float | None = None) -> LedgerMetadata:
        """Return the ledger's record in the metadata store, without asking a bookie. Raises `LedgerNotFound`."""
        ledger_id = any_ledger_id(ledger_id)
        async with TimeLimit(timeout, f"read the metadata of ledger {ledger_id}"):
            return (await self._read_record(ledger_id)).metadata

    async def is_sealed(self, ledger_id: int, *, timeout: float | None = None) -> bool:
        """Report whether a ledger is sealed, by its record in the metadata store. Raises `LedgerNotFound`."""
        return (await self.metadata(ledger_id, timeout=timeout)).is_closed

    async def ledgers(
        self,
        label: tuple[str, str | bytes] | None = None,
        *,
        unreadable: list[MetadataCorrupt] | None = None,
        after: int = -1,
    ) -> AsyncIterator[LedgerMetadata]:
        """Iterate over the records of all ledgers, by ascending id.

        * `label` (name, value): only those with this label.
        * `after`: only those with a greater id; the records of the others are not read.

        Includes every ledger that exists during the whole iteration; ledgers deleted meanwhile may be missing. A record
        that cannot be read raises `MetadataCorrupt`. With `unreadable`, the error is appended to that list and the
        iteration continues.
        """
        self._check_open()
        wanted = _packed_labels(dict([label] if label else []))
        async for ids in self._driver.ledger_ids(after):
            for start in range(0, len(ids), READ_AT_ONCE):
                for record in await self._driver.read_ledgers(ids[start : start + READ_AT_ONCE]):
                    if isinstance(record, MetadataCorrupt):
                        if unreadable is None:
                            raise record
                        unreadable.append(record)
                    elif record is not None and wanted.items() <= record.metadata.custom_metadata.items():
                        yield record.metadata

    async def placement(self, ledger_id: int, *, timeout: float | None = None) -> list[FragmentPlacement]:
        """Return the replicas of each fragment, and how well they meet this client's placement policy.

        Asks no bookie. Raises `LedgerNotFound`, and `ConfigError` if the bookies' locations cannot be determined.
        """
        ledger_id = any_ledger_id(ledger_id)
        async with TimeLimit(timeout, f"locate the replicas of ledger {ledger_id}"):
            record = (await self._read_record(ledger_id)).metadata
            await self._locations.learn(
                list(dict.fromkeys(bookie for _, ensemble in record.ensembles for bookie in ensemble))
            )
            return placement_of(record, self._watcher.topology, self._watcher.policy)

    async def bookies(self, *, timeout: float | None = None) -> list[BookieStatus]:
        """List every bookie of the cluster, sorted by id.

        Each has its location and its mode: "writable", "read-only" or "down".
        """
        self._check_open()
        async with TimeLimit(timeout, "list the bookies"):
            return await self._watcher.statuses()

    async def bookie_space(self, bookie: BookieId) -> tuple[int, int]:
        """Return (total, free) bytes of a bookie's disks, as the bookie reports them. Raises `BookieUnreachable`."""
        self._check_open()
        return await self._pool.bookie_info(bookie_id(bookie))

    async def list_entries(self, bookie: BookieId, ledger_id: int) -> list[range]:
        """List the entries of a ledger that a bookie holds, as ranges.

        Raises `LedgerUnknownToBookie`, `BookieUnreachable`.
        """
        self._check_open()
        return await self._pool.list_entries(bookie_id(bookie), whole_number("ledger_id", ledger_id))

    def traced_by(self, present: Callable[[], str]) -> None:
        """Send bookies the identity of the caller's span with reads of single entries, and with entries of new writers.

        `present`: returns it as W3C's `traceparent`; empty: the bookies need not know. See `bookies.metrics.trace`.
        """
        self._pool.present_trace = present

    def usage(self) -> ClientUsage:
        """Return what this client has done so far, and what it holds now: see `bookies.metrics.register`."""
        budget = self._writing.budget
        self._pool.count_traffic()
        return ClientUsage(
            self._pool.counts,
            budget.used,
            budget.limit,
            self._pool.open_count,
            self._pool.pending_sizes,
            dict(self._driver.operations.counts),
            self._runtime.clock.monotonic(),
            len(self._pool.health.slow),
        )

    def slow_report(self) -> dict[str, Any]:
        """Return the slow operations of this client, and what they waited for: for `bk why slow --client FILE`.

        The result can be written as JSON. Raises `InvalidArgument` unless the setting `slow_request_ms` is above 0.
        """
        if self._pool.latency is None:
            raise InvalidArgument(
                "this client keeps no slow requests: connect with slow_request_ms=100 or another bound"
            )
        return self._pool.latency.report("the client")

    # -- logs ----------------------------------------------------------------------------------------------------
    def log(self, name: str, *, password: bytes = b"") -> Log:
        """Return a handle for the log of that name, an unbounded sequence of ledgers. Sends no request. See `Log`.

        `password`: of all its ledgers. Raises `InvalidArgument`.
        """
        _check_password(password)
        return Log(self, self._runtime, self._driver, name, password)

    def transactions(self, *, password: bytes = b"") -> TransactionContext:
        """Return the context of transactions over several logs or many processes. See `client/log/transaction.py`."""
        self._check_open()
        _check_password(password)
        return TransactionContext(self, self._runtime, self._driver, password)

    async def logs(self, prefix: str = "", *, timeout: float | None = None) -> list[str]:
        """List the names of all logs that begin with `prefix`, sorted."""
        self._check_open()
        async with TimeLimit(timeout, "list the logs"):
            return [name.removeprefix(LOGS) for name in await self._driver.record_names(LOGS + prefix)]

    # -- turns ---------------------------------------------------------------------------------------------------
    def lock(
        self,
        name: str,
        *,
        ttl: float = TTL_S,
        wait: bool = True,
        text: str | None = None,
        timeout: float | None = None,
    ) -> Opening[Lease]:
        """Wait until this process has the lock of that name: `async with store.lock("nightly") as lease`.

        Processes get it in the order in which they ask. The block is cancelled, and raises `LeaseLost`, when the lock
        could not be renewed in time, before another process has it. A process that was suspended may continue after
        that: let what the lock protects refuse a smaller `lease.token` than it has seen.

        * `ttl`: seconds after which a process that is silent loses its place.
        * `wait`: with False, raise `LeaseHeld` as soon as the holder gives a sign of life, which it does within a third
          of its `ttl`. A holder that died is replaced after its `ttl`.
        * `text`: says who has it; default: host and process id.
        * `timeout`: seconds.

        Raises `LeaseHeld`, also if 100 processes wait, and `InvalidArgument`.
        """
        title = f"lock {check_log_name(name, 'lock')}"
        return Contest(self._runtime, self._driver, LOCKS + name, title).opening(ttl, wait, text, timeout)

    def election(self, name: str) -> Election:
        """Return a handle for the election of that name. Sends no request. Raises `InvalidArgument`."""
        title = f"the lead of {check_log_name(name, 'election')}"
        return Election(Contest(self._runtime, self._driver, ELECTIONS + name, title))

    # -- the cluster ---------------------------------------------------------------------------------------------
    def administration(
        self, *, password: bytes = b"", digest: str | DigestType = "crc32", owner: str = ""
    ) -> Administration:
        """Return the tools of a cluster operator: check ledgers, and copy the replicas of lost bookies to others.

        * `password`, `digest`: used only for ledgers whose metadata has none (before 4.2); no others need them.
        * `owner`: holder's name in the locks of ledgers that are being copied, shown to operators.
        """
        self._check_open()
        _check_password(password)
        if not isinstance(owner, str):
            raise InvalidArgument(f"owner={owner!r}: must be a string")
        parts = self._runtime, self.config, self._pool, self._driver, self._watcher
        return Administration(LedgerAccess(*parts, password, digest_type_of(digest)), owner or OWNER)

    def allow_ensemble_changes(self, allowed: bool) -> None:
        """Switch the replacement of failed bookies on or off, for every writer of this client (client-protocol 2.9).

        While it is off, writers keep retrying a failed bookie and the metadata does not change: for planned work on
        many bookies. The initial value is the setting `ensemble_changes_allowed`.
        """
        self._allows_changes = switch("allow_ensemble_changes", allowed)
        for writer in list(self._writers.values()):
            writer.allow_ensemble_changes(allowed)

    # -- parts ---------------------------------------------------------------------------------------------------
    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("the client is closed: connect again")
        if not self._is_open:
            raise ClientClosed("the client is not connected: use `async with connect(...)` or await it")

    def _keys(self, versioned: Versioned, password: bytes, digest_type: DigestType | None) -> Keys:
        return keys_of(versioned.metadata, password, digest_type, is_autodetecting=self.config.digest_autodetection)

    async def _read_record(self, ledger_id: int) -> Versioned:
        self._check_open()
        if ledger_id < 0:
            raise LedgerNotFound("ledger ids are 0 or more", ledger_id=ledger_id)
        return await self._driver.read_ledger(ledger_id)

    async def _create_record(self, record_of: Callable[[int], LedgerMetadata], chosen: int | None) -> Versioned:
        """Store the record under the chosen id or a new one. Source: client-protocol 2.2."""
        if chosen is not None:
            return await repeated(self._runtime, partial(self._driver.create_ledger, record_of(chosen)))
        for _ in range(CREATE_ATTEMPTS_MAX):
            record = record_of(await self._driver.next_ledger_id())
            try:
                return await repeated(self._runtime, partial(self._driver.create_ledger, record))
            except LedgerExists:
                continue  # A caller chose this id explicitly, and may have deleted the ledger since.
        raise LedgerExists(f"the last {CREATE_ATTEMPTS_MAX} ids that the metadata store handed out were taken")


def _check_password(password: bytes) -> None:
    if not isinstance(password, bytes):
        raise InvalidArgument(f"password must be bytes, not {type(password).__name__}: write b'...' or .encode() it")


def _packed_labels(labels: Mapping[str, str | bytes] | None) -> Mapping[str, bytes]:
    packed = {}
    if labels is not None and not isinstance(labels, Mapping):
        raise InvalidArgument(f"labels={labels!r}: must be a mapping of names to text or bytes")
    for name, value in (labels or {}).items():
        if not isinstance(name, str) or not isinstance(value, str | bytes):
            raise InvalidArgument(f"labels: {name!r}: {value!r}: names are text, values text or bytes")
        packed[name] = value.encode() if isinstance(value, str) else value
    return MappingProxyType(packed)
