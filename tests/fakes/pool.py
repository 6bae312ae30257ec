"""A pool of bookies in one process, without connections: scriptable answers, and the contract of a real bookie.

An answer comes in a later turn of the loop. Each bookie can be silent (its answers never come, the caller's timeout
does), down (refuses at once), held (answers wait until released), in limbo, or fail single entries.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, TypeVar

from tests.fakes.scenes import scenes_of
from tests.fakes.world import LoopClock

from bookies import errors
from bookies.client.base.locations import policy_of
from bookies.client.repair.recovery import RecoveryParts, recover_ledger
from bookies.client.transport.client_counts import ClientCounts
from bookies.client.transport.client_latency import ClientLatency
from bookies.client.transport.connection import Flushes
from bookies.client.transport.open_ledgers import NO_OPTIONS, AddOptions
from bookies.client.write import LedgerWriter
from bookies.client.write.quorum_timeout import rules_of
from bookies.client.write.write_context import WriteContext
from bookies.config import ClientConfig
from bookies.errors import Status
from bookies.kernels import Records, scan_frames
from bookies.lab.sim.world.loop import SimLoop
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.embedded.memory import MemoryStore
from bookies.metadata.interface.driver import Versioned
from bookies.model import BookieId, DigestType, LedgerMetadata
from bookies.protocol.ledger.ledger import new_ledger
from bookies.protocol.placement import Topology
from bookies.protocol.placement.candidates import Candidates
from bookies.protocol.placement.topology import parse_fault_domains
from bookies.runtime.ports import Runtime
from bookies.wire.digest import master_key, verify_entry
from bookies.wire.messages import ReadResponse, WriteLacResponse

T = TypeVar("T")
_HEADER = struct.Struct(">qqqq")
PASSWORD = b"s3cret"


@dataclass
class PoolBookie:
    """`entries`: (ledger, entry) -> body as stored."""

    entries: dict[tuple[int, int], bytes] = field(default_factory=dict)
    keys: dict[int, bytes] = field(default_factory=dict)
    fenced: set[int] = field(default_factory=set)
    is_down: bool = False
    is_silent: bool = False
    is_held: bool = False
    is_limbo: bool = False
    ended_count: int = 0  # of its connections
    has_readers: bool | None = False  # what it answers to an announcement
    misses_lac: bool = False  # the connection breaks with an announcement
    refuses_adds: type[errors.BookKeeperError] | None = None
    bad_reads: dict[int, type[errors.BookKeeperError]] = field(default_factory=dict)  # by entry
    on_request: Callable[[str, int], None] | None = None
    held: list[Callable[[], None]] = field(default_factory=list)

    def release(self, count: int | None = None) -> None:
        """Let held answers go, all of them or the first `count`."""
        count = len(self.held) if count is None else count
        ready, self.held = self.held[:count], self.held[count:]
        for answer in ready:
            answer()

    def check_key(self, ledger_id: int, key: bytes) -> None:
        if self.keys.setdefault(ledger_id, key) != key:
            raise errors.Unauthorized()

    def add(self, frame: bytes) -> int:
        """One v2 ADD frame, length word included; its entry id."""
        flags, key, body = frame[7], frame[8:28], frame[28:]
        ledger_id, entry_id, _, _ = _HEADER.unpack_from(body)
        if self.refuses_adds is not None:
            raise self.refuses_adds()
        self.check_key(ledger_id, key)
        if ledger_id in self.fenced and not flags & 2:
            raise errors.LedgerFenced()
        self.entries[ledger_id, entry_id] = body
        return int(entry_id)

    def read(self, ledger_id: int, entry_id: int, key: bytes | None) -> bytes:
        if key is not None:
            self.check_key(ledger_id, key)
            self.fenced.add(ledger_id)
        if entry_id == -1:
            entry_id = max((e for of, e in self.entries if of == ledger_id), default=-1)
        if entry_id in self.bad_reads:
            raise self.bad_reads[entry_id]()
        if (ledger_id, entry_id) in self.entries:
            return self.entries[ledger_id, entry_id]
        if self.is_limbo:
            raise errors.DataUnknown()
        raise errors.EntryNotFound()


class FakePool:
    """`log`: what was asked, in order: ("add" | "recovery add" | "read" | "fence" | "batch", bookie, ids)."""

    def __init__(self, names: Sequence[str], *, has_batch_reads: bool = True) -> None:
        self.bookies = {BookieId(name): PoolBookie() for name in names}
        self.has_batch_reads = has_batch_reads
        self.log: list[tuple[str, str, list[int]]] = []
        self.batches: dict[tuple[str, int], list[int]] = {}  # sizes of what was added, by bookie and ledger
        self.announced: list[tuple[str, int]] = []  # bookie, last add confirmed
        self.is_closed = False
        self.connection_count = 0
        self.counts = ClientCounts()
        self.flushes = Flushes()
        self.latency: ClientLatency | None = None
        self.add_timeout_ms = 1
        self._loop = asyncio.get_running_loop()

    def __getitem__(self, name: str) -> PoolBookie:
        return self.bookies[BookieId(name)]

    def asked(self, kind: str) -> list[tuple[str, list[int]]]:
        return [(bookie, ids) for what, bookie, ids in self.log if what == kind]

    def trace(self) -> str:
        return ""

    def ended_count(self, bookie: BookieId) -> int:
        return self.bookies[bookie].ended_count

    def send_adds(
        self,
        bookie: BookieId,
        ledger_id: int,
        entry_ids: Sequence[int],
        frames: bytes,
        sink: Any,
        options: AddOptions = NO_OPTIONS,
    ) -> None:
        if self.is_closed:
            raise errors.ClientClosed()
        peer = self.bookies[bookie]
        kind = "recovery add" if frames[7] & 2 else "deferred add" if options.is_deferred_sync else "add"
        self.log.append((kind, bookie, list(entry_ids)))
        self.batches.setdefault((bookie, ledger_id), []).append(len(entry_ids))
        starts, need = scan_frames(frames, 0, 1 << 26)
        assert need == 0
        assert len(starts) - 1 == len(entry_ids)

        def serve() -> None:
            if peer.is_silent:
                self._loop.call_later(
                    self.add_timeout_ms / 1000, fail, errors.BookieTimeout("no answer", bookie=bookie)
                )
                return
            if peer.is_down:
                fail(errors.BookieUnreachable("connection refused", bookie=bookie))
                return
            stored: list[int] = []
            for start, stop in pairwise(starts):
                try:
                    stored.append(peer.add(frames[start:stop]))
                except errors.BookKeeperError as error:
                    error.bookie = bookie
                    if stored:
                        answer(lambda: sink.on_acknowledged(bookie, _shape(stored)))
                    answer(lambda error=error: sink.on_failed(bookie, _shape(entry_ids[len(stored) :]), error))
                    return
            assert stored == list(entry_ids)
            answer(lambda: sink.on_acknowledged(bookie, _shape(stored)))

        def answer(report: Callable[[], None]) -> None:
            if peer.is_held:
                peer.held.append(report)
            else:
                report()

        def fail(error: errors.BookKeeperError) -> None:
            sink.on_failed(bookie, entry_ids, error)

        if peer.on_request:
            peer.on_request(kind, entry_ids[0])
        self._loop.call_soon(serve)

    def start_write_lac(
        self, bookie: BookieId, ledger_id: int, last_add_confirmed: int, master_key: bytes, body: bytes
    ) -> asyncio.Future[Any]:
        assert int.from_bytes(body[8:16], "big") == last_add_confirmed
        if self.is_closed:
            raise errors.ClientClosed()
        self.announced.append((bookie, last_add_confirmed))
        peer = self.bookies[bookie]
        answer = self._loop.create_future()
        if peer.is_down or peer.misses_lac:
            answer.set_result(errors.BookieUnreachable("down", bookie=bookie))
        elif not peer.is_silent:
            answer.set_result(WriteLacResponse(3, 0, Status.OK, ledger_id, peer.has_readers))
        return answer

    def check(self, bookie: BookieId, outcome: Any, response_type: type[T]) -> T:
        if isinstance(outcome, errors.BookKeeperError):
            raise outcome
        assert isinstance(outcome, response_type)
        return outcome

    async def force(self, bookie: BookieId, ledger_id: int, *, timeout_ms: int | None = None) -> None:
        self.log.append(("force", bookie, []))
        peer = self.bookies[bookie]
        if peer.is_silent:
            await asyncio.sleep(5)
            raise errors.BookieTimeout("no answer", bookie=bookie)
        if peer.is_down:
            raise errors.BookieUnreachable("down", bookie=bookie)

    async def read_entry(
        self,
        bookie: BookieId,
        ledger_id: int,
        entry_id: int,
        *,
        key: bytes | None = None,
        is_high_priority: bool = False,
    ) -> ReadResponse:
        body = await self._read("fence" if key else "read", bookie, ledger_id, entry_id, key)
        return ReadResponse(2, 0, Status.OK, ledger_id, entry_id, body)

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
        bodies = [await self._read("batch", bookie, ledger_id, first, key)]
        peer = self.bookies[bookie]
        size = len(bodies[0])
        while len(bodies) < count_max and (body := peer.entries.get((ledger_id, first + len(bodies)))) is not None:
            size += 4 + len(body)
            if size > size_max:
                break
            bodies.append(body)
        return Records.of(bodies).tobytes()

    async def _read(self, kind: str, bookie: BookieId, ledger_id: int, entry_id: int, key: bytes | None) -> bytes:
        peer = self.bookies[bookie]
        self.log.append((kind, bookie, [entry_id]))
        if peer.on_request:
            peer.on_request(kind, entry_id)
        await asyncio.sleep(0)
        if peer.is_silent:
            await asyncio.sleep(5)
            raise errors.BookieTimeout(bookie=bookie)
        if peer.is_down:
            raise errors.BookieUnreachable(bookie=bookie)
        outcome: bytes | errors.BookKeeperError
        try:
            outcome = peer.read(ledger_id, entry_id, key)
        except errors.BookKeeperError as error:
            outcome = error
        if peer.is_held:
            released = self._loop.create_future()
            peer.held.append(lambda: None if released.done() else released.set_result(None))
            await released
        if isinstance(outcome, errors.BookKeeperError):
            raise outcome
        return outcome


def _shape(ids: Sequence[int]) -> Sequence[int]:
    """As the kernels give it: a range where consecutive."""
    if ids and len(ids) == ids[-1] - ids[0] + 1:
        return range(ids[0], ids[-1] + 1)
    return list(ids)


class Stage:
    """Fake bookies, a metadata store and what writers and recoveries need, on virtual time. See `play`."""

    def __init__(self, loop: SimLoop, names: Sequence[str], faults: Any, **settings: Any) -> None:
        self.loop = loop
        random = Random(1)
        self.runtime = Runtime(LoopClock(loop), None, None, None, random)  # type: ignore[arg-type]
        self.pool = FakePool(names)
        self.store = MemoryStore("stage")
        self.driver = MemoryDriver(self.store, self.runtime, faults=faults)
        self.config = ClientConfig(**settings)
        self.pool.add_timeout_ms = self.config.add_timeout_ms
        self.writable = [BookieId(name) for name in names]
        self.late: list[BookieId] = []  # writable ones that the watch has not shown yet
        self.mistake: Exception | None = None  # raised where candidates are requested

    async def create(
        self, quorums: str = "3/3/2", digest_type: DigestType = DigestType.CRC32C, **how: Any
    ) -> LedgerWriter:
        """A writer on the first bookies. `how`: see `writer`."""
        size, write_quorum, ack_quorum = map(int, quorums.split("/"))
        metadata = new_ledger(
            await self.driver.next_ledger_id(),
            tuple(self.writable[:size]),
            write_quorum,
            ack_quorum,
            digest_type=digest_type,
            password=PASSWORD,
        )
        return self.writer(await self.driver.create_ledger(metadata), **how)

    def writer(
        self, versioned: Versioned, *, kind: type[LedgerWriter] = LedgerWriter, deferred_sync: bool = False
    ) -> LedgerWriter:
        context = WriteContext.of(self.runtime, self.config, self.pool, self.driver, self)
        return kind(context, versioned, rules_of(self.config, is_deferred_sync=deferred_sync), PASSWORD)

    def candidates(self) -> Candidates:
        """The writable ones, in order, where the settings say they are."""
        if self.mistake is not None:
            raise self.mistake
        topology = Topology(parse_fault_domains(self.config.fault_domains))
        return Candidates.of(self.writable, policy_of(self.config, topology), topology)

    async def refresh(self) -> None:
        """Read the writable ones from the store."""
        self.writable += self.late
        self.late.clear()

    async def recover(self, ledger_id: int, *, password: bytes = PASSWORD) -> LedgerMetadata:
        parts = RecoveryParts(self.runtime, self.config, self.pool, self.driver, self.candidates)
        versioned = await recover_ledger(parts, ledger_id, password=password)
        return versioned.metadata

    async def record(self, ledger_id: int) -> LedgerMetadata:
        return (await self.driver.read_ledger(ledger_id)).metadata

    async def settle(self, turns: int = 50) -> None:
        """Let everything that needs no time happen."""
        for _ in range(turns):
            await asyncio.sleep(0)

    def replicas(self, metadata: LedgerMetadata, entry_id: int) -> list[str]:
        """Bookies of the recorded write set that hold the entry, verified."""
        ensemble = metadata.ensemble_at(entry_id)
        holders = []
        for offset in range(metadata.write_quorum):
            bookie = ensemble[(entry_id + offset) % metadata.ensemble_size]
            body = self.pool[bookie].entries.get((metadata.ledger_id, entry_id))
            if body is not None:
                verify_entry(metadata.digest_type, b"", body, metadata.ledger_id, entry_id)  # type: ignore[arg-type]
                holders.append(bookie)
        return holders

    def header(self, bookie: str, ledger_id: int, entry_id: int) -> tuple[int, int]:
        """(last add confirmed, length) in a stored entry."""
        _, _, last_add_confirmed, length = _HEADER.unpack_from(self.pool[bookie].entries[ledger_id, entry_id])
        return last_add_confirmed, length

    def key(self) -> bytes:
        return master_key(PASSWORD)


def play(
    act: Callable[[Stage], Coroutine[Any, Any, T]],
    names: Sequence[str] = ("a", "b", "c", "d", "e"),
    *,
    faults: Any = None,
    **settings: Any,
) -> T:
    """Run `act` on a fresh stage; no task may be left behind, nothing may have failed unseen."""
    loop = SimLoop()

    async def main() -> T:
        stage = Stage(loop, names, faults, **settings)
        await stage.driver.open()
        try:
            return await act(stage)
        finally:
            await stage.driver.close()

    try:
        result = loop.run(main(), deadline_s=3600.0)
        assert not loop.errors, "\n".join(loop.errors)
        left = [task for task in loop._tasks if not task.done()]
        assert not left, left
        return result
    finally:
        loop.close()


on_stage = scenes_of(play)
