"""`bk metadata check`: read-only check of every record of a metadata store.

Findings have stable names for scripts:

| name | meaning |
|---|---|
| no-cluster | there is no instance id |
| half-migrated | `bk metadata migrate` or `load` was interrupted |
| half-removed | `bk metadata nuke` was interrupted |
| half-restored | `bk spark restore-cluster` was interrupted |
| cookie-unreadable | a cookie cannot be parsed |
| cookie-misplaced | a cookie is that of a bookie with another name |
| cookie-of-another-cluster | a cookie has another instance id, so its bookie does not start |
| bookie-without-cookie | a bookie is registered without one |
| registration-unreadable | a bookie's registration cannot be parsed, so no client can connect to it |
| ledger-unreadable | a ledger's record cannot be parsed, or contradicts itself |
| ledger-ensemble | a bookie is twice in one ensemble |
| ledger-end | a closed ledger ends before its last fragment begins |
| ledger-bookie-unknown | ledgers name a bookie that has no cookie |
| id-spent | a ledger has the id of a deleted one |
| log-unreadable | a log's list cannot be parsed, or a part of it is missing |
| log-ledger-missing | a log's list names a ledger that does not exist |
| recovery-unreadable | auto-recovery's layout or delay cannot be read |
| notes-unreadable | the notes about bookies (maintenance, drains) cannot be parsed |
| mark-without-ledger | not a fault: a ledger is marked under-replicated and does not exist; repair removes such marks |
| ids-ahead | not a fault: ledger ids at or above the store's counter; applications chose them, or the counter is old |
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable

from msgspec import Struct, field

from bookies.admin.metadata.metadata_nuke import REMOVAL
from bookies.client.base.segments import LOGS, LogStore
from bookies.errors import BookKeeperError, CorruptRecord, LedgerNotFound, MetadataCorrupt, NotSupported, RecordNotFound
from bookies.metadata.formats.recovery_items import read_settings
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import GivenIds
from bookies.metadata.shared import bookie_notes
from bookies.metadata.transfer import (
    MARK,
    RESTORATION,
    Damaged,
    counted_names,
    read_cookie,
    read_ledgers,
    read_record,
)
from bookies.model import BookieId, LedgerMetadata
from bookies.protocol.ledger.offload import is_given_up
from bookies.storage.identity import cookie

NOTES = ("ids-ahead", "mark-without-ledger")  # findings that are not faults


class Finding(Struct, frozen=True):
    """One finding. `name`: see the module. `subject`: the ledger, bookie or log; empty: the store."""

    name: str
    subject: str
    detail: str

    @property
    def is_fault(self) -> bool:
        return self.name not in NOTES


class CheckResult(Struct):
    """Number of checked records, and the findings."""

    ledgers: int = 0
    cookies: int = 0
    logs: int = 0
    findings: list[Finding] = field(default_factory=list)

    def add(self, name: str, subject: object, detail: str) -> None:
        self.findings.append(Finding(name, str(subject), detail))


async def check(driver: MetadataDriver, progress: Callable[[int], None] = lambda count: None) -> CheckResult:
    """Check every record. `progress`: number of ledgers so far. Raises `MetadataError` if the store cannot be read."""
    result = CheckResult()
    instance_id = await driver.instance_id()
    if instance_id is None:
        result.add("no-cluster", "", "there is no instance id, so no bookie starts and no client connects")
    if MARK in await driver.record_names(MARK):
        result.add("half-migrated", "", "`bk metadata migrate` or `load` was interrupted: repeat the command")
    if instance_id is None and REMOVAL in await driver.record_names(REMOVAL):
        result.add("half-removed", "", "`bk metadata nuke` was interrupted: repeat the command; restore no instance id")
    if RESTORATION in await driver.record_names(RESTORATION):
        result.add("half-restored", "", "`bk spark restore-cluster` was interrupted: repeat the command")
    lists = await lists_of_logs(driver, result)  # before the ledgers: a ledger is created before a list names it
    await _check_cookies(driver, instance_id, result)
    ledgers = await _check_ledgers(driver, result, progress)
    for log, ledger_ids in lists.items():
        missing = [ledger_id for ledger_id in ledger_ids if ledger_id not in ledgers]
        if missing and (lost := await _lost(driver, log, missing)):
            result.add(
                "log-ledger-missing", log, f"its list names {counted_names(lost, 'ledger')} that no longer exist"
            )
    await _check_marks(driver, ledgers, result)
    await _check_notes(driver, result)
    return result


async def _check_notes(driver: MetadataDriver, result: CheckResult) -> None:
    stored = await read_record(driver, bookie_notes.NAME)
    try:
        bookie_notes.parse(stored.data if stored is not None else bookie_notes.pack({}))
    except MetadataCorrupt as error:
        result.add("notes-unreadable", "", error.message)


async def _check_marks(driver: MetadataDriver, ledgers: set[int], result: CheckResult) -> None:
    try:
        await read_settings(driver.recovery)
    except MetadataCorrupt as error:
        result.add("recovery-unreadable", "", error.message)
    stray = []
    try:
        async for page in driver.recovery.marked_ids():
            stray += [ledger_id for ledger_id in page if ledger_id not in ledgers]
    except MetadataCorrupt:
        return  # The layout cannot be read; it is reported as recovery-unreadable.
    for ledger_id in stray:
        try:
            await driver.read_ledger(ledger_id)
        except LedgerNotFound:
            result.add("mark-without-ledger", ledger_id, "it is marked under-replicated and does not exist")
        except MetadataCorrupt:
            continue  # It was created meanwhile.


async def _check_cookies(driver: MetadataDriver, instance_id: str | None, result: CheckResult) -> None:
    known = (await driver.all_bookies()).bookies
    for bookie in known:
        stored = await read_cookie(driver, bookie)
        if stored is None:
            continue
        result.cookies += 1
        try:
            parsed = cookie.parse(stored.data, path=f"cookie of {bookie}")
        except CorruptRecord as error:
            result.add("cookie-unreadable", bookie, error.message)
            continue
        if parsed.bookie != bookie:
            result.add("cookie-misplaced", bookie, f"it is the cookie of bookie {parsed.bookie}")
        if parsed.instance_id not in (None, instance_id):
            result.add(
                "cookie-of-another-cluster", bookie, f"it names cluster {parsed.instance_id}, this is {instance_id}"
            )
    registered = await driver.modes()
    for bookie in registered:
        if bookie not in known and await read_cookie(driver, bookie) is None:
            result.add("bookie-without-cookie", bookie, "it is registered, and its next start would treat it as new")
        try:
            await driver.bookie_info(bookie)
        except MetadataCorrupt as error:
            result.add("registration-unreadable", bookie, error.message)


async def _check_ledgers(driver: MetadataDriver, result: CheckResult, progress: Callable[[int], None]) -> set[int]:
    """Check the records of all ledgers. Return their ids."""
    cookies = frozenset((await driver.all_bookies()).bookies)
    given = await driver.given_ids()
    ledgers: set[int] = set()
    unknown: dict[BookieId, list[int]] = {}
    ahead: list[int] = []
    async for batch in read_ledgers(driver):
        for record in batch:
            ledgers.add(record.ledger_id)
            if record.ledger_id >= given.next_id:
                ahead.append(record.ledger_id)
            if _is_spent(given, record.ledger_id):
                result.add("id-spent", record.ledger_id, "bookies may hold entries of a deleted ledger with this id")
            if isinstance(record, Damaged):
                result.add("ledger-unreadable", record.ledger_id, record.reason)
                continue
            _check_record(record, result)
            for bookie in record.bookies:
                if bookie not in cookies and not is_given_up(record):
                    unknown.setdefault(bookie, []).append(record.ledger_id)
        result.ledgers += len(batch)
        progress(result.ledgers)
    known = frozenset((await driver.all_bookies()).bookies)  # includes bookies that were added meanwhile
    for bookie, ledger_ids in unknown.items():
        if bookie not in known:
            result.add(
                "ledger-bookie-unknown", bookie, f"{counted_names(ledger_ids, 'ledger')} on it, and it has no cookie"
            )
    if ahead and (ahead := [ledger_id for ledger_id in ahead if ledger_id >= given.next_id]):
        result.add("ids-ahead", "", f"{counted_names(ahead, 'ledger')} at or above {given.next_id:,}, the next id")
    return ledgers


def _is_spent(given: GivenIds, ledger_id: int) -> bool:
    at = bisect_right(given.spent, (ledger_id, 1 << 63)) - 1
    return at >= 0 and given.spent[at][1] >= ledger_id


def _check_record(record: LedgerMetadata, result: CheckResult) -> None:
    """Report what the formats allow and no writer creates. The parser has checked sizes, order and names."""
    for first, ensemble in record.ensembles:
        for member, count in Counter(ensemble).items():
            if count > 1:
                result.add("ledger-ensemble", record.ledger_id, f"{member} is {count} times in the fragment at {first}")
    last = record.ensembles[-1][0]
    if record.is_closed and record.last_entry_id < last - 1:
        detail = f"it ends at entry {record.last_entry_id}, but its last fragment begins at {last}"
        result.add("ledger-end", record.ledger_id, detail)


async def lists_of_logs(driver: MetadataDriver, result: CheckResult) -> dict[str, list[int]]:
    """Return the ledgers of every log. Report logs that cannot be read."""
    lists: dict[str, list[int]] = {}
    for name in await driver.record_names(LOGS):
        log = name.removeprefix(LOGS)
        try:
            lists[log] = list(dict.fromkeys((await LogStore(driver, log).read())[0].storages))
        except RecordNotFound:
            continue  # Deleted meanwhile.
        except NotSupported as error:
            result.add("log-unreadable", log, error.message)
        except BookKeeperError as error:
            if error.retriable:
                raise
            result.add("log-unreadable", log, error.message)
    result.logs = len(lists)
    return lists


async def _lost(driver: MetadataDriver, log: str, missing: list[int]) -> list[int]:
    """Return the ledgers that the log still lists and that do not exist: a truncation meanwhile is not a loss."""
    try:
        listed = frozenset((await LogStore(driver, log).read())[0].storages)
    except RecordNotFound:
        return []
    lost = []
    for ledger_id in missing:
        try:
            await driver.read_ledger(ledger_id)
        except LedgerNotFound:
            if ledger_id in listed:
                lost.append(ledger_id)
    return lost
