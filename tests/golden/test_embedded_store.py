"""Databases of the embedded store: the rows are those that earlier versions wrote, and both continue with the other's.

The files in `metadata/embedded` are dumps of a database. The revision before the store's port had the tables wrote them
with the same two functions: `begin` from nothing, then `go_on`.
"""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import sqlite3
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from bookies.errors import LedgerExists
from bookies.metadata.embedded import EmbeddedDriver
from bookies.metadata.interface.driver import LedgerAt, LedgerDeletion, RecordAt, RecordWrite
from bookies.metadata.interface.recovery_store import AuditKind
from bookies.model import BookieId, BookieInfo, BookieMode, Endpoint, LedgerMetadata, LedgerState
from bookies.runtime import aio

DUMPS = pathlib.Path(__file__).parent / "metadata" / "embedded"
A, B, C = (BookieId(name) for name in "abc")
INFO = BookieInfo((Endpoint("bookie", "a.example", 3181, "bookie-rpc"),), {"rack": "r1"})
_PRAGMAS = ("user_version", "application_id")  # which a dump lacks


class FixedClock:
    """A clock that stands still."""

    def wall_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


def ledger(ledger_id: int) -> LedgerMetadata:
    return LedgerMetadata(ledger_id, 2, 2, 1, ((0, (A, B)),), creator_token=ledger_id + 1)


async def begin(driver: EmbeddedDriver) -> None:
    await driver.initialize_cluster()
    for bookie in (A, B, C):
        await driver.create_cookie(bookie, b"cookie of " + bookie.encode())
    await driver.delete_cookie(C, (await driver.read_cookie(C))[1])
    await driver.write_cookie(A, b"another cookie", (await driver.read_cookie(A))[1])
    for _ in range(6):
        await driver.create_ledger(ledger(await driver.next_ledger_id()))
    await driver.create_ledger(ledger((1 << 62) + 1))
    stored = await driver.read_ledger(0)
    closed = stored.metadata.replace(state=LedgerState.CLOSED, last_entry_id=3, length=40)
    await driver.write_ledger(closed, stored.version)
    await driver.delete_ledger(1)
    await driver.delete_ledger(3, (await driver.read_ledger(3)).version)
    version = await driver.create_record("logs/orders", b"[0, 2]")
    await driver.create_record("logs/sales", b"[4]")
    steps = [
        RecordWrite("logs/orders", b"[0]", version),
        RecordWrite("cursors/orders", b"0", 0),
        RecordAt("logs/other", 0),
        LedgerDeletion(4, (await driver.read_ledger(4)).version),
        LedgerAt(0, (await driver.read_ledger(0)).version),
    ]
    await driver.transact(steps)
    await driver.register(A, BookieMode.WRITABLE, INFO)
    await driver.register(B, BookieMode.WRITABLE, BookieInfo())
    await driver.register(B, BookieMode.READ_ONLY, BookieInfo())
    await driver.register(B, BookieMode.READ_ONLY, BookieInfo())
    recovery = driver.recovery
    for ledger_id in (0, 2):
        await recovery.mark(ledger_id, [A], 1_700_000_000_000)
    await recovery.mark(0, [B], None)
    assert await recovery.lock(0, "a.example", needs_mark=True) is not None
    await recovery.disable()
    await recovery.set_lost_bookie_delay_s(30)
    await recovery.set_checked_at_ms(AuditKind.PLACEMENT, 1_700_000_000_000)


async def go_on(driver: EmbeddedDriver) -> None:
    assert [ledger_id async for page in driver.ledger_ids() for ledger_id in page] == [0, 2, 5, (1 << 62) + 1]
    assert (await driver.bookies(BookieMode.WRITABLE)).bookies == (A,)
    assert (await driver.bookies(BookieMode.READ_ONLY)).bookies == (B,)
    assert await driver.bookie_info(A) == INFO
    assert await driver.record_names("logs/") == ["logs/orders", "logs/sales"]
    with pytest.raises(LedgerExists, match="deleted"):
        await driver.create_ledger(ledger(4))
    await driver.create_ledger(ledger(await driver.next_ledger_id()))
    stored = await driver.read_ledger(5)
    await driver.write_ledger(stored.metadata.replace(state=LedgerState.IN_RECOVERY), stored.version)
    await driver.delete_ledger(2)
    await driver.delete_record("logs/sales", (await driver.read_record("logs/sales"))[1])
    await driver.register(C, BookieMode.WRITABLE, BookieInfo())
    recovery = driver.recovery
    assert await recovery.locks() == {0: "a.example"}
    assert await recovery.lock(0, "b.example", needs_mark=True) is None
    lock = await recovery.lock(2, "b.example", needs_mark=True)
    assert lock is not None
    assert await recovery.done(lock)
    await recovery.enable()
    await recovery.mark(5, [A, B], None)


def database(directory: pathlib.Path, dump: str | None) -> None:
    if dump is None:
        return
    with contextlib.closing(sqlite3.connect(directory / "metadata.db")) as connection:
        connection.executescript((DUMPS / dump).read_text("ascii"))


def dump_of(directory: pathlib.Path) -> str:
    with contextlib.closing(sqlite3.connect(directory / "metadata.db")) as connection:
        pragmas = [f"PRAGMA {name} = {connection.execute(f'PRAGMA {name}').fetchone()[0]};" for name in _PRAGMAS]
        return "\n".join([*pragmas, *connection.iterdump(), ""])


def dump_after(directory: pathlib.Path, work: Callable[[EmbeddedDriver], Awaitable[None]]) -> str:
    """Return the database as it is before the session ends."""

    async def main() -> str:
        runtime = replace(aio.runtime(seed=1), clock=FixedClock())
        driver = EmbeddedDriver(str(directory), runtime, lease_ms=10_000)
        await driver.open()
        try:
            await work(driver)
            return dump_of(directory)
        finally:
            await driver.close()

    return asyncio.run(main())


def test_a_new_database_has_the_same_rows(tmp_path: pathlib.Path) -> None:
    assert dump_after(tmp_path, begin) == (DUMPS / "begun.sql").read_text("ascii")


def test_an_earlier_database_goes_on_with_the_same_rows(tmp_path: pathlib.Path) -> None:
    database(tmp_path, "begun.sql")
    assert dump_after(tmp_path, go_on) == (DUMPS / "went-on.sql").read_text("ascii")
