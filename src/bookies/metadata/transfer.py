"""Transfer of a whole cluster's metadata as a stream of items: read from one store, put into another, compared.

A store that is being filled is not a cluster yet: its instance id is written last. Until then every bookie of the
cluster refuses to start on it, Apache's as well, and a new bookie does not create a cluster in it. The first step
writes the record `MARK`, by which an interrupted filling is recognized and resumed:

    write the mark, the given ids, then everything else, in any order            every step can be repeated
    compare with the source, remove items that the source no longer has
    write into the mark that the store is complete                              no run changes items any more
    write the instance id                                                       from now on the store is the cluster
    delete the mark

The interrupted run may only be suspended, and continue when the cluster is in use. So a run that resumes takes the mark
over by compare-and-swap, and writes every item again, equal ones too. A run reads an item's version, then checks that
the mark is its own, then changes the item at that version. If another run has taken over before the check, the check
fails. If it takes over afterwards, the item has another version. Only creations that were in flight can still happen,
of cookies and ledgers that the cluster does not have; its deleted ledgers have spent ids.

Registrations, locks and votes are not items: their owners recreate them. If a ledger's record has no time of creation,
the store's time is written into the record (`stores_ctime`), where Apache's current clients read it too.

Source: metadata 2.6, 11.
"""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from bookies.errors import (
    BookKeeperError,
    CookieExists,
    CookieNotFound,
    LedgerExists,
    LedgerNotFound,
    MetadataCorrupt,
    MetadataError,
    RecordExists,
    RecordNotFound,
    VersionConflict,
)
from bookies.metadata.formats.recovery_items import (
    RecoverySettings,
    UnderReplicated,
    agree,
    paired_marks,
    put_mark,
    put_settings,
    read_marks,
    read_settings,
    remove_mark,
)
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import GivenIds, RecordAt, RecordWrite, Step, Versioned
from bookies.metadata.shared.refusals import other_cluster
from bookies.model import BookieId, LedgerMetadata

T = TypeVar("T")

LEDGER_ID_MAX = (1 << 63) - 1
MARK = "migration"  # the record of a store that is being filled
RESTORATION = "restoration"  # the record of a cluster that is being restored from a backup
AT_ONCE = 64  # operations in flight
ATTEMPTS_MAX = 5  # attempts to put one item
PAUSE_S = 0.5  # after the first failure; it grows
_SHOWN = 5  # names in a message


class StoredCookie(Struct, frozen=True):
    """A bookie's cookie, byte by byte."""

    bookie: BookieId
    data: bytes


class NamedRecord(Struct, frozen=True):
    """A record beside the ledgers."""

    name: str
    data: bytes


class Damaged(Struct, frozen=True):
    """A ledger whose record cannot be read."""

    ledger_id: int
    reason: str


Item = GivenIds | StoredCookie | NamedRecord | RecoverySettings | UnderReplicated | LedgerMetadata | Damaged


# -- reading ----------------------------------------------------------------------------------------------------------


async def read_items(driver: MetadataDriver) -> AsyncIterator[Item]:
    """Yield all items: ids, cookies, records, auto-recovery's state, then ledgers by id; not the instance id.

    Raises `MetadataError`.

    Items that are created or deleted meanwhile may be missing or included. Records come before ledgers, so the ledgers
    of a log that is being written are included too.
    """
    yield await driver.given_ids()
    for bookie in (await driver.all_bookies()).bookies:
        cookie = await read_cookie(driver, bookie)
        if cookie is not None:
            yield cookie
    for name in await driver.record_names(""):
        record = None if name == MARK else await read_record(driver, name)
        if record is not None:
            yield record
    settings = await read_settings(driver.recovery)
    if settings != RecoverySettings():
        yield settings
    async for marks in read_marks(driver.recovery):
        for mark in marks:
            yield mark
    async for ledgers in read_ledgers(driver):
        for ledger in ledgers:
            yield ledger


