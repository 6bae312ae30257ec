"""Status of auto-recovery: written by each process that runs it, read on request.

Every process keeps one named record, `autorecovery/NAME`, with the last actions of its auditor and its worker, and a
report for each ledger that it could not repair. A process that stops in an orderly way deletes its record. A killed one
leaves it behind; it is ignored after `STALE_MS` and later removed by other processes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from bookies.client.turns.lease import ELECTIONS
from bookies.encoding.documents import parse_json
from bookies.errors import RecordExists, RecordNotFound, VersionConflict
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.recovery_store import AuditKind, Mark
from bookies.model import BookieId
from bookies.protocol.log.lease import parse_queue
from bookies.protocol.repair.repair_work import Loss, Wait
from bookies.replication.auditor.checks import PassReport
from bookies.replication.repair.worker import LedgerReport

PREFIX = "autorecovery/"
HOUSEKEEPING = "bk-log-housekeeping"  # the election of the bookie that applies limits of logs
STALE_MS = 600_000  # since the last write of a record, after which it is ignored
REMOVED_MS = 86_400_000  # since the last write of a record, after which it is removed
SIZE_MAX = 512 * 1024  # bytes of one record; further reports are left out, and counted


class ProcessStatus(Struct, frozen=True):
    """Status of one process, as it reports itself.

    written_ms: wall clock of the write.
    tasks: for each, what it does, how often it was started, and the error that ended it last.
    auditor: its passes, if it was the auditor.
    reports: ledgers that it could not repair.
    lost: bookies that counted as lost at the write.
    """

    name: str
    bookie: BookieId
    written_ms: int
    tasks: Sequence[Mapping[str, Any]]
    auditor: Sequence[Mapping[str, Any]]
    worker: Mapping[str, Any]
    reports: Sequence[Mapping[str, Any]]
    reports_omitted: int = 0
    lost: Sequence[BookieId] = ()


class RecoveryStatus(Struct, frozen=True):
    """Status of a cluster's auto-recovery.

    marked: number of marked ledgers.
    locks: ledger -> owner of its lock.
    checked_ms: wall clock of the last check, by its kind.
    stuck: distinct ids of marked ledgers that a process could not repair.
    gone: names of processes with a record whose session with the store has ended: they died, or cannot reach it.
    housekeeper: the bookie that is elected to apply limits of logs while no auditor does.
    """

    is_enabled: bool
    auditor: BookieId | None
    lost_bookie_delay_s: int | None
    marked: int
    locks: Mapping[int, str]
    checked_ms: Mapping[str, int | None]
    processes: Sequence[ProcessStatus]
    stuck: Sequence[int] = ()
    gone: Sequence[str] = ()
    housekeeper: str | None = None


async def read_status(driver: MetadataDriver, now_ms: int) -> RecoveryStatus:
    """Read the status from the store. Raises `MetadataError`."""
    store = driver.recovery
    processes = [process for process in await read_processes(driver) if now_ms - process.written_ms < STALE_MS]
    reported = latest_reports(processes)
    marked, stuck = 0, list[int]()
    async for ids in store.marked_ids():
        marked += len(ids)
        stuck += [ledger_id for ledger_id in ids if ledger_id in reported]
    living = {process.name for process in _living(processes, await store.candidates())}
    return RecoveryStatus(
        await store.is_enabled(),
        await store.auditor(),
        await store.lost_bookie_delay_s(),
        marked,
        await store.locks(),
        {kind.value: await store.checked_at_ms(kind) for kind in AuditKind},
        processes,
        stuck,
        [process.name for process in processes if process.name not in living],
        await _housekeeper(driver),
    )


async def _housekeeper(driver: MetadataDriver) -> str | None:
    record = f"{ELECTIONS}{HOUSEKEEPING}"
    try:
        data, _ = await driver.read_record(record)
    except RecordNotFound:
        return None
    holder = parse_queue(record, data).holder
    return None if holder is None else holder.text


async def read_processes(driver: MetadataDriver) -> list[ProcessStatus]:
    """Return the last status of every process, however old. Raises `MetadataError`."""
    statuses = []
    for name in await driver.record_names(PREFIX):
        try:
            data, _ = await driver.read_record(name)
        except RecordNotFound:
            continue  # It has just stopped.
        if (status := parse(data)) is not None:
            statuses.append(status)
    return statuses


async def witnesses(driver: MetadataDriver) -> list[ProcessStatus]:
    """Return the status of running processes: their sessions live, so it is at most some seconds old.

    Raises `MetadataError`.
    """
    processes = await read_processes(driver)
    return _living(processes, await driver.recovery.candidates())


def taken_for_lost(mark: Mark | None, processes: Iterable[ProcessStatus]) -> list[BookieId]:
    """Return the distinct bookies that may be lost: those that a ledger's mark names, or these processes report."""
    named = () if mark is None else mark.replicas
    return list(dict.fromkeys([*named, *(bookie for process in processes for bookie in process.lost)]))


def _living(processes: Sequence[ProcessStatus], candidates: Collection[BookieId]) -> list[ProcessStatus]:
    """Return the processes that campaign for auditor; of several with the same bookie id, only the last to write."""
    latest = {process.bookie: process for process in sorted(processes, key=lambda process: process.written_ms)}
    return [process for process in processes if process.bookie in candidates and latest[process.bookie] is process]


