"""Whatever leaders, truncations and deletions do to a log's list, in whatever order: it stays one that can be led."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookies.errors import InvalidArgument, LogFenced, LogTruncated
from bookies.model import DigestType
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.log_model import (
    OPEN_MAX,
    LedgerEnd,
    emptied,
    ended,
    illegality,
    pack_manifest,
    parse_manifest,
    rolled,
    swept,
    taken_over,
    truncated,
)

NEW = Manifest("t", 1, 3, 3, 2, DigestType.CRC32C)


class Store:
    """The list as stored, and what the ledgers would hold. Several leaders act on lists that they have read before."""

    def __init__(self) -> None:
        self.lists = [NEW]
        self.count = 0
        self.sizes: dict[int, int] = {}
        self.closed: dict[int, LedgerEnd] = {}

    @property
    def now(self) -> Manifest:
        return self.lists[-1]

    def commit(self, after: Manifest | None) -> None:
        if after is None:
            return
        assert illegality(self.now, after) == ""
        assert parse_manifest("x", pack_manifest(after)) == after
        assert all(each in self.closed for each in after.ledger_ids[:-OPEN_MAX])
        assert len(after.open_ledgers) <= OPEN_MAX
        self.lists.append(after)

    def new_ledger(self, size: int) -> int:
        self.count += 1
        self.sizes[self.count] = size
        return self.count

    def close(self, ledger_id: int) -> LedgerEnd:
        size = self.sizes[ledger_id]
        return self.closed.setdefault(ledger_id, LedgerEnd(size - 1, size * 10))


Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["lead", "roll", "end", "truncate", "sweep", "stale"]), st.integers(0, 5), st.integers(0, 4)
    ),
    max_size=40,
)


def act(store: Store, step: Step) -> None:
    kind, size, choice = step
    now = store.now
    basis = store.lists[max(0, len(store.lists) - 1 - choice)] if kind == "stale" else now
    if kind in ("lead", "stale"):
        ends = {each: store.close(each) for each in basis.open_ledgers}
        store.commit(taken_over(now, basis, store.new_ledger(size), ends))
    elif kind == "roll" and now.extents:
        *before, current = now.ledger_ids
        for each in before:
            store.close(each)
        store.commit(rolled(now, now.epoch, current, store.new_ledger(size), store.closed))
    elif kind == "end":
        store.commit(ended(now, store.closed))
    elif kind == "truncate" and now.extents:
        extent = now.extents[choice % len(now.extents)]
        for each in now.ledger_ids[: choice % len(now.extents)]:
            store.close(each)
        last = store.sizes[extent.ledger_id] - 1
        store.commit(truncated(now, Position(extent.ledger_id, size), store.closed, last))
    elif kind == "sweep":
        store.commit(swept(now, now.deleting[:choice]))


@given(STEPS)
def test_every_list_is_legal_and_can_be_led(steps: list[Step]) -> None:
    store = Store()
    for step in steps:
        try:
            act(store, step)
        except (LogFenced, LogTruncated, InvalidArgument):
            continue
    ends = {each: store.close(each) for each in store.now.open_ledgers}
    store.commit(taken_over(store.now, store.now, store.new_ledger(0), ends))
    everything = [*store.now.ledger_ids, *store.now.deleting]
    assert len(everything) == len(set(everything))
    last = emptied(store.now)
    store.commit(last)
    assert last is not None
    store.commit(swept(last, last.deleting))
    assert illegality(store.now, None) == ""


@given(STEPS)
def test_what_is_left_to_read_only_shrinks_from_the_front(steps: list[Step]) -> None:
    """The readable entries of each list are a suffix of those of the list before, with perhaps something behind."""
    store = Store()
    for step in steps:
        before = readable(store)
        try:
            act(store, step)
        except (LogFenced, LogTruncated, InvalidArgument):
            continue
        after = readable(store)
        kept = [each for each in after if each in before]
        assert kept == after[: len(kept)]
        assert kept == before[len(before) - len(kept) :]


def readable(store: Store) -> list[Position]:
    return [
        Position(each.ledger_id, entry_id)
        for each in store.now.extents
        for entry_id in range(each.first, store.sizes[each.ledger_id])
    ]


@given(STEPS)
def test_rows_keep_their_numbers(steps: list[Step]) -> None:
    store = Store()
    numbers: dict[Position, int] = {}
    for step in steps:
        try:
            act(store, step)
        except (LogFenced, LogTruncated, InvalidArgument):
            continue
        number = store.now.rows_truncated
        for extent in store.now.extents:
            end = store.closed.get(extent.ledger_id)
            if end is None:
                break  # Rows behind it have no number yet.
            for entry_id in range(extent.first, end.last_entry_id + 1):
                assert numbers.setdefault(Position(extent.ledger_id, entry_id), number) == number
                number += 1
