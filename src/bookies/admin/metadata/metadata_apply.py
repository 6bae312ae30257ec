"""`bk metadata diff` and `apply`: ledgers' records beside those of a file, changed by compare-and-swap with a reason.

The file is a dump, of all metadata or of some ledgers, perhaps edited. A record is written only over the version that
was compared, under the ledger's lock of auto-recovery. What may lose entries needs the operator's words.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field, to_builtins

from bookies.admin.shared import UsageError
from bookies.admin.shared.common import opened_input, print_json, with_driver
from bookies.admin.shared.operators import operator_name
from bookies.admin.shared.report import Report
from bookies.model import LedgerMetadata

if TYPE_CHECKING:
    from bookies.client.transport.pool import BookiePool
    from bookies.metadata.interface import MetadataDriver
    from bookies.protocol.ledger.operator_change import FieldChange


class Plan(Struct):
    """The meaning of a line of the file for one ledger. `state`: same, changed, deleted (there is no record),
    unreadable or refused. `version`: of the stored record; 0: there is none.
    """

    ledger_id: int
    after: LedgerMetadata | None
    state: str
    version: int = 0
    changes: list[FieldChange] = field(default_factory=list)
    dangers: list[str] = field(default_factory=list)
    problem: str = ""

    @property
    def words(self) -> str:
        """The words by which an operator accepts the dangers."""
        return f"ledger {self.ledger_id} may lose data"

    def facts(self) -> dict[str, object]:
        """Return the plan for JSON."""
        return {
            "ledger": self.ledger_id,
            "state": self.state,
            "version": self.version,
            "differences": to_builtins(self.changes),
            "dangers": self.dangers,
            "problem": self.problem,
        }

    def lines(self) -> Iterator[str]:
        """Yield the plan as text."""
        yield f"ledger {self.ledger_id}: {self.problem or self.state}"
        for change in self.changes:
            yield f"  {change.field:16} {change.before} -> {change.after}"
        for danger in self.dangers:
            yield f"  danger: {danger}"


async def dump_ledgers(driver: MetadataDriver, ledger_ids: Iterable[int], *, passwords: bool) -> int:
    """Print the lines of these ledgers, with the versions of their records. Return 1 if one cannot be read."""
    from bookies.errors import LedgerNotFound, MetadataCorrupt
    from bookies.metadata.dump_format import FORMAT, pack_item
    from bookies.metadata.transfer import Damaged

    lines: list[dict[str, Any]] = [
        {"kind": "cluster", "format": FORMAT, "instance_id": await driver.instance_id(), "from": driver.uri}
    ]
    status = 0
    for ledger_id in ledger_ids:
        try:
            stored = await driver.read_ledger(ledger_id)
            lines.append({**pack_item(stored.metadata, passwords=passwords), "version": stored.version})
        except MetadataCorrupt as error:
            lines.append(pack_item(Damaged(ledger_id, error.message), passwords=False))
            status = 1
        except LedgerNotFound as error:
            raise UsageError(f"{error}; `bk ledger list` lists the ledgers") from error
    for line in [*lines, {"kind": "end", "lines": len(lines) + 1}]:
        print_json(line)
    return status


def _chosen(arguments: argparse.Namespace) -> tuple[str | None, list[dict[str, Any]]]:
    """Return (the dump's instance id, the lines of the chosen ledgers). Raises `UsageError`, `InvalidArgument`."""
    from bookies.errors import InvalidArgument
    from bookies.metadata.dump_format import parse_line

    path = None if arguments.file == "-" else arguments.file
    with opened_input(path, "nothing was changed") as descriptor, open(descriptor, "rb", closefd=False) as file:
        try:
            lines = [parse_line(text.decode("utf-8")) for text in file if text.strip()]
        except UnicodeDecodeError as error:
            raise UsageError(f"{arguments.file} is not a dump: it is not text ({error})") from error
    instance_id = next((line.get("instance_id") for line in lines if line["kind"] == "cluster"), None)
    ledgers = {}
    for line in lines:
        if line["kind"] == "ledger":
            if type(ledger_id := line.get("ledger")) is not int:
                raise InvalidArgument(f"{ledger_id!r} is not a ledger id")
            ledgers[ledger_id] = line
    wanted = list(dict.fromkeys(arguments.ledgers or ledgers))
    missing = [ledger_id for ledger_id in wanted if ledger_id not in ledgers]
    if missing or not wanted:
        names = f"ledger {missing[0]}" if missing else "any ledger"
        raise UsageError(f"{arguments.file} has no line of {names}: `bk metadata dump LEDGER` writes one")
    return instance_id, [ledgers[ledger_id] for ledger_id in wanted]


async def _plan(driver: MetadataDriver, line: Mapping[str, Any]) -> Plan:
    """Compare a line with the stored record. Raises `InvalidArgument` for a line that is no record."""
    from bookies.errors import LedgerNotFound, MetadataCorrupt
    from bookies.metadata.dump_format import pack_bytes, parse_item
    from bookies.protocol.ledger.operator_change import dangers, field_changes, refusal

    ledger_id = line["ledger"]
    try:
        stored = await driver.read_ledger(ledger_id)
    except LedgerNotFound:
        after = _record(parse_item(line))
        texts = [] if after.is_closed else ["it was not closed when it was dumped: later fragments are missing"]
        return _new(Plan(ledger_id, after, "deleted", dangers=texts), after)
    except MetadataCorrupt as error:
        after = _record(parse_item(line))
        texts = ["the stored record cannot be compared: a later version of bookies may have written it"]
        plan = Plan(ledger_id, after, "unreadable", error.version or 0, dangers=texts, problem=error.message)
        return _new(plan, after)
    before = stored.metadata
    if line.get("password") is None and before.password is not None:
        line = {**line, "password": pack_bytes(before.password)}  # left out by the dump: it stays
    after = _record(parse_item(line)).replace(creator_token=0)
    if before.ctime_ms is not None and after.ctime_ms is None:
        after = after.replace(ctime_ms=before.ctime_ms)
    changes = field_changes(before, after)
    plan = Plan(ledger_id, after, "changed" if changes else "same", stored.version, changes)
    if changes:
        plan.dangers, plan.problem = dangers(before, after), refusal(before, after)
        expected = line.get("version")
        if not plan.problem and expected not in (None, stored.version):
            plan.problem = (
                f"its record has changed since it was dumped (version {expected}, now {stored.version}): dump it again"
            )
        plan.state = "refused" if plan.problem else plan.state
    return plan


def _new(plan: Plan, after: LedgerMetadata) -> Plan:
    """Return the plan of a record that is created; refused if no client can use the record."""
    from bookies.protocol.ledger.operator_change import refusal

    if problem := refusal(after, after):
        plan.state, plan.problem = "refused", problem
    return plan


def _record(item: object) -> LedgerMetadata:
    assert isinstance(item, LedgerMetadata)  # of a line of kind ledger
    return item


async def compare(arguments: argparse.Namespace) -> Report:
    """Report the differences. The status is 1 if there are any."""
    return await with_driver(_uri(arguments), lambda driver: _compare(driver, arguments))


def _uri(arguments: argparse.Namespace) -> str:
    from bookies.admin.shared.common import metadata_uri

    return metadata_uri(arguments)


async def _plans(driver: MetadataDriver, arguments: argparse.Namespace) -> list[Plan]:
    instance_id, lines = _chosen(arguments)
    own = await driver.instance_id()
    if instance_id is None:
        raise UsageError(f"{arguments.file} does not name its cluster: keep the first line of the dump")
    if instance_id != own:
        raise UsageError(f"{arguments.file} is a dump of cluster {instance_id}, and {driver.uri} is {own}")
    return [await _plan(driver, line) for line in lines]


async def _compare(driver: MetadataDriver, arguments: argparse.Namespace) -> Report:
    plans = await _plans(driver, arguments)
    return _report(plans, [], status=int(any(plan.state != "same" for plan in plans)))


def _report(plans: list[Plan], changed: list[int], *, status: int, remarks: Iterable[str] = ()) -> Report:
    shown = [plan for plan in plans if plan.state != "same"]
    same = len(plans) - len(shown)
    text = [line for plan in shown for line in plan.lines()]
    text += [f"{same:,} {'ledger is' if same == 1 else 'ledgers are'} the same"] if same else []
    facts = {"ledgers": [plan.facts() for plan in shown], "same": same, "changed": changed}
    return Report(facts, text, status, remarks)


async def apply(arguments: argparse.Namespace) -> Report:
    """Write the records of the file over those that differ. Raises `UsageError`, `InvalidArgument`, `MetadataError`."""
    from bookies.metadata.shared.change_log import check_reason

    check_reason(arguments.reason)
    return await with_driver(_uri(arguments), lambda driver: _apply(driver, arguments))


async def _apply(driver: MetadataDriver, arguments: argparse.Namespace) -> Report:
    from bookies.client.connect import connect

    plans = await _plans(driver, arguments)
    if created := [plan for plan in plans if plan.state in ("deleted", "unreadable")]:
        async with connect(_uri(arguments)) as client:
            for plan in created:
                assert plan.after is not None
                plan.dangers += await unshown_ends(client.administration().access.pool, plan.after)
    remarks: list[str] = []
    for plan in plans:
        if plan.state == "refused":
            remarks.append(f"bk metadata: ledger {plan.ledger_id}: {plan.problem}")
        elif plan.dangers and plan.words not in arguments.accept:
            remarks.append(f'bk metadata: to accept the dangers of ledger {plan.ledger_id}: --accept "{plan.words}"')
    if arguments.dry_run or remarks:
        remarks.append("bk metadata: nothing was changed")
        return _report(plans, [], status=int(len(remarks) > 1), remarks=remarks)
    changed = []
    for plan in plans:
        if plan.state != "same":
            await write_plan(driver, plan, arguments.reason)
            changed.append(plan.ledger_id)
    return _report(
        plans,
        changed,
        status=0,
        remarks=[f"bk metadata: changed {len(changed):,} {'record' if len(changed) == 1 else 'records'}"],
    )


async def unshown_ends(pool: BookiePool, record: LedgerMetadata) -> list[str]:
    """Return the fragments of a closed ledger whose last entry no bookie shows, with the reasons. It may have been
    deleted on the bookies, or never have existed. Raises `MetadataError`, `ClientClosed`.
    """
    from bookies.errors import BookKeeperError, ClientClosed, MetadataError
    from bookies.protocol.quorums.quorum import write_set
    from bookies.protocol.repair.fragments import fragments_to_check

    texts = []
    for fragment in fragments_to_check(record, -1) if record.is_closed else ():
        reasons = []
        for position in write_set(fragment.last, len(fragment.ensemble), fragment.write_quorum):
            bookie = fragment.ensemble[position]
            try:
                await pool.read_entry(bookie, record.ledger_id, fragment.last)
                break
            except (ClientClosed, MetadataError):
                raise
            except BookKeeperError as error:
                reasons.append(f"{bookie}: {error.message}")
        else:
            entries = f"entries {fragment.first} to {fragment.last}: no bookie shows the last one"
            texts.append(f"{entries} ({'; '.join(reasons)})")
    return texts


async def write_plan(driver: MetadataDriver, plan: Plan, reason: str) -> None:
    """Note the change, then make it. Raises `LedgerLocked`, `VersionConflict`, `LedgerExists`, `MetadataError`."""
    from bookies.client.base.ledger_lock import ledger_locked
    from bookies.metadata.shared.change_log import note_change
    from bookies.metadata.transfer import carried
    from bookies.runtime import aio

    assert plan.after is not None
    now_ms, by = aio.runtime().clock.wall_ms(), operator_name()
    differences: list[dict[str, str]] = to_builtins(plan.changes)
    async with ledger_locked(driver, plan.ledger_id, by) as lock:
        await note_change(driver, now_ms, by, reason, f"ledger {plan.ledger_id}", differences)
        if plan.state == "changed":
            await driver.write_ledger(plan.after, plan.version, lock)
        elif plan.state == "unreadable":
            await driver.write_ledger(carried(plan.after), plan.version, lock)
        else:
            await _create_again(driver, carried(plan.after))


async def _create_again(driver: MetadataDriver, record: LedgerMetadata) -> None:
    """Create the record of a deleted ledger. If that fails, spend its id again: bookies may hold its entries."""
    from bookies.errors import BookKeeperError, LedgerNotFound, MetadataCorrupt, MetadataError
    from bookies.metadata.interface.driver import GivenIds

    ledger_id = record.ledger_id
    await driver.unspend_id(ledger_id)
    try:
        await driver.create_ledger(record)
    except BaseException as error:
        try:
            await driver.read_ledger(ledger_id)
        except MetadataCorrupt:
            pass  # Another client has created it.
        except LedgerNotFound:
            await driver.restore_ids(GivenIds(0, ((ledger_id, ledger_id),)))
        except BookKeeperError as unknown:
            raise MetadataError(
                f"ledger {ledger_id} may not have a record, and clients could use its id: repeat the command ({error}; "
                f"{unknown})"
            ) from error
        raise


async def changes(driver: MetadataDriver, arguments: argparse.Namespace) -> Report:
    """Report the operators' changes, the oldest first."""
    from bookies.admin.shared.common import time_text
    from bookies.metadata.shared.change_log import read_changes

    lines = await read_changes(driver)
    text = []
    for line in lines:
        text.append(f"{time_text(line['at_ms'])}  {line['by']}  {line['what']}: {line['reason']}")
        text += [f"  {row['field']:16} {row['before']} -> {row['after']}" for row in line["differences"]]
        text += [f"  and {line['omitted']:,} more"] if line["omitted"] else []
    return Report(lines, text)
