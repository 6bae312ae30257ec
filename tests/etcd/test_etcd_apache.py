"""Apache's etcd driver and ours in one cluster: the same keys and values, and each reads what the other wrote."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from tests.etcd.apache_etcd import ApacheEtcd, apache_etcd
from tests.etcd.server import EtcdServer, etcd_server

from bookies.errors import CookieExists, CookieNotFound, LedgerExists, LedgerNotFound
from bookies.metadata.etcd import EtcdDriver
from bookies.metadata.etcd.etcd_layout import Keys, stop_of
from bookies.metadata.etcd.etcd_port import Get, KeyValue
from bookies.metadata.formats import pack_ledger
from bookies.metadata.uri import connect
from bookies.model import BookieId, BookieInfo, BookieMode, Endpoint, LedgerMetadata, LedgerState
from bookies.runtime import aio

pytestmark = [pytest.mark.etcd, pytest.mark.apache]
PATIENCE_S = 120.0
A, B = BookieId("bk-a:3181"), BookieId("bk-b:3181")
WRITABLE, READ_ONLY = BookieMode.WRITABLE, BookieMode.READ_ONLY


def info_of(bookie: BookieId) -> BookieInfo:
    host, _, port = bookie.partition(":")
    return BookieInfo((Endpoint("bookie", host, int(port), "bookie-rpc"),))


@asynccontextmanager
async def driver_of(server: EtcdServer, scope: str) -> AsyncIterator[EtcdDriver]:
    driver = connect(f"etcd://{server.address}{scope}", aio.runtime(), lease_ms=4000)
    assert isinstance(driver, EtcdDriver)
    await driver.open()
    try:
        yield driver
    finally:
        await driver.close()


async def items_of(driver: EtcdDriver, scope: str) -> dict[str, KeyValue]:
    """Below the scope, by the rest of the key."""
    answer = await driver.etcd.transact((), [Get(scope, stop_of(f"{scope}/"))])
    return {item.key.removeprefix(scope): item for item in answer.items[0]}


def play(folder: pathlib.Path, body: Callable[[EtcdServer, ApacheEtcd], Awaitable[None]]) -> None:
    """Apache's in the scope /apache."""
    with etcd_server(folder) as server, apache_etcd(folder, f"etcd://{server.address}/apache") as apache:
        asyncio.run(asyncio.wait_for(body(server, apache), PATIENCE_S))


def test_the_same_operations_write_the_same_bytes(tmp_path: pathlib.Path) -> None:
    async def body(server: EtcdServer, apache: ApacheEtcd) -> None:
        assert apache.do("init") == "true"
        apache.do("connect")
        apache.do("cookie", A, "hello")
        apache.do("register", A, "writable")
        apache.do("register", B, "readonly")
        apache.do("create", 5)
        apache.do("create", (1 << 63) - 1)
        apache.do("close", 5)
        async with driver_of(server, "/ours") as ours:
            await ours.initialize_cluster()
            await ours.create_cookie(A, b"hello")
            await ours.register(A, WRITABLE, info_of(A))
            await ours.register(B, READ_ONLY, info_of(B))
            for ledger_id in (5, (1 << 63) - 1):
                made = await ours.create_ledger(LedgerMetadata(ledger_id, 1, 1, 1, ((0, (A,)),), password=b"p"))
                if ledger_id == 5:
                    end = {"state": LedgerState.CLOSED, "last_entry_id": 9, "length": 99}
                    await ours.write_ledger(made.metadata.replace(**end), made.version)
            there, here = await items_of(ours, "/apache"), await items_of(ours, "/ours")
            assert list(here) == list(there)
            assert here["/instanceid"].value != there["/instanceid"].value
            for key in there:
                if key.startswith("/ledgers/"):  # We say when it was made.
                    ledger_id = Keys("").ledger_id(key)
                    assert ledger_id is not None
                    found = (await ours.read_ledger(ledger_id)).metadata
                    assert pack_ledger(found.replace(ctime_ms=None, stores_ctime=False)) == there[key].value
                elif key != "/instanceid":
                    assert here[key].value == there[key].value, key
                assert bool(here[key].lease) == bool(there[key].lease), key

    play(tmp_path, body)


