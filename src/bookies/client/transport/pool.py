"""Connections by bookie, and every request that a client sends to a bookie.

Adds, reads and batch reads travel over the bookie's v2 connection. Requests that v2 lacks, and those with the identity
of a trace, travel over its v3 connection; with `ClientConfig.wire` "v3" everything does. The first request that needs a
connection opens it; so does the first one after it was lost. The pool never retries: retries are a decision of the
protocol.

Methods named `start_...` return a future whose result is the response or the error (it never carries an exception); the
matching coroutines raise. Source: wire-protocol 1.1, 6.1 and 6.3.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from bookies.client.base.bookie_ranking import READ, READ_BATCH, BookieHealth
from bookies.client.base.locations import Nearby
from bookies.client.transport.client_counts import ClientCounts
from bookies.client.transport.client_latency import ClientLatency
from bookies.client.transport.connection import Connection, ConnectionOwner, Flushes
from bookies.client.transport.copy_admission import CopyAdmission
from bookies.client.transport.handshake import ClientSecurity, Handshake
from bookies.client.transport.open_ledgers import NO_OPTIONS, AddOptions
from bookies.client.transport.unanswered import AddSink, Answer, Outcome, PendingAdds
from bookies.config import ClientConfig
from bookies.errors import (
    BookieUnreachable,
    BookKeeperError,
    ClientClosed,
    InvalidArgument,
    RemoteProtocolError,
    Status,
    TlsFailed,
    Unauthorized,
    error_of_status,
)
from bookies.model import BookieId
from bookies.protocol.ledger.bookie_health import Rank
from bookies.protocol.ledger.read import BatchSupport
from bookies.protocol.pacing.read_rates import ReadLoad, parse_load
from bookies.runtime.ports import Runtime
from bookies.runtime.tasks import Tasks
from bookies.wire import v2, v3
from bookies.wire.availability import parse_availability
from bookies.wire.client import adds_as_v3, encode_request
from bookies.wire.messages import (
    BatchReadRequest,
    BatchReadResponse,
    Buffer,
    ForceLedgerRequest,
    ForceLedgerResponse,
    GetBookieInfoRequest,
    GetBookieInfoResponse,
    ListEntriesRequest,
    ListEntriesResponse,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Request,
    WriteLacRequest,
    WriteLacResponse,
)

R = TypeVar("R")
PresentTrace = Callable[[], str]
BATCH_OVERHEAD = 36  # bytes of a batch-read response that are not records
BATCH_HEADROOM = 64
ANSWER_SLACK = 1024  # bytes by which a response may exceed the add of its entry: batch reads, long polls
OBSERVED_EVERY = 8  # one in this many single reads and short batches is timed: a scan sends hundreds at once
SHORT_BATCH = 8  # entries
RECEIVE_SIZE = 256 << 10  # bytes received from a connection at once
BOTH_CAPACITIES, READS = 3, 4  # of `GetBookieInfoRequest.requested`
TRACE_OVERHEAD = 192  # bytes by which a traced add in v3 is longer than its v2 frame, at most


class _Peer:
    """One bookie: its connections by protocol version, the number of ended v3 connections, and of reads.

    `ended`: bytes of ended connections. `counted`: (bytes received, sent, reads) that the client's counts include.
    """

    __slots__ = ("connections", "counted", "ended", "ended_count", "read_count")

    def __init__(self) -> None:
        self.connections: dict[str, Connection] = {}
        self.ended_count = 0
        self.read_count = 0
        self.ended = (0, 0)
        self.counted = (0, 0, 0)

    def end(self, connection: Connection) -> None:
        received, sent = connection.traffic
        self.ended = self.ended[0] + received, self.ended[1] + sent
        self.ended_count += connection.wire == "v3"
        if self.connections.get(connection.wire) is connection:
            del self.connections[connection.wire]

    def uncounted(self) -> tuple[int, int, int]:
        """Return the bytes received and sent, and the reads, since the last call."""
        parts = [self.ended, *(connection.traffic for connection in self.connections.values())]
        before = self.counted
        received, sent = map(sum, zip(*parts, strict=True))
        self.counted = received, sent, self.read_count
        return received - before[0], sent - before[1], self.read_count - before[2]


class _Connector:
    """Opens connections: finds the bookie, encrypts and authenticates as configured. See `BookiePool`.

    `random`: the runtime's.
    """

    def __init__(
        self, runtime: Runtime, config: ClientConfig, resolve: Callable[[BookieId], Awaitable[tuple[str, int]]]
    ) -> None:
        self.random = runtime.random
        self._network = runtime.network
        self._config = config
        self._resolve = resolve
        self._security = ClientSecurity(runtime, config)
        self._scratch = memoryview(bytearray(RECEIVE_SIZE))
        self.flushes = Flushes()

    def connection(self, bookie: BookieId, wire: str, owner: ConnectionOwner) -> Connection:
        """Return a connection that is to be opened by `open`."""
        return Connection(bookie, wire, self._config.frame_size_max + ANSWER_SLACK, owner, self._scratch, self.flushes)

    async def open(self, connection: Connection) -> None:
        """Open the connection, or report to it why that failed."""
        bookie = connection.bookie
        where, handshake, is_opening = "", None, False
        try:
            async with asyncio.timeout(self._config.connect_timeout_ms / 1000):
                host, port = await self._resolve(bookie)
                if not self._security.is_needed:
                    where = f" at {host}:{port}"
                    await self._network.connect(host, port, lambda: connection)
                else:
                    port = self._security.tls_port or port
                    where = f" at {host}:{port}"
                    is_opening = True
                    opening = await self._security.opening(connection, host)
                    handshake = Handshake(connection, self._security.encryption, opening, host)
                    await self._network.connect(host, port, lambda: handshake)
                    await handshake.wait()
        except Exception as cause:  # noqa: BLE001  (a mistake, in `resolve` too, ends this connection alone)
            reason = cause.message if isinstance(cause, BookKeeperError) else str(cause) or type(cause).__name__
            if is_opening and isinstance(cause, TimeoutError):
                what = "a Kerberos ticket from the KDC" if handshake is None else handshake.waits_for
                reason = f"no answer in time while the client waited for {what}"
            error_type = type(cause) if isinstance(cause, TlsFailed | Unauthorized) else BookieUnreachable
            error = error_type(f"cannot connect{where}: {reason}", bookie=bookie)
            error.__cause__ = cause
            connection.refused(error)


class BookiePool:
    """All connections of one client. Raises `ConfigError` for certificates and credentials that cannot be read.

    `resolve`: returns the address of a bookie; raises `BookKeeperError` or OSError. `on_suspect`: called with each
    bookie that could not be reached or did not answer in time. `nearby`: how near bookies are; None: not known.

    `health`: which bookies to prefer, by what was observed of each. `batch_support`: which of them support batch reads.
    `copy_admission`: admission of copies of ledgers. `connection_count`: connections established so far.
    `present_trace`: returns the identity of the caller's span, see `Client.traced_by`.
    """

    present_trace: PresentTrace | None = None

    def __init__(
        self,
        runtime: Runtime,
        config: ClientConfig,
        resolve: Callable[[BookieId], Awaitable[tuple[str, int]]],
        *,
        on_suspect: Callable[[BookieId], None] | None = None,
        nearby: Nearby | None = None,
    ) -> None:
        self.counts = ClientCounts()
        self.latency: ClientLatency | None = None  # set before the first request, if the client keeps slow ones
        self._config = config
        self._on_suspect = on_suspect
        self.nearby = nearby or Nearby(runtime, config)
        self.health = BookieHealth(config, self._probe, self.nearby.order_rank)
        self.batch_support = BatchSupport()
        self.copy_admission = CopyAdmission(self.bookie_info)
        self.connection_count = 0
        self._connector = _Connector(runtime, config, resolve)
        self._peers: dict[BookieId, _Peer] = {}
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks(self._connect_task_failed)
        self._is_closed = False

    def __repr__(self) -> str:
        connections = self.open_count
        return f"<BookiePool bookies={len(self._peers)} connections={connections} unanswered={self.total_size:,} bytes>"

    def any_below(self, count: int) -> int:
        """Return a random number of 0..count-1, for choices that should differ from handle to handle."""
        return self._connector.random.randrange(count)

    def trace(self) -> str:
        """Return the identity of the caller's span if bookies are to know it; empty: they are not."""
        return "" if self.present_trace is None else self.present_trace()

    @property
    def flushes(self) -> Flushes:
        """Return the outputs that have bytes to send."""
        return self._connector.flushes

    # -- adds ----------------------------------------------------------------------------------------------------
    def send_adds(
        self,
        bookie: BookieId,
        ledger_id: int,
        entry_ids: Sequence[int],
        frames: bytes,
        sink: AddSink,
        options: AddOptions = NO_OPTIONS,
    ) -> None:
        """Send v2 ADD frames, as from `kernels.pack_add_frames`, that add these entries. Never blocks.

        `sink` receives the outcome of every entry exactly once, never before this call returns. Raises `ClientClosed`.
        """
        proof, is_deferred_sync, trace = options
        counts, size = self.counts, len(frames)
        if trace and size + TRACE_OVERHEAD > self._config.frame_size_max:
            trace = ""
        counts.replicas_sent += len(entry_ids)
        counts.bytes_sent += size
        wire, peer = "v3" if is_deferred_sync or trace else self._config.wire, self._peers.get(bookie)
        connection = (peer and peer.connections.get(wire)) or self._connection(bookie, wire)
        keys: Sequence[int]
        if connection.wire == "v2":
            keys, buffers = entry_ids, (frames,)
        else:
            keys = txn_ids = connection.next_txn_ids(len(entry_ids))
            buffers = (adds_as_v3(frames, txn_ids[0], is_deferred_sync=is_deferred_sync, trace=trace)[0],)
        now_s = self._loop.time()
        adds = PendingAdds(ledger_id, keys, entry_ids, sink, now_s + self._config.add_timeout_ms / 1000, size)
        if proof is None or proof.covers(connection.number):
            connection.send_adds(adds, buffers, is_recovery=frames[7] & v2.FLAG_RECOVERY != 0)
        else:
            connection.hold_adds(adds, buffers, proof)

    def pending_size(self, bookie: BookieId) -> int:
        """Return the bytes of adds that this bookie has not answered, sent or waiting to be sent."""
        peer = self._peers.get(bookie)
        return sum(connection.adds_size for connection in peer.connections.values()) if peer else 0

    @property
    def pending_sizes(self) -> dict[BookieId, int]:
        """Return the bytes of unanswered adds by bookie."""
        return {bookie: self.pending_size(bookie) for bookie in self._peers}

    @property
    def open_count(self) -> int:
        """Connections that are open or being opened."""
        return sum(len(peer.connections) for peer in self._peers.values())

    @property
    def total_size(self) -> int:
        """Bytes of unanswered adds, counted once per bookie."""
        return sum(self.pending_size(bookie) for bookie in self._peers)

    def count_traffic(self) -> None:
        """Add to `counts` what went to and came from each bookie, by its nearness."""
        for bookie, peer in self._peers.items():
            received, sent, reads = peer.uncounted()
            self.counts.traffic(self.nearby.nearness(bookie).label, received, sent, reads)

    # -- reads ---------------------------------------------------------------------------------------------------
    def start_read_entry(
        self,
        bookie: BookieId,
        ledger_id: int,
        entry_id: int,
        *,
        key: bytes | None = None,
        is_high_priority: bool = False,
        trace: str = "",
    ) -> Answer:
        """Request one entry, -1: the highest. With `key` the bookie fences the ledger first.

        `trace`: see `AddOptions`.
        """
        is_fencing = key is not None
        wire, peer = "v3" if trace else self._config.wire, self._peers.get(bookie)
        connection = (peer and peer.connections.get(wire)) or self._connection(bookie, wire)
        if connection.wire == "v2" and not connection.accepts_read((ledger_id, entry_id), is_fencing):
            connection = self._connection(bookie, "v3")
        read_key = txn_id = None
        if connection.wire == "v2":
            version, read_key = v2.VERSION, (ledger_id, entry_id)
        else:
            version, txn_id = v3.VERSION, connection.next_txn_ids()[0]
        frames: Sequence[Buffer]
        if version == v2.VERSION and not is_fencing and not is_high_priority:
            frames = (v2.pack_read(ledger_id, entry_id),)
        else:
            frames = encode_request(
                ReadRequest(version, txn_id or 0, ledger_id, entry_id, key, is_fencing, is_high_priority, trace=trace)
            )
        answer = connection.request(
            frames, self._config.read_timeout_ms, txn_id=txn_id, key=read_key, is_fencing=is_fencing
        )
        peer = peer or self._peers[bookie]
        peer.read_count += 1
        if self.latency is not None or not peer.read_count % OBSERVED_EVERY:
            self._observe(bookie, READ, answer, ledger_id)
        return answer

    async def read_entry(
        self,
        bookie: BookieId,
        ledger_id: int,
        entry_id: int,
        *,
        key: bytes | None = None,
        is_high_priority: bool = False,
    ) -> ReadResponse:
        """Read one entry as `start_read_entry` requests it."""
        future = self.start_read_entry(bookie, ledger_id, entry_id, key=key, is_high_priority=is_high_priority)
        response = self.check(bookie, await future, ReadResponse, ledger_id, entry_id)
        if response.body is None:
            raise RemoteProtocolError("read response without an entry", ledger_id=ledger_id, bookie=bookie)
        return response

    @property
    def batch_size_max(self) -> int:
        """Bytes of records that a batch-read response may hold."""
        return self._config.frame_size_max - BATCH_OVERHEAD - BATCH_HEADROOM

    @property
    def has_batch_reads(self) -> bool:
        """Report whether batch reads are available: they exist in v2 only."""
        return self._config.wire == "v2"

    def start_read_batch(
        self,
        bookie: BookieId,
        ledger_id: int,
        first: int,
        count_max: int,
        size_max: int,
        *,
        key: bytes | None = None,
    ) -> asyncio.Future[Outcome]:
        """Request consecutive entries from `first` on. `size_max`: bytes; the response holds at least one entry.

        With `key`, the one of a recovery, the bookie fences the ledger first, and the request has a high priority.
        """
        if not self.has_batch_reads:
            raise InvalidArgument("batch reads exist in protocol v2 only; use read_entry")
        connection = self._connection(bookie, "v2")
        txn_id = connection.next_txn_ids()[0]
        # A bookie limits the whole response, including its head.
        size_max = min(size_max, self.batch_size_max) + BATCH_OVERHEAD
        is_fencing = is_high_priority = key is not None
        request = BatchReadRequest(
            v2.VERSION, txn_id, ledger_id, first, count_max, size_max, key, is_fencing, is_high_priority
        )
        answer = connection.request(encode_request(request), self._config.read_timeout_ms, txn_id=txn_id)
        peer = self._peers[bookie]
        peer.read_count += 1
        if self.latency is not None or count_max > SHORT_BATCH or not peer.read_count % OBSERVED_EVERY:
            self._observe(bookie, READ_BATCH, answer, ledger_id)
        return answer

    async def read_batch(
        self,
        bookie: BookieId,
        ledger_id: int,
        first: int,
        count_max: int,
        size_max: int,
        *,
        key: bytes | None = None,
    ) -> bytes:
        """Read consecutive entries from `first` on, in record framing, unverified; at least one, up to `count_max`."""
        future = self.start_read_batch(bookie, ledger_id, first, count_max, size_max, key=key)
        response = self.check(bookie, await future, BatchReadResponse, ledger_id, first)
        return bytes(response.records)[response.start :]

    def start_long_poll(self, bookie: BookieId, ledger_id: int, previous_lac: int, wait_ms: int) -> Answer:
        """Request the entry after `previous_lac` as soon as the last add confirmed exceeds that.

        After `wait_ms` milliseconds the bookie answers without an entry.
        """
        timeout_ms = wait_ms + self._config.read_timeout_ms

        def request(txn_id: int) -> Request:
            return ReadRequest(
                v3.VERSION,
                txn_id,
                ledger_id,
                -1,
                previous_lac=previous_lac,
                timeout_ms=wait_ms,
                wants_piggyback=True,
            )

        return self._start_v3(bookie, request, timeout_ms)

    async def long_poll(self, bookie: BookieId, ledger_id: int, previous_lac: int, wait_ms: int) -> ReadResponse:
        """Send a long poll and check the response (see `start_long_poll`).

        Its `entry_id` is -1 if it contains no entry.
        """
        future = self.start_long_poll(bookie, ledger_id, previous_lac, wait_ms)
        return self.check(bookie, await future, ReadResponse, ledger_id, previous_lac + 1)

    # -- other requests: always v3 -------------------------------------------------------------------------------------
    def start_write_lac(
        self, bookie: BookieId, ledger_id: int, last_add_confirmed: int, master_key: bytes, body: bytes
    ) -> asyncio.Future[Outcome]:
        """Store an explicit last add confirmed, and ask whether readers wait. `body`: from `digest.package_lac`."""

        def request(txn_id: int) -> Request:
            return WriteLacRequest(
                v3.VERSION, txn_id, ledger_id, last_add_confirmed, master_key, body, asks_readers=True
            )

        return self._start_v3(bookie, request, None)

    async def write_lac(
        self, bookie: BookieId, ledger_id: int, last_add_confirmed: int, master_key: bytes, body: bytes
    ) -> None:
        """Store an explicit last add confirmed and check the response (see `start_write_lac`)."""
        outcome = await self.start_write_lac(bookie, ledger_id, last_add_confirmed, master_key, body)
        self.check(bookie, outcome, WriteLacResponse, ledger_id, is_write=True)

    def start_read_lac(
        self, bookie: BookieId, ledger_id: int, *, timeout_ms: int | None = None
    ) -> asyncio.Future[Outcome]:
        return self._start_v3(bookie, lambda txn_id: ReadLacRequest(v3.VERSION, txn_id, ledger_id), timeout_ms)

    async def read_lac(self, bookie: BookieId, ledger_id: int, *, timeout_ms: int | None = None) -> ReadLacResponse:
        """Read the explicit last add confirmed and the last entry, those that the bookie has; unverified."""
        outcome = await self.start_read_lac(bookie, ledger_id, timeout_ms=timeout_ms)
        return self.check_lac(bookie, outcome, ledger_id)

    async def force(self, bookie: BookieId, ledger_id: int, *, timeout_ms: int | None = None) -> None:
        """Sync the entries that this bookie has accepted of the ledger."""
        outcome = await self._start_v3(
            bookie, lambda txn_id: ForceLedgerRequest(v3.VERSION, txn_id, ledger_id), timeout_ms
        )
        self.check(bookie, outcome, ForceLedgerResponse, ledger_id, is_write=True)

    def ended_count(self, bookie: BookieId) -> int:
        """Return how many v3 connections to this bookie have ended. A restart of the bookie ends them."""
        return self._peer(bookie).ended_count

    async def bookie_info(self, bookie: BookieId, *, timeout_ms: int | None = None) -> tuple[int, int]:
        """Return the (total, free) bytes of the bookie's ledger directories."""
        outcome = await self._start_v3(
            bookie, lambda txn_id: GetBookieInfoRequest(v3.VERSION, txn_id, BOTH_CAPACITIES), timeout_ms
        )
        response = self.check(bookie, outcome, GetBookieInfoResponse)
        return response.total_disk_capacity or 0, response.free_disk_space or 0

    async def bookie_load(self, bookie: BookieId, *, timeout_ms: int | None = None) -> ReadLoad | None:
        """Return what clients read from the bookie, and what it has lost; None: one of Apache's does not know."""
        outcome = await self._start_v3(
            bookie, lambda txn_id: GetBookieInfoRequest(v3.VERSION, txn_id, READS), timeout_ms
        )
        response = self.check(bookie, outcome, GetBookieInfoResponse)
        if response.read_rate is None:
            return None
        return parse_load(response.read_rate, response.read_ledgers or b"", response.owed_entries or 0)

    async def list_entries(self, bookie: BookieId, ledger_id: int, *, timeout_ms: int | None = None) -> list[range]:
        """List the entries of the ledger that the bookie holds: ranges, ascending."""
        outcome = await self._start_v3(
            bookie, lambda txn_id: ListEntriesRequest(v3.VERSION, txn_id, ledger_id), timeout_ms
        )
        response = self.check(bookie, outcome, ListEntriesResponse, ledger_id)
        return parse_availability(response.availability or b"")

    # -- outcomes ------------------------------------------------------------------------------------------------
    def check(
        self,
        bookie: BookieId,
        outcome: Outcome,
        response_type: type[R],
        ledger_id: int | None = None,
        entry_id: int | None = None,
        *,
        is_write: bool = False,
    ) -> R:
        """Return the response if it has that type and status OK; otherwise raise the error that it reports."""
        if isinstance(outcome, BookKeeperError):
            raise outcome.with_traceback(None)
        if outcome.status is not Status.OK:
            raise error_of_status(
                outcome.status, is_write=is_write, ledger_id=ledger_id, entry_id=entry_id, bookie=bookie
            )
        if not isinstance(outcome, response_type):
            raise RemoteProtocolError(f"answered with {type(outcome).__name__}", ledger_id=ledger_id, bookie=bookie)
        return outcome

    def check_lac(self, bookie: BookieId, outcome: Outcome, ledger_id: int) -> ReadLacResponse:
        """Check a response as `check` does.

        Apache's bookies report an I/O error beside a valid packet if they hold no entry.
        """
        if isinstance(outcome, ReadLacResponse) and outcome.lac_body is not None:
            return outcome
        return self.check(bookie, outcome, ReadLacResponse, ledger_id)

    def is_suspect(self, bookie: BookieId) -> bool:
        """Report whether the bookie failed to connect, or to answer in time, within the last seconds."""
        return self.health.rank(bookie) is Rank.OPEN

    def suspect(self, bookie: BookieId) -> None:
        """Prefer other bookies to this one for a while."""
        self.counts.timeouts += 1
        self.health.failed(bookie)
        if self._on_suspect is not None:
            self._on_suspect(bookie)

    def _observe(self, bookie: BookieId, request_type: str, answer: asyncio.Future[Outcome], ledger_id: int) -> None:
        """Time a request that has just been sent. Requests that are given up or fail are not counted."""
        begun = self._loop.time()

        def answered(answer: asyncio.Future[Outcome]) -> None:
            if not answer.cancelled() and not isinstance(answer.result(), BookKeeperError):
                self.health.observe(bookie, request_type, self._loop.time() - begun)
                if self.latency is not None:
                    self.latency.replica_answered("fetch", begun, bookie, ledger_id)

        answer.add_done_callback(answered)

    def _probe(self, bookie: BookieId) -> None:
        """Send the cheapest request. Its failure is noticed like that of any other request."""
        if self._is_closed:
            return

        def answered(answer: asyncio.Future[Outcome]) -> None:
            if not isinstance(answer.result(), BookKeeperError):
                self.health.succeeded(bookie)

        request = self._start_v3(bookie, lambda txn_id: GetBookieInfoRequest(v3.VERSION, txn_id, BOTH_CAPACITIES), None)
        request.add_done_callback(answered)

    def try_slow(
        self, bookies: Iterable[BookieId], ledger_id: int, entry_id: int, rival: asyncio.Future[Outcome]
    ) -> None:
        """Read an entry also from slow bookies whose trial is due. `rival`: the read that the caller waits for."""
        for bookie in bookies:
            if self.health.take_trial(bookie):
                self._try(bookie, self.start_read_entry(bookie, ledger_id, entry_id), rival)

    def _try(self, bookie: BookieId, trial: asyncio.Future[Outcome], rival: asyncio.Future[Outcome]) -> None:
        begun_s = self._loop.time()
        rival_s = math.inf

        def rival_answered(rival: asyncio.Future[Outcome]) -> None:
            nonlocal rival_s
            rival_s = self._loop.time() - begun_s

        def answered(trial: asyncio.Future[Outcome]) -> None:
            has_answered = not isinstance(trial.result(), BookKeeperError)
            self.health.tried(bookie, self._loop.time() - begun_s if has_answered else math.inf, rival_s)

        rival.add_done_callback(rival_answered)
        trial.add_done_callback(answered)

    async def close(self) -> None:
        """Drop all connections; every outstanding request fails with `ClientClosed`. Idempotent."""
        self._is_closed = True
        for peer in self._peers.values():
            for connection in list(peer.connections.values()):
                connection.close(ClientClosed("the client was closed"))
        await self._tasks.stop()

    # -- connections ---------------------------------------------------------------------------------------------
    def _peer(self, bookie: BookieId) -> _Peer:
        peer = self._peers.get(bookie)
        if peer is None:
            peer = self._peers[bookie] = _Peer()
        return peer

    def _connection(self, bookie: BookieId, wire: str) -> Connection:
        if self._is_closed:
            raise ClientClosed("the client is closed")
        peer = self._peer(bookie)
        connection = peer.connections.get(wire)
        if connection is None:
            connection = peer.connections[wire] = self._connector.connection(bookie, wire, self)
            self.counts.connections_opened += 1
            self._tasks.start(self._connector.open(connection), f"connect to {bookie}")
        return connection

    def _start_v3(self, bookie: BookieId, request: Callable[[int], Request], timeout_ms: int | None) -> Answer:
        connection = self._connection(bookie, "v3")
        txn_id = connection.next_txn_ids()[0]
        timeout_ms = self._config.read_timeout_ms if timeout_ms is None else timeout_ms
        return connection.request(encode_request(request(txn_id)), timeout_ms, txn_id=txn_id)

    def established(self, connection: Connection) -> None:
        """See `ConnectionOwner`."""
        self.connection_count += 1
        connection.number = self.connection_count

    def ended(self, connection: Connection, error: BookKeeperError) -> None:
        """Forget a closed connection before its requests fail, so that a retry opens another one."""
        self._peers[connection.bookie].end(connection)
        if isinstance(error, BookieUnreachable) and not self._is_closed:
            self.counts.connections_lost += 1
            self.suspect(connection.bookie)

    def _connect_task_failed(self, cause: BaseException) -> None:
        """Fail all connections: a task that opens connections failed unexpectedly, a programming error."""
        for peer in self._peers.values():
            for connection in list(peer.connections.values()):
                error = BookieUnreachable(f"cannot connect: {cause!r}", bookie=connection.bookie)
                error.__cause__ = cause
                connection.refused(error)
