"""The embedded store's database: tables and transactions on one SQLite connection, synchronous.

Several processes of one host share the file. Write-ahead logging lets readers continue while one process writes;
`synchronous = FULL` puts a commit on the disk before it is visible, so no process acts on a change that a power cut
undoes. Every change begins with `BEGIN IMMEDIATE`, so a transaction that has read never fails to write.

One revision grows with every change and is every record's version. `PRAGMA data_version` reports cheaply whether
another connection committed; the connection's own commits are counted here, because the pragma does not report those.

Leases are in wall-clock time, the one clock that all processes share. An expired lease ends in the first transaction
that notices it, so that all processes see the same end; until then its owner may still renew it.

Source: metadata 11.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from bookies.errors import (
    BookKeeperError,
    CookieExists,
    CookieNotFound,
    DiskFull,
    LedgerNotFound,
    MetadataCorrupt,
    MetadataError,
    NotSupported,
    RecordExists,
    RecordNotFound,
    SessionExpired,
)
from bookies.metadata.interface.driver import BookieSet, GivenIds, LedgerAt, LedgerDeletion, RecordWrite, Step
from bookies.metadata.interface.recovery_store import lock_lost
from bookies.metadata.shared.recovery import Node
from bookies.metadata.shared.store import Observation, Record
from bookies.metadata.shared.store_driver import (
    check_record_version,
    check_version,
    deleted_before,
    half_a_cluster,
    other_cluster,
)
from bookies.metadata.shared.store_recovery import LOCKS, MARKS, VOTES, WORK, mark_of_lock
from bookies.model import BookieId, BookieMode

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

CLOCK_SLACK_MS = 1000  # tolerance for a lease that ends later than its length from now: the clock was set back a little
BUSY_TIMEOUT_S = 10.0  # time that a transaction waits for another process's
SCHEMA_VERSION = 1
PARAMETERS_MAX = 500  # in one statement
LEDGER_ID_MAX = (1 << 63) - 1
_APPLICATION_ID = 0x626B6D64  # "bkmd", which identifies the file as a metadata store

_SCHEMA = """
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE cluster (instance_id TEXT NOT NULL);
CREATE TABLE ledgers (id INTEGER PRIMARY KEY, version INTEGER NOT NULL, data BLOB NOT NULL, ctime_ms INTEGER NOT NULL);
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, lease_ms INTEGER NOT NULL, expires_at_ms INTEGER NOT NULL);
CREATE TABLE registrations (
    bookie TEXT PRIMARY KEY, session INTEGER NOT NULL, mode TEXT NOT NULL, data BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE cookies (bookie TEXT PRIMARY KEY, version INTEGER NOT NULL, data BLOB NOT NULL) WITHOUT ROWID;
INSERT INTO counters VALUES ('revision', 0), ('next ledger id', 0), ('writable', 0), ('read-only', 0), ('cookies', 0);
"""
# Added later. Older versions ignore these tables, so the format stays the same for them.
_LATER = (
    "CREATE TABLE IF NOT EXISTS records "
    "(name TEXT PRIMARY KEY, version INTEGER NOT NULL, data BLOB NOT NULL) WITHOUT ROWID",
    # Ids of deleted ledgers, never used again, as runs that are not adjacent.
    "CREATE TABLE IF NOT EXISTS deleted_ledgers (first INTEGER PRIMARY KEY, last INTEGER NOT NULL)",
    # Auto-recovery's state; session 0: persistent.
    "CREATE TABLE IF NOT EXISTS nodes (place TEXT PRIMARY KEY, version INTEGER NOT NULL, data BLOB NOT NULL, "
    "session INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS session_nodes ON nodes (session) WHERE session != 0",
    "INSERT OR IGNORE INTO counters VALUES ('work', 0)",
)
_COOKIES = "cookies"  # counter of the set of all bookies; the counters of the modes have the modes' names


class SqliteStore:
    """A `Store` in a SQLite database. Used from one thread at a time. `now_ms`: wall clock."""

    def __init__(self, path: str, now_ms: Callable[[], int]) -> None:
        self.path = path
        self._now_ms = now_ms
        self._connection: sqlite3.Connection | None = None
        self._commits = 0
        self._observed: tuple[int, int] | None = None
        self._next_expiry_ms = 0
        self._is_durable: bool | None = None  # whether commits are synced now; None: SQLite's default

    # -- opening, errors -----------------------------------------------------------------------------------------
    def open(self) -> None:
        """Open the file; create it and its tables if it is missing. Raises `NotSupported` for later formats."""
        import sqlite3

        self._connection = connection = sqlite3.connect(
            self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            if mode != "wal":
                raise MetadataError(
                    f"{self.path} is on a file system that cannot share it between processes (journal mode {mode}): "
                    "use a local disk"
                )
            with self._writing():
                version = self._number("PRAGMA user_version")
                if version == 0 and self._number("SELECT count(*) FROM sqlite_master") == 0:
                    for statement in _SCHEMA.split(";\n"):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                elif self._number("PRAGMA application_id") != _APPLICATION_ID:
                    raise MetadataCorrupt(
                        f"{self.path} is some other program's database, not a metadata store: name another directory"
                    )
                elif version != SCHEMA_VERSION:
                    raise NotSupported(
                        f"{self.path} has format {version}, which is newer than this version of bookies: use the later "
                        "version"
                    )
                for statement in _LATER:
                    connection.execute(statement)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        connection, self._connection, self._is_durable = self._connection, None, None
        if connection is not None:
            connection.close()

    def guard(self, function: Callable[..., T], *arguments: object) -> T:
        """Call one of the methods, and translate SQLite's errors."""
        import sqlite3

        try:
            return function(*arguments)
        except sqlite3.Error as error:
            raise _mapped(error, self.path) from error

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        connection = self._connection
        if connection is None:
            raise MetadataError(f"{self.path} is not open")
        connection.execute(begin)
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _writing(self, *, is_durable: bool = True) -> Iterator[sqlite3.Connection]:
        """Run a write transaction. `is_durable`: the commit, and every commit before it, is on the disk afterwards.

        Other commits are lost in a power cut, like all sessions, but not when the process ends.
        """
        if is_durable is not self._is_durable and self._connection is not None:
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if is_durable else 'NORMAL'}")
            self._is_durable = is_durable
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection
        self._commits += 1

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._transaction("BEGIN") as connection:
            yield connection

    def _number(self, query: str, *parameters: object) -> int:
        assert self._connection is not None
        value: int = self._connection.execute(query, parameters).fetchone()[0]
        return value

    def _counter(self, name: str) -> int:
        return self._number("SELECT value FROM counters WHERE name = ?", name)

    def _increment(self, name: str) -> int:
        assert self._connection is not None
        self._connection.execute("UPDATE counters SET value = value + 1 WHERE name = ?", (name,))
        return self._counter(name)

    def _changed(self, *sets: str) -> int:
        """Begin a new revision, also of the named sets of bookies; return it."""
        assert self._connection is not None
        revision = self._increment("revision")
        for name in sets:
            self._connection.execute("UPDATE counters SET value = ? WHERE name = ?", (revision, name))
        return revision

    # -- the cluster ---------------------------------------------------------------------------------------------
    def initialize(self, candidate: str) -> str:
        stored = self.instance_id()
        if stored is not None:
            return stored
        with self._writing() as connection:
            if self._instance_id() is None and self._number("SELECT count(*) FROM cookies"):
                raise half_a_cluster()
            connection.execute("INSERT INTO cluster SELECT ? WHERE NOT EXISTS (SELECT * FROM cluster)", (candidate,))
            return self._instance_id() or candidate

    def instance_id(self) -> str | None:
        with self._reading():
            return self._instance_id()

    def _instance_id(self) -> str | None:
        assert self._connection is not None
        row = self._connection.execute("SELECT instance_id FROM cluster").fetchone()
        return None if row is None else str(row[0])

    def given_ids(self) -> GivenIds:
        with self._reading() as connection:
            spent = connection.execute("SELECT first, last FROM deleted_ledgers ORDER BY first").fetchall()
            return GivenIds(self._counter("next ledger id"), tuple(spent))

    def restore_ids(self, ids: GivenIds) -> None:
        with self._writing() as connection:
            query = "UPDATE counters SET value = max(value, ?) WHERE name = 'next ledger id'"
            connection.execute(query, (ids.next_id,))
            for first, last in ids.spent:
                self._note_deleted(first, last)

    def restore_instance_id(self, instance_id: str) -> None:
        with self._writing() as connection:
            stored = self._instance_id()
            if stored is None:
                connection.execute("INSERT INTO cluster VALUES (?)", (instance_id,))
            elif stored != instance_id:
                raise other_cluster(stored, instance_id)

    # -- ledgers -------------------------------------------------------------------------------------------------
    def next_ledger_id(self) -> int:
        with self._writing():
            return self._increment("next ledger id") - 1

    def create_ledger(self, ledger_id: int, data: bytes, ctime_ms: int) -> tuple[bool, Record]:
        with self._writing() as connection:
            stored = self._record(ledger_id)
            if stored is not None:
                return False, stored
            if self._deleted_run(ledger_id)[1] >= ledger_id:
                raise deleted_before(ledger_id)
            record = Record(data, self._changed(), ctime_ms)
            connection.execute(
                "INSERT INTO ledgers (id, version, data, ctime_ms) VALUES (?, ?, ?, ?)",
                (ledger_id, record.version, data, ctime_ms),
            )
            return True, record

    def read_ledger(self, ledger_id: int) -> Record | None:
        with self._reading():
            return self._record(ledger_id)

    def read_ledgers(self, ledger_ids: Sequence[int]) -> Sequence[Record | None]:
        with self._reading():
            return [self._record(ledger_id) for ledger_id in ledger_ids]

    def _record(self, ledger_id: int) -> Record | None:
        assert self._connection is not None
        query = "SELECT data, version, ctime_ms FROM ledgers WHERE id = ?"
        if not 0 <= ledger_id < 1 << 63:
            return None
        row = self._connection.execute(query, (ledger_id,)).fetchone()
        return None if row is None else Record(*row)

    def write_ledger(
        self, ledger_id: int, data: bytes, expected_version: int, holder: tuple[int, str] | None = None
    ) -> Record:
        with self._writing() as connection:
            stored = self._record(ledger_id)
            if stored is None:
                raise LedgerNotFound("no such ledger in the metadata store", ledger_id=ledger_id)
            check_version(stored.version, expected_version, ledger_id=ledger_id)
            if holder is not None and self._node(holder[1])[1] != holder[0]:
                raise lock_lost(ledger_id)
            record = Record(data, self._changed(), stored.ctime_ms)
            connection.execute(
                "UPDATE ledgers SET version = ?, data = ? WHERE id = ?", (record.version, data, ledger_id)
            )
            return record

    def delete_ledger(self, ledger_id: int, expected_version: int | None) -> None:
        with self._writing() as connection:
            stored = self._record(ledger_id)
            if stored is None:
                return
            if expected_version is not None:
                check_version(stored.version, expected_version, ledger_id=ledger_id)
            connection.execute("DELETE FROM ledgers WHERE id = ?", (ledger_id,))
            self._note_deleted(ledger_id, ledger_id)
            self._changed()

    def _deleted_run(self, ledger_id: int) -> tuple[int, int]:
        """Return the last run of deleted ids (first, last) that begins at or before an id; (-2, -2): there is none."""
        assert self._connection is not None
        query = "SELECT first, last FROM deleted_ledgers WHERE first <= ? ORDER BY first DESC LIMIT 1"
        row: tuple[int, int] | None = self._connection.execute(query, (ledger_id,)).fetchone()
        return row or (-2, -2)

    def _note_deleted(self, first: int, last: int) -> None:
        """Add a run of ids of deleted ledgers; adjacent runs are joined."""
        assert self._connection is not None
        before = self._deleted_run(first)
        if before[1] >= first - 1:
            first, last = before[0], max(last, before[1])
        query = "SELECT max(last) FROM deleted_ledgers WHERE first BETWEEN ? AND ?"
        after = self._connection.execute(query, (first, min(last + 1, LEDGER_ID_MAX))).fetchone()[0]
        last = max(last, -1 if after is None else after)
        self._connection.execute("DELETE FROM deleted_ledgers WHERE first BETWEEN ? AND ?", (first, last))
        self._connection.execute("INSERT INTO deleted_ledgers (first, last) VALUES (?, ?)", (first, last))

    def ledger_ids(self, above: int, count: int) -> Sequence[int]:
        with self._reading() as connection:
            query = "SELECT id FROM ledgers WHERE id > ? ORDER BY id LIMIT ?"
            return [row[0] for row in connection.execute(query, (above, count))]

    # -- sessions ------------------------------------------------------------------------------------------------
    def begin_session(self, lease_ms: int) -> int:
        with self._writing() as connection:
            cursor = connection.execute(
                "INSERT INTO sessions (lease_ms, expires_at_ms) VALUES (?, ?)", (lease_ms, self._now_ms() + lease_ms)
            )
            assert cursor.lastrowid is not None
            return cursor.lastrowid

    def renew_session(self, session_id: int) -> bool:
        with self._writing() as connection:
            query = "UPDATE sessions SET expires_at_ms = ? + lease_ms WHERE id = ?"
            return connection.execute(query, (self._now_ms(), session_id)).rowcount == 1

    def end_session(self, session_id: int) -> None:
        with self._writing():
            self._end_sessions([session_id])

    def _end_sessions(self, session_ids: Sequence[int]) -> None:
        assert self._connection is not None
        modes: dict[str, None] = {}
        for session_id in session_ids:
            which = "FROM registrations WHERE session = ?"
            rows = self._connection.execute(f"SELECT mode {which} ORDER BY mode", (session_id,)).fetchall()
            modes |= {row[0]: None for row in rows}
            self._connection.execute(f"DELETE {which}", (session_id,))
            self._connection.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
            query = "SELECT place FROM nodes WHERE session = ? ORDER BY place"
            for row in self._connection.execute(query, (session_id,)).fetchall():
                self._remove_node(row[0])
        if modes:
            self._changed(*modes)

    def _end_expired(self) -> None:
        """End every session whose lease has expired, in a transaction of its own if there is any.

        A lease that ends later than its length from now was written by a clock that was ahead; it is shortened to its
        length from now.
        """
        assert self._connection is not None
        now_ms = self._now_ms()
        ahead = "expires_at_ms > ? + lease_ms"
        latest_ms = now_ms + CLOCK_SLACK_MS
        if self._connection.execute(f"SELECT 1 FROM sessions WHERE {ahead} LIMIT 1", (latest_ms,)).fetchone():
            with self._writing() as connection:
                change = f"UPDATE sessions SET expires_at_ms = ? + lease_ms WHERE {ahead}"
                connection.execute(change, (now_ms, latest_ms))
        query = "SELECT id FROM sessions WHERE expires_at_ms <= ? ORDER BY id"
        if not self._connection.execute(query, (now_ms,)).fetchall():
            return
        with self._writing():
            self._end_sessions([row[0] for row in self._connection.execute(query, (now_ms,)).fetchall()])

    # -- bookies -------------------------------------------------------------------------------------------------
    def register(self, session_id: int, bookie: BookieId, mode: BookieMode, data: bytes) -> int | None:
        self._end_expired()
        with self._writing() as connection:
            if not self._number("SELECT count(*) FROM sessions WHERE id = ?", session_id):
                raise SessionExpired("the session with the metadata store has ended", bookie=bookie)
            query = "SELECT session, mode, data FROM registrations WHERE bookie = ?"
            before = connection.execute(query, (bookie,)).fetchone()
            if before is None:
                self._changed(mode.value)
            elif before[0] != session_id:
                expires_at_ms = self._number("SELECT expires_at_ms FROM sessions WHERE id = ?", before[0])
                return max(0, expires_at_ms - self._now_ms())
            elif before[1:] != (mode.value, data):
                self._changed(mode.value, before[1])
            query = "INSERT OR REPLACE INTO registrations (bookie, session, mode, data) VALUES (?, ?, ?, ?)"
            connection.execute(query, (bookie, session_id, mode.value, data))
        return None

    def unregister(self, session_id: int, bookie: BookieId) -> None:
        with self._writing() as connection:
            which = "FROM registrations WHERE bookie = ? AND session = ?"
            row = connection.execute(f"SELECT mode {which}", (bookie, session_id)).fetchone()
            if row is not None:
                connection.execute(f"DELETE {which}", (bookie, session_id))
                self._changed(row[0])

    def bookies(self, mode: BookieMode) -> BookieSet:
        self._end_expired()
        with self._reading():
            return self._registered(mode)

    def _registered(self, mode: BookieMode) -> BookieSet:
        assert self._connection is not None
        query = "SELECT bookie FROM registrations WHERE mode = ? ORDER BY bookie"
        bookies = tuple(BookieId(row[0]) for row in self._connection.execute(query, (mode.value,)))
        return BookieSet(bookies, self._counter(mode.value))

    def all_bookies(self) -> BookieSet:
        with self._reading() as connection:
            query = "SELECT bookie FROM cookies ORDER BY bookie"
            bookies = tuple(BookieId(row[0]) for row in connection.execute(query))
            return BookieSet(bookies, self._counter(_COOKIES))

    def registration(self, bookie: BookieId) -> bytes | None:
        self._end_expired()
        with self._reading() as connection:
            row = connection.execute("SELECT data FROM registrations WHERE bookie = ?", (bookie,)).fetchone()
        return None if row is None else bytes(row[0])

    def observe(
        self,
        ledger_ids: Sequence[int],
        known: Mapping[BookieMode, int],
        is_complete: bool,
        names: Sequence[str] = (),
        places: Sequence[str] = (),
    ) -> Observation | None:
        # Read before the data, so that a commit in between is observed twice rather than never.
        token = self._number("PRAGMA data_version"), self._commits
        sees_sessions = bool(known or places)
        if token == self._observed and not is_complete and (not sees_sessions or self._now_ms() < self._next_expiry_ms):
            return None
        if sees_sessions:
            self._end_expired()
        with self._reading():
            ledgers: dict[int, int] = self._versions("SELECT id, version FROM ledgers WHERE id", ledger_ids)
            records: dict[str, int] = self._versions("SELECT name, version FROM records WHERE name", names)
            nodes: dict[str, int] = self._versions("SELECT place, version FROM nodes WHERE place", places)
            if WORK in places:
                nodes[WORK] = self._counter(WORK)
            sets = {mode: self._registered(mode) for mode in known if self._counter(mode.value) != known[mode]}
            self._next_expiry_ms = self._number("SELECT coalesce(min(expires_at_ms), 1 << 62) FROM sessions")
        self._observed = token
        return Observation(ledgers, sets, records, nodes)

    def _versions(self, query: str, keys: Sequence[Any]) -> dict[Any, int]:
        assert self._connection is not None
        versions: dict[Any, int] = {}
        for first in range(0, len(keys), PARAMETERS_MAX):
            batch = keys[first : first + PARAMETERS_MAX]
            versions.update(self._connection.execute(f"{query} IN ({','.join('?' * len(batch))})", batch))
        return versions

    # -- cookies -------------------------------------------------------------------------------------------------
    def create_cookie(self, bookie: BookieId, data: bytes) -> int:
        with self._writing() as connection:
            if self._cookie(bookie) is not None:
                raise CookieExists("the metadata store has a cookie already", bookie=bookie)
            version = self._changed(_COOKIES)
            connection.execute("INSERT INTO cookies (bookie, version, data) VALUES (?, ?, ?)", (bookie, version, data))
            return version

    def read_cookie(self, bookie: BookieId) -> tuple[bytes, int] | None:
        with self._reading():
            return self._cookie(bookie)

    def _cookie(self, bookie: BookieId) -> tuple[bytes, int] | None:
        assert self._connection is not None
        row = self._connection.execute("SELECT data, version FROM cookies WHERE bookie = ?", (bookie,)).fetchone()
        return None if row is None else (bytes(row[0]), int(row[1]))

    def write_cookie(self, bookie: BookieId, data: bytes, expected_version: int) -> int:
        with self._writing() as connection:
            self._check_cookie(bookie, expected_version)
            version = self._changed()
            connection.execute("UPDATE cookies SET version = ?, data = ? WHERE bookie = ?", (version, data, bookie))
            return version

    def delete_cookie(self, bookie: BookieId, expected_version: int) -> None:
        with self._writing() as connection:
            self._check_cookie(bookie, expected_version)
            connection.execute("DELETE FROM cookies WHERE bookie = ?", (bookie,))
            self._changed(_COOKIES)

    def _check_cookie(self, bookie: BookieId, expected_version: int) -> None:
        cookie = self._cookie(bookie)
        if cookie is None:
            raise CookieNotFound("no cookie in the metadata store", bookie=bookie)
        check_version(cookie[1], expected_version, bookie=bookie)

    # -- named records -------------------------------------------------------------------------------------------
    def create_record(self, name: str, data: bytes) -> int:
        with self._writing() as connection:
            if self._named(name) is not None:
                raise RecordExists(f"the metadata store has a record {name} already")
            version = self._changed()
            connection.execute("INSERT INTO records (name, version, data) VALUES (?, ?, ?)", (name, version, data))
            return version

    def read_record(self, name: str) -> tuple[bytes, int]:
        with self._reading():
            return self._existing(name)

    def write_record(self, name: str, data: bytes, expected_version: int) -> int:
        with self._writing() as connection:
            check_version(self._existing(name)[1], expected_version)
            version = self._changed()
            connection.execute("UPDATE records SET version = ?, data = ? WHERE name = ?", (version, data, name))
            return version

    def delete_record(self, name: str, expected_version: int) -> None:
        with self._writing() as connection:
            check_version(self._existing(name)[1], expected_version)
            connection.execute("DELETE FROM records WHERE name = ?", (name,))
            self._changed()

    def transact(self, steps: Sequence[Step]) -> int:
        with self._writing() as connection:
            for step in steps:
                if isinstance(step, LedgerAt | LedgerDeletion):
                    ledger = self._record(step.ledger_id)
                    if ledger is None:
                        raise LedgerNotFound("no such ledger in the metadata store", ledger_id=step.ledger_id)
                    check_version(ledger.version, step.version, ledger_id=step.ledger_id)
                else:
                    named = self._named(step.name)
                    check_record_version(0 if named is None else named[1], step)
            changes = [step for step in steps if isinstance(step, LedgerDeletion | RecordWrite)]
            version = self._changed() if changes else self._counter("revision")
            for step in changes:
                if isinstance(step, LedgerDeletion):
                    connection.execute("DELETE FROM ledgers WHERE id = ?", (step.ledger_id,))
                    self._note_deleted(step.ledger_id, step.ledger_id)
                else:
                    connection.execute(
                        "INSERT OR REPLACE INTO records (name, version, data) VALUES (?, ?, ?)",
                        (step.name, version, step.data),
                    )
            return version

    def record_names(self, prefix: str) -> Sequence[str]:
        with self._reading() as connection:
            query = "SELECT name FROM records WHERE substr(name, 1, ?) = ? ORDER BY name"
            return [str(row[0]) for row in connection.execute(query, (len(prefix), prefix))]

    def _named(self, name: str) -> tuple[bytes, int] | None:
        assert self._connection is not None
        row = self._connection.execute("SELECT data, version FROM records WHERE name = ?", (name,)).fetchone()
        return None if row is None else (bytes(row[0]), int(row[1]))

    def _existing(self, name: str) -> tuple[bytes, int]:
        record = self._named(name)
        if record is None:
            raise RecordNotFound(f"no record {name} in the metadata store")
        return record

    # -- nodes ---------------------------------------------------------------------------------------------------
    def read_node(self, place: str) -> Node | None:
        self._end_expired()
        with self._reading():
            return self._node(place)[0]

    def _node(self, place: str) -> tuple[Node | None, int]:
        """Return the node, if there is one, and the session that owns it; 0 for a persistent or missing node."""
        assert self._connection is not None
        query = "SELECT data, version, session FROM nodes WHERE place = ?"
        row = self._connection.execute(query, (place,)).fetchone()
        return (None, 0) if row is None else (Node(bytes(row[0]), int(row[1])), int(row[2]))

    def create_node(self, place: str, data: bytes) -> bool:
        with self._writing(is_durable=_is_lasting(place)):
            is_new = self._node(place)[0] is None
            if is_new:
                self._put_node(place, data, 0)
            return is_new

    def write_node(self, place: str, data: bytes, expected_version: int | None) -> bool:
        with self._writing(is_durable=_is_lasting(place)):
            node, owner = self._node(place)
            if expected_version is not None and (node is None or node.version != expected_version):
                return False
            self._put_node(place, data, owner)
            return True

    def _put_node(self, place: str, data: bytes, session_id: int) -> int:
        assert self._connection is not None
        is_work = place.startswith(MARKS) and self._node(place)[0] is None
        version = self._changed(*([WORK] if is_work else []))
        query = "INSERT OR REPLACE INTO nodes (place, version, data, session) VALUES (?, ?, ?, ?)"
        self._connection.execute(query, (place, version, data, session_id))
        return version

    def delete_node(self, place: str, expected_version: int | None) -> bool:
        with self._writing(is_durable=_is_lasting(place)):
            node = self._node(place)[0]
            if node is None or expected_version not in (None, node.version):
                return False
            self._remove_node(place)
            return True

    def _remove_node(self, place: str) -> None:
        assert self._connection is not None
        self._connection.execute("DELETE FROM nodes WHERE place = ?", (place,))
        mark = mark_of_lock(place)
        self._changed(*([WORK] if mark is not None and self._node(mark)[0] is not None else []))

    def nodes(self, prefix: str, above: str, count: int) -> Sequence[tuple[str, Node]]:
        self._end_expired()
        with self._reading() as connection:
            query = "SELECT place, data, version FROM nodes WHERE place > ? AND place < ? ORDER BY place LIMIT ?"
            stop = prefix[:-1] + chr(ord(prefix[-1]) + 1)
            rows = connection.execute(query, (max(prefix, above), stop, count))
            return [(str(place), Node(bytes(data), int(version))) for place, data, version in rows]

    def hold_node(self, session_id: int, place: str, data: bytes) -> int | None:
        self._end_expired()
        with self._writing(is_durable=False):
            if not self._number("SELECT count(*) FROM sessions WHERE id = ?", session_id):
                raise SessionExpired("the session with the metadata store has ended")
            node, owner = self._node(place)
            if node is None:
                return self._put_node(place, data, session_id)
            return node.version if owner == session_id else None

    def release_node(self, session_id: int, place: str) -> None:
        with self._writing(is_durable=False):
            if self._node(place)[1] == session_id:
                self._remove_node(place)


