"""What auto-recovery does and cannot do, for people: written by each process that takes part, read by whoever asks.

Every process keeps one named record, `autorecovery/NAME`, with what its auditor and its worker did last and a report
for each ledger that it could not repair. The record goes when the process stops in an orderly way; one that was killed
leaves an old one behind, which counts no more after `STALE_MS` and is removed by the auditor.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

from bookies.errors import RecordExists, RecordNotFound, VersionConflict
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.recovery_store import AuditKind, Mark
from bookies.model import BookieId
from bookies.protocol.repair.repair_work import Loss, Wait
from bookies.replication.auditor.auditor import PassReport
from bookies.replication.repair.worker import LedgerReport

PREFIX = "autorecovery/"
STALE_MS = 600_000  # since a process wrote its record last
REMOVED_MS = 86_400_000  # then nobody wants to know of it any more
SIZE_MAX = 512 * 1024  # bytes of one record; further reports are left out, and counted


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """One process that takes part, as it says itself.

    `written_ms`: when, wall clock. `tasks`: what each does, how often it was started, and why the last time.
    `auditor`: its passes, if it was the auditor. `reports`: ledgers that it could not repair. `lost`: bookies that
    counted as lost when it wrote this.
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


@dataclass(frozen=True, slots=True)
class RecoveryStatus:
    """A cluster's auto-recovery. `marked`: ledgers; `locks`: ledger -> who works on it; `checked_ms`: by kind.

    `stuck`: ids of marked ledgers that a process could not repair, each once. `gone`: names of processes that have left
    a record, and whose session with the store has ended: they died, or cannot reach it.
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


async def read_status(driver: MetadataDriver, now_ms: int) -> RecoveryStatus:
    """Ask the store. Raises `MetadataError`."""
    store = driver.recovery
    processes = [each for each in await read_processes(driver) if now_ms - each.written_ms < STALE_MS]
    reported = latest_reports(processes)
    marked, stuck = 0, list[int]()
    async for ids in store.marked_ids():
        marked += len(ids)
        stuck += [ledger_id for ledger_id in ids if ledger_id in reported]
    living = {each.name for each in _living(processes, await store.candidates())}
    return RecoveryStatus(
        await store.is_enabled(),
        await store.auditor(),
        await store.lost_bookie_delay_s(),
        marked,
        await store.locks(),
        {kind.value: await store.checked_at_ms(kind) for kind in AuditKind},
        processes,
        stuck,
        [each.name for each in processes if each.name not in living],
    )


async def read_processes(driver: MetadataDriver) -> list[ProcessStatus]:
    """What every process has written last, however long ago. Raises `MetadataError`."""
    found = []
    for name in await driver.record_names(PREFIX):
        try:
            data, _ = await driver.read_record(name)
        except RecordNotFound:
            continue  # It has just stopped.
        if (status := parse(data)) is not None:
            found.append(status)
    return found


async def witnesses(driver: MetadataDriver) -> list[ProcessStatus]:
    """Processes that take part now: their sessions live, so what they have written is what they know, but for the
    seconds between two writings. Raises `MetadataError`."""
    processes = await read_processes(driver)
    return _living(processes, await driver.recovery.candidates())


def taken_for_lost(mark: Mark | None, processes: Iterable[ProcessStatus]) -> list[BookieId]:
    """Bookies that others take for lost, perhaps: a ledger's mark names them, or these processes say so. Each once."""
    named = () if mark is None else mark.replicas
    return list(dict.fromkeys([*named, *(each for process in processes for each in process.lost)]))


def _living(processes: Sequence[ProcessStatus], standing: Collection[BookieId]) -> list[ProcessStatus]:
    """Those that stand for auditor. Of several with the same id, on other hosts, only the last to write does."""
    latest = {each.bookie: each for each in sorted(processes, key=lambda each: each.written_ms)}
    return [each for each in processes if each.bookie in standing and latest[each.bookie] is each]


