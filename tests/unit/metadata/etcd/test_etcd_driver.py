"""The etcd driver on an etcd in memory: Apache's keys, lost answers, ids, bookies, incomplete listings.

What every driver must do is in the conformance suite, which runs on this one too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.fakes.etcd import FakeEtcd, Server

from bookies.errors import (
    LedgerExists,
    LedgerNotFound,
    MetadataCorrupt,
    MetadataError,
    NotSupported,
    VersionConflict,
)
from bookies.metadata.etcd import EtcdDriver
from bookies.metadata.etcd.etcd_port import Delete, OutcomeUnknown, Put
from bookies.metadata.formats import pack_ledger
from bookies.metadata.formats.serde import pack_bookie_info
from bookies.metadata.interface.driver import GivenIds, LedgerDeletion, RecordWrite
from bookies.model import BookieId, BookieInfo, BookieMode, Endpoint, LedgerMetadata, LedgerState
from bookies.runtime import aio

A, B = BookieId("bk-a:3181"), BookieId("bk-b:3181")
INFO = BookieInfo((Endpoint("bookie", "127.0.0.1", 3181, "bookie-rpc"),))
WRITABLE, READ_ONLY = BookieMode.WRITABLE, BookieMode.READ_ONLY


def driver_of(server: Server, scope: str = "/ledgers", **changes: Any) -> EtcdDriver:
    given = {"lease_ms": 2000, **changes}
    return EtcdDriver(f"etcd://fake{scope}", FakeEtcd(server), aio.runtime(seed=1), scope, **given)


def play(body: Callable[[Server, EtcdDriver], Coroutine[Any, Any, None]], *keys: str, **changes: Any) -> None:
    """Run a test on a new server with these keys, with one driver open."""

    async def main() -> None:
        server = Server(*(keys or ("/ledgers",)))
        driver = driver_of(server, **changes)
        async with asyncio.timeout(120):
            await driver.open()
            try:
                await body(server, driver)
            finally:
                await driver.close()

    asyncio.run(main())


def ledger(ledger_id: int, **changes: Any) -> LedgerMetadata:
    return LedgerMetadata(ledger_id, 2, 2, 1, ((0, (A, B)),), **changes)


# -- the cluster ----------------------------------------------------------------------------------------------------


def test_a_new_cluster_has_the_keys_that_apache_makes() -> None:
    async def body(server: Server, driver: EtcdDriver) -> None:
        instance_id = await driver.initialize_cluster()
        assert {key: item.value for key, item in server.items.items()} == {
            "/prod/bk": b"",
            "/prod/bk/layout": b"2\norg.apache.bookkeeper.metadata.etcd.EtcdLedgerManagerFactory:0",
            "/prod/bk/instanceid": instance_id.encode(),
            "/prod/bk/cookies": b"",
            "/prod/bk/bookies": b"",
            "/prod/bk/bookies/writable": b"",
            "/prod/bk/bookies/readonly": b"",
            "/prod/bk/ledgers": b"",
            "/prod/bk/buckets": b"",
            "/prod/bk/underreplication": b"",
        }
        assert len({item.mod_revision for item in server.items.values()}) == 1
        assert [each async for each in driver.ledger_ids()] == []
        assert (await driver.bookies(WRITABLE)).bookies == (await driver.all_bookies()).bookies == ()

    async def main() -> None:
        server = Server()
        driver = driver_of(server, "/prod/bk")
        await driver.open()
        await body(server, driver)
        await driver.close()

    asyncio.run(main())


def test_what_there_is_of_a_cluster_is_completed() -> None:
    async def body(server: Server, driver: EtcdDriver) -> None:
        await driver.initialize_cluster()
        assert server.items["/ledgers"].mod_revision < server.items["/ledgers/instanceid"].mod_revision
        assert len(server.items) == 10

    play(body, "/ledgers", "/ledgers/cookies")


def test_no_new_instance_id_under_bookies_that_have_the_old_one() -> None:
    async def body(server: Server, driver: EtcdDriver) -> None:
        await driver.initialize_cluster()
        await driver.create_cookie(A, b"cookie")
        server.transact((), [Delete("/ledgers/instanceid")], ())
        with pytest.raises(MetadataError, match="no instance id, but cookies of bookies"):
            await driver.initialize_cluster()

    play(body)


def test_a_lost_answer_makes_no_second_cluster() -> None:
    async def body(server: Server, driver: EtcdDriver) -> None:
        server.lost_replies = 1
        made = await driver.initialize_cluster()
        assert server.items["/ledgers/instanceid"].value == made.encode()
        server.transact((), [Delete(key) for key in list(server.items)], ())
        server.lost_requests = 1
        assert await driver.initialize_cluster() != made

    play(body)


def test_clients_make_no_cluster() -> None:
    async def main() -> None:
        server = Server("/ledgers2", "/ledgers2/layout")
        with pytest.raises(MetadataError, match=r"there is no cluster at etcd://fake/ledgers: check the path"):
            await driver_of(server, may_create=False).open()
        with pytest.raises(MetadataCorrupt, match=r"the layout is b'', not b'2.norg.apache"):
            await driver_of(server, "/ledgers2").open()

    asyncio.run(main())


# -- ledgers --------------------------------------------------------------------------------------------------------


def test_a_ledger_is_where_apache_looks_for_it() -> None:
    async def body(server: Server, driver: EtcdDriver) -> None:
        made = await driver.create_ledger(ledger(5, ctime_ms=1234, stores_ctime=True))
        item = server.items["/ledgers/ledgers/00000000-0000-0000-0000-000000000005"]
        assert item.value == pack_ledger(ledger(5, ctime_ms=1234, stores_ctime=True))
        assert made.version == item.mod_revision == server.revision
        await driver.delete_ledger(5)
        assert server.items["/ledgers/spent/000000000000"].value == b"5"

    play(body)


def test_a_record_without_a_time_stays_without() -> None:
    """Apache's have none, unless they are asked to; no time is better than a wrong one."""

    async def body(server: Server, driver: EtcdDriver) -> None:
        key = "/ledgers/ledgers/00000000-0000-0000-0000-000000000005"
        server.transact((), [Put(key, pack_ledger(ledger(5)))], ())
        found = await driver.read_ledger(5)
        assert found.metadata.ctime_ms is None
        await driver.write_ledger(found.metadata, found.version)
        assert server.items[key].value == pack_ledger(ledger(5))

    play(body)


