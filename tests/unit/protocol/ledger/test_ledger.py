"""Transitions of ledger metadata: what each makes, what it refuses, and the checker of what others commit."""

from __future__ import annotations

import pytest

from bookies.errors import InvalidArgument, LedgerFenced, LocalProtocolError, VersionConflict
from bookies.model import BookieId, DigestType, Ensemble, LedgerMetadata, LedgerState
from bookies.protocol.ledger import ledger
from bookies.protocol.ledger.ledger import Author


def members(names: str) -> Ensemble:
    return tuple(BookieId(name) for name in names)


def record(*fragments: tuple[int, str], state: LedgerState = LedgerState.OPEN) -> LedgerMetadata:
    return LedgerMetadata(7, 3, 3, 2, tuple((first, members(names)) for first, names in fragments), state=state)


OPEN = record((0, "abc"), (10, "abd"))
RECOVERING = ledger.in_recovery(OPEN)
CLOSED = ledger.closed(RECOVERING, 12, 130)


def test_new_ledger_is_open_and_empty() -> None:
    made = ledger.new_ledger(7, members("abc"), 3, 2, digest_type=DigestType.CRC32C, password=b"p")
    assert (made.state, made.ensembles, made.last_entry_id, made.length) == (
        LedgerState.OPEN,
        ((0, members("abc")),),
        -1,
        0,
    )
    assert ledger.malformation(made) == ""


@pytest.mark.parametrize("quorums", [(3, 3, 0), (3, 2, 3), (2, 3, 2), (0, 0, 0), (3, 3, -1)])
def test_impossible_quorums_are_refused(quorums: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidArgument, match="ensemble >= write_quorum >= ack_quorum >= 1"):
        ledger.check_quorums(*quorums)


def test_negative_id_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="negative"):
        ledger.new_ledger(-1, members("abc"), 3, 2, digest_type=DigestType.CRC32C, password=b"")


def test_new_ensemble_replaces_or_appends() -> None:
    """Same start: nothing of the last fragment was confirmed. Later: the last fragment is finished."""
    assert ledger.with_ensemble(OPEN, 10, members("xyz")).ensembles == ((0, members("abc")), (10, members("xyz")))
    assert ledger.with_ensemble(OPEN, 11, members("xyz")).ensembles == (*OPEN.ensembles, (11, members("xyz")))
    with pytest.raises(LocalProtocolError, match="after the new one at 9"):
        ledger.with_ensemble(OPEN, 9, members("xyz"))


def test_a_changed_record_has_no_token_of_a_creator() -> None:
    """As Apache's, whose records would otherwise differ."""
    made = OPEN.replace(creator_token=5)
    changed = (ledger.with_ensemble(made, 11, members("xyz")), ledger.in_recovery(made), ledger.closed(made, 12, 130))
    assert [each.creator_token for each in changed] == [0, 0, 0]


def test_change_is_needed_while_open_and_the_bookie_is_there() -> None:
    assert ledger.change_needed(OPEN, [(2, BookieId("d"))])
    assert ledger.change_needed(OPEN, [(0, BookieId("x")), (2, BookieId("d"))])
    assert not ledger.change_needed(OPEN, [(2, BookieId("c"))]), "already replaced"
    assert not ledger.change_needed(RECOVERING, [(2, BookieId("d"))])
    assert not ledger.change_needed(CLOSED, [(2, BookieId("d"))])


def test_close_by_the_writer() -> None:
    assert ledger.close_needed(OPEN, 12, 130, is_implicit=False)
    assert ledger.close_needed(OPEN, 12, 130, is_implicit=True)
    assert ledger.close_needed(RECOVERING, 12, 130, is_implicit=False)
    with pytest.raises(LedgerFenced):
        ledger.close_needed(RECOVERING, 12, 130, is_implicit=True)
    assert not ledger.close_needed(CLOSED, 12, 130, is_implicit=True)
    for last, length in ((11, 130), (12, 131)):
        with pytest.raises(VersionConflict, match="closed by another client at entry 12"):
            ledger.close_needed(CLOSED, last, length, is_implicit=False)


def test_a_recovery_announces_itself_once() -> None:
    assert ledger.announcement_needed(OPEN)
    assert not ledger.announcement_needed(RECOVERING)
    assert not ledger.announcement_needed(CLOSED)


