"""`Batches`: records of several processes that get into a log of DistributedLog all at once. Spark's sink uses it.

Each task writes a *part*: sealed ledgers with entries of DistributedLog, which no reader sees. The commit makes them
the log's next segments, with one transaction of znodes. The transaction also writes the batch's *mark*: a znode with
the version that its application has committed last. So a repetition after a crash is recognized, and its ledgers are
deleted. Java ignores marks.

The records of a batch share a transaction id, which must be greater than that of every earlier record.

* A commit of another process makes this one read again: both name the version of the list.
* An abort first changes that version, so a commit whose answer was lost cannot land later.
* Parts of dead tasks stay as labelled ledgers, until `reap` deletes them: those of batches that the mark has passed,
  and those that have expired. A commit refuses parts that have expired. `reap` changes the version of the list after
  that time, so it also refuses a commit that began before, and reads the list again before it deletes.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import NamedTuple
from urllib.parse import quote

from bookies.client.base.arguments import TimeLimit
from bookies.client.log.base.log_operations import Patience
from bookies.client.write import LedgerWriter
from bookies.client.write.ledger_series import LedgerSeries
from bookies.distributedlog.formats.entries import check_record_size, pack_values
from bookies.distributedlog.formats.segment import VERSION, Segment
from bookies.distributedlog.model.segment_list import CHANGE_ATTEMPTS_MAX, LastRecord, appended, is_ended
from bookies.distributedlog.parts import LogParts, last_of, last_record, recover
from bookies.distributedlog.store import LogLock, Ownership
from bookies.errors import (
    BookKeeperError,
    LedgerNotFound,
    LogEnded,
    LogFenced,
    LogInUse,
    MetadataCorrupt,
    TransactionRefused,
)
from bookies.metadata.zookeeper.zookeeper_port import Acl, Create, NodeMissing, Operation, Refusal, SetData
from bookies.model import LedgerMetadata
from bookies.protocol.log.log_model import Written
from bookies.protocol.log.transaction import ORPHAN_GRACE_MS, REPLAY_GRACE_MS, Origin, Transaction, check_gap

ENTRY_SIZE = 64 << 10  # bytes of records that share an entry
LABELS = ("log", "app", "version", "query", "created", "expires")  # the times in ms since 1970
SKEW_MS = 600_000  # by which the clocks of machines may differ


class Quorums(NamedTuple):
    """Sizes of the ledgers of a part."""

    ensemble: int
    write_quorum: int
    ack_quorum: int


class Mark(NamedTuple):
    """Last batch of an application. `query`: the source of its versions; empty for a batch job."""

    version: int
    query: str

    def pack(self) -> bytes:
        """Return the data of the znode."""
        return f"{self.version};{self.query}".encode()


def parse_mark(data: bytes) -> Mark:
    """Return the mark. Raises `MetadataCorrupt`."""
    version, _, query = data.decode("utf-8", "replace").partition(";")
    if not (version.isascii() and version.isdigit()):
        raise MetadataCorrupt(f"{data[:40]!r} is not the mark of a batch: expected a number first")
    return Mark(int(version), query)


def is_committed(mark: Mark | None, txn: Transaction, log: str) -> bool:
    """Report whether a mark shows that a batch was committed.

    Raises `TransactionRefused` for another query's mark, and for one that is not of the batch before.
    """
    if mark is None:
        return False
    if mark.query != txn.query:
        raise TransactionRefused(
            f"application {txn.app!r} committed version {mark.version} to log {log} as query "
            f"{mark.query or '(batch)'}; this is query {txn.query or '(batch)'}, which restarts the count. Go on with "
            "the old checkpoint, or choose another txnAppId"
        )
    check_gap(log, txn, mark.version)
    return mark.version >= txn.version


def _label(metadata: LedgerMetadata, name: str) -> str:
    return metadata.custom_metadata.get(f"dlog.{name}", b"").decode(errors="replace")


def _time_ms(metadata: LedgerMetadata, name: str, absent: int) -> int:
    text = _label(metadata, name)
    return int(text) if text.isascii() and text.isdigit() else absent


class PartWriter:
    """Ledgers of one task, which become segments of the log. Made by `Batches.part`. `token`: of no meaning here."""

    token = ""

    def __init__(
        self, parts: LogParts, origin: Origin, txid: int, quorums: Quorums, ledger_size: int, grace_ms: int
    ) -> None:
        self._parts = parts
        self._grace_ms = grace_ms
        self._origin = origin
        self._txid = txid
        self._quorums = quorums
        self._ledgers = LedgerSeries(self._create, parts.delete_ledger, ledger_size)
        self._records = 0  # of the present ledger

    async def append_packed(self, data: bytes, offsets: Sequence[int]) -> None:
        """Append the contiguous records in `data`. `offsets`: their starts, and the last end."""
        values = [data[start:end] for start, end in pairwise(offsets)]
        if not values:
            return
        check_record_size(max(map(len, values)))
        async with self._ledgers.turn:
            ledger = await self._ledgers.room(offsets[-1] - offsets[0])
            await ledger.push_many(pack_values(values, self._txid, self._records, ENTRY_SIZE))
            self._records += len(values)

    async def _create(self) -> LedgerWriter:
        app, version, query = self._origin[:3]
        now_ms = self._parts.runtime.clock.wall_ms()
        expires_ms = now_ms + self._grace_ms
        values = (self._parts.store.paths.parent, app, str(version), query, str(now_ms), str(expires_ms))
        self._records = 0
        return await self._parts.client.create(
            ensemble=self._quorums.ensemble,
            write_quorum=self._quorums.write_quorum,
            ack_quorum=self._quorums.ack_quorum,
            digest="crc32",
            password=self._parts.password,
            labels={f"dlog.{name}": value for name, value in zip(LABELS, values, strict=True)},
        )

    async def finish(self) -> tuple[Written, ...]:
        """Wait until all records are durable, and seal the last ledger. Raises the first failure of an append."""
        return await self._ledgers.finish()

    async def discard(self) -> None:
        """Delete the written ledgers. Best effort: `reap` finds one that remains."""
        await self._ledgers.discard()


class Batches:
    """Batches of one log. Made by `Namespace.batches`."""

    def __init__(self, parts: LogParts) -> None:
        self._parts = parts

    @property
    def name(self) -> str:
        return self._parts.name

    async def next_txid(self, *, is_fencing: bool = False) -> int:
        """Return the transaction id of a batch that is planned at this moment. `is_fencing`: see `commit`.

        Completes what a dead leader left, whose last records may not be visible. Raises `LogNotFound`, `LogEnded`.
        """
        ownership = await self._loaded()
        if not all(segment.is_completed for segment in await self._parts.segments()):
            with contextlib.suppress(LogInUse, LogFenced):
                async with self._locked(None if is_fencing else 0) as has_lock:
                    if is_fencing or has_lock:
                        await recover(self._parts, ownership)
        last = await last_of(self._parts)
        return max(0, ownership.max_txid, -1 if last is None else last[2].txid) + 1

    async def _loaded(self) -> Ownership:
        ownership = Ownership(self._parts.runtime, self._parts.store)
        await ownership.load()
        if is_ended(ownership.max_txid):
            raise LogEnded(f"log {self._parts.name} has its end-of-stream record: it can only be read")
        return ownership

    def part(
        self,
        origin: Origin,
        txid: int,
        quorums: Quorums,
        ledger_size: int,
        grace_ms: int = ORPHAN_GRACE_MS,
    ) -> PartWriter:
        """Begin the part of one task.

        `txid`: of `next_txid`. `ledger_size`: bytes after which a ledger is sealed. `grace_ms`: after it, the part is
        not committed any more.
        """
        return PartWriter(self._parts, origin, txid, quorums, ledger_size, grace_ms)

    # -- commit --------------------------------------------------------------------------------------------------
    async def commit(self, txn: Transaction, *, is_fencing: bool, timeout: float) -> bool:
        """Append the ledgers of a batch to the log, all or none. False: that was done before; they are deleted.

        * `is_fencing`: stop a leader that writes the log. Otherwise wait for it, where there are locks, for half of
          the time.
        * `timeout`: seconds.

        Raises `LogInUse`, `LogNotFound`, `LogEnded`, `TransactionRefused` (it never will be committed), and
        `TimeoutError`: then it may or may not have been committed, and a repetition finds out.
        """
        duels, patience = 0, Patience(self._parts.runtime)
        async with (
            TimeLimit(timeout, f"commit {txn.name} to log {self._parts.name}"),
            self._locked(None if is_fencing else timeout / 2) as has_lock,
        ):
            while True:
                try:
                    return await self._attempt(txn, may_recover=is_fencing or has_lock)
                except LogFenced:  # Another process changed the list in between: read again.
                    duels += 1
                    if duels == CHANGE_ATTEMPTS_MAX:
                        raise
                except BookKeeperError as error:
                    await patience.pause(error)

    @asynccontextmanager
    async def _locked(self, timeout: float | None) -> AsyncIterator[bool]:
        """Hold the log's lock; False: there are no locks, or it is not wanted. Safety does not depend on it."""
        parts = self._parts
        if timeout is None or not parts.has_locks:
            yield False
            return
        lock = LogLock(parts.runtime, parts.store.tree, parts.store.paths.lock, parts.owner)
        try:
            await lock.acquire(timeout)
            yield True
        finally:
            await lock.release()

    async def _attempt(self, txn: Transaction, *, may_recover: bool) -> bool:
        """Try once. Raises `LogFenced` to try again."""
        parts, written = self._parts, txn.ledgers[self._parts.name]
        ownership = await self._loaded()  # Before the list and the mark: a later change of either is noticed.
        segments = await parts.segments()
        listed = {segment.ledger_id for segment in segments}
        mark, marking = await self._marking(txn)
        if not listed.isdisjoint(part.ledger_id for part in written) or is_committed(mark, txn, parts.name):
            # An attempt whose answer was lost may have listed these ledgers after the list was read.
            listed = {segment.ledger_id for segment in await parts.segments()}
            await self._delete([part.ledger_id for part in written if part.ledger_id not in listed])
            return False
        if not written:
            if marking:  # The list stays as it is, so a leader goes on.
                await self._mark(marking)
            return True
        if not all(segment.is_completed for segment in segments):
            if not may_recover:
                raise LogInUse(
                    f"log {parts.name} is being written by a leader, or was left open by one: close the writer, or end "
                    "it with onOpenTail=fence"
                )
            await recover(parts, ownership)
            segments = await parts.segments()
        ends = [(part.ledger_id, await self._end_of(txn, part)) for part in written]
        least = min(end.txid for _, end in ends)
        if least <= ownership.max_txid:
            raise TransactionRefused(
                f"log {parts.name} has received records up to transaction id {ownership.max_txid} since {txn.name} was "
                f"planned with {least}: nothing was changed; repeat the batch"
            )
        now_ms = parts.runtime.clock.wall_ms()
        await ownership.append(appended(segments, ownership.highest, parts.first_lssn, ends, now_ms), marking)
        return True

    async def _marking(self, txn: Transaction) -> tuple[Mark | None, list[Operation]]:
        """Return the application's mark, and the changes that write that of this batch."""
        if not txn.is_kept:
            return None, []
        tree, folder = self._parts.store.tree, self._parts.store.paths.marks
        path = f"{folder}/app-{quote(txn.app, safe='')}"
        data = Mark(txn.version, txn.query).pack()
        try:
            present, stat = await tree.get(path, sync=True)
        except NodeMissing:
            has_folder = await tree.exists(folder) is not None
            return None, [*(() if has_folder else (Create(folder, b"", Acl.OPEN),)), Create(path, data, Acl.OPEN)]
        return parse_mark(present), [SetData(path, data, stat.version)]

    async def _mark(self, marking: Sequence[Operation]) -> None:
        """Write the mark of a batch without records. Raises `LogFenced` to try again."""
        try:
            await self._parts.store.tree.multi(marking)
        except Refusal as error:
            raise LogFenced(f"another batch was committed to log {self._parts.name} meanwhile: {error}") from None

    async def _end_of(self, txn: Transaction, part: Written) -> LastRecord:
        """Return the end of a part's ledger, as its entries have it. Raises `TransactionRefused`."""
        parts = self._parts
        try:
            metadata = await parts.client.metadata(part.ledger_id)
            expected = (parts.store.paths.parent, txn.app, str(txn.version))
            is_sealed = metadata.is_closed and metadata.last_entry_id == part.last_entry_id
            if tuple(_label(metadata, name) for name in LABELS[:3]) != expected or not is_sealed:
                raise TransactionRefused(f"ledger {part.ledger_id} is not what {txn.name} wrote for log {parts.name}")
            if parts.runtime.clock.wall_ms() >= _time_ms(metadata, "expires", 0):  # `reap` may delete it.
                raise TransactionRefused(
                    f"ledger {part.ledger_id} of {txn.name} was written so long ago that it has expired: nothing was "
                    "changed; repeat the batch, with a longer orphanGrace"
                )
            segment = Segment("", VERSION, part.ledger_id, 0, 0)
            async with parts.reading(segment) as ledger:
                last = await last_record(segment, ledger, part.last_entry_id)
        except LedgerNotFound:
            raise TransactionRefused(
                f"ledger {part.ledger_id} of {txn.name} does not exist any more: the batch was given up; nothing was "
                "changed"
            ) from None
        assert last is not None
        entry_id, record = last
        return LastRecord(record.txid, entry_id, record.slot, record.position)

    # -- leftovers -----------------------------------------------------------------------------------------------
    async def abort(self, txn: Transaction, *, timeout: float) -> None:
        """Delete the ledgers of a batch, unless the log names them. `timeout`: seconds.

        While another process writes the log, they are left to `reap`: a commit may be in flight.
        """
        ledger_ids = [part.ledger_id for part in txn.ledgers[self._parts.name]]
        async with TimeLimit(timeout, f"abort {txn.name} of log {self._parts.name}"):
            listed = await self._without_commits()
            if listed is not None:
                await self._delete([ledger_id for ledger_id in ledger_ids if ledger_id not in listed])

    async def _without_commits(self) -> set[int] | None:
        """Refuse all commits that are in flight, and return the ledgers that the log names then.

        None: not while another process writes the log. Raises `LogFenced`.
        """
        with contextlib.suppress(LogInUse):
            async with self._locked(0):
                ownership = await self._loaded()
                if all(segment.is_completed for segment in await self._parts.segments()):
                    await ownership.touch()
                    return {segment.ledger_id for segment in await self._parts.segments()}
        return None

    async def reap(self, txn: Transaction, replay_grace_ms: int = REPLAY_GRACE_MS) -> list[int]:
        """Delete ledgers that batches wrote for this log and that no commit will name; return them.

        Call it after a commit of `txn`. Ledgers of its application up to its version are leftovers after
        `replay_grace_ms`, others when they have expired. Reads the records of all ledgers of the cluster. Raises
        `LogFenced`.
        """
        parts = self._parts
        listed = {segment.ledger_id for segment in await parts.segments()}
        now_ms, leftovers, expired = parts.runtime.clock.wall_ms(), list[LedgerMetadata](), list[LedgerMetadata]()
        async for metadata in parts.client.ledgers(label=("dlog.log", parts.store.paths.parent)):
            if metadata.ledger_id in listed:
                continue
            version, age_ms = _label(metadata, "version"), now_ms - _time_ms(metadata, "created", now_ms)
            is_own = (_label(metadata, "app"), _label(metadata, "query")) == (txn.app, txn.query)
            if is_own and version.isdigit() and int(version) <= txn.version:
                if age_ms >= replay_grace_ms:
                    leftovers.append(metadata)
            elif now_ms >= _time_ms(metadata, "expires", now_ms) + SKEW_MS:
                expired.append(metadata)
        if expired and (listed_now := await self._without_commits()) is not None:
            leftovers += [metadata for metadata in expired if metadata.ledger_id not in listed_now]
        for metadata in leftovers:
            with contextlib.suppress(LedgerNotFound):
                if not metadata.is_closed:  # Its writer may be alive: it stops.
                    await (await parts.client.recover(metadata.ledger_id, password=parts.password)).close()
            await self._delete([metadata.ledger_id])
        return [metadata.ledger_id for metadata in leftovers]

    async def _delete(self, ledger_ids: Sequence[int]) -> None:
        for ledger_id in ledger_ids:
            await self._parts.delete_ledger(ledger_id)
