"""The in-memory store and the database answer every sequence of operations alike, to the last version number."""

from __future__ import annotations

import pathlib
import tempfile
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bookies.errors import BookKeeperError
from bookies.metadata.embedded.memory import MemoryStore
from bookies.metadata.embedded.sqlite import SqliteStore
from bookies.metadata.interface.driver import GivenIds
from bookies.metadata.shared.nodes import (
    INSTANCE_ID,
    LOCKS,
    MARKS,
    REGISTRATIONS,
    WORK,
    At,
    Change,
    Condition,
    Delete,
    Empty,
    Exists,
    FreeFor,
    HeldBy,
    Key,
    Put,
    Table,
)

versions = st.integers(0, 12)  # small numbers are hit often enough
sessions = st.integers(1, 3)
data = st.binary(max_size=3)
tables = st.sampled_from(Table)
listed = [table for table in Table if table is not Table.CLUSTER]
places = [f"{prefix}{ledger_id:016x}" for prefix in (MARKS, LOCKS) for ledger_id in (0, 5, 1 << 40)]
names = {Table.LEDGERS: [0, 1, 5, (1 << 63) - 1], Table.NODES: places}


def keys_of(*wanted: Table) -> st.SearchStrategy[Key]:
    """Keys of these tables, or of all. Without filters: hypothesis gives up if it has to draw too often."""
    return st.one_of(
        st.just(INSTANCE_ID)
        if table is Table.CLUSTER
        else st.builds(Key, st.just(table), st.sampled_from(names.get(table, ["a", "b"])))
        for table in wanted or Table
    )


keys = keys_of()

conditions = st.one_of(
    st.builds(At, keys, versions),
    st.builds(Exists, keys),
    st.builds(HeldBy, keys, sessions),
    st.builds(FreeFor, keys, sessions),
    st.builds(Empty, tables),
)
registrations = keys_of(*REGISTRATIONS)
nodes = keys_of(Table.NODES)
lasting = keys_of(*(table for table in Table if table not in REGISTRATIONS))
ledgers = keys_of(Table.LEDGERS)


def transaction(conditions: list[Condition], changes: list[Change]) -> tuple[str, list[Condition], list[Change]]:
    return "commit", conditions, changes


def creation(put: Put) -> tuple[str, list[Condition], list[Change]]:
    return transaction([At(put.key, 0)], [put])


def registration(key: Key, session: int, data: bytes) -> tuple[str, list[Condition], list[Change]]:
    """Return what a driver commits: a bookie has one registration, in one of the modes."""
    other = Key(Table.READ_ONLY if key.table is Table.WRITABLE else Table.WRITABLE, key.name)
    is_free: list[Condition] = [FreeFor(key, session), FreeFor(other, session)]
    return transaction(is_free, [Delete(other), Put(key, data, session)])


changes = st.lists(
    st.one_of(st.builds(Put, lasting, data), st.builds(Put, nodes, data, sessions), st.builds(Delete, keys)),
    max_size=3,
    unique_by=lambda change: change.key,
)
runs = st.sampled_from([(), ((1, 4),), ((0, 0), (2, 2)), ((3, 3), (5, 9)), ((4, (1 << 63) - 1),)])

operations = st.one_of(
    st.builds(creation, st.builds(Put, ledgers, data, st.just(0), st.integers(0, 9))),
    st.builds(creation, st.builds(Put, lasting, data)),
    st.builds(transaction, st.lists(conditions, max_size=2), changes),
    st.builds(transaction, st.just([]), changes),
    st.builds(registration, registrations, sessions, data),
    st.tuples(st.just("get"), st.lists(keys, max_size=4)),
    st.tuples(st.just("list"), st.sampled_from(listed)),
    st.tuples(st.just("list"), st.just(Table.LEDGERS), st.just(""), st.integers(-1, 6), st.integers(1, 3)),
    st.tuples(
        st.just("list"),
        st.just(Table.NODES),
        st.sampled_from([MARKS, LOCKS]),
        st.sampled_from(places),
        st.integers(1, 3),
    ),
    st.tuples(st.just("list"), st.just(Table.COOKIES), st.sampled_from(["", "a", "b"])),
    st.tuples(st.just("next_id")),
    st.tuples(st.just("given_ids")),
    st.tuples(st.just("restore_ids"), st.builds(GivenIds, st.integers(0, 5), runs)),
    st.tuples(st.just("begin_session"), st.just(10_000)),
    st.tuples(st.just("renew_session"), sessions),
    st.tuples(st.just("end_session"), sessions),
    st.tuples(
        st.just("observe"),
        st.lists(ledgers | nodes | keys_of(Table.RECORDS) | st.just(WORK), unique=True),
        st.dictionaries(st.sampled_from(REGISTRATIONS), versions),
        st.just(True),
    ),
)


def outcome(store: Any, operation: tuple[Any, ...]) -> Any:
    name, *arguments = operation
    try:
        return getattr(store, name)(*arguments)
    except BookKeeperError as error:
        return type(error), str(error)


@given(st.lists(operations, min_size=5, max_size=40))
def test_both_stores_answer_alike(sequence: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        memory = MemoryStore()
        database = SqliteStore(str(pathlib.Path(directory) / "metadata.db"), lambda: 1_700_000_000_000)
        database.open()
        try:
            assert database._connection is not None
            database._connection.execute("PRAGMA synchronous = OFF")  # power cuts are not what is tried here
            for operation in sequence:
                assert outcome(database, operation) == outcome(memory, operation), operation
        finally:
            database.close()