def test_lost_answers_of_ledgers() -> None:
    async def body(server: Server, driver: EtcdDriver) -> None:
        server.lost_replies = 1
        made = await driver.create_ledger(ledger(7, creator_token=5))
        server.lost_requests = 1
        again = await driver.create_ledger(ledger(8, creator_token=5))
        assert made.version < again.version
        changed = made.metadata.replace(state=LedgerState.IN_RECOVERY)
        server.lost_replies = 2
        written = await driver.write_ledger(changed, made.version)
        assert written == await driver.read_ledger(7)
        with pytest.raises(VersionConflict):
            await driver.write_ledger(changed, made.version)
        server.lost_replies = 1
        await driver.delete_ledger(7, written.version)
        with pytest.raises(LedgerExists, match="deleted"):
            await driver.create_ledger(ledger(7))
        server.lost_requests = 9
        for call in (driver.create_ledger(ledger(9)), driver.write_ledger(again.metadata, again.version)):
            with pytest.raises(OutcomeUnknown):
                await call

    play(body)


def test_a_version_that_no_ledger_has() -> None:
    async def body(server: Server, driver: EtcdDriver) -> None:
        with pytest.raises(LedgerNotFound):
            await driver.write_ledger(ledger(7), 0)
        await driver.create_ledger(ledger(7))
        for call in (
            driver.write_ledger(ledger(7), 0),
            driver.delete_ledger(7, 0),
            driver.transact([LedgerDeletion(7, 0)]),
        ):
            with pytest.raises(VersionConflict):
                await call
        with pytest.raises(LedgerNotFound):
            await driver.transact([LedgerDeletion(8, 0)])

    play(body)


def test_deletions_by_several_drivers_are_all_remembered() -> None:
    async def body(server: Server, driver: EtcdDriver) -> None:
        other = driver_of(server)
        await other.open()
        made = [await driver.create_ledger(ledger(number)) for number in range(6)]
        await asyncio.gather(*(each.delete_ledger(number) for number in range(4) for each in (driver, other)))
        await other.transact([RecordWrite("r", b"", 0), LedgerDeletion(4, made[4].version)])
        await driver.transact([LedgerDeletion(5, made[5].version)])
        assert server.items["/ledgers/spent/000000000000"].value == b"0-5"
        await other.close()

    play(body)


