"""Batches in tables of Delta Lake and Iceberg: each once, whenever the driver stops, and whoever else writes."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from bookies.errors import InvalidArgument, TransactionRefused
from bookies.spark.write.delta import DeltaStore
from bookies.spark.write.iceberg import IcebergStore
from bookies.spark.write.lake import COMMITS_MAX, Changes, Conflict, TableSink, changes_of

pytestmark = pytest.mark.filterwarnings("ignore:::pyiceberg", "ignore::ResourceWarning")
QUERY = "5c9d"
Make = Callable[..., TableSink]


def rows(*changes: tuple[bytes | None, bytes | None], start: int = 0) -> pa.Table:
    return pa.table(
        {
            "log": pa.array(["orders"] * len(changes), pa.string()),
            "offset": pa.array(range(start, start + len(changes)), pa.int64()),
            "key": pa.array([key for key, _ in changes], pa.binary()),
            "value": pa.array([value for _, value in changes], pa.binary()),
        }
    )


@pytest.fixture(params=["delta", "iceberg"])
def store(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Any:
    if request.param == "delta":
        return DeltaStore(str(tmp_path / "orders"))
    uri = f"sqlite:///{tmp_path}/catalog.db"
    return IcebergStore("shop.orders", {"type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}"})


def content(store: Any) -> dict[int, tuple[bytes, bytes]]:
    table = store.opened()._table
    found = table.to_pyarrow_table() if hasattr(table, "to_pyarrow_table") else table.scan().to_arrow()
    assert len(set(found["offset"].to_pylist())) == found.num_rows
    return {row["offset"]: (row["key"], row["value"]) for row in found.to_pylist()}


class Stopping:
    """A store whose driver stops before or after a commit."""

    def __init__(self, store: Any, *, after: bool, beside: Callable[[], None] | None = None) -> None:
        self.name = store.name
        self._store, self._after, self._beside = store, after, beside
        self._table: Any = None

    def opened(self) -> Any:
        self._table = self._store.opened()
        return None if self._table is None else self

    def create(self, columns: pa.Schema) -> None:
        self._store.create(columns)

    def columns(self) -> pa.Schema:
        return self._table.columns()

    def batch_of(self, query: str) -> int | None:
        noted: int | None = self._table.batch_of(query)
        return noted

    def commit(self, batch_rows: pa.Table, query: str, batch: int) -> None:
        if self._beside is not None:
            self._beside()
        if self._after:
            self._table.commit(batch_rows, query, batch)
        if self._beside is None:
            raise KeyboardInterrupt

    def merge(self, changes: Changes, query: str, batch: int) -> None:
        raise AssertionError


def test_a_batch_is_there_once_wherever_the_driver_stopped(store: Any) -> None:
    batches = [rows((b"a", b"1"), (b"b", b"2")), rows((b"c", b"3"), start=2)]
    for number, batch in enumerate(batches):
        for after in (False, True):
            with pytest.raises(KeyboardInterrupt):
                TableSink(Stopping(store, after=after), (), "offset", None).write(lambda b=batch: b, QUERY, number)
        TableSink(store, (), "offset", None).write(lambda b=batch: b, QUERY, number)
    assert content(store) == {0: (b"a", b"1"), 1: (b"b", b"2"), 2: (b"c", b"3")}


def test_of_two_drivers_with_one_batch_one_commits(store: Any) -> None:
    """The other driver commits between the check of the note and the commit."""
    first = rows((b"a", b"1"))
    TableSink(store, (), "offset", None).write(lambda: first, QUERY, 0)
    second = rows((b"b", b"2"), start=1)
    other = TableSink(store, (), "offset", None)
    slow = Stopping(store, after=True, beside=lambda: other.write(lambda: second, QUERY, 1))
    TableSink(slow, (), "offset", None).write(lambda: second, QUERY, 1)
    assert content(store) == {0: (b"a", b"1"), 1: (b"b", b"2")}


def test_a_merge_beside_another_writer_conflicts(store: Any) -> None:
    """The other writer has changed the same keys, which the packages report in more than one way."""
    sink = TableSink(store, ("key",), "offset", "value")
    sink.write(lambda: rows((b"a", b"1")), QUERY, 0)
    for changed in (rows((b"b", b"2"), start=1), rows((b"a", b"3"), start=2)):
        stale = store.opened()
        sink.write(lambda changed=changed: changed, "other query", int(changed["offset"][0].as_py()) - 1)
        with pytest.raises(Conflict):
            stale.merge(changes_of(changed, ("key",), "offset", "value"), QUERY, 1)


def test_changes_replace_and_delete_by_key(store: Any) -> None:
    sink = TableSink(store, ("key",), "offset", "value")
    sink.write(lambda: rows((b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", None)), QUERY, 0)
    assert content(store) == {1: (b"b", b"2"), 2: (b"a", b"3")}
    for _ in range(2):
        sink.write(lambda: rows((b"b", None), (b"d", b"4"), (b"d", b"5"), start=4), QUERY, 1)
        assert content(store) == {2: (b"a", b"3"), 6: (b"d", b"5")}
    sink.write(lambda: rows((b"x", None), start=7), QUERY, 2)  # It changes nothing, and is noted.
    sink.write(lambda: rows(), QUERY, 3)
    assert store.opened().batch_of(QUERY) == 3
    assert content(store) == {2: (b"a", b"3"), 6: (b"d", b"5")}
    two = TableSink(store, ("log", "key"), "offset", None)
    two.write(lambda: rows((b"a", b"6"), (b"e", None), start=8), "other query", 0)
    assert content(store) == {6: (b"d", b"5"), 8: (b"a", b"6"), 9: (b"e", None)}


def test_keys_of_two_columns_are_told_apart(store: Any) -> None:
    def of(start: int, *logs: str) -> pa.Table:
        changes = rows(*([(b"a", b"1"), (b"b", b"2")] * len(logs)), start=start)
        return changes.set_column(0, "log", pa.array([log for log in logs for _ in range(2)], pa.string()))

    sink = TableSink(store, ("key", "log"), "offset", None)
    sink.write(lambda: of(0, "x", "y", "z"), QUERY, 0)
    crossed = pa.concat_tables([of(10, "x").slice(0, 1), of(20, "y").slice(1, 1), of(30, "new")])
    sink.write(lambda: crossed, QUERY, 1)
    assert sorted(content(store)) == [1, 2, 4, 5, 10, 21, 30, 31]


def test_a_table_that_does_not_fit_is_refused(store: Any) -> None:
    sink = TableSink(store, (), "offset", None)
    with pytest.raises(TransactionRefused, match=f"does not exist, but query {QUERY} has written 3 batches to it"):
        sink.write(rows, QUERY, 3)
    sink.write(lambda: rows((b"a", b"1")), QUERY, 0)
    with pytest.raises(TransactionRefused, match="the next one is 2, and the table has those up to 0"):
        sink.write(rows, QUERY, 2)
    for bad, message in [
        (rows().append_column("tax", pa.array([], pa.int32())), "has no column 'tax': add it to the table, or drop"),
        (rows().drop_columns("key"), "the query has no column 'key' of"),
        (rows().set_column(1, "offset", pa.array([], pa.string())), "has column 'offset' as int64, and the query as"),
    ]:
        with pytest.raises(InvalidArgument, match=message):
            sink.write(lambda b=bad: b, QUERY, 1)
    assert content(store) == {0: (b"a", b"1")}


def test_a_checkpoint_that_was_put_back_is_refused(store: Any) -> None:
    """Batch 1 would begin again with other rows, and would be skipped with those that the table lacks."""
    sink = TableSink(store, (), "offset", None)
    for number in range(3):
        sink.write(lambda number=number: rows((b"a", b"1"), start=number), QUERY, number)
    with pytest.raises(TransactionRefused, match=r"has batches .* up to 2, and batch 1 may have other rows"):
        sink.write(lambda: rows((b"a", b"1"), (b"a", b"2"), (b"a", b"3"), start=1), QUERY, 1)
    assert len(content(store)) == 3


def test_other_writers_that_never_pause_are_reported(tmp_path: pathlib.Path) -> None:
    class Busy(Stopping):
        def commit(self, batch_rows: pa.Table, query: str, batch: int) -> None:
            raise Conflict

    store = DeltaStore(str(tmp_path / "orders"))
    with pytest.raises(TransactionRefused, match=f"changed the table {COMMITS_MAX} times meanwhile: pause them"):
        TableSink(Busy(store, after=False), (), "offset", None).write(lambda: rows((b"a", b"1")), QUERY, 0)


def test_the_last_change_of_a_key() -> None:
    ties = rows((b"a", b"1"), (b"a", b"2"), (b"b", b"3")).set_column(1, "offset", pa.array([7, 7, 5], pa.int64()))
    found = changes_of(ties, ["key"], "offset", None)
    assert [(row["key"], row["value"]) for row in found.rows.to_pylist()] == [(b"b", b"3"), (b"a", b"2")]
    assert found.kept.num_rows == 2
    with pytest.raises(InvalidArgument, match="log orders: the row at offset 1 has no key: filter rows"):
        changes_of(rows((b"a", b"1"), (None, b"2")), ["key"], "offset", None)
    with pytest.raises(InvalidArgument, match="the query has no column 'at', which the sink needs: select it"):
        changes_of(rows(), ["key"], "at", None)
    with pytest.raises(InvalidArgument, match="tombstone is for a table with a key"):
        TableSink(DeltaStore("/nowhere"), (), "offset", "value")
