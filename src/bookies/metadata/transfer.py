"""A whole cluster's metadata as a stream of items: read out of one store, put into another, compared.

A store that is being filled is no cluster yet: its instance id comes last, so that until then every bookie that was in
the cluster refuses to start on it, Apache's as well, and a new one does not begin a cluster in it. First comes a mark,
the record `MARK`, by which an interrupted filling is known and can be gone on with:

    mark; ids that are given; everything else, in any order                      every step can be repeated
    compare with the source, remove what it has no longer
    instance id                                                                 from now on it is the cluster
    the mark is removed

Registrations, locks and votes are not items: their owners make them again. A ledger without its time of creation in the
record takes the store's along in the record (`stores_ctime`), where Apache's clients of today look for it too.

Source: metadata 2.6, 11.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bookies.errors import (
    CookieExists,
    CookieNotFound,
    LedgerExists,
    LedgerNotFound,
    MetadataCorrupt,
    MetadataError,
    RecordExists,
    RecordNotFound,
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
from bookies.metadata.interface.driver import GivenIds
from bookies.metadata.shared.store_driver import other_cluster
from bookies.model import BookieId, LedgerMetadata

T = TypeVar("T")

LEDGER_ID_MAX = (1 << 63) - 1
MARK = "migration"  # the record of a store that is being filled
AT_ONCE = 64  # operations under way
ATTEMPTS_MAX = 5  # of putting one thing into a store that fails
PAUSE_S = 0.5  # after the first failure; it grows
_SHOWN = 5  # of what is named in a message


@dataclass(frozen=True, slots=True)
class StoredCookie:
    """A bookie's cookie, byte by byte."""

    bookie: BookieId
    data: bytes