def _is_lasting(place: str) -> bool:
    """Report whether a change of a node must be durable before the call returns.

    Locks and votes end with their session, and a power cut of the host ends all sessions. A mark is a claim: one that
    reappears after a power cut is checked and deleted again, and a lost one is recreated by the auditor, which restarts
    then.
    """
    return not place.startswith((MARKS, LOCKS, VOTES))


def is_busy(error: BaseException) -> bool:
    """Report whether a mapped error means that another process held the database for too long."""
    name = getattr(error.__cause__, "sqlite_errorname", "")
    return str(name).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def _mapped(error: sqlite3.Error, path: str) -> BookKeeperError:
    """Return our error for SQLite's: what happened and, if possible, what to do next."""
    name = str(getattr(error, "sqlite_errorname", "") or type(error).__name__)
    if name == "SQLITE_FULL":
        return DiskFull(f"no space left for the metadata store {path}: nothing was changed; free space and retry")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return MetadataCorrupt(f"{path} is damaged ({error}): restore it from a backup")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return MetadataError(f"another process kept {path} locked for more than {BUSY_TIMEOUT_S:.0f} s: retry")
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH")):
        return MetadataError(f"{path} cannot be opened for writing ({error}): check its owner and permissions")
    return MetadataError(f"{path}: {error} ({name})")
