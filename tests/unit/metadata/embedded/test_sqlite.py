"""The embedded store's database: leases against a clock, what observers see, other formats, damage and full disks."""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
from collections.abc import Iterator

import pytest

from bookies.errors import DiskFull, LedgerExists, MetadataCorrupt, MetadataError, NotSupported, SessionExpired
from bookies.metadata.embedded import sqlite
from bookies.metadata.embedded.sqlite import SqliteStore, is_busy
from bookies.metadata.interface.driver import BookieSet
from bookies.metadata.shared.store_recovery import WORK
from bookies.model import BookieId, BookieMode

A, B = BookieId("a"), BookieId("b")
WRITABLE, READ_ONLY = BookieMode.WRITABLE, BookieMode.READ_ONLY


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
    assert bookie.register(session, A, WRITABLE, b"info") is None
    desk.wall.ms += 999
    assert client.bookies(WRITABLE).bookies == (A,)
    assert bookie.renew_session(session)
    desk.wall.ms += 999
    before = client.bookies(WRITABLE)
    assert before.bookies == (A,)
    desk.wall.ms += 1
    after = client.bookies(WRITABLE)
    assert after.bookies == ()
    assert after.version > before.version
    assert client.registration(A) is None
    assert not bookie.renew_session(session)
    with pytest.raises(SessionExpired):
        bookie.register(session, A, WRITABLE, b"info")


def test_a_late_renewal_counts_when_nobody_noticed(desk: Desk) -> None:
    bookie, client = desk.store(), desk.store()
    session = bookie.begin_session(1000)
    bookie.register(session, A, WRITABLE, b"info")
    version = client.bookies(WRITABLE).version
    desk.wall.ms += 5000
    assert bookie.renew_session(session)
    assert client.bookies(WRITABLE) == BookieSet((A,), version)


def test_a_successor_waits_for_the_lease_and_takes_over(desk: Desk) -> None:
    dead, successor = desk.store(), desk.store()
    dead.register(dead.begin_session(1000), A, WRITABLE, b"old")
    desk.wall.ms += 300
    session = successor.begin_session(1000)
    assert successor.register(session, A, READ_ONLY, b"new") == 700
    desk.wall.ms += 700
    assert successor.register(session, A, READ_ONLY, b"new") is None
    assert successor.registration(A) == b"new"
    assert successor.bookies(WRITABLE).bookies == ()
    assert successor.bookies(READ_ONLY).bookies == (A,)


def test_a_lease_of_a_clock_that_was_ahead_ends_after_its_length(desk: Desk) -> None:
    dead, client, successor = desk.store(), desk.store(), desk.store()
    desk.wall.ms += 2 * 86_400_000
    dead.register(dead.begin_session(1000), A, WRITABLE, b"old")
    desk.wall.ms -= 2 * 86_400_000
    assert client.bookies(WRITABLE).bookies == (A,)
    desk.wall.ms += 300
    session = successor.begin_session(1000)
    assert successor.register(session, A, WRITABLE, b"new") == 700
    desk.wall.ms += 700
    assert successor.register(session, A, WRITABLE, b"new") is None
    assert client.registration(A) == b"new"


def test_a_session_number_is_never_used_again(desk: Desk) -> None:
    store = desk.store()
    first = store.begin_session(1000)
    store.end_session(first)
    assert store.begin_session(1000) > first


# -- observing ------------------------------------------------------------------------------------------------------


def test_an_observer_looks_only_when_something_happened(desk: Desk) -> None:
    writer, observer = desk.store(), desk.store()
    _, record = writer.create_ledger(7, b"one", 0)
    first = observer.observe([7, 8], {WRITABLE: -1}, True)
    assert first is not None
    assert first.ledgers == {7: record.version}
    assert first.sets == {WRITABLE: BookieSet((), 0)}
    known = {WRITABLE: 0}
    assert observer.observe([7, 8], known, False) is None
    complete = observer.observe([7, 8], known, True)
    assert complete is not None
    assert complete.sets == {}
    changed = writer.write_ledger(7, b"two", record.version)
    second = observer.observe([7, 8], known, False)
    assert second is not None
    assert second.ledgers == {7: changed.version}
    assert observer.observe([7, 8], known, False) is None
    observer.delete_ledger(7, None)  # its own changes count too
    third = observer.observe([7, 8], known, False)
    assert third is not None
    assert third.ledgers == {}


def test_an_observer_of_bookies_notices_the_end_of_a_lease_by_itself(desk: Desk) -> None:
    bookie, observer = desk.store(), desk.store()
    bookie.register(bookie.begin_session(1000), A, WRITABLE, b"info")
    first = observer.observe([], {WRITABLE: -1}, True)
    assert first is not None
    known = {WRITABLE: first.sets[WRITABLE].version}
    assert observer.observe([], known, False) is None
    desk.wall.ms += 1000
    assert observer.observe([], {}, False) is None  # of no interest to those who watch ledgers only
    second = observer.observe([], known, False)
    assert second is not None
    assert second.sets[WRITABLE].bookies == ()