async def reports_on(driver: MetadataDriver, ledger_id: int) -> list[tuple[ProcessStatus, Mapping[str, Any]]]:
    """What processes say of a ledger that they could not repair, the latest first. Raises `MetadataError`."""
    found = [
        (process, report)
        for process in await read_processes(driver)
        for report in process.reports
        if report["ledger_id"] == ledger_id
    ]
    return sorted(found, key=lambda each: -each[1]["checked_ms"])


def latest_reports(processes: Iterable[ProcessStatus]) -> dict[int, Mapping[str, Any]]:
    """Of each ledger that could not be repaired what was said of it last, by ascending id."""
    reports = sorted((each for process in processes for each in process.reports), key=lambda each: each["checked_ms"])
    return dict(sorted({report["ledger_id"]: report for report in reports}.items()))


def pack(status: ProcessStatus) -> bytes:
    """As JSON, with as many reports as fit."""
    facts = {name: getattr(status, name) for name in ProcessStatus.__slots__}
    reports, size = [], len(json.dumps({**facts, "reports": []}))
    for report in status.reports:
        size += len(json.dumps(report)) + 2
        if size > SIZE_MAX:
            break
        reports.append(report)
    return json.dumps({**facts, "reports": reports, "reports_omitted": len(status.reports) - len(reports)}).encode()


def parse(data: bytes) -> ProcessStatus | None:
    """None: it says nothing that we understand."""
    try:
        facts = json.loads(data)
        names = [each.name for each in fields(ProcessStatus) if each.default is MISSING or each.name in facts]
        status = ProcessStatus(**{name: facts[name] for name in names} | {"lost": tuple(facts.get("lost", ()))})
    except (ValueError, KeyError, TypeError):
        return None
    is_sound = isinstance(status.written_ms, int) and all(
        isinstance(each, dict) and {"ledger_id", "checked_ms"} <= each.keys() for each in status.reports
    )
    return status if is_sound else None


class StatusRecord:
    """This process's own record."""

    def __init__(self, driver: MetadataDriver, name: str) -> None:
        self._driver = driver
        self._name = PREFIX + record_name(name)
        self._version = 0

    async def write(self, data: bytes) -> None:
        """Raises `MetadataError`."""
        try:
            if self._version:
                self._version = await self._driver.write_record(self._name, data, self._version)
                return
            self._version = await self._driver.create_record(self._name, data)
        except (RecordExists, VersionConflict):
            _, version = await self._driver.read_record(self._name)  # of our own, before, or with its reply lost
            self._version = await self._driver.write_record(self._name, data, version)
        except RecordNotFound:
            self._version = 0

    async def delete(self) -> None:
        """Raises `MetadataError`."""
        try:
            _, version = await self._driver.read_record(self._name)
            await self._driver.delete_record(self._name, version)
        except RecordNotFound:
            pass  # Somebody has tidied up.


async def remove_old(driver: MetadataDriver, now_ms: int) -> None:
    """Remove what processes have left behind that are gone for long. Raises `MetadataError`."""
    for name in await driver.record_names(PREFIX):
        try:
            data, version = await driver.read_record(name)
            status = parse(data)
            if status is None or now_ms - status.written_ms > REMOVED_MS:
                await driver.delete_record(name, version)
        except (RecordNotFound, VersionConflict):
            continue


def record_name(name: str) -> str:
    """The name of a process as part of a record's name: what is not allowed there as `_` and its number."""
    return "".join(each if each.isascii() and (each.isalnum() or each in "-.") else f"_{ord(each):x}" for each in name)


def report_facts(report: LedgerReport) -> dict[str, Any]:
    """A report as JSON takes it."""
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
    """What a ledger waits for, and what it has lost, as JSON takes it."""
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
    """Which entries one of the losses of `problem_facts`, or of another version's, is about."""
    step = loss.get("step", 1)
    return f"entries {loss['first']:,} to {loss['last']:,}{f', one in {step},' if step > 1 else ''}"


def pass_facts(report: PassReport) -> dict[str, Any]:
    """A pass of the auditor as JSON takes it."""
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
