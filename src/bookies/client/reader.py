"""A ledger open for reading: bounds, last add confirmed, sequential reads, tailing. Never fences, writes nothing.

What may be read ends at the last add confirmed. Of a sealed ledger that is its last entry, fixed by the metadata and
never raised by what bookies say; of an open one it is the greatest value learnt so far, and it only grows. The
metadata is watched while the ledger is open, so a reader follows ensemble changes and notices the seal. Source:
client-protocol 3.1, 3.2, 3.5 and 3.6.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from bookies.client.connection import Outcome
from bookies.client.entries import Entry, EntryBatch
from bookies.client.fetch import Keys, RangeFetch
from bookies.client.pool import BookiePool
from bookies.config import ClientConfig
from bookies.errors import (
    BookieTimeout,
    BookKeeperError,
    ClientClosed,
    DigestMismatch,
    EntryNotFound,
    InvalidArgument,
    LedgerClosed,
    LedgerNotFound,
    ReadFailed,
    RemoteProtocolError,
    Unauthorized,
)
from bookies.kernels import Records, verify_records
from bookies.metadata.driver import LedgerEvent, MetadataDriver, Versioned, Watch
from bookies.model import BookieId, DigestType, LedgerMetadata, LedgerState
from bookies.protocol.quorum import ensemble_set
from bookies.protocol.read import NEGATIVE, LacRead, LongPollRound, is_growth_trusted, replica_order
from bookies.wire import digest
from bookies.wire.messages import ReadLacResponse, ReadResponse

if TYPE_CHECKING:
    import pyarrow

LONG_POLL_MS = 2_000  # how long a bookie holds an answer back when there is nothing new
LONG_POLL_STAGGER_S = 0.25  # the next bookie is asked as well when the one before has been silent for so long
IDLE_ROUND_S = 0.1  # a round of long polls without news is not repeated sooner
RECOVERY_POLL_S = 1.0  # how often the metadata is read while somebody recovers the ledger
TAIL_PATIENCE_S = 30.0  # a tail gives up when no bookie has answered for so long
TAIL_PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # between rounds in which every bookie failed
_STATE_NAMES = {LedgerState.OPEN: "open", LedgerState.IN_RECOVERY: "in recovery", LedgerState.CLOSED: "sealed"}
ENTRY_SIZE_GUESS = 1024.0  # payload bytes, until the ledger tells


def keys_of(metadata: LedgerMetadata, password: bytes, digest_type: DigestType | None = None) -> Keys:
    """Check the password locally and derive the keys. `digest_type` counts only where the metadata names none.

    Raises `Unauthorized`. Source: client-protocol 3.1.
    """
    if metadata.password is not None and not hmac.compare_digest(metadata.password, password):
        raise Unauthorized("wrong password: pass the one the ledger was created with", ledger_id=metadata.ledger_id)
    kind = metadata.digest_type or digest_type
    if kind is None:
        raise InvalidArgument(
            f"ledger {metadata.ledger_id} was written before its metadata named the digest: pass digest="
        )
    return Keys(kind, digest.mac_key(password), digest.master_key(password))


class BatchSource(Protocol):
    async def next_batch(self) -> EntryBatch | None:
        """The next entries, None at the end."""


class Entries:
    """Asynchronous iterator over single entries; `batches()` gives the same entries as `EntryBatch`es."""

    def __init__(self, source: BatchSource) -> None:
        self._source = source
        self._entries: Iterator[Entry] = iter(())

    def __aiter__(self) -> AsyncIterator[Entry]:
        return self

    async def __anext__(self) -> Entry:
        for entry in self._entries:
            return entry
        batch = await self._source.next_batch()
        if batch is None:
            raise StopAsyncIteration
        self._entries = batch.entries()
        return next(self._entries)

    def batches(self) -> Batches:
        return Batches(self._source)


class Batches:
    """Asynchronous iterator over verified batches."""

    def __init__(self, source: BatchSource) -> None:
        self._source = source

    def __aiter__(self) -> AsyncIterator[EntryBatch]:
        return self

    async def __anext__(self) -> EntryBatch:
        batch = await self._source.next_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch


class LedgerReader:
    """Made by `Client.open` and `Client.recover`."""

    def __init__(
        self, pool: BookiePool, driver: MetadataDriver, config: ClientConfig, keys: Keys, found: Versioned
    ) -> None:
        self._pool = pool
        self._driver = driver
        self._config = config
        self._keys = keys
        self._metadata = found.metadata
        self._version = found.version
        self._last_add_confirmed = -1
        self._entry_size = ENTRY_SIZE_GUESS
        self._watch: Watch | None = None
        self._is_stale = False  # The store has, or may have, a newer record.
        self._changed = asyncio.Event()  # set whenever `_is_stale` becomes true, and by `close`
        self._is_closed = False
        self._adopt(found)

    @classmethod
    async def begin(
        cls, pool: BookiePool, driver: MetadataDriver, config: ClientConfig, keys: Keys, found: Versioned
    ) -> LedgerReader:
        """Open without recovery: watch the metadata and learn the last add confirmed, unless the ledger is sealed.

        Raises `BookieTimeout`, `ReadFailed`, `Unauthorized`.
        """
        reader = cls(pool, driver, config, keys, found)
        if not reader.is_sealed:
            reader._watch = driver.watch_ledger(reader.ledger_id, reader._ledger_changed)
            try:
                await reader._learn_last_add_confirmed(is_first=True)
            except BaseException as error:
                reader._release()
                if isinstance(error, BookKeeperError) and not isinstance(
                    error, BookieTimeout | Unauthorized | ReadFailed | ClientClosed
                ):
                    raise ReadFailed(
                        f"cannot learn the last add confirmed: {error.message}", ledger_id=reader.ledger_id
                    ) from error
                raise
        return reader

    # -- state, without asking anybody ---------------------------------------------------------------------------
    @property
    def ledger_id(self) -> int:
        return self._metadata.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The record as last seen."""
        return self._metadata

    @property
    def is_sealed(self) -> bool:
        """Whether the ledger has ended, as far as known."""
        return self._metadata.is_closed

    @property
    def last_add_confirmed(self) -> int:
        """The last entry known to be readable; of a sealed ledger its end. -1: none. `read_last_add_confirmed` asks."""
        return self._last_add_confirmed

    last_entry_id = last_add_confirmed

    @property
    def labels(self) -> dict[str, str]:
        return {name: value.decode("utf-8", "replace") for name, value in self._metadata.custom_metadata.items()}

    def __repr__(self) -> str:
        record = self._metadata
        state = "let go" if self._is_closed else "sealed" if record.is_closed else _STATE_NAMES[record.state]
        return (
            f"<LedgerReader {record.ledger_id} {state} E{record.ensemble_size}/Qw{record.write_quorum}"
            f"/Qa{record.ack_quorum} last_add_confirmed={self._last_add_confirmed} "
            f"ensemble=[{', '.join(record.last_ensemble)}]>"
        )

    # -- reading -------------------------------------------------------------------------------------------------
    def read(self, first: int = 0, last: int | None = None) -> Entries:
        """The entries first..last in order; `last` None: up to the last add confirmed when the iteration begins.

        `async for entry in ledger.read()`; `.batches()` gives verified batches instead of entries. The iteration
        raises `InvalidArgument`, `ReadFailed` (beyond the last add confirmed) and what every replica of an entry
        failing leads to: `EntryNotFound`, `DigestMismatch`, `BookieUnreachable` and so on.
        """
        if first < 0 or (last is not None and last < first):
            raise InvalidArgument(f"read({first}, {last}): must be 0 <= first <= last")
        return Entries(_RangeSource(self, first, last))

    def read_batches(self, first: int = 0, last: int | None = None) -> Batches:
        """As `read`, in verified batches that stay in the buffers they arrived in."""
        return self.read(first, last).batches()

    async def read_arrow(self, first: int = 0, last: int | None = None) -> pyarrow.Table:
        """As `read`, as a pyarrow.Table: ledger_id and entry_id (int64), value (binary); no object per entry."""
        from bookies.client.arrow import table_of

        return table_of([batch async for batch in self.read_batches(first, last)])

    async def read_entry(self, entry_id: int, *, timeout: float | None = None) -> Entry:
        """One entry. `timeout`: seconds."""
        async with asyncio.timeout(timeout):
            async for entry in self.read(entry_id, entry_id):
                return entry
        raise EntryNotFound("no such entry", ledger_id=self.ledger_id, entry_id=entry_id)

    async def read_last(self, *, timeout: float | None = None) -> Entry:
        """The entry at the last add confirmed, which is refreshed first. Raises `EntryNotFound` when there is none."""
        async with asyncio.timeout(timeout):
            last = await self.read_last_add_confirmed()
            if last < 0:
                raise EntryNotFound("the ledger has no entry to read yet", ledger_id=self.ledger_id)
            return await self.read_entry(last)

    async def read_last_add_confirmed(self, *, timeout: float | None = None) -> int:
        """Ask the bookies for the last entry that may be read, -1: none; a sealed ledger answers by itself."""
        async with asyncio.timeout(timeout):
            await self._follow_metadata()
            if not self.is_sealed:
                await self._learn_last_add_confirmed()
            return self._last_add_confirmed

    def tail(self, first: int | None = None) -> Entries:
        """Entries from `first` on (None: the next one that is not readable yet), waiting for new ones until the seal.

        The iteration ends when the ledger is sealed and its last entry was delivered. It survives bookies that fail;
        it raises when none has answered for 30 seconds.
        """
        if first is not None and first < 0:
            raise InvalidArgument(f"tail({first}): must be 0 or more")
        return Entries(_TailSource(self, self._last_add_confirmed + 1 if first is None else first))

    async def close(self) -> None:
        """Let go of the handle; nothing happens to the ledger. Idempotent."""
        self._release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # -- bounds --------------------------------------------------------------------------------------------------
    async def _fetch(self, first: int, last: int | None) -> RangeFetch:
        """Check and complete the bounds, then prepare the reads."""
        self._check_open()
        if last is None or last > self._last_add_confirmed:
            await self.read_last_add_confirmed()
        if last is None:
            last = self._last_add_confirmed
        elif last > self._last_add_confirmed:
            raise ReadFailed(
                f"cannot read up to entry {last}: the last {'entry' if self.is_sealed else 'add confirmed'} is "
                f"{self._last_add_confirmed}" + ("" if self.is_sealed else "; tail() waits for entries to come"),
                ledger_id=self.ledger_id,
            )
        return self._range_fetch(first, last)

    def _range_fetch(self, first: int, last: int) -> RangeFetch:
        return RangeFetch(
            self._pool,
            self._config,
            self._keys,
            self._metadata,
            first,
            last,
            refresh=self._refresh,
            entry_size=self._entry_size,
        )

    def _check_open(self) -> None:
        if self._is_closed:
            raise LedgerClosed("the handle is closed: open the ledger again", ledger_id=self.ledger_id)

    # -- metadata ------------------------------------------------------------------------------------------------
    def _ledger_changed(self, event: LedgerEvent) -> None:
        self._is_stale = True
        self._changed.set()

    async def _follow_metadata(self) -> None:
        if self._is_stale:
            self._is_stale = False
            self._changed.clear()
            try:
                self._adopt(await self._driver.read_ledger(self.ledger_id))
            except LedgerNotFound:
                raise
            except BaseException:
                self._is_stale = True
                raise

    async def _refresh(self) -> LedgerMetadata:
        self._adopt(await self._driver.read_ledger(self.ledger_id))
        return self._metadata

    def _adopt(self, found: Versioned) -> None:
        if found.version < self._version:
            return
        self._metadata, self._version = found.metadata, found.version
        record = found.metadata
        if record.is_closed:
            self._last_add_confirmed = record.last_entry_id
            if record.last_entry_id >= 0 and record.length > 0:
                self._entry_size = record.length / (record.last_entry_id + 1)
            if self._watch is not None:
                self._watch.cancel()
                self._watch = None

    def _release(self) -> None:
        self._is_closed = True
        self._changed.set()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    # -- last add confirmed --------------------------------------------------------------------------------------
    async def _learn_last_add_confirmed(self, *, is_first: bool = False) -> None:
        record = self._metadata
        found = await self._ask_last_add_confirmed(record)
        if found.length > 0 and found.last_add_confirmed >= 0:
            self._entry_size = found.length / (found.last_add_confirmed + 2)
        if is_first and not self.is_sealed:
            self._last_add_confirmed = found.last_add_confirmed
        else:
            self._learn(found.last_add_confirmed)

    def _learn(self, last_add_confirmed: int) -> None:
        if is_growth_trusted(self._metadata):
            self._last_add_confirmed = max(self._last_add_confirmed, last_add_confirmed)

    async def _ask_last_add_confirmed(self, record: LedgerMetadata) -> LacRead:
        """Ask the last fragment's ensemble until the answers cover it. Source: client-protocol 3.5."""
        core = LacRead(record)
        waiting = {
            position: self._pool.start_read_lac(bookie, record.ledger_id)
            for position, bookie in enumerate(record.last_ensemble)
        }
        try:
            while not core.is_done:
                await asyncio.wait(waiting.values(), return_when=asyncio.FIRST_COMPLETED)
                for position in [position for position, future in waiting.items() if future.done()]:
                    bookie = record.last_ensemble[position]
                    try:
                        outcome = self._pool.check_lac(bookie, waiting.pop(position).result(), record.ledger_id)
                        core.answered(position, *self._verified_lac(outcome))
                    except ClientClosed:
                        raise
                    except BookKeeperError as error:
                        core.failed(position, error)
        finally:
            for future in waiting.values():
                future.cancel()
        if not core.is_covered:
            raise core.failure()
        return core

    def _verified_lac(self, response: ReadLacResponse) -> tuple[int, int]:
        """(last add confirmed, ledger length so far) of one answer; -1 and 0 when it says nothing."""
        found, length, ledger_id = -1, 0, response.ledger_id
        kind, mac_key = self._keys.digest_type, self._keys.mac_key
        if ledger_id != self.ledger_id:
            raise RemoteProtocolError(f"answer about ledger {ledger_id}", ledger_id=self.ledger_id)
        if response.lac_body:
            found = digest.verify_lac(kind, mac_key, response.lac_body, ledger_id)
        if response.last_entry_body:
            header = digest.verify_entry(kind, mac_key, bytes(response.last_entry_body), ledger_id, None)
            found, length = max(found, header.last_add_confirmed), header.length
        return found, length

    # -- tailing -------------------------------------------------------------------------------------------------
    async def _wait_for_change(self, patience_s: float) -> None:
        """Until the metadata changes, the handle is closed, or for so long."""
        try:
            async with asyncio.timeout(patience_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _wait_for(self, entry_id: int) -> tuple[EntryBatch | None, BookKeeperError | None]:
        """One round of long polls for `entry_id`: (the entry when one brought it, error when every bookie failed).

        Ends early when the last add confirmed reaches the entry or the metadata changes. Source: client-protocol 3.6.
        """
        record = self._metadata
        ensemble = record.last_ensemble
        positions = ensemble_set(entry_id, len(ensemble))
        order = replica_order([ensemble[position] for position in positions], self._pool.is_suspect)
        polls = LongPollRound(record, order)
        waiting: dict[BookieId, asyncio.Future[Outcome]] = {}
        change = asyncio.ensure_future(self._changed.wait())
        has_more = True
        try:
            while True:
                following = polls.next() if has_more else None
                has_more = following is not None
                if following is not None:
                    waiting[following] = self._pool.start_long_poll(
                        following, record.ledger_id, entry_id - 1, LONG_POLL_MS
                    )
                if not waiting:
                    return None, polls.failure()
                stagger = LONG_POLL_STAGGER_S if has_more else None
                futures: list[asyncio.Future[Any]] = [change, *waiting.values()]
                await asyncio.wait(futures, timeout=stagger, return_when=asyncio.FIRST_COMPLETED)
                for bookie in [bookie for bookie, poll in waiting.items() if poll.done()]:
                    try:
                        batch = self._polled(bookie, waiting.pop(bookie).result(), entry_id)
                    except ClientClosed:
                        raise
                    except BookKeeperError as error:
                        polls.failed(bookie, error)
                        continue
                    if batch is not None or self._last_add_confirmed >= entry_id:
                        return batch, None
                    polls.empty()
                if change.done():
                    return None, None
        finally:
            change.cancel()
            for poll in waiting.values():
                poll.cancel()

    def _polled(self, bookie: BookieId, outcome: Outcome, entry_id: int) -> EntryBatch | None:
        """Take in one answer to a long poll; the entry, verified, when it came along and may be read."""
        response = self._pool.check(bookie, outcome, ReadResponse, self.ledger_id, entry_id)
        batch = None
        if response.entry_id == entry_id and response.body is not None:
            data = Records.of([bytes(response.body)]).data
            keys = self._keys
            starts, problem = verify_records(
                data, 0, len(data), self.ledger_id, entry_id, 1, keys.digest_type, keys.mac_key
            )
            if problem:
                raise DigestMismatch(
                    f"entry does not verify: {problem}", ledger_id=self.ledger_id, entry_id=entry_id, bookie=bookie
                )
            batch = EntryBatch(self.ledger_id, entry_id, data, starts, keys.header_size)
        if response.max_lac is not None:
            self._learn(response.max_lac)
        return batch if self._last_add_confirmed >= entry_id else None


class _RangeSource:
    """The batches of one `read`; bounds are decided when the first is asked for."""

    def __init__(self, reader: LedgerReader, first: int, last: int | None) -> None:
        self._reader = reader
        self._first, self._last = first, last
        self._fetch: RangeFetch | None = None

    async def next_batch(self) -> EntryBatch | None:
        if self._fetch is None:
            self._fetch = await self._reader._fetch(self._first, self._last)
        return await self._fetch.next_batch()


class _TailSource:
    """The batches of one `tail`."""

    def __init__(self, reader: LedgerReader, first: int) -> None:
        self._reader = reader
        self._next = first
        self._fetch: RangeFetch | None = None
        self._failures = 0
        self._failing_since = 0.0

    async def next_batch(self) -> EntryBatch | None:
        reader = self._reader
        while True:
            reader._check_open()
            try:
                await reader._follow_metadata()
                batch = await self._readable()
                if batch is None and reader.is_sealed:
                    return None
                error = None
                if batch is None:
                    batch, error = await self._awaited()
            except LedgerNotFound:
                raise
            except BookKeeperError as raised:
                if not raised.retriable:
                    raise
                batch, error = None, raised
            if batch is not None:
                self._failures = 0
                self._next = batch.last_entry_id + 1
                return batch
            if error is None:
                self._failures = 0
            else:
                await self._pause(error)

    async def _awaited(self) -> tuple[EntryBatch | None, BookKeeperError | None]:
        """Wait for news of the next entry, without haste when the bookies have none to give."""
        reader, now = self._reader, asyncio.get_running_loop().time
        if not is_growth_trusted(reader.metadata):
            await reader._wait_for_change(RECOVERY_POLL_S)
            reader._is_stale = True
            return None, None
        begun = now()
        batch, error = await reader._wait_for(self._next)
        if batch is None and error is None and reader.last_add_confirmed < self._next and now() - begun < IDLE_ROUND_S:
            await reader._wait_for_change(IDLE_ROUND_S)  # They did not hold their answers back: fenced, for example.
        return batch, error

    async def _readable(self) -> EntryBatch | None:
        """The next entries that are confirmed already."""
        if self._fetch is None and self._next <= self._reader.last_add_confirmed:
            self._fetch = self._reader._range_fetch(self._next, self._reader.last_add_confirmed)
        if self._fetch is None:
            return None
        try:
            batch = await self._fetch.next_batch()
        except BookKeeperError:
            self._fetch = None
            raise
        if batch is None:
            self._fetch = None
            return await self._readable()
        return batch

    async def _pause(self, error: BookKeeperError) -> None:
        """Wait before the next try; raises `error` when none has succeeded for too long."""
        now = asyncio.get_running_loop().time()
        if self._failures == 0 or isinstance(error, NEGATIVE):
            self._failing_since = now  # That no bookie knows the ledger only says that nothing was written yet.
        elif now - self._failing_since >= TAIL_PATIENCE_S:
            raise error
        pause = TAIL_PAUSES_S[min(self._failures, len(TAIL_PAUSES_S) - 1)]
        self._failures += 1
        self._reader._is_stale = True  # The ensemble may have been replaced, or the watch lost.
        await self._reader._wait_for_change(pause)
