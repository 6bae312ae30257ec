"""The in-memory store and the database answer every sequence of operations alike, to the last version number."""

from __future__ import annotations

import pathlib
import tempfile
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bookies.errors import BookKeeperError
from bookies.metadata.embedded.memory import MemoryStore
from bookies.metadata.embedded.sqlite import SqliteStore
from bookies.metadata.interface.driver import GivenIds
from bookies.metadata.shared.store_recovery import LOCKS, MARKS, WORK
from bookies.model import BookieId, BookieMode

ledger_ids = st.sampled_from([0, 1, 5, (1 << 63) - 1])
versions = st.integers(0, 12)  # small numbers are hit often enough
bookies = st.sampled_from([BookieId("a"), BookieId("b")])
sessions = st.integers(1, 3)
modes = st.sampled_from(BookieMode)
data = st.binary(max_size=3)
places = st.sampled_from([f"{prefix}{ledger_id:016x}" for prefix in (MARKS, LOCKS) for ledger_id in (0, 5, 1 << 40)])

runs = st.sampled_from([(), ((1, 4),), ((0, 0), (2, 2)), ((3, 3), (5, 9)), ((4, (1 << 63) - 1),)])

operations = st.one_of(
    st.tuples(st.just("initialize"), st.sampled_from(["x", "y"])),
    st.tuples(st.just("instance_id")),
    st.tuples(st.just("next_ledger_id")),
    st.tuples(st.just("given_ids")),
    st.tuples(st.just("restore_ids"), st.builds(GivenIds, st.integers(0, 5), runs)),
    st.tuples(st.just("restore_instance_id"), st.sampled_from(["x", "y"])),
    st.tuples(st.just("create_ledger"), ledger_ids, data, st.integers(0, 9)),
    st.tuples(st.just("read_ledger"), ledger_ids),
    st.tuples(st.just("write_ledger"), ledger_ids, data, versions),
    st.tuples(st.just("delete_ledger"), ledger_ids, st.none() | versions),
    st.tuples(st.just("ledger_ids"), st.integers(-1, 6), st.integers(1, 3)),
    st.tuples(st.just("begin_session"), st.just(10_000)),
    st.tuples(st.just("renew_session"), sessions),
    st.tuples(st.just("end_session"), sessions),
    st.tuples(st.just("register"), sessions, bookies, modes, data),
    st.tuples(st.just("unregister"), sessions, bookies),
    st.tuples(st.just("bookies"), modes),
    st.tuples(st.just("all_bookies")),
    st.tuples(st.just("registration"), bookies),
    st.tuples(
        st.just("observe"),
        st.lists(ledger_ids, unique=True),
        st.dictionaries(modes, versions),
        st.just(True),
        st.just(()),
        st.lists(places | st.just(WORK), unique=True),
    ),
    st.tuples(st.just("create_cookie"), bookies, data),
    st.tuples(st.just("read_cookie"), bookies),
    st.tuples(st.just("write_cookie"), bookies, data, versions),
    st.tuples(st.just("delete_cookie"), bookies, versions),
    st.tuples(st.just("read_node"), places),
    st.tuples(st.just("create_node"), places, data),
    st.tuples(st.just("write_node"), places, data, st.none() | versions),
    st.tuples(st.just("delete_node"), places, st.none() | versions),
    st.tuples(st.just("nodes"), st.sampled_from([MARKS, LOCKS]), places, st.integers(1, 3)),
    st.tuples(st.just("hold_node"), sessions, places, data),
    st.tuples(st.just("release_node"), sessions, places),
)


def outcome(store: Any, operation: tuple[Any, ...]) -> Any:
    name, *arguments = operation
    try:
        return getattr(store, name)(*arguments)
    except BookKeeperError as error:
        return type(error), str(error)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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