def test_close_by_a_recovery() -> None:
    assert ledger.recovery_close_needed(RECOVERING)
    assert not ledger.recovery_close_needed(CLOSED)
    with pytest.raises(LocalProtocolError):
        ledger.recovery_close_needed(OPEN)
    fragments = {13: members("axd"), 10: members("abx")}
    end = ledger.close_recovered(RECOVERING, 10, fragments, 15, 160)
    assert end.ensembles == ((0, members("abc")), (10, members("abx")), (13, members("axd")))
    assert (end.state, end.last_entry_id, end.length) == (LedgerState.CLOSED, 15, 160)
    assert ledger.illegality(RECOVERING, end, Author.RECOVERY) == ""
    with pytest.raises(LocalProtocolError, match="not at 0 as announced"):
        ledger.close_recovered(RECOVERING, 0, {}, 15, 160)


@pytest.mark.parametrize(
    ("before", "after", "author"),
    [
        (OPEN, ledger.with_ensemble(OPEN, 10, members("abx")), Author.WRITER),
        (OPEN, ledger.with_ensemble(OPEN, 20, members("abx")), Author.WRITER),
        (OPEN, ledger.closed(OPEN, 12, 130), Author.WRITER),
        (RECOVERING, CLOSED, Author.WRITER),
        (OPEN, RECOVERING, Author.RECOVERY),
        (RECOVERING, CLOSED, Author.RECOVERY),
        (OPEN, record((0, "xbc"), (10, "abd")), Author.REPLICATOR),
        (CLOSED, CLOSED.replace(ensembles=((0, members("abc")), (10, members("xbd")))), Author.REPLICATOR),
        (OPEN.replace(creator_token=5), RECOVERING, Author.RECOVERY),
    ],
)
def test_legal(before: LedgerMetadata, after: LedgerMetadata, author: Author) -> None:
    assert ledger.illegality(before, after, author) == ""


@pytest.mark.parametrize(
    ("before", "after", "author", "why"),
    [
        (OPEN, OPEN.replace(write_quorum=2), Author.WRITER, "write_quorum changed"),
        (OPEN, OPEN.replace(format_version=2), Author.RECOVERY, "format_version changed"),
        (OPEN, RECOVERING, Author.WRITER, "writer moved"),
        (RECOVERING, ledger.with_ensemble(RECOVERING, 20, members("abx")), Author.WRITER, "writer moved"),
        (
            OPEN,
            ledger.closed(ledger.with_ensemble(OPEN, 12, members("abx")), 12, 1),
            Author.WRITER,
            "changed fragments",
        ),
        (OPEN, record((0, "abc"), (10, "abx"), (20, "abd")), Author.WRITER, "replaced and appended"),
        (OPEN, record((0, "xbc"), (10, "abd")), Author.WRITER, "an earlier fragment"),
        (OPEN, record((0, "abc"), (11, "abd")), Author.WRITER, "start moved"),
        (OPEN, record((0, "abc")), Author.WRITER, "an earlier fragment"),
        (OPEN, ledger.in_recovery(record((0, "abc"), (10, "abx"))), Author.RECOVERY, "announcing"),
        (OPEN, ledger.closed(OPEN, 12, 130), Author.RECOVERY, "recovery moved"),
        (CLOSED, CLOSED.replace(last_entry_id=13), Author.RECOVERY, "recovery moved"),
        (CLOSED, CLOSED.replace(last_entry_id=13), Author.REPLICATOR, "state or end"),
        (OPEN, record((0, "abc"), (10, "abx")), Author.REPLICATOR, "can still grow"),
        (OPEN, record((0, "abc"), (9, "abd")), Author.REPLICATOR, "moved a fragment"),
        (OPEN, record((0, "abc"), (10, "abb")), Author.WRITER, "members"),
        (OPEN, record((1, "abc"), (10, "abd")), Author.WRITER, "fragments start at [1, 10]"),
        (OPEN, ledger.closed(OPEN, 8, 90), Author.WRITER, "before its last fragment"),
        (record((0, "abc")), ledger.closed(record((0, "abc")), -1, 9), Author.WRITER, "without entries"),
        (OPEN, OPEN.replace(last_entry_id=3), Author.WRITER, "with an end"),
    ],
)
def test_illegal(before: LedgerMetadata, after: LedgerMetadata, author: Author, why: str) -> None:
    assert why in ledger.illegality(before, after, author)


def test_malformed_quorums() -> None:
    assert "quorums" in ledger.malformation(OPEN.replace(ack_quorum=4))