async def read_ledgers(driver: MetadataDriver) -> AsyncIterator[Sequence[LedgerMetadata | Damaged]]:
    """Yield all ledgers by id, in batches."""
    async for ledger_ids in driver.ledger_ids():
        for at in range(0, len(ledger_ids), AT_ONCE):
            ledgers = await _all([read_ledger(driver, ledger_id) for ledger_id in ledger_ids[at : at + AT_ONCE]])
            yield [ledger for ledger in ledgers if ledger is not None]


async def read_cookie(driver: MetadataDriver, bookie: BookieId) -> StoredCookie | None:
    try:
        return StoredCookie(bookie, (await driver.read_cookie(bookie))[0])
    except CookieNotFound:
        return None


async def read_record(driver: MetadataDriver, name: str) -> NamedRecord | None:
    try:
        return NamedRecord(name, (await driver.read_record(name))[0])
    except RecordNotFound:
        return None


async def read_ledger(driver: MetadataDriver, ledger_id: int) -> LedgerMetadata | Damaged | None:
    try:
        return (await driver.read_ledger(ledger_id)).metadata
    except LedgerNotFound:
        return None
    except MetadataCorrupt as error:
        return Damaged(ledger_id, error.message)


async def _all(operations: Sequence[Awaitable[T]]) -> list[T]:
    """Run operations concurrently; if one fails, the others are cancelled."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_awaited(operation)) for operation in operations]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def _awaited(operation: Awaitable[T]) -> T:
    return await operation


# -- filling a store --------------------------------------------------------------------------------------------------


class TakenOver(MetadataError):
    """Another run fills the store, or has finished it."""

    retriable = False


class Filling:
    """One filling of an empty store with a cluster: `begin`, `put` for every item, `finish`.

    `is_resumed`: an earlier filling from the same cluster was interrupted, and its items are corrected. All calls raise
    `TakenOver` once another run has taken over. Without `begin`, `put` has no mark to check.
    """

    def __init__(self, driver: MetadataDriver, instance_id: str, origin: str) -> None:
        self.is_resumed = False
        self._driver = driver
        self._instance_id = instance_id
        self._origin = origin
        self._version: int | None = None  # of the mark

    async def is_there(self) -> bool:
        """Report whether the store is that cluster already, or complete; then end what an interruption left.

        Raises `MetadataError` if it is another cluster.
        """
        stored = await self._driver.instance_id()
        if stored not in (None, self._instance_id):
            raise other_cluster(str(stored), self._instance_id)
        mark = await read_record(self._driver, MARK)
        content = {} if mark is None else json.loads(mark.data)
        is_complete = bool(content.get("is_complete")) and content.get("instance_id") == self._instance_id
        if mark is not None and (stored is not None or is_complete):
            await self._end()
        return stored is not None or is_complete

    async def begin(self, ids: GivenIds) -> None:
        """Write the mark and the given ids. Raises `MetadataError` if the store has contents other than those of an
        interrupted filling.
        """
        data = self._mark(is_complete=False)
        try:
            await self._check_empty(await self._driver.record_names(""))
            self._version = version = await self._driver.create_record(MARK, data)
        except RecordExists:
            self._version = version = await self._take_over(data)
            self.is_resumed = True
        await self._driver.restore_ids(ids)
        if not self.is_resumed:
            async for ledger_ids in self._driver.ledger_ids():
                await self._driver.delete_record(MARK, version)
                raise MetadataError(f"{self._driver.uri} is not empty: it has {counted_names(ledger_ids, 'ledger')}")

    async def _take_over(self, data: bytes) -> int:
        try:
            stored, version = await self._driver.read_record(MARK)
            earlier = json.loads(stored)
            if earlier.get("instance_id") != self._instance_id:
                raise MetadataError(
                    f"{self._driver.uri} is half filled with cluster {earlier.get('instance_id')} from "
                    f"{earlier.get('from')}: finish that migration, or name an empty store"
                )
            if earlier.get("is_complete"):
                raise self._taken_over()
            return await self._driver.write_record(MARK, data, version)
        except (RecordNotFound, VersionConflict):
            raise self._taken_over() from None

    def _mark(self, *, is_complete: bool) -> bytes:
        mark = {"from": self._origin, "instance_id": self._instance_id, "is_complete": is_complete}
        return json.dumps(mark).encode("utf-8")

    async def _require_mark(self) -> None:
        """Raise `TakenOver` unless the mark is as this run wrote it."""
        if self._version is None:
            return
        try:
            version = (await self._driver.read_record(MARK))[1]
        except RecordNotFound:
            raise self._taken_over() from None
        if version != self._version:
            raise self._taken_over()

    def _taken_over(self) -> TakenOver:
        return TakenOver(
            f"another run of `bk metadata load` or `migrate` fills {self._driver.uri}, or has finished it, so this run "
            "ends: `bk metadata check` shows the state"
        )

    async def _check_empty(self, names: Sequence[str]) -> None:
        if MARK in names:
            raise RecordExists("begun before")
        cookies = (await self._driver.all_bookies()).bookies
        for present, noun in ((cookies, "cookie"), (names, "record")):
            if present:
                raise MetadataError(f"{self._driver.uri} is not empty: it has {counted_names(present, noun)}")

    async def put(self, items: Sequence[Item]) -> None:
        """Put items into the store. Repeatable; retries after temporary failures of the store.

        Raises `MetadataCorrupt` for an item that cannot be carried over.
        """
        await self._require_mark()
        await _all([self._put_with_retries(item) for item in items])

    async def _put_with_retries(self, item: Item) -> None:
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                if attempt > 1:
                    await self._require_mark()
                await self._put(item)
                return
            except BookKeeperError as error:
                if not error.retriable or attempt == ATTEMPTS_MAX:
                    await self._require_mark()  # Another run may be the reason.
                    raise
            await asyncio.sleep(attempt * PAUSE_S)

    async def _put(self, item: Item) -> None:
        driver = self._driver
        if isinstance(item, StoredCookie):
            try:
                await driver.create_cookie(item.bookie, item.data)
            except CookieExists:
                data, version = await driver.read_cookie(item.bookie)
                if data != item.data or self.is_resumed:
                    await self._require_mark()
                    await driver.write_cookie(item.bookie, item.data, version)
        elif isinstance(item, NamedRecord):
            try:
                await self._write_record(item, 0)
            except RecordExists:
                data, version = await driver.read_record(item.name)
                if data != item.data or self.is_resumed:
                    await self._write_record(item, version)
        elif isinstance(item, RecoverySettings):
            await self._require_mark()
            await put_settings(driver.recovery, item)
        elif isinstance(item, UnderReplicated):
            await put_mark(driver.recovery, item, self._require_mark)
        elif isinstance(item, LedgerMetadata):
            await self._put_ledger(carried(item))
        elif isinstance(item, Damaged):
            raise unreadable(item)

    async def _write_record(self, item: NamedRecord, version: int) -> None:
        """Write a record in one step with the check of the mark: one that the live cluster deletes stays deleted."""
        guard: list[Step] = [] if self._version is None else [RecordAt(MARK, self._version)]
        await self._driver.transact([*guard, RecordWrite(item.name, item.data, version)])

    async def _put_ledger(self, metadata: LedgerMetadata) -> None:
        # Not by the creation: it would return the record of an earlier run as its own.
        stored = await self._stored(metadata.ledger_id) if self.is_resumed else None
        is_created = stored is None
        if stored is None:
            try:
                stored = await self._driver.create_ledger(metadata)
            except LedgerExists:
                stored = await self._stored(metadata.ledger_id)
                if stored is None:
                    raise  # The id belonged to a deleted ledger.
        if stored.metadata != metadata or not is_created:
            await self._require_mark()
            await self._driver.write_ledger(metadata, stored.version)

    async def _stored(self, ledger_id: int) -> Versioned | None:
        try:
            return await self._driver.read_ledger(ledger_id)
        except LedgerNotFound:
            return None

    async def remove(self, item: Item) -> None:
        """Remove an item that an interrupted filling put, and that the source no longer has."""
        try:
            await self._remove(item)
        except BookKeeperError:
            await self._require_mark()
            raise

    async def _remove(self, item: Item) -> None:
        driver = self._driver
        if isinstance(item, StoredCookie):
            version = (await driver.read_cookie(item.bookie))[1]
            await self._require_mark()
            await driver.delete_cookie(item.bookie, version)
        elif isinstance(item, NamedRecord):
            version = (await driver.read_record(item.name))[1]
            await self._require_mark()
            await driver.delete_record(item.name, version)
        elif isinstance(item, UnderReplicated):
            await remove_mark(driver.recovery, item.ledger_id, self._require_mark)
        elif isinstance(item, LedgerMetadata | Damaged):
            try:
                stored = await self._stored(item.ledger_id)
                ledger_version = None if stored is None else stored.version
            except MetadataCorrupt as error:
                ledger_version = error.version
            await self._require_mark()
            if ledger_version is not None:
                await driver.delete_ledger(item.ledger_id, ledger_version)

    async def finish(self) -> None:
        """Make the filled store the cluster."""
        assert self._version is not None
        try:
            await self._driver.write_record(MARK, self._mark(is_complete=True), self._version)
        except (RecordNotFound, VersionConflict):
            raise self._taken_over() from None
        await self._end()

    async def _end(self) -> None:
        """Write the instance id, then delete the mark. Repeatable."""
        await self._driver.restore_instance_id(self._instance_id)
        try:
            await self._driver.delete_record(MARK, (await self._driver.read_record(MARK))[1])
        except (RecordNotFound, VersionConflict):
            pass  # Another run has ended it.


def carried(metadata: LedgerMetadata) -> LedgerMetadata:
    """Return a record as written to another store: with its time of creation, if its format has a field for it."""
    if metadata.ctime_ms is None or metadata.format_version < 2:
        return metadata
    return replace(metadata, stores_ctime=True)


def unreadable(item: Damaged) -> MetadataCorrupt:
    """Return the error for a ledger that cannot be carried over."""
    return MetadataCorrupt(
        f"the ledger's record cannot be read, so it cannot be carried over ({item.reason}); `bk metadata check` lists "
        "all such ledgers",
        ledger_id=item.ledger_id,
    )


def counted_names(names: Sequence[object], noun: str) -> str:
    """Return the number of names and the first of them: `3 ledgers (1, 2, 3)`."""
    shown = ", ".join(map(str, names[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")
    return f"{len(names):,} {noun}{'' if len(names) == 1 else 's'} ({shown})"


# -- comparing --------------------------------------------------------------------------------------------------------


class Difference(Struct, frozen=True):
    """A difference of the target from the source. `what`: the item's name. `surplus`: the item, if only the target has
    it; None: the target lacks it, or has different contents.
    """

    what: str
    detail: str
    surplus: Item | None = None


async def differences(
    source: MetadataDriver, target: MetadataDriver, progress: Callable[[int], None] = lambda count: None
) -> AsyncIterator[Difference]:
    """Yield the differences of the target from the source, item by item. `progress`: called with the number of ledgers
    compared so far.
    """
    given, restored = await source.given_ids(), await target.given_ids()
    if restored.next_id < given.next_id:
        yield Difference("next id", f"is {restored.next_id:,}, not {given.next_id:,} or more")
    for first, last in given.spent:
        at = bisect_right(restored.spent, (first, LEDGER_ID_MAX)) - 1
        if at < 0 or restored.spent[at][1] < last:
            yield Difference(f"spent ids {first} to {last}", "can be assigned again")
    bookies, others = (await source.all_bookies()).bookies, (await target.all_bookies()).bookies
    async for difference in _compared(bookies, others, lambda name: _cookies(source, target, name), "cookie"):
        yield difference
    names, others_names = await source.record_names(""), await target.record_names("")
    names, others_names = [[name for name in listed if name != MARK] for listed in (names, others_names)]
    async for difference in _compared(names, others_names, lambda name: _records(source, target, name), "record"):
        yield difference
    if not agree(await read_settings(source.recovery), await read_settings(target.recovery)):
        yield Difference("auto-recovery's switch, delay and times of checks", "differ")
    async for expected, actual in paired_marks(source.recovery, target.recovery):
        if expected != actual and (mark := expected or actual) is not None:
            yield _difference(f"mark of ledger {mark.ledger_id}", expected, actual)
    async for difference in _ledgers(source, target, progress):
        yield difference


async def is_same_store(source: MetadataDriver, target: MetadataDriver) -> bool:
    """Report whether two drivers use the same store under two names: a copy has versions of its own."""
    versions = []
    for driver in (source, target):
        sample = [(await driver.all_bookies()).version]
        async for ledger_ids in driver.ledger_ids():
            sample += [(await driver.read_ledger(ledger_id)).version for ledger_id in ledger_ids[:_SHOWN]]
            break
        versions.append(sample)
    return versions[0] == versions[1] and any(versions[0])


async def _compared(
    wanted: Sequence[T],
    present: Sequence[T],
    read: Callable[[T], Awaitable[tuple[Item | None, Item | None]]],
    noun: str,
) -> AsyncIterator[Difference]:
    names = list(dict.fromkeys((*wanted, *present)))
    for at in range(0, len(names), AT_ONCE):
        pairs = await _all([read(name) for name in names[at : at + AT_ONCE]])
        for name, (expected, actual) in zip(names[at : at + AT_ONCE], pairs, strict=True):
            if expected != actual:
                yield _difference(f"{noun} {name}", expected, actual)


def _difference(what: str, expected: Item | None, actual: Item | None) -> Difference:
    if expected is None:
        return Difference(what, "is not in the source", actual)
    return Difference(what, "is missing" if actual is None else "is another one")


async def _cookies(
    source: MetadataDriver, target: MetadataDriver, bookie: BookieId
) -> tuple[StoredCookie | None, StoredCookie | None]:
    return await read_cookie(source, bookie), await read_cookie(target, bookie)


async def _records(
    source: MetadataDriver, target: MetadataDriver, name: str
) -> tuple[NamedRecord | None, NamedRecord | None]:
    return await read_record(source, name), await read_record(target, name)


async def _ledgers(
    source: MetadataDriver, target: MetadataDriver, progress: Callable[[int], None]
) -> AsyncIterator[Difference]:
    """Compare the ledgers of both stores: first those that only the target has, then those of the source."""
    source_ids = [ledger_id async for page in source.ledger_ids() for ledger_id in page]
    target_ids = [ledger_id async for page in target.ledger_ids() for ledger_id in page]
    count = 0
    known, present = set(source_ids), set(target_ids)
    for ledger_id in target_ids:
        if ledger_id not in known:
            surplus = await read_ledger(target, ledger_id)
            if surplus is not None:
                yield Difference(f"ledger {ledger_id}", "is not in the source", surplus)
    for at in range(0, len(source_ids), AT_ONCE):
        batch = source_ids[at : at + AT_ONCE]
        originals = await _all([read_ledger(source, ledger_id) for ledger_id in batch])
        copies = await _all(
            [_none() if ledger_id not in present else read_ledger(target, ledger_id) for ledger_id in batch]
        )
        for ledger_id, original, actual in zip(batch, originals, copies, strict=True):
            expected = carried(original) if isinstance(original, LedgerMetadata) else original
            if expected != actual and not (original is None and actual is None):
                yield _difference(f"ledger {ledger_id}", expected, actual)
        count += len(batch)
        progress(count)


async def _none() -> None:
    return None


# -- all of it ---------------------------------------------------------------------------------------------------------


async def copy(
    source: MetadataDriver,
    target: MetadataDriver,
    filling: Filling,
    progress: Callable[[int], None] = lambda count: None,
) -> list[Difference]:
    """Fill the target and compare; return the remaining differences. If there are any, the filling is not finished.

    `progress`: called with the number of ledgers so far. The copy can be interrupted at any point, and repeated. The
    source is only read.
    """
    items = read_items(source)
    batch: list[Item] = []
    count = 0
    async for item in items:
        if isinstance(item, GivenIds):
            await filling.begin(item)
            continue
        batch.append(item)
        count += isinstance(item, LedgerMetadata)
        if len(batch) >= AT_ONCE:
            await filling.put(batch)
            batch = []
            progress(count)
    await filling.put(batch)
    left = []
    async for difference in differences(source, target):
        if difference.surplus is not None and filling.is_resumed:
            await filling.remove(difference.surplus)
        else:
            left.append(difference)
    if not left:
        await filling.finish()
    return left