def test_generated_ids_ascend() -> None:
    """In the part of the counter that was used last, perhaps by one of Apache's clients, who use all of them."""

    async def body(server: Server, driver: EtcdDriver) -> None:
        assert (await driver.given_ids()).next_id == 0
        assert [await driver.next_ledger_id() for _ in range(3)] == [1, 2, 3]
        assert (await driver.given_ids()).next_id == 4
        assert server.items["/ledgers/buckets/000"].version == 3
        server.lost_replies = 1
        assert await driver.next_ledger_id() == 5, "one was thrown away"
        for name in ("007", "128", "x"):
            server.transact((), [Put(f"/ledgers/buckets/{name}", b"")], ())
        other = driver_of(server)
        await other.open()
        assert await other.next_ledger_id() == (7 << 56) + 2
        assert await driver.next_ledger_id() == 6
        assert (await driver.given_ids()).next_id == (7 << 56) + 3
        await other.close()

    play(body)


def test_ids_below_a_bound_are_not_given() -> None:
    async def body(server: Server, driver: EtcdDriver) -> None:
        for bound, first in (
            (0, 1),
            (1, 2),
            (100, 100),
            (99, 101),
            (10_001, (1 << 56) + 2),
            (5 << 56, (5 << 56) + 2),
            ((5 << 56) + 10, (5 << 56) + 10),
        ):
            await driver.restore_ids(GivenIds(bound))
            assert await driver.next_ledger_id() == first
        with pytest.raises(NotSupported, match="in etcd, no ids can be generated after"):
            await driver.restore_ids(GivenIds((127 << 56) + 1_000_000))

    play(body)


def test_used_up_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookies.metadata.etcd.etcd_ledgers.BUCKET_SIZE", 1)

    async def body(server: Server, driver: EtcdDriver) -> None:
        with pytest.raises(MetadataError, match=r"the ids of /ledgers/buckets/\d\d\d are used up"):
            await driver.next_ledger_id()

    play(body)


def test_an_unreadable_record_is_replaced_at_its_version() -> None:
    async def body(server: Server, driver: EtcdDriver) -> None:
        before = set(server.items)
        await driver.create_ledger(ledger(7))
        [key] = [key for key in set(server.items) - before if server.items[key].value.startswith(b"BookieMetadata")]
        await FakeEtcd(server).transact([], [Put(key, b"nonsense")])
        with pytest.raises(MetadataCorrupt) as corrupt:
            await driver.read_ledger(7)
        assert corrupt.value.version is not None
        with pytest.raises(MetadataError):
            await driver.write_ledger(ledger(7), corrupt.value.version - 1)
        written = await driver.write_ledger(ledger(7), corrupt.value.version)
        assert await driver.read_ledger(7) == written

    play(body)


def test_ids_that_do_not_fit() -> None:
    async def body(server: Server, driver: EtcdDriver) -> None:
        with pytest.raises(MetadataCorrupt, match="out of range"):
            await driver.create_ledger(ledger(1 << 63))
        with pytest.raises(LedgerNotFound):
            await driver.transact([LedgerDeletion(1 << 63, 1)])
        driver.watch_ledger(1 << 63, lambda _: None).cancel()

    play(body)


# -- listings -------------------------------------------------------------------------------------------------------


def test_a_listing_of_no_cluster_is_an_error() -> None:
    async def body(server: Server, driver: EtcdDriver) -> None:
        with pytest.raises(MetadataError, match=r"there is no cluster at /ledgers in etcd"):
            await anext(driver.ledger_ids())

    play(body, "/ledgers2")


def test_a_cluster_that_is_made_anew_ends_the_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookies.metadata.shared.store_driver.PAGE_COUNT", 2)

    async def body(server: Server, driver: EtcdDriver) -> None:
        await driver.initialize_cluster()
        for number in range(5):
            await driver.create_ledger(ledger(number))
        pages = driver.ledger_ids()
        assert await anext(pages) == [0, 1]
        server.transact((), [Delete(key) for key in list(server.items)], ())
        await driver.initialize_cluster()
        with pytest.raises(MetadataError, match="was formatted while its ledgers were listed"):
            await anext(pages)

    play(body)


def test_keys_that_are_no_ledgers_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookies.metadata.shared.store_driver.PAGE_COUNT", 2)

    async def body(server: Server, driver: EtcdDriver) -> None:
        strange = ("!", "#", "00000000-0000-0000-0000-00000000000X", "00000000-0000-0001-0000-000000000001", "x")
        server.transact((), [Put(f"/ledgers/ledgers/{name}", b"") for name in strange], ())
        for number in (3, 1 << 62):
            await driver.create_ledger(ledger(number))
        assert [each async for each in driver.ledger_ids()] == [[3], [1 << 62]]

    play(body)


# -- bookies --------------------------------------------------------------------------------------------------------


