"""What a committer, an abort and the reaper decide."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bookies.errors import LogNotFound, TransactionRefused
from bookies.model import BookieId, DigestType, LedgerMetadata, LedgerState
from bookies.protocol.log import Manifest
from bookies.protocol.log.log_model import Extent, LedgerEnd, Written, emptied, illegality
from bookies.protocol.log.transaction import (
    RETENTION_MS,
    Committed,
    Fate,
    OpenTail,
    Origin,
    Swap,
    Transaction,
    decide,
    fate,
    labels_of,
    unfitness,
)

NEW = Manifest("t", 1, 3, 3, 2, DigestType.CRC32C)
WRITTEN = (Written(10, 4, 50), Written(11, 0, 7))
TXN = Transaction("app", 3, "q", {"a": WRITTEN}, {"a": "t"})


def swapped(found: Manifest, txn: Transaction = TXN, ends: dict[int, LedgerEnd] | None = None) -> Manifest:
    decision = decide({"a": found}, txn, ends or {}, 1000)
    assert isinstance(decision, Swap)
    changed = decision.manifests["a"]
    assert illegality(found, changed) == ""
    return changed


def test_a_transaction_is_known_by_its_name_and_its_ledgers() -> None:
    two = replace(TXN, ledgers={"b": (Written(9, 0, 1),), "a": WRITTEN})
    assert (two.name, two.ledger_ids) == ("app:3", [9, 10, 11])


def test_a_commit_puts_every_ledger_at_the_end_and_notes_the_transaction() -> None:
    after = swapped(NEW)
    assert after.extents == (Extent(0, 10, 0, 4, 5, 50, "app:3", 1000), Extent(1, 11, 0, 0, 1, 7, "app:3", 1000))
    assert after.txns == {"app": {"query": "q", "version": 3, "at": 1000}}
    assert (after.next_seq, after.epoch) == (2, 0)


def test_a_repetition_with_new_ledgers_is_committed_already_and_its_ledgers_are_not_listed() -> None:
    again = replace(TXN, ledgers={"a": (Written(20, 0, 1), Written(10, 4, 50))})
    assert decide({"a": swapped(NEW)}, again, {}, 2000) == Committed({"a": [20]})
    older = replace(TXN, version=1, ledgers={"a": (Written(20, 0, 1),)})
    assert decide({"a": swapped(NEW)}, older, {}, 2000) == Committed({"a": [20]})


def test_without_a_name_only_the_ledgers_tell() -> None:
    unnamed = replace(TXN, is_kept=False)
    after = swapped(NEW, unnamed)
    assert after.txns == {}
    assert decide({"a": after}, unnamed, {}, 2000) == Committed({"a": []})
    gone = replace(after, extents=(), deleting=(10, 11))
    assert decide({"a": gone}, unnamed, {}, 2000) == Committed({"a": []})
    assert isinstance(decide({"a": after}, replace(unnamed, ledgers={"a": (Written(9, 0, 1),)}), {}, 0), Swap)


def test_one_log_that_knows_the_transaction_is_enough() -> None:
    two = Transaction("app", 3, "q", {"a": WRITTEN, "b": (Written(12, 0, 1),)}, {"a": "t", "b": "t"})
    assert decide({"a": swapped(NEW), "b": NEW}, two, {}, 0) == Committed({"a": [], "b": [12]})


def test_another_query_of_the_same_application_is_refused() -> None:
    with pytest.raises(TransactionRefused, match="'app' committed version 3 to log a as query q; this is query other"):
        decide({"a": swapped(NEW)}, replace(TXN, query="other", version=0, ledgers={"a": ()}), {}, 0)


@pytest.mark.parametrize(("version", "lost"), [(3, ""), (4, ""), (5, "batch 4"), (7, "batches 4 to 6")])
def test_a_gap_in_the_numbers_of_a_query_is_refused(version: int, lost: str) -> None:
    """A query that the log does not know begins anywhere; without `is_consecutive` gaps mean nothing."""
    txn = replace(TXN, version=version, ledgers={"a": (Written(30, 0, 1),)}, is_consecutive=True)
    assert isinstance(decide({"a": NEW}, txn, {}, 0), Swap)
    assert isinstance(decide({"a": swapped(NEW)}, replace(txn, app="other"), {}, 0), Swap)
    found = {"a": swapped(NEW)}
    if not lost:
        assert isinstance(decide(found, txn, {}, 0), Committed if version == 3 else Swap)
        return
    text = (
        rf"query q \(application 'app'\) commits batch {version} to log a, whose last one is batch 3: .* lacks {lost},"
    )
    with pytest.raises(TransactionRefused, match=text):
        decide(found, txn, {}, 0)
    assert isinstance(decide(found, replace(txn, is_consecutive=False), {}, 0), Swap)


def test_a_log_that_is_being_deleted_takes_nothing() -> None:
    last = emptied(NEW)
    assert last is not None
    with pytest.raises(LogNotFound):
        decide({"a": last}, TXN, {}, 0)


def test_what_is_open_is_ended_first_and_its_leader_leads_no_more() -> None:
    led = replace(NEW, extents=(Extent(0, 1), Extent(1, 2)), next_seq=2, epoch=4)
    assert decide({"a": led}, TXN, {}, 0) == OpenTail({"a": [1, 2]})
    assert decide({"a": led}, TXN, {1: LedgerEnd(0, 1)}, 0) == OpenTail({"a": [2]})
    after = swapped(led, ends={1: LedgerEnd(5, 60), 2: LedgerEnd(-1, 0)})
    assert [each.last for each in after.extents] == [5, -1, 4, 0]
    assert after.epoch == 5


def test_replacing_puts_what_was_there_into_deleting() -> None:
    led = replace(NEW, extents=(Extent(0, 1, 0, 3, 4, 5), Extent(1, 2)), next_seq=2, deleting=(0,))
    after = swapped(led, replace(TXN, is_replacing=True), {2: LedgerEnd(0, 3)})
    assert (after.ledger_ids, after.deleting, after.next_seq, after.epoch) == ([10, 11], (0, 1, 2), 4, 1)


def test_transactions_are_forgotten_long_after_their_last_use() -> None:
    old = replace(NEW, txns={"old": {"query": "x", "version": 1, "at": 0}, "odd": "?", "app": TXN.query})
    kept = replace(NEW, txns={"new": {"query": "x", "version": 1, "at": 1000}})
    for found, names in ((old, {"app"}), (kept, {"new", "app"})):
        decision = decide({"a": found}, TXN, {}, RETENTION_MS + 500)
        assert isinstance(decision, Swap)
        assert set(decision.manifests["a"].txns) == names


def record(ledger_id: int, *, created_ms: int = 0, version: int = 3, query: str = "q") -> LedgerMetadata:
    labels = labels_of(Origin("app", version, query, 0, "1"), "a", "t", created_ms)
    return LedgerMetadata(
        ledger_id,
        1,
        1,
        1,
        ((0, (BookieId("b"),)),),
        state=LedgerState.CLOSED,
        last_entry_id=4,
        length=50,
        custom_metadata={name: value.encode() for name, value in labels.items()},
    )


def test_a_ledger_that_is_not_what_its_task_said_is_refused() -> None:
    assert unfitness(record(10), TXN, "a", WRITTEN[0]) == ""
    assert "it ends at entry 4, not at 0" in unfitness(record(10), TXN, "a", WRITTEN[1])
    assert "belongs to transaction app:2" in unfitness(record(10, version=2), TXN, "a", WRITTEN[0])
    assert "written for log 'a', perhaps an earlier one" in unfitness(
        record(10), replace(TXN, tokens={"a": "later"}), "a", WRITTEN[0]
    )
    protected = replace(record(10), password=b"s3cret")
    assert "its password is not the one" in unfitness(protected, TXN, "a", WRITTEN[0], b"")
    assert unfitness(protected, TXN, "a", WRITTEN[0], b"s3cret") == unfitness(protected, TXN, "a", WRITTEN[0]) == ""
    assert unfitness(replace(record(10), password=None), TXN, "a", WRITTEN[0], b"s3cret") == ""


def test_the_reaper_keeps_what_may_still_be_committed() -> None:
    day, minute = 24 * 3600 * 1000, 60 * 1000
    after = swapped(NEW)
    assert fate(after, record(10), 10 * day) is Fate.LISTED
    assert fate(replace(after, extents=(), deleting=(10,)), record(10), 10 * day) is Fate.LISTED
    assert fate(after, record(20), 9 * minute) is Fate.YOUNG  # a repetition may be writing it
    assert fate(after, record(20), 10 * minute) is Fate.GARBAGE
    assert fate(after, record(20, version=4), day - 1) is Fate.YOUNG  # a transaction that is still to come
    assert fate(after, record(20, version=4), day) is Fate.GARBAGE
    assert fate(after, record(20, query="other"), day - 1) is Fate.YOUNG
    assert fate(None, record(20), day - 1) is Fate.YOUNG
    assert fate(None, record(20), day) is Fate.GARBAGE


def test_the_reaper_leaves_copies_from_another_cluster_alone() -> None:
    """They have the labels of the transaction that wrote them there, with its time."""
    copy = record(20)
    copy = copy.replace(custom_metadata=copy.custom_metadata | {"migrated.from": b"old/7"})
    after = swapped(NEW)
    for manifest in (None, after, replace(after, txns={})):
        assert fate(manifest, copy, 10**15, orphan_grace_ms=0, replay_grace_ms=0) is Fate.MIGRATED
    assert fate(replace(after, deleting=(20,)), copy, 10**15) is Fate.LISTED