@dataclass(frozen=True, slots=True)
class NamedRecord:
    """A record beside the ledgers."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Damaged:
    """A ledger whose record cannot be read."""

    ledger_id: int
    reason: str


Item = GivenIds | StoredCookie | NamedRecord | RecoverySettings | UnderReplicated | LedgerMetadata | Damaged


# -- reading ----------------------------------------------------------------------------------------------------------


async def read_items(driver: MetadataDriver) -> AsyncIterator[Item]:
    """All there is but the instance id: ids, cookies, records, what auto-recovery keeps, then ledgers by id.

    Raises `MetadataError`.

    What comes into being or goes meanwhile may be missing or there. Records come before ledgers, so that the ledgers of
    a log that is written to are there, too.
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
    """All ledgers by id, in batches."""
    async for ledger_ids in driver.ledger_ids():
        for at in range(0, len(ledger_ids), AT_ONCE):
            found = await _all([read_ledger(driver, each) for each in ledger_ids[at : at + AT_ONCE]])
            yield [each for each in found if each is not None]


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
    """Together; when one fails the others end, too."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_of(each)) for each in operations]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def _of(operation: Awaitable[T]) -> T:
    return await operation


# -- filling a store --------------------------------------------------------------------------------------------------


class Filling:
    """Putting a cluster into a store that has none. `begin`, `put` for every item, `finish`.

    `is_resumed`: an earlier filling from the same cluster was interrupted; what it put there is put right.
    """

    def __init__(self, driver: MetadataDriver, instance_id: str, origin: str) -> None:
        self.is_resumed = False
        self._driver = driver
        self._instance_id = instance_id
        self._origin = origin

    async def is_there(self) -> bool:
        """Whether the store is that cluster already. Raises `MetadataError` if it is another one."""
        found = await self._driver.instance_id()
        if found not in (None, self._instance_id):
            raise other_cluster(str(found), self._instance_id)
        return found is not None

    async def begin(self, ids: GivenIds) -> None:
        """Raises `MetadataError` when there is something in the store that is not of an interrupted filling."""
        mark = {"from": self._origin, "instance_id": self._instance_id}
        try:
            await self._check_empty(await self._driver.record_names(""))
            await self._driver.create_record(MARK, json.dumps(mark).encode("utf-8"))
        except RecordExists:
            found = json.loads((await self._driver.read_record(MARK))[0])
            if found.get("instance_id") != self._instance_id:
                raise MetadataError(
                    f"{self._driver.uri} is half filled with cluster {found.get('instance_id')} from "
                    f"{found.get('from')}: finish that, or name an empty store"
                ) from None
            self.is_resumed = True
        await self._driver.restore_ids(ids)
        if not self.is_resumed:
            async for ledger_ids in self._driver.ledger_ids():
                await self._driver.delete_record(MARK, (await self._driver.read_record(MARK))[1])
                raise MetadataError(f"{self._driver.uri} is not empty: it has {some(ledger_ids, 'ledger')}")

    async def _check_empty(self, names: Sequence[str]) -> None:
        if MARK in names:
            raise RecordExists("begun before")
        cookies = (await self._driver.all_bookies()).bookies
        for found, kind in ((cookies, "cookie"), (names, "record")):
            if found:
                raise MetadataError(f"{self._driver.uri} is not empty: it has {some(found, kind)}")

    async def put(self, items: Sequence[Item]) -> None:
        """Repeatable, and repeated while the store fails now and then. Raises `MetadataCorrupt` for what cannot be
        carried over.
        """
        await _all([self._put_at_last(each) for each in items])

    async def _put_at_last(self, item: Item) -> None:
        for attempt in range(1, ATTEMPTS_MAX):
            try:
                await self._put(item)
                return
            except MetadataError as error:
                if not error.retriable:
                    raise
            await asyncio.sleep(attempt * PAUSE_S)
        await self._put(item)

    async def _put(self, item: Item) -> None:
        driver = self._driver
        if isinstance(item, StoredCookie):
            try:
                await driver.create_cookie(item.bookie, item.data)
            except CookieExists:
                data, version = await driver.read_cookie(item.bookie)
                if data != item.data:
                    await driver.write_cookie(item.bookie, item.data, version)
        elif isinstance(item, NamedRecord):
            try:
                await driver.create_record(item.name, item.data)
            except RecordExists:
                data, version = await driver.read_record(item.name)
                if data != item.data:
                    await driver.write_record(item.name, item.data, version)
        elif isinstance(item, RecoverySettings):
            await put_settings(driver.recovery, item)
        elif isinstance(item, UnderReplicated):
            await put_mark(driver.recovery, item)
        elif isinstance(item, LedgerMetadata):
            await self._put_ledger(carried(item))
        elif isinstance(item, Damaged):
            raise unreadable(item)

    async def _put_ledger(self, metadata: LedgerMetadata) -> None:
        try:
            found = await self._driver.create_ledger(metadata)
        except LedgerExists as error:
            try:
                found = await self._driver.read_ledger(metadata.ledger_id)
            except LedgerNotFound:
                raise error from None  # The id of a ledger that was deleted.
        if found.metadata != metadata:
            await self._driver.write_ledger(metadata, found.version)

    async def remove(self, item: Item) -> None:
        """What an interrupted filling put there, and the source has no longer."""
        if isinstance(item, StoredCookie):
            await self._driver.delete_cookie(item.bookie, (await self._driver.read_cookie(item.bookie))[1])
        elif isinstance(item, NamedRecord):
            await self._driver.delete_record(item.name, (await self._driver.read_record(item.name))[1])
        elif isinstance(item, UnderReplicated):
            await remove_mark(self._driver.recovery, item.ledger_id)
        elif isinstance(item, LedgerMetadata | Damaged):
            await self._driver.delete_ledger(item.ledger_id)

    async def finish(self) -> None:
        """Everything is there: make it the cluster. Repeatable."""
        await self._driver.restore_instance_id(self._instance_id)
        try:
            await self._driver.delete_record(MARK, (await self._driver.read_record(MARK))[1])
        except RecordNotFound:
            pass  # It was finished before.


def carried(metadata: LedgerMetadata) -> LedgerMetadata:
    """A record as another store gets it: with its time of creation, if its format has a place for that."""
    if metadata.ctime_ms is None or metadata.format_version < 2:
        return metadata
    return dataclasses.replace(metadata, stores_ctime=True)


def unreadable(item: Damaged) -> MetadataCorrupt:
    """Why a cluster cannot be carried over."""
    return MetadataCorrupt(
        f"its record cannot be read, so it cannot be carried over ({item.reason}); `bk metadata check` names all such",
        ledger_id=item.ledger_id,
    )


def some(names: Sequence[object], kind: str) -> str:
    """`3 ledgers (1, 2, 3)`."""
    shown = ", ".join(map(str, names[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")
    return f"{len(names):,} {kind}{'' if len(names) == 1 else 's'} ({shown})"


# -- comparing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Difference:
    """`what`: the thing. `surplus`: what the target has and the source has not; None: it lacks it, or has another."""

    what: str
    detail: str
    surplus: Item | None = None


async def differences(
    source: MetadataDriver, target: MetadataDriver, progress: Callable[[int], None] = lambda count: None
) -> AsyncIterator[Difference]:
    """What is not in the target as it is in the source, record by record. `progress`: ledgers compared so far."""
    given, restored = await source.given_ids(), await target.given_ids()
    if restored.next_id < given.next_id:
        yield Difference("next id", f"{restored.next_id:,} in place of {given.next_id:,} or more")
    for first, last in given.spent:
        at = bisect_right(restored.spent, (first, LEDGER_ID_MAX)) - 1
        if at < 0 or restored.spent[at][1] < last:
            yield Difference(f"spent ids {first} to {last}", "can be given again")
    bookies, others = (await source.all_bookies()).bookies, (await target.all_bookies()).bookies
    async for each in _compared(bookies, others, lambda name: _cookies(source, target, name), "cookie"):
        yield each
    names, others_names = await source.record_names(""), await target.record_names("")
    names, others_names = [[each for each in found if each != MARK] for found in (names, others_names)]
    async for each in _compared(names, others_names, lambda name: _records(source, target, name), "record"):
        yield each
    if not agree(await read_settings(source.recovery), await read_settings(target.recovery)):
        yield Difference("auto-recovery's switch, delay and times of checks", "are others")
    async for there, here in paired_marks(source.recovery, target.recovery):
        if there != here and (mark := there or here) is not None:
            yield _difference(f"mark of ledger {mark.ledger_id}", there, here)
    async for each in _ledgers(source, target, progress):
        yield each


async def is_same_store(source: MetadataDriver, target: MetadataDriver) -> bool:
    """Whether two drivers look at one store by two names: a copy's versions are its own."""
    versions = []
    for driver in (source, target):
        found = [(await driver.all_bookies()).version]
        async for ledger_ids in driver.ledger_ids():
            found += [(await driver.read_ledger(each)).version for each in ledger_ids[:_SHOWN]]
            break
        versions.append(found)
    return versions[0] == versions[1] and any(versions[0])