async def reports_on(driver: MetadataDriver, ledger_id: int) -> list[tuple[ProcessStatus, Mapping[str, Any]]]:
    """Return the reports on a ledger that processes could not repair, the latest first. Raises `MetadataError`."""
    reports = [
        (process, report)
        for process in await read_processes(driver)
        for report in process.reports
        if report["ledger_id"] == ledger_id
    ]
    return sorted(reports, key=lambda pair: -pair[1]["checked_ms"])


def latest_reports(processes: Iterable[ProcessStatus]) -> dict[int, Mapping[str, Any]]:
    """Return the latest report on each ledger that could not be repaired, by ascending id."""
    reports = sorted(
        (report for process in processes for report in process.reports), key=lambda report: report["checked_ms"]
    )
    return dict(sorted({report["ledger_id"]: report for report in reports}.items()))


def pack(status: ProcessStatus) -> bytes:
    """Return a status as JSON, with as many reports as fit into `SIZE_MAX`."""
    facts = {name: getattr(status, name) for name in ProcessStatus.__struct_fields__}
    reports, size = [], len(json.dumps({**facts, "reports": []}))
    for report in status.reports:
        size += len(json.dumps(report)) + 2
        if size > SIZE_MAX:
            break
        reports.append(report)
    return json.dumps({**facts, "reports": reports, "reports_omitted": len(status.reports) - len(reports)}).encode()


def parse(data: bytes) -> ProcessStatus | None:
    """Parse a status; None: it is unreadable."""
    try:
        facts = parse_json(data)
        known = {name: facts[name] for name in ProcessStatus.__struct_fields__ if name in facts}
        status = ProcessStatus(**known | {"lost": tuple(facts.get("lost", ()))})
    except (ValueError, AttributeError, TypeError):
        return None
    is_sound = isinstance(status.written_ms, int) and all(
        isinstance(report, dict) and {"ledger_id", "checked_ms"} <= report.keys() for report in status.reports
    )
    return status if is_sound else None


class StatusRecord:
    """Status record of this process."""

    def __init__(self, driver: MetadataDriver, name: str) -> None:
        self._driver = driver
        self._name = PREFIX + record_name(name)
        self._version = 0

    async def write(self, data: bytes) -> None:
        """Write the record, and create it if necessary. Raises `MetadataError`."""
        try:
            if self._version:
                self._version = await self._driver.write_record(self._name, data, self._version)
                return
            self._version = await self._driver.create_record(self._name, data)
        except (RecordExists, VersionConflict):
            _, version = await self._driver.read_record(self._name)  # an earlier one of ours, or the reply was lost
            self._version = await self._driver.write_record(self._name, data, version)
        except RecordNotFound:
            self._version = 0

    async def delete(self) -> None:
        """Delete the record, if it exists. Raises `MetadataError`."""
        try:
            _, version = await self._driver.read_record(self._name)
            await self._driver.delete_record(self._name, version)
        except RecordNotFound:
            pass  # Another process has removed it.


async def remove_old(driver: MetadataDriver, now_ms: int) -> None:
    """Remove records older than `REMOVED_MS`, and unreadable ones. Raises `MetadataError`."""
    for name in await driver.record_names(PREFIX):
        try:
            data, version = await driver.read_record(name)
            status = parse(data)
            if status is None or now_ms - status.written_ms > REMOVED_MS:
                await driver.delete_record(name, version)
        except (RecordNotFound, VersionConflict):
            continue


def record_name(name: str) -> str:
    """Return the name of a process as part of a record's name: disallowed characters become `_` and their number."""
    return "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "-.") else f"_{ord(letter):x}" for letter in name
    )


def report_facts(report: LedgerReport) -> dict[str, Any]:
    """Return a report as JSON values."""
    return {
        "ledger_id": report.ledger_id,
        "state": report.state.value,
        "fewest_replicas": report.fewest,
        **problem_facts(report.waits, report.losses),
        "since_ms": report.since_ms,
        "checked_ms": report.checked_ms,
        "next_ms": report.next_ms,
        "tries": report.tries,
    }


def problem_facts(waits: Sequence[Wait], losses: Sequence[Loss]) -> dict[str, Any]:
    """Return the waits and losses of a ledger as JSON values."""
    return {
        "waits": [
            {"for": wait.cause.value, "first": wait.first, "last": wait.last, "bookie": wait.bookie, "why": wait.reason}
            for wait in waits
        ],
        "losses": [
            {
                "first": loss.first,
                "last": loss.last,
                "step": loss.step,
                "others_have": loss.left,
                "evidence": dict(loss.evidence),
            }
            for loss in losses
        ],
    }


def lost_entries(loss: Mapping[str, Any]) -> str:
    """Return the entries of one of the losses of `problem_facts`, or of another version's, as text."""
    step = loss.get("step", 1)
    return f"entries {loss['first']:,} to {loss['last']:,}{f', one in {step},' if step > 1 else ''}"


def pass_facts(report: PassReport) -> dict[str, Any]:
    """Return a pass of the auditor as JSON values."""
    return {
        "checks": list(report.checks),
        "began_ms": report.began_ms,
        "ended_ms": report.ended_ms,
        "ledgers": report.ledgers,
        "marked": report.marked,
        "unreadable": report.unreadable,
        "unreadable_ids": list(report.unreadable_ids),
        "facts": dict(report.facts),
    }