def test_each_reads_what_the_other_wrote(tmp_path: pathlib.Path) -> None:
    async def body(server: EtcdServer, apache: ApacheEtcd) -> None:
        async with driver_of(server, "/apache") as ours:
            instance_id = await ours.initialize_cluster()
            assert apache.do("init") == "false"
            assert apache.do("instance") == instance_id
            apache.do("connect")
            await ours.create_cookie(A, b"ours")
            assert apache.do("read-cookie", A) == "ours"
            assert apache.do("cookie", B, "theirs") == "written"
            with pytest.raises(CookieExists):
                await ours.create_cookie(B, b"ours")
            assert (await ours.read_cookie(B))[0] == b"theirs"
            assert (await ours.all_bookies()).bookies == (A, B)
            assert apache.do("remove-cookie", A) == "removed"
            with pytest.raises(CookieNotFound):
                await ours.read_cookie(A)
            await check_bookies(ours, apache)
            await check_ledgers(ours, apache)
            assert apache.do("nuke") == "false", "bookies are registered"
            await ours.unregister(A)
            await ours.unregister(B)

    play(tmp_path, body)


async def check_bookies(ours: EtcdDriver, apache: ApacheEtcd) -> None:
    seen: asyncio.Queue[tuple[BookieId, ...]] = asyncio.Queue()
    await ours.register(A, WRITABLE, BookieInfo((Endpoint("bookie", "elsewhere", 1, "bookie-rpc"),), {"k": "v"}))
    assert apache.do("registered", A) == "true"
    assert apache.do("writable") == f"[{A}]"
    ours.watch_bookies(WRITABLE, lambda found: seen.put_nowait(found.bookies))
    assert await seen.get() == (A,)
    assert apache.do("register", B, "writable") == "registered"
    assert await seen.get() == (A, B)
    assert await ours.bookie_info(B) == BookieInfo((Endpoint(B, "bk-b", 3181, "bookie-rpc"),))
    await ours.register(A, READ_ONLY, info_of(A))
    assert await seen.get() == (B,)
    assert apache.do("readonly") == f"[{A}]"
    assert apache.do("register", B, "readonly") == "registered"
    assert await seen.get() == ()
    assert (await ours.bookies(READ_ONLY)).bookies == (A, B)


async def check_ledgers(ours: EtcdDriver, apache: ApacheEtcd) -> None:
    ids = [int(apache.do("id")) for _ in range(130)] + [await ours.next_ledger_id() for _ in range(3)]
    assert len(set(ids)) == 133
    assert min(ids) > 0
    assert int(apache.do("id")) not in ids
    for ledger_id in (7, ids[0]):
        apache.do("create", ledger_id)
        version, text = apache.do("read", ledger_id).split()
        found = await ours.read_ledger(ledger_id)
        assert (found.version, pack_ledger(found.metadata).hex()) == (int(version), text)
        with pytest.raises(LedgerExists):
            await ours.create_ledger(found.metadata)
    made = await ours.create_ledger(LedgerMetadata(8, 1, 1, 1, ((0, (A,)),), password=b"p"))
    assert apache.do("read", 8) == f"{made.version} {pack_ledger(made.metadata).hex()}"
    assert apache.do("create", 8).startswith("error BKLedgerExistException")
    version, _ = apache.do("close", 8).split()
    closed = await ours.read_ledger(8)
    assert (closed.version, closed.metadata.last_entry_id) == (int(version), 9)
    assert closed.metadata.is_closed
    assert closed.metadata.ctime_ms == made.metadata.ctime_ms, "Apache's keep what they find in a record"
    for ledger_id in range(100, 250):
        await ours.create_ledger(LedgerMetadata(ledger_id, 1, 1, 1, ((0, (A,)),)))
    everything = sorted([7, 8, ids[0], *range(100, 250)])
    assert apache.do("list") == str(everything)
    assert [each async for page in ours.ledger_ids() for each in page] == everything
    changed = asyncio.Event()
    ours.watch_ledger(8, lambda _: changed.set())
    apache.do("remove", 8)
    await changed.wait()
    with pytest.raises(LedgerNotFound):
        await ours.read_ledger(8)
    await ours.delete_ledger(7)
    assert apache.do("read", 7).startswith("error BKNoSuchLedgerExists")