async def _compared(
    wanted: Sequence[T], found: Sequence[T], read: Callable[[T], Awaitable[tuple[Item | None, Item | None]]], kind: str
) -> AsyncIterator[Difference]:
    names = list(dict.fromkeys((*wanted, *found)))
    for at in range(0, len(names), AT_ONCE):
        pairs = await _all([read(name) for name in names[at : at + AT_ONCE]])
        for name, (there, here) in zip(names[at : at + AT_ONCE], pairs, strict=True):
            if there != here:
                yield _difference(f"{kind} {name}", there, here)


def _difference(what: str, there: Item | None, here: Item | None) -> Difference:
    if there is None:
        return Difference(what, "is not in the source", here)
    return Difference(what, "is missing" if here is None else "is another one")


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
    """Both listings ascend, so they are walked side by side."""
    theirs = [each async for page in source.ledger_ids() for each in page]
    ours = [each async for page in target.ledger_ids() for each in page]
    count = 0
    known, present = set(theirs), set(ours)
    for ledger_id in ours:
        if ledger_id not in known:
            surplus = await read_ledger(target, ledger_id)
            if surplus is not None:
                yield Difference(f"ledger {ledger_id}", "is not in the source", surplus)
    for at in range(0, len(theirs), AT_ONCE):
        some_ids = theirs[at : at + AT_ONCE]
        wanted = await _all([read_ledger(source, each) for each in some_ids])
        found = await _all([_none() if each not in present else read_ledger(target, each) for each in some_ids])
        for ledger_id, there, here in zip(some_ids, wanted, found, strict=True):
            expected = carried(there) if isinstance(there, LedgerMetadata) else there
            if expected != here and not (there is None and here is None):
                yield _difference(f"ledger {ledger_id}", expected, here)
        count += len(some_ids)
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
    """Fill the target and compare; what is still different when that is done (then it is not finished).

    `progress`: ledgers so far. Can be interrupted at any point, and repeated. The source is only read.
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
    async for each in differences(source, target):
        if each.surplus is not None and filling.is_resumed:
            await filling.remove(each.surplus)
        else:
            left.append(each)
    if not left:
        await filling.finish()
    return left