def test_a_registration_that_says_no_more_than_the_id_is_empty() -> None:
    async def body(server: Server, driver: EtcdDriver) -> None:
        implied = Endpoint("bookie", "bk-a", 3181, "bookie-rpc")
        await driver.register(A, WRITABLE, BookieInfo((implied,)))
        item = server.items["/ledgers/bookies/writable/bk-a:3181"]
        assert (item.value, item.lease) == (b"", driver.session_id)
        found = await driver.bookie_info(A)
        assert found is not None
        assert [(each.host, each.port) for each in found.endpoints] == [("bk-a", 3181)]
        for more in (INFO, BookieInfo((implied,), {"k": "v"}), BookieInfo((implied, INFO.endpoints[0]))):
            await driver.register(A, READ_ONLY, more)
            assert server.items["/ledgers/bookies/readonly/bk-a:3181"].value == pack_bookie_info(more)
            assert await driver.bookie_info(A) == more
        assert "/ledgers/bookies/writable/bk-a:3181" not in server.items

    play(body)


def test_lost_answers_of_registrations() -> None:
    async def body(server: Server, driver: EtcdDriver) -> None:
        server.lost_replies = 1
        await driver.register(A, WRITABLE, INFO)
        server.lost_requests = 1
        await driver.register(A, READ_ONLY, INFO)
        assert (await driver.bookies(READ_ONLY)).bookies == (A,)
        server.lost_replies = 1
        await driver.unregister(A)
        assert (await driver.bookies(READ_ONLY)).bookies == ()

    play(body)


def test_a_key_without_a_lease_is_somebody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookies.metadata.etcd.etcd_bookies.PATIENCE", 0.02)

    async def body(server: Server, driver: EtcdDriver) -> None:
        server.transact((), [Put("/ledgers/bookies/readonly/bk-a:3181", b"")], ())
        with pytest.raises(MetadataError, match="another process keeps this bookie registered"):
            await driver.register(A, WRITABLE, INFO)
        await driver.unregister(A)
        assert (await driver.bookies(READ_ONLY)).bookies == (A,)

    play(body)


def test_a_lease_that_is_gone_is_noticed_without_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookies.metadata.etcd.etcd_session._KEEPS_COUNT", 100)

    async def body(server: Server, driver: EtcdDriver) -> None:
        lost = asyncio.Event()
        driver.on_session_expired(lost.set)
        await driver.register(A, WRITABLE, INFO)
        server.is_silent = True
        await asyncio.sleep(0.1)
        assert not lost.is_set(), "no answer is no loss"
        server.is_silent = False
        assert driver.session_id is not None
        server.end_lease(driver.session_id)
        await lost.wait()
        assert driver.session_id is None
        await driver.register(A, WRITABLE, INFO)

    play(body)


def test_strange_bookies_do_not_hide_the_others() -> None:
    async def body(server: Server, driver: EtcdDriver) -> None:
        for name, data in (("a b", b""), ("bk-c:1", b"\xff"), ("readonly", b"")):
            server.transact((), [Put(f"/ledgers/bookies/writable/{name}", data)], ())
        await driver.register(A, WRITABLE, INFO)
        assert (await driver.bookies(WRITABLE)).bookies == (A, "bk-c:1")
        with pytest.raises(MetadataCorrupt):
            await driver.bookie_info(BookieId("bk-c:1"))

    play(body)


def test_where_a_bookie_was_is_known_while_nobody_answers() -> None:
    async def body(server: Server, driver: EtcdDriver) -> None:
        await driver.register(A, WRITABLE, INFO)
        await driver.bookies(WRITABLE)
        server.is_silent = True
        assert await driver.bookie_info(A) == INFO
        with pytest.raises(MetadataError):
            await driver.bookie_info(B)
        server.is_silent = False

    play(body)


def test_watches_survive_broken_streams_and_servers_that_are_silent() -> None:
    async def body(server: Server, driver: EtcdDriver) -> None:
        news: asyncio.Queue[object] = asyncio.Queue()
        driver.watch_bookies(WRITABLE, news.put_nowait)
        driver.watch_record("r", 0, lambda: news.put_nowait("r"))
        first = await news.get()
        server.is_silent = True
        server.break_streams()
        for _ in range(10):
            await asyncio.sleep(0)
        server.transact((), [Put("/ledgers/bookies/writable/bk-b:3181", b""), Put("/ledgers/records/r", b"")], ())
        server.is_silent = False
        seen = [await news.get(), await news.get()]
        assert "r" in seen
        assert [getattr(each, "bookies", None) for each in (first, *seen) if each != "r"] == [(), (B,)]

    play(body)
