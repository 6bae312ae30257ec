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
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from bookies.errors import MetadataCorrupt, MetadataError, NotSupported
from bookies.metadata.interface.driver import GivenIds
from bookies.metadata.shared.nodes import (
    LOCKS,
    MARKS,
    REGISTRATIONS,
    VOTES,
    WORK,
    Change,
    Condition,
    Item,
    Key,
    Observation,
    Outcome,
    Page,
    Put,
    Table,
)
from bookies.metadata.shared.table_store import COUNTERS, NEXT_ID, TableStore

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

CLOCK_SLACK_MS = 1000  # tolerance for a lease that ends later than its length from now: the clock was set back a little
BUSY_TIMEOUT_S = 10.0  # time that a transaction waits for another process's
SCHEMA_VERSION = 1
PARAMETERS_MAX = 500  # in one statement
LEDGER_ID_MAX = (1 << 63) - 1
_LAST_CHARACTER = "\U0010ffff"  # after every character of a name
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


class _Sql(NamedTuple):
    """A table's statements. `rows`: its rows with the columns key, data, version, session and ctime_ms."""

    rows: str
    put: str
    delete: str


_SQL = {
    Table.CLUSTER: _Sql(
        "SELECT 'instance id' AS key, CAST(instance_id AS BLOB) AS data, 0 AS version, 0 AS session, 0 AS ctime_ms "
        "FROM cluster",
        "INSERT INTO cluster VALUES (CAST(:data AS TEXT))",
        "DELETE FROM cluster WHERE ? = 'instance id'",
    ),
    Table.LEDGERS: _Sql(
        "SELECT id AS key, data, version, 0 AS session, ctime_ms FROM ledgers",
        "INSERT OR REPLACE INTO ledgers (id, version, data, ctime_ms) VALUES (:key, :version, :data, :ctime_ms)",
        "DELETE FROM ledgers WHERE id = ?",
    ),
    Table.COOKIES: _Sql(
        "SELECT bookie AS key, data, version, 0 AS session, 0 AS ctime_ms FROM cookies",
        "INSERT OR REPLACE INTO cookies (bookie, version, data) VALUES (:key, :version, :data)",
        "DELETE FROM cookies WHERE bookie = ?",
    ),
    Table.RECORDS: _Sql(
        "SELECT name AS key, data, version, 0 AS session, 0 AS ctime_ms FROM records",
        "INSERT OR REPLACE INTO records (name, version, data) VALUES (:key, :version, :data)",
        "DELETE FROM records WHERE name = ?",
    ),
    Table.NODES: _Sql(
        "SELECT place AS key, data, version, session, 0 AS ctime_ms FROM nodes",
        "INSERT OR REPLACE INTO nodes (place, version, data, session) VALUES (:key, :version, :data, :session)",
        "DELETE FROM nodes WHERE place = ?",
    ),
} | {
    table: _Sql(
        "SELECT bookie AS key, data, 0 AS version, session, 0 AS ctime_ms FROM registrations "
        f"WHERE mode = '{table.value}'",
        "INSERT OR REPLACE INTO registrations (bookie, session, mode, data) "
        f"VALUES (:key, :session, '{table.value}', :data)",
        f"DELETE FROM registrations WHERE bookie = ? AND mode = '{table.value}'",
    )
    for table in REGISTRATIONS
}
_READ = {
    table: f"SELECT data, version, session, ctime_ms FROM ({sql.rows}) WHERE key = ?" for table, sql in _SQL.items()
}
_WITH_SESSIONS = (Table.NODES, *REGISTRATIONS)