def test_a_lock_ends_with_its_lease_and_who_waits_for_work_notices(desk: Desk) -> None:
    holder, other = desk.store(), desk.store()
    mark, lock = "marks/0000000000000005", "locks/0000000000000005"
    first, second = holder.begin_session(1000), other.begin_session(5000)
    assert other.create_node(mark, b"")
    assert holder.hold_node(first, lock, b"one") is not None
    seen = other.observe([], {}, True, (), [WORK, lock])
    assert seen is not None
    assert lock in seen.nodes
    desk.wall.ms += 999
    assert other.observe([], {}, False, (), [WORK, lock]) is None
    assert other.hold_node(second, lock, b"two") is None
    desk.wall.ms += 1
    later = other.observe([], {}, False, (), [WORK, lock])
    assert later is not None
    assert lock not in later.nodes
    assert later.nodes[WORK] > seen.nodes[WORK]
    assert other.hold_node(second, lock, b"two") is not None
    with pytest.raises(SessionExpired):
        holder.hold_node(first, lock, b"one")
    holder.release_node(first, lock)
    assert other.read_node(lock) is not None


def test_many_watched_ledgers_take_several_statements(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "PARAMETERS_MAX", 3)
    store = desk.store()
    for ledger_id in range(0, 20, 2):
        store.create_ledger(ledger_id, b"x", 0)
    seen = store.observe(list(range(20)), {}, True)
    assert seen is not None
    assert sorted(seen.ledgers) == list(range(0, 20, 2))


def test_a_failed_transaction_changes_nothing(desk: Desk) -> None:
    store, other = desk.store(), desk.store()
    _, record = store.create_ledger(7, b"one", 0)
    with pytest.raises(MetadataError):
        store.write_ledger(7, b"two", record.version + 1)
    assert other.read_ledger(7) == record
    _, second = other.create_ledger(8, b"x", 0)
    assert second.version == record.version + 1  # not even the revision


def test_deleted_ids_take_no_more_room_than_the_gaps_between_them(desk: Desk) -> None:
    store = desk.store()
    for ledger_id in range(40):
        store.create_ledger(ledger_id, b"", 0)
    for ledger_id in [*range(0, 40, 2), *range(39, 0, -2)]:
        store.delete_ledger(ledger_id, None)
        store.delete_ledger(ledger_id, None)
    with sqlite3.connect(desk.path) as connection:
        assert connection.execute("SELECT first, last FROM deleted_ledgers").fetchall() == [(0, 39)]
    connection.close()
    other = desk.store()
    for ledger_id in range(40):
        with pytest.raises(LedgerExists, match="deleted"):
            other.create_ledger(ledger_id, b"", 0)
    assert other.create_ledger(40, b"", 0)[0]


def test_a_database_of_an_earlier_version_gets_what_came_later(desk: Desk) -> None:
    desk.store().close()
    with sqlite3.connect(desk.path) as connection:
        connection.execute("DROP TABLE deleted_ledgers")
        connection.execute("DROP TABLE records")
    connection.close()
    store = desk.store()
    store.create_ledger(1, b"", 0)
    store.delete_ledger(1, None)
    assert store.record_names("") == []


# -- files that are something else, damage, full disks --------------------------------------------------------------


def test_a_later_format_is_refused(desk: Desk) -> None:
    desk.store().close()
    with sqlite3.connect(desk.path) as connection:
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(NotSupported, match="has format 2, which is newer"):
        desk.store()


def test_another_programs_database_is_refused(desk: Desk) -> None:
    with sqlite3.connect(desk.path) as connection:
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
        store.create_ledger(ledger_id, b"x" * 500, 0)
    store.close()
    content = bytearray(desk.path.read_bytes())
    content[8192:] = b"\xa5" * (len(content) - 8192)
    desk.path.write_bytes(content)
    again = SqliteStore(str(desk.path), desk.wall)
    with contextlib.closing(again), pytest.raises(MetadataCorrupt, match="damaged"):
        again.guard(_open_and_list, again)


def _open_and_list(store: SqliteStore) -> None:
    store.open()
    store.ledger_ids(-1, 1000)


def test_a_path_that_cannot_be_opened(desk: Desk) -> None:
    desk.path.mkdir()
    with pytest.raises(MetadataError, match="cannot be opened"):
        desk.store()


def test_a_file_without_write_permission(desk: Desk) -> None:
    store = desk.store()
    assert store._connection is not None
    store._connection.execute("PRAGMA query_only = ON")  # root may write to any file, but not through this
    with pytest.raises(MetadataError, match="cannot be opened for writing"):
        store.guard(store.next_ledger_id)


def test_a_full_disk(desk: Desk) -> None:
    store = desk.store()
    _, record = store.create_ledger(7, b"x", 0)
    assert store._connection is not None
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(DiskFull, match="nothing was changed"):
        store.guard(store.create_ledger, 8, bytes(100_000), 0)
    assert store.guard(store.read_ledger, 7) == record
    assert store.guard(store.read_ledger, 8) is None
    assert store.guard(store.next_ledger_id) == 0


def test_a_database_that_another_process_keeps_locked(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.05)
    one, two = desk.store(), desk.store()
    with one._writing():
        with pytest.raises(MetadataError, match="locked for more than") as raised:
            two.guard(two.next_ledger_id)
        assert is_busy(raised.value)
        assert two.read_ledger(7) is None  # reading goes on
    assert two.next_ledger_id() == 0
    assert not is_busy(MetadataError("something else"))


def test_a_closed_store_says_so(desk: Desk) -> None:
    store = desk.store()
    store.close()
    store.close()
    with pytest.raises(MetadataError, match="not open"):
        store.next_ledger_id()
