"""The records in which processes say what they do and what they cannot do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from bookies.client.turns.lease import ELECTIONS
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.embedded.memory import MemoryStore
from bookies.metadata.interface.driver import check_record
from bookies.model import BookieId
from bookies.protocol.log.lease import LeaseQueue, Participant, pack_queue
from bookies.protocol.repair.repair_work import Cause, Loss, RepairState, Wait
from bookies.replication.operator import status as module
from bookies.replication.operator.status import (
    HOUSEKEEPING,
    PREFIX,
    REMOVED_MS,
    STALE_MS,
    ProcessStatus,
    StatusRecord,
    latest_reports,
    pack,
    parse,
    read_processes,
    read_status,
    record_name,
    remove_old,
    report_facts,
    reports_on,
    witnesses,
)
from bookies.replication.repair.worker import LedgerReport

NOW_MS = 1_700_000_000_000
B1, B2, B3 = BookieId("b1:3181"), BookieId("b2:3181"), BookieId("b3:3181")


def report(ledger_id: int, checked_ms: int = NOW_MS) -> LedgerReport:
    return LedgerReport(
        ledger_id,
        RepairState.LOST,
        0,
        (Wait(Cause.TARGET, 0, 9, None, "none of the 3 writable bookies will do"),),
        (Loss(4, 4, ((B1, "no such entry"),)),),
        NOW_MS - 1000,
        checked_ms,
        None,
        2,
    )


def process(
    name: str = "b1:3181@host", *reports: LedgerReport, written_ms: int = NOW_MS, bookie: BookieId = B1
) -> ProcessStatus:
    tasks = [{"task": "worker", "doing": "waiting", "starts": 1, "failures": 0, "error": None}]
    facts = [report_facts(each) for each in reports]
    return ProcessStatus(name, bookie, written_ms, tasks, [], {"waiting": 1}, facts, lost=(B3,))


def on_store(body: Callable[[MemoryDriver], Awaitable[None]]) -> None:
    async def run() -> None:
        driver = MemoryDriver(MemoryStore())
        await driver.open()
        try:
            await body(driver)
        finally:
            await driver.close()

    asyncio.run(run())


def test_what_is_written_is_read() -> None:
    before = process("x", report(7), report(8))
    assert parse(pack(before)) == before


def test_a_process_of_an_earlier_version_does_not_say_what_is_lost() -> None:
    facts = json.loads(pack(process("x", report(7))))
    del facts["lost"]
    assert parse(json.dumps(facts).encode()) == replace(process("x", report(7)), lost=())


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"name": 1}', b"\xff", pack(process()).replace(b"written_ms", b"x")]
)
def test_what_somebody_else_wrote_says_nothing(data: bytes) -> None:
    assert parse(data) is None


def test_reports_that_do_not_fit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIZE_MAX", 5_000)
    data = pack(process("x", *(report(number) for number in range(100))))
    found = parse(data)
    assert len(data) < 5_100
    assert found is not None
    assert 5 < len(found.reports) < 20
    assert len(found.reports) + found.reports_omitted == 100


@pytest.mark.parametrize("name", ["b1:3181@host.example", "[::1]:3181@h", "ä b/c", "plain-1.2", "a_b"])
def test_any_name_is_a_part_of_the_name_of_a_record(name: str) -> None:
    check_record(PREFIX + record_name(name))
    assert "/" not in record_name(name)


def test_different_names_have_different_records() -> None:
    assert len({record_name(name) for name in ("a_3a", "a:", "a_", "a-")}) == 4


def test_a_process_keeps_one_record_whatever_was_there() -> None:
    async def body(driver: MemoryDriver) -> None:
        record = StatusRecord(driver, "b1:3181")
        for count in (1, 2):
            await record.write(pack(process("b1:3181", report(count))))
        again = StatusRecord(driver, "b1:3181")  # it was killed, and has started again
        await again.write(pack(process("b1:3181", report(3))))
        [found] = await read_processes(driver)
        assert [each["ledger_id"] for each in found.reports] == [3]
        await record.write(pack(process("b1:3181", report(4))))
        await again.delete()
        await again.delete()
        assert await read_processes(driver) == []
        await record.write(b"gone")  # somebody has tidied up: the next one makes it again
        await record.write(pack(process("b1:3181", report(5))))
        assert len(await read_processes(driver)) == 1

    on_store(body)


def test_the_whole_of_it() -> None:
    async def body(driver: MemoryDriver) -> None:
        store = driver.recovery
        await store.mark(7, [B1], NOW_MS)
        await store.mark(8, [B1], NOW_MS)
        await store.set_lost_bookie_delay_s(60)
        lock = await store.lock(7, "host", needs_mark=True)
        assert lock is not None
        await StatusRecord(driver, "one").write(pack(process("one", report(8))))
        await StatusRecord(driver, "old").write(pack(process("old", report(8), written_ms=NOW_MS - STALE_MS)))
        found = await read_status(driver, NOW_MS)
        assert (found.is_enabled, found.auditor, found.lost_bookie_delay_s, found.marked) == (True, None, 60, 2)
        assert found.locks == {7: "host"}
        assert [each.name for each in found.processes] == ["one"]
        assert (found.stuck, found.gone, found.housekeeper) == ([8], ["one"], None)
        queue = LeaseQueue(3, (Participant("i", 1, 1, 60_000, "b2"), Participant("j", 2, 1, 60_000, "b3")))
        await driver.create_record(f"{ELECTIONS}{HOUSEKEEPING}", pack_queue(queue))
        assert (await read_status(driver, NOW_MS)).housekeeper == "b2"

    on_store(body)


def test_a_ledger_that_several_could_not_repair_counts_once_and_while_it_is_marked() -> None:
    async def body(driver: MemoryDriver) -> None:
        for ledger_id in (7, 8):
            await driver.recovery.mark(ledger_id, [B1], NOW_MS)
        for name, checked_ms in (("one", NOW_MS - 5), ("two", NOW_MS), ("three", NOW_MS - 9)):
            reports = [report(8, checked_ms), report(9, checked_ms)]
            await StatusRecord(driver, name).write(pack(process(name, *reports)))
        found = await read_status(driver, NOW_MS)
        assert found.stuck == [8]
        assert {each: facts["checked_ms"] for each, facts in latest_reports(found.processes).items()} == {
            8: NOW_MS,
            9: NOW_MS,
        }

    on_store(body)


def test_those_whose_session_has_ended_are_gone_and_no_witnesses() -> None:
    async def body(driver: MemoryDriver) -> None:
        for name, bookie, age_ms in (("one", B1, 0), ("two", B2, 5), ("two-before", B2, 9), ("three", B3, 0)):
            status = process(name, written_ms=NOW_MS - age_ms, bookie=bookie)
            await StatusRecord(driver, name).write(pack(status))
        candidacies = [await driver.recovery.campaign(bookie, lambda: None) for bookie in (B1, B2)]
        assert sorted(each.name for each in await witnesses(driver)) == ["one", "two"]
        assert sorted((await read_status(driver, NOW_MS)).gone) == ["three", "two-before"]
        await candidacies[0].resign()
        assert [each.name for each in await witnesses(driver)] == ["two"]
        await candidacies[1].resign()

    on_store(body)


def test_the_latest_report_comes_first() -> None:
    async def body(driver: MemoryDriver) -> None:
        for name, checked_ms in (("one", NOW_MS - 5), ("two", NOW_MS), ("three", NOW_MS - 9)):
            await StatusRecord(driver, name).write(pack(process(name, report(8, checked_ms), report(9))))
        assert [each.name for each, _ in await reports_on(driver, 8)] == ["two", "one", "three"]

    on_store(body)


def test_what_dead_processes_leave_behind_goes_after_a_day() -> None:
    async def body(driver: MemoryDriver) -> None:
        await StatusRecord(driver, "new").write(pack(process("new")))
        await StatusRecord(driver, "old").write(pack(replace(process("old"), written_ms=NOW_MS - REMOVED_MS - 1)))
        await StatusRecord(driver, "strange").write(b"?")
        await remove_old(driver, NOW_MS)
        assert await driver.record_names(PREFIX) == [f"{PREFIX}new"]

    on_store(body)
