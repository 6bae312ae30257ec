"""The embedded store's database: leases against a clock, what observers see, other formats, damage and full disks."""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
from collections.abc import Iterator

import pytest

from bookies.errors import MetadataCorrupt, MetadataError, NotSupported, SessionExpired
from bookies.metadata.embedded import sqlite
from bookies.metadata.embedded.sqlite import SqliteStore, is_busy
from bookies.metadata.shared.nodes import WORK, At, Delete, FreeFor, HeldBy, Item, Key, Outcome, Page, Put, Table

WRITABLE, READ_ONLY = Table.WRITABLE, Table.READ_ONLY


def ledger(ledger_id: int) -> Key:
    return Key(Table.LEDGERS, ledger_id)


def create(store: SqliteStore, ledger_id: int, data: bytes) -> Outcome:
    return store.commit([At(ledger(ledger_id), 0)], [Put(ledger(ledger_id), data)])


def register(store: SqliteStore, session: int, mode: Table, data: bytes) -> Outcome:
    """Register the bookie `a`."""
    own, other = Key(mode, "a"), Key(READ_ONLY if mode is WRITABLE else WRITABLE, "a")
    return store.commit([FreeFor(own, session), FreeFor(other, session)], [Delete(other), Put(own, data, session)])


def hold(store: SqliteStore, session: int, key: Key, data: bytes) -> bool:
    return store.commit([At(key, 0)], [Put(key, data, session)]).is_done


def names(page: Page) -> list[str | int]:
    return [name for name, _ in page.items]


def registration(store: SqliteStore) -> bytes | None:
    items = store.get([Key(WRITABLE, "a"), Key(READ_ONLY, "a")])
    return next((item.data for item in items if item is not None), None)


class Wall:
    """A wall clock that goes where the test says."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms


class Desk:
    """One database file and the connections of several processes to it."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.wall = Wall()
        self._stores: list[SqliteStore] = []

    def store(self) -> SqliteStore:
        store = SqliteStore(str(self.path), self.wall)
        store.guard(store.open)
        self._stores.append(store)
        return store

    def close(self) -> None:
        for store in self._stores:
            store.close()


@pytest.fixture
def desk(tmp_path: pathlib.Path) -> Iterator[Desk]:
    desk = Desk(tmp_path / "metadata.db")
    yield desk
    desk.close()


# -- leases ---------------------------------------------------------------------------------------------------------


def test_a_registration_ends_with_its_lease_and_not_before(desk: Desk) -> None:
    bookie, client = desk.store(), desk.store()
    session = bookie.begin_session(1000)
    assert register(bookie, session, WRITABLE, b"info").is_done
    desk.wall.ms += 999
    assert names(client.list(WRITABLE)) == ["a"]
    assert bookie.renew_session(session)
    desk.wall.ms += 999
    before = client.list(WRITABLE)
    assert names(before) == ["a"]
    desk.wall.ms += 1
    after = client.list(WRITABLE)
    assert names(after) == []
    assert after.version > before.version
    assert registration(client) is None
    assert not bookie.renew_session(session)
    with pytest.raises(SessionExpired):
        register(bookie, session, WRITABLE, b"info")


def test_a_late_renewal_counts_when_nobody_noticed(desk: Desk) -> None:
    bookie, client = desk.store(), desk.store()
    session = bookie.begin_session(1000)
    register(bookie, session, WRITABLE, b"info")
    before = client.list(WRITABLE)
    desk.wall.ms += 5000
    assert bookie.renew_session(session)
    assert client.list(WRITABLE) == before
    assert names(before) == ["a"]


def test_an_unchanged_registration_is_no_change(desk: Desk) -> None:
    bookie = desk.store()
    session = bookie.begin_session(1000)
    first = register(bookie, session, WRITABLE, b"info")
    again = register(bookie, session, WRITABLE, b"info")
    assert (again.is_done, again.version) == (True, first.version)
    assert register(bookie, session, WRITABLE, b"other").version == first.version + 1
    assert bookie.list(WRITABLE).version == first.version + 1
    assert bookie.list(READ_ONLY).version == 0


def test_a_successor_waits_for_the_lease_and_takes_over(desk: Desk) -> None:
    dead, successor = desk.store(), desk.store()
    register(dead, dead.begin_session(1000), WRITABLE, b"old")
    desk.wall.ms += 300
    session = successor.begin_session(1000)
    refused = register(successor, session, READ_ONLY, b"new")
    assert (refused.is_done, refused.wait_ms) == (False, 700)
    desk.wall.ms += 700
    assert register(successor, session, READ_ONLY, b"new").is_done
    assert registration(successor) == b"new"
    assert names(successor.list(WRITABLE)) == []
    assert names(successor.list(READ_ONLY)) == ["a"]


