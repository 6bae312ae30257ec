"""What auto-recovery keeps in ZooKeeper, through Apache's own tools: they see what we write, and we what they write."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from tests.apache.test_migration import done, shell
from tests.apache.zookeeper import zookeeper_server

from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.recovery_store import AuditKind
from bookies.metadata.uri import connect
from bookies.model import BookieId
from bookies.runtime import aio

pytestmark = pytest.mark.apache
A, B = BookieId("bk-a:3181"), BookieId("bk-b:3181")
IDS = [5, 12_345_678, (1 << 32) + 1]


@contextlib.asynccontextmanager
async def driver_at(uri: str) -> AsyncIterator[MetadataDriver]:
    driver = connect(uri, aio.runtime())
    await driver.open()
    try:
        yield driver
    finally:
        await driver.close()


def play(
    folder: pathlib.Path, body: Callable[[str, MetadataDriver, Callable[..., Awaitable[str]]], Awaitable[None]]
) -> None:
    with zookeeper_server(folder) as server:
        uri = f"zk+hierarchical://{server.address}/ledgers"
        done("metadata", "init", "--metadata", uri)

        async def java(*words: str) -> str:
            return await asyncio.to_thread(shell, folder, uri, *words)

        async def main() -> None:
            async with driver_at(uri) as driver:
                await body(uri, driver, java)

        aio.run(main())


def test_apaches_tools_see_what_we_write(tmp_path: pathlib.Path) -> None:
    async def body(uri: str, driver: MetadataDriver, java: Callable[..., Awaitable[str]]) -> None:
        recovery = driver.recovery
        for ledger_id in IDS:
            assert await recovery.mark(ledger_id, [A, B], 1_700_000_000_000)
        listed = await java("listunderreplicated", "-printmissingreplica")
        for ledger_id in IDS:
            assert str(ledger_id) in listed.split()
        assert A in listed
        assert "5" not in (await java("listunderreplicated", "-missingreplica", "bk-c:3181")).split()
        assert await recovery.lock(5, "host.example", needs_mark=True) is not None
        worker = await java("listunderreplicated", "-printreplicationworkerid")
        assert "host.example" in worker
        await recovery.campaign(A, lambda: None)
        assert "bk-a" in await java("whoisauditor")
        await recovery.set_lost_bookie_delay_s(77)
        assert "77" in await java("lostbookierecoverydelay", "-get")
        await recovery.disable()
        assert "already disabled" in await java("autorecovery", "-disable")
        await recovery.enable()
        assert "already enabled" in await java("autorecovery", "-enable")

    play(tmp_path, body)


def test_we_see_what_apaches_tools_write(tmp_path: pathlib.Path) -> None:
    async def body(uri: str, driver: MetadataDriver, java: Callable[..., Awaitable[str]]) -> None:
        recovery = driver.recovery
        switched, delayed = asyncio.Event(), asyncio.Event()
        recovery.watch_switch(switched.set)
        recovery.watch_lost_bookie_delay(delayed.set)
        assert await recovery.is_enabled()
        switched.clear()
        await java("autorecovery", "-disable")
        await switched.wait()
        assert not await recovery.is_enabled()
        switched.clear()
        await java("autorecovery", "-enable")
        await switched.wait()
        assert await recovery.is_enabled()
        for _ in range(2):  # the same value is an order to look
            delayed.clear()
            await java("lostbookierecoverydelay", "-set", "55")
            await delayed.wait()
            assert await recovery.lost_bookie_delay_s() == 55
        for kind in AuditKind:
            await recovery.set_checked_at_ms(kind, 1_700_000_000_000)
        await java("forceauditchecks", "-calc", "-ppc", "-rc")
        for kind in AuditKind:
            at_ms = await recovery.checked_at_ms(kind)
            assert at_ms is not None
            assert at_ms > 1_700_000_000_000

    play(tmp_path, body)