class SqliteStore(TableStore):
    """`Nodes` in a SQLite database. Used from one thread at a time. `now_ms`: wall clock."""

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

    def _set_counter(self, name: str, value: int) -> None:
        self._change("UPDATE counters SET value = ? WHERE name = ?", value, name)

    def _change(self, statement: str, *parameters: object) -> None:
        assert self._connection is not None
        self._connection.execute(statement, parameters)

    # -- items ---------------------------------------------------------------------------------------------------
    def get(self, keys: Sequence[Key]) -> list[Item | None]:
        if any(key.table in _WITH_SESSIONS for key in keys):
            self._end_expired()
        with self._reading():
            return [self._item(key) for key in keys]

    def list(
        self, table: Table, prefix: str = "", after: str | int | None = None, count: int = -1, has_data: bool = True
    ) -> Page:
        if table in _WITH_SESSIONS:
            self._end_expired()
        with self._reading():
            return self._page(table, prefix, after, count, has_data)

    def _page(
        self, table: Table, prefix: str = "", after: str | int | None = None, count: int = -1, has_data: bool = True
    ) -> Page:
        conditions = {"key > :after": after is not None, "key >= :prefix AND key < :stop": bool(prefix)}
        where = " AND ".join(condition for condition, is_given in conditions.items() if is_given) or "TRUE"
        values = {"after": after, "prefix": prefix, "stop": f"{prefix}{_LAST_CHARACTER}", "count": count}
        items = self._rows(table, f"{where} ORDER BY key LIMIT :count", values, "data" if has_data else "x''")
        return Page(items, self._counter(table.value) if table.value in COUNTERS else 0)

    def _rows(
        self, table: Table, where: str, values: Mapping[str, object], data: str = "data"
    ) -> Sequence[tuple[str | int, Item]]:
        assert self._connection is not None
        query = f"SELECT key, {data}, version, session, ctime_ms FROM ({_SQL[table].rows}) WHERE {where}"
        return [(name, Item(bytes(data), *rest)) for name, data, *rest in self._connection.execute(query, values)]

    def commit(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> Outcome:
        if any(isinstance(change, Put) and change.session for change in changes):
            self._end_expired()
        with self._writing(is_durable=any(_is_lasting(change.key) for change in changes)):
            return self._transact(conditions, changes)

    def _item(self, key: Key) -> Item | None:
        if isinstance(key.name, int) and not 0 <= key.name <= LEDGER_ID_MAX:
            return None
        assert self._connection is not None
        row = self._connection.execute(_READ[key.table], (key.name,)).fetchone()
        return None if row is None else Item(*row)

    def _put(self, key: Key, item: Item) -> None:
        assert self._connection is not None
        values = {"key": key.name, "data": item.data, "version": item.version}
        self._connection.execute(_SQL[key.table].put, values | {"session": item.session, "ctime_ms": item.ctime_ms})

    def _delete(self, key: Key) -> None:
        self._change(_SQL[key.table].delete, key.name)

    def _is_empty(self, table: Table) -> bool:
        return not self._number(f"SELECT EXISTS ({_SQL[table].rows})")

    # -- ledgers' numbers ----------------------------------------------------------------------------------------
    def next_id(self) -> int:
        with self._writing():
            ledger_id = self._counter(NEXT_ID)
            self._set_counter(NEXT_ID, ledger_id + 1)
            return ledger_id

    def given_ids(self) -> GivenIds:
        with self._reading() as connection:
            spent = connection.execute("SELECT first, last FROM deleted_ledgers ORDER BY first").fetchall()
            return GivenIds(self._counter(NEXT_ID), tuple(spent))

    def restore_ids(self, ids: GivenIds) -> None:
        with self._writing():
            self._set_counter(NEXT_ID, max(self._counter(NEXT_ID), ids.next_id))
            for first, last in ids.spent:
                self._spend(first, last)

    def unspend(self, ledger_id: int) -> None:
        with self._writing():
            first, last = self._deleted_run(ledger_id)
            if last < ledger_id:
                return
            self._change("DELETE FROM deleted_ledgers WHERE first = ?", first)
            for start, end in ((first, ledger_id - 1), (ledger_id + 1, last)):
                if start <= end:
                    self._change("INSERT INTO deleted_ledgers (first, last) VALUES (?, ?)", start, end)

    def clear(self) -> None:
        with self._writing():
            for table in Table:
                self._end({Key(table, name): item for name, item in self._rows(table, "TRUE", {}, "x''")})
            self._change("DELETE FROM deleted_ledgers")

    def _is_spent(self, ledger_id: int) -> bool:
        return self._deleted_run(ledger_id)[1] >= ledger_id

    def _deleted_run(self, ledger_id: int) -> tuple[int, int]:
        """Return the last run of deleted ids (first, last) that begins at or before an id; (-2, -2): there is none."""
        assert self._connection is not None
        query = "SELECT first, last FROM deleted_ledgers WHERE first <= ? ORDER BY first DESC LIMIT 1"
        row: tuple[int, int] | None = self._connection.execute(query, (ledger_id,)).fetchone()
        return row or (-2, -2)

    def _spend(self, first: int, last: int) -> None:
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

    def _end_sessions(self, sessions: Sequence[int]) -> None:
        for session in sessions:
            self._change("DELETE FROM sessions WHERE id = ?", session)
            self._end(
                {
                    Key(table, name): item
                    for table in _WITH_SESSIONS
                    for name, item in self._rows(table, "session = :session", {"session": session})
                }
            )

    def _lease_left_ms(self, session: int) -> int | None:
        assert self._connection is not None
        row = self._connection.execute("SELECT expires_at_ms FROM sessions WHERE id = ?", (session,)).fetchone()
        return None if row is None else max(0, int(row[0]) - self._now_ms())

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

    # -- observing -----------------------------------------------------------------------------------------------
    def observe(self, keys: Sequence[Key], sets: Mapping[Table, int], is_complete: bool) -> Observation | None:
        # Read before the data, so that a commit in between is observed twice rather than never.
        token = self._number("PRAGMA data_version"), self._commits
        sees_sessions = bool(sets) or any(key.table is Table.NODES for key in keys)
        if token == self._observed and not is_complete and (not sees_sessions or self._now_ms() < self._next_expiry_ms):
            return None
        if sees_sessions:
            self._end_expired()
        with self._reading():
            versions = {
                Key(table, name): version
                for table in (Table.LEDGERS, Table.RECORDS, Table.NODES)
                for name, version in self._versions(table, [key.name for key in keys if key.table is table])
            }
            if WORK in keys:
                versions[WORK] = self._counter(str(WORK.name))
            pages = {table: self._page(table) for table, known in sets.items() if self._counter(table.value) != known}
            self._next_expiry_ms = self._number("SELECT coalesce(min(expires_at_ms), 1 << 62) FROM sessions")
        self._observed = token
        return Observation(versions, pages)

    def _versions(self, table: Table, names: Sequence[str | int]) -> Iterator[tuple[str | int, int]]:
        assert self._connection is not None
        query = f"SELECT key, version FROM ({_SQL[table].rows}) WHERE key IN"
        for first in range(0, len(names), PARAMETERS_MAX):
            batch = names[first : first + PARAMETERS_MAX]
            yield from self._connection.execute(f"{query} ({','.join('?' * len(batch))})", batch)


def _is_lasting(key: Key) -> bool:
    """Report whether a change of an item must be durable before the call returns.

    Locks and votes end with their session, and a power cut of the host ends all sessions. A mark is a claim: one that
    reappears after a power cut is checked and deleted again, and a lost one is recreated by the auditor, which restarts
    then.
    """
    return key.table is not Table.NODES or not str(key.name).startswith((MARKS, LOCKS, VOTES))


def is_busy(error: BaseException) -> bool:
    """Report whether a mapped error means that another process held the database for too long."""
    name = getattr(error.__cause__, "sqlite_errorname", "")
    return str(name).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def _mapped(error: sqlite3.Error, path: str) -> MetadataError:
    """Return our error for SQLite's: what happened and, if possible, what to do next."""
    name = str(getattr(error, "sqlite_errorname", "") or type(error).__name__)
    if name == "SQLITE_FULL":
        return MetadataError(f"no space left for the metadata store {path}: nothing was changed; free space and retry")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return MetadataCorrupt(f"{path} is damaged ({error}): restore it from a backup")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return MetadataError(f"another process kept {path} locked for more than {BUSY_TIMEOUT_S:.0f} s: retry")
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH")):
        return MetadataError(f"{path} cannot be opened for writing ({error}): check its owner and permissions")
    return MetadataError(f"{path}: {error} ({name})")