def test_a_lease_of_a_clock_that_was_ahead_ends_after_its_length(desk: Desk) -> None:
    dead, client, successor = desk.store(), desk.store(), desk.store()
    desk.wall.ms += 2 * 86_400_000
    register(dead, dead.begin_session(1000), WRITABLE, b"old")
    desk.wall.ms -= 2 * 86_400_000
    assert names(client.list(WRITABLE)) == ["a"]
    desk.wall.ms += 300
    session = successor.begin_session(1000)
    assert register(successor, session, WRITABLE, b"new").wait_ms == 700
    desk.wall.ms += 700
    assert register(successor, session, WRITABLE, b"new").is_done
    assert registration(client) == b"new"


def test_a_session_number_is_never_used_again(desk: Desk) -> None:
    store = desk.store()
    first = store.begin_session(1000)
    store.end_session(first)
    assert store.begin_session(1000) > first


# -- observing ------------------------------------------------------------------------------------------------------


def test_an_observer_looks_only_when_something_happened(desk: Desk) -> None:
    writer, observer = desk.store(), desk.store()
    record = create(writer, 7, b"one")
    watched = [ledger(7), ledger(8)]
    first = observer.observe(watched, {WRITABLE: -1}, True)
    assert first is not None
    assert first.versions == {ledger(7): record.version}
    assert first.sets == {WRITABLE: Page([], 0)}
    known = {WRITABLE: 0}
    assert observer.observe(watched, known, False) is None
    complete = observer.observe(watched, known, True)
    assert complete is not None
    assert complete.sets == {}
    changed = writer.commit([At(ledger(7), record.version)], [Put(ledger(7), b"two")])
    assert changed.is_done
    second = observer.observe(watched, known, False)
    assert second is not None
    assert second.versions == {ledger(7): changed.version}
    assert observer.observe(watched, known, False) is None
    observer.commit([], [Delete(ledger(7))])  # its own changes count too
    third = observer.observe(watched, known, False)
    assert third is not None
    assert third.versions == {}


def test_an_observer_of_bookies_notices_the_end_of_a_lease_by_itself(desk: Desk) -> None:
    bookie, observer = desk.store(), desk.store()
    register(bookie, bookie.begin_session(1000), WRITABLE, b"info")
    first = observer.observe([], {WRITABLE: -1}, True)
    assert first is not None
    known = {WRITABLE: first.sets[WRITABLE].version}
    assert observer.observe([], known, False) is None
    desk.wall.ms += 1000
    assert observer.observe([], {}, False) is None  # of no interest to those who watch ledgers only
    second = observer.observe([], known, False)
    assert second is not None
    assert names(second.sets[WRITABLE]) == []


def test_a_lock_ends_with_its_lease_and_who_waits_for_work_notices(desk: Desk) -> None:
    holder, other = desk.store(), desk.store()
    mark, lock = Key(Table.NODES, "marks/0000000000000005"), Key(Table.NODES, "locks/0000000000000005")
    first, second = holder.begin_session(1000), other.begin_session(5000)
    assert other.commit([At(mark, 0)], [Put(mark, b"")]).is_done
    assert hold(holder, first, lock, b"one")
    seen = other.observe([WORK, lock], {}, True)
    assert seen is not None
    assert lock in seen.versions
    desk.wall.ms += 999
    assert other.observe([WORK, lock], {}, False) is None
    assert not hold(other, second, lock, b"two")
    desk.wall.ms += 1
    later = other.observe([WORK, lock], {}, False)
    assert later is not None
    assert lock not in later.versions
    assert later.versions[WORK] > seen.versions[WORK]
    assert hold(other, second, lock, b"two")
    with pytest.raises(SessionExpired):
        hold(holder, first, lock, b"one")
    assert not holder.commit([HeldBy(lock, first)], [Delete(lock)]).is_done
    assert other.get([lock]) != [None]


def test_many_watched_ledgers_take_several_statements(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "PARAMETERS_MAX", 3)
    store = desk.store()
    for ledger_id in range(0, 20, 2):
        create(store, ledger_id, b"x")
    seen = store.observe([ledger(ledger_id) for ledger_id in range(20)], {}, True)
    assert seen is not None
    assert sorted(seen.versions) == [ledger(ledger_id) for ledger_id in range(0, 20, 2)]


def test_a_failed_transaction_changes_nothing(desk: Desk) -> None:
    store, other = desk.store(), desk.store()
    version = create(store, 7, b"one").version
    changes = [Put(ledger(9), b"nine"), Put(ledger(7), b"two")]
    refused = store.commit([At(ledger(9), 0), At(ledger(7), version + 1)], changes)
    assert (refused.is_done, refused.items) == (False, [None, Item(b"one", version)])
    assert other.get([ledger(7), ledger(9)]) == [Item(b"one", version), None]
    assert create(other, 8, b"x").version == version + 1  # not even the revision


