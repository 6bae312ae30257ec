"""Journals that were cut off in places where the pieces look like records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bookies.errors import DiskFull, EntryNotFound, LedgerUnknownToBookie
from bookies.kernels import Records
from bookies.lab.sim.world.disk import NOTHING_SURVIVES, PROCESS_DIES
from bookies.storage.journal import journal_format
from bookies.storage.store import LedgerStore

Body = Callable[..., bytes]
KEY = b"k" * 20
SECTOR = 512
BOTH_INDEXES_BUT: set[str] = set()


def journal(*records: bytes, cut_at: int | None = None) -> bytes:
    """A journal file; from `cut_at` on nothing was written."""
    data = journal_format.pack_header() + b"".join(records)
    return (data[:cut_at] if cut_at is not None else data).ljust(8192, b"\0")


def up_to(position: int, body: Body) -> list[bytes]:
    """Records of ledger 1, with its key, that end exactly at a file offset."""
    key = journal_format.pack_ledger_key(1, KEY)
    size = position - SECTOR - len(key) - len(Records.of([body(1, 0, size=0)]).data)
    return [key, Records.of([body(1, 0, size=size)]).data]


@pytest.mark.parametrize("behind", [1, 3, 5, 11, 12, 13, 19])
@pytest.mark.parametrize("kind", ["entry", "fence", "key", "lac"])
def test_ids_that_were_cut_off_are_nobodys(machine: Any, body: Body, kind: str, behind: int) -> None:
    """The rest of a record lies in a sector that was never written, so its ids read as other ids."""
    ledger_id, entry_id = 0x0102030405060708, 0x33445566
    record = {
        "entry": Records.of([body(ledger_id, entry_id)]).data,
        "fence": journal_format.pack_fence(ledger_id),
        "key": journal_format.pack_ledger_key(ledger_id, KEY),
        "lac": journal_format.pack_explicit_lac(ledger_id, bytes(20)),
    }[kind]
    made = machine()
    data = journal(*up_to(1024 - behind, body), record, cut_at=1024)
    made.disk.put("/journal0/current/5.txn", data)

    async def check(store: LedgerStore, promises: Any) -> None:
        assert list(store.ledger_ids()) == [1]
        assert (await store.read(1, -1))[8:16] == bytes(8)
        with pytest.raises(LedgerUnknownToBookie):
            await store.read(ledger_id, 0)

    assert made.live(check)


def test_a_key_that_was_cut_off_is_not_a_key(machine: Any, body: Body) -> None:
    made = machine()
    data = journal(*up_to(1024 - 30, body), journal_format.pack_ledger_key(9, KEY), cut_at=1024)
    made.disk.put("/journal0/current/5.txn", data)

    async def check(store: LedgerStore, promises: Any) -> None:
        assert list(store.ledger_ids()) == [1]
        await promises.add(store, 9, {0: body(9, 0)})

    assert made.live(check)


def test_the_same_records_complete_are_applied(machine: Any, body: Body) -> None:
    """What is in the last group and crosses sectors is not thrown away because it might be torn."""
    made = machine()
    records = up_to(1024 - 13, body)
    records += [journal_format.pack_ledger_key(9, KEY), *(Records.of([body(9, entry)]).data for entry in range(40))]
    records += [journal_format.pack_fence(1), journal_format.pack_explicit_lac(9, (9).to_bytes(8, "big") + bytes(12))]
    made.disk.put("/journal0/current/5.txn", journal(*records))

    async def check(store: LedgerStore, promises: Any) -> None:
        assert await store.list_entries(9) == [range(40)]
        assert [await store.read(9, entry) for entry in range(40)] == [body(9, entry) for entry in range(40)]
        assert (await store.read_lac(9))[0] == (9).to_bytes(8, "big") + bytes(12)
        assert await promises.is_fenced(store, 1)
        with pytest.raises(EntryNotFound):
            await store.read(9, 40)

    assert made.live(check)


def test_a_process_dies_while_it_starts_and_the_machine_while_the_next_one_does(machine: Any, body: Body) -> None:
    """Names and bytes that the second process finds are not durable for that."""

    async def write(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 1, {entry: body(1, entry) for entry in range(3)})
        await promises.fence(store, 2)

    async def nothing(store: LedgerStore, promises: Any) -> None:
        return None

    for first in range(5, 80, 3):
        for second in range(1 + first % 5, 75, 5):
            made = machine("starts")
            assert made.live(write, stops=False)
            made.crash(PROCESS_DIES)
            if made.live(nothing, crash_at=first, stops=False):
                return
            made.crash(PROCESS_DIES)
            made.live(nothing, crash_at=second, stops=False)
            made.crash(NOTHING_SURVIVES)
            try:
                made.check(lives=1)
            except BaseException as error:
                error.add_note(f"process died at call {first}, machine at call {second}")
                raise


def test_a_torn_end_stays_one_after_a_start_that_a_full_disk_kept_from_its_mark(machine: Any, body: Body) -> None:
    """The mark of that disk is before the torn end, of a journal that is no longer the newest one."""
    made = machine("marks", ledgers=2)
    full = "/ledgers1/current/.lastMark"

    async def write(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 1, {0: body(1, 0)})
        await store.checkpoint()
        for first in (1, 4):
            await promises.add(store, 1, {entry: body(1, entry) for entry in range(first, first + 3)})

    async def start(store: LedgerStore, promises: Any) -> None:
        assert not store.has_unknown_ledgers
        await promises.add(store, 2, {0: body(2, 0)})

    async def check(store: LedgerStore, promises: Any) -> None:
        assert not store.has_unknown_ledgers
        await promises.check(store)
        for ledger_id, missing in ((1, 7), (2, 1)):
            with pytest.raises(EntryNotFound):
                await store.read(ledger_id, missing)

    assert made.live(write, stops=False)
    made.crash(PROCESS_DIES)
    path, data = next((path, data) for path, data in made.disk.files().items() if path.endswith(".txn"))
    made.disk.flip_bit(path, data.rindex(body(1, 6)) + 40)
    del made.promises.acknowledged[1, 6]  # as if the power had failed before
    made.disk.fail("open", full, lambda: DiskFull("no space left on device"), count=1 << 30)
    assert made.live(start, stops=False)
    made.disk.faults.clear()
    marks = [made.disk.read_bytes(f"/ledgers{number}/current/lastMark") for number in (0, 1)]
    assert marks[0] != marks[1]
    made.crash(NOTHING_SURVIVES)
    assert made.live(check)