def test_deleted_ids_take_no_more_room_than_the_gaps_between_them(desk: Desk) -> None:
    store = desk.store()
    for ledger_id in range(40):
        create(store, ledger_id, b"")
    for ledger_id in [*range(0, 40, 2), *range(39, 0, -2)]:
        store.commit([], [Delete(ledger(ledger_id))])
        store.commit([], [Delete(ledger(ledger_id))])
    with contextlib.closing(sqlite3.connect(desk.path)) as connection, connection:
        assert connection.execute("SELECT first, last FROM deleted_ledgers").fetchall() == [(0, 39)]
    connection.close()
    other = desk.store()
    for ledger_id in range(40):
        refused = create(other, ledger_id, b"")
        assert (refused.is_done, refused.items) == (False, [None])
    assert create(other, 40, b"").is_done


def test_a_database_of_an_earlier_version_gets_what_came_later(desk: Desk) -> None:
    desk.store().close()
    with contextlib.closing(sqlite3.connect(desk.path)) as connection, connection:
        connection.execute("DROP TABLE deleted_ledgers")
        connection.execute("DROP TABLE records")
    connection.close()
    store = desk.store()
    create(store, 1, b"")
    store.commit([], [Delete(ledger(1))])
    assert names(store.list(Table.RECORDS)) == []
    assert not create(store, 1, b"").is_done


# -- files that are something else, damage, full disks --------------------------------------------------------------


def test_a_later_format_is_refused(desk: Desk) -> None:
    desk.store().close()
    with contextlib.closing(sqlite3.connect(desk.path)) as connection, connection:
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(NotSupported, match="has format 2, which is newer"):
        desk.store()


def test_another_programs_database_is_refused(desk: Desk) -> None:
    with contextlib.closing(sqlite3.connect(desk.path)) as connection, connection:
        connection.execute("CREATE TABLE ledgers (x)")
    connection.close()
    with pytest.raises(MetadataCorrupt, match="some other program's database"):
        desk.store()


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_damaged_file_is_refused(desk: Desk, content: bytes) -> None:
    desk.path.write_bytes(content)
    with pytest.raises(MetadataCorrupt, match=r"metadata.db is damaged .*: restore it from a backup"):
        desk.store()
    assert desk.path.read_bytes() == content


def test_damage_found_later_is_reported_as_damage(desk: Desk) -> None:
    store = desk.store()
    for ledger_id in range(200):
        create(store, ledger_id, b"x" * 500)
    store.close()
    content = bytearray(desk.path.read_bytes())
    content[8192:] = b"\xa5" * (len(content) - 8192)
    desk.path.write_bytes(content)
    again = SqliteStore(str(desk.path), desk.wall)
    with contextlib.closing(again), pytest.raises(MetadataCorrupt, match="damaged"):
        again.guard(_open_and_list, again)


def _open_and_list(store: SqliteStore) -> None:
    store.open()
    store.list(Table.LEDGERS, "", -1, 1000)


def test_a_path_that_cannot_be_opened(desk: Desk) -> None:
    desk.path.mkdir()
    with pytest.raises(MetadataError, match="cannot be opened"):
        desk.store()


def test_a_file_without_write_permission(desk: Desk) -> None:
    store = desk.store()
    assert store._connection is not None
    store._connection.execute("PRAGMA query_only = ON")  # root may write to any file, but not through this
    with pytest.raises(MetadataError, match="cannot be opened for writing"):
        store.guard(store.next_id)


def test_a_full_disk(desk: Desk) -> None:
    store = desk.store()
    version = create(store, 7, b"x").version
    assert store._connection is not None
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(MetadataError, match="nothing was changed") as caught:
        store.guard(create, store, 8, bytes(100_000))
    assert caught.value.retriable
    assert store.guard(store.get, [ledger(7), ledger(8)]) == [Item(b"x", version), None]
    assert store.guard(store.next_id) == 0


def test_a_database_that_another_process_keeps_locked(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.05)
    one, two = desk.store(), desk.store()
    with one._writing():
        with pytest.raises(MetadataError, match="locked for more than") as raised:
            two.guard(two.next_id)
        assert is_busy(raised.value)
        assert two.get([ledger(7)]) == [None]  # reading goes on
    assert two.next_id() == 0
    assert not is_busy(MetadataError("something else"))


def test_a_closed_store_says_so(desk: Desk) -> None:
    store = desk.store()
    store.close()
    store.close()
    with pytest.raises(MetadataError, match="not open"):
        store.next_id()
