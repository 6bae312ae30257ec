"""An operator's change of a record: the differences that are shown, and what each change may cost."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from bookies.model import BookieId, DigestType, Ensemble, LedgerMetadata, LedgerState
from bookies.protocol.ledger import offload
from bookies.protocol.ledger.operator_change import dangers, field_changes, refusal, renamed, stays_named

B, D, X = BookieId("b"), BookieId("d"), BookieId("x")


def members(names: str) -> Ensemble:
    return tuple(BookieId(name) for name in names)


OPEN = LedgerMetadata(7, 3, 3, 2, ((0, members("abc")), (10, members("abd"))))
CLOSED = OPEN.replace(state=LedgerState.CLOSED, last_entry_id=20, length=200)
STRIPED = CLOSED.replace(write_quorum=2)


def test_every_difference_is_a_line_and_no_password_is_shown() -> None:
    before = CLOSED.replace(custom_metadata={"app": b"x", "old": b"1"}, password=b"secret")
    after = before.replace(
        last_entry_id=15,
        ensembles=((0, members("abx")), (12, members("abd"))),
        custom_metadata={"app": b"\xff", "new": b"2"},
        password=b"other",
        creator_token=9,
    )
    assert [(change.field, change.before, change.after) for change in field_changes(before, after)] == [
        ("last_entry", "20", "15"),
        ("password", "hidden", "another one"),
        ("fragment 0", "a, b, c", "a, b, x"),
        ("fragment 10", "a, b, d", "-"),
        ("label app", "x", "\\xff"),
        ("label old", "1", "-"),
        ("fragment 12", "-", "a, b, d"),
        ("label new", "-", "2"),
    ]
    assert field_changes(before, before.replace(creator_token=9)) == []
    unknown = CLOSED.replace(digest_type=None)
    assert [(change.field, change.after) for change in field_changes(CLOSED, unknown)] == [("digest", "-")]


def test_a_record_that_no_client_can_use_is_refused() -> None:
    assert refusal(CLOSED, CLOSED.replace(ledger_id=8)) == "it is the record of ledger 8"
    assert "fragment 0 has members ['a', 'a', 'c']" in refusal(
        CLOSED, CLOSED.replace(ensembles=((0, members("aac")), CLOSED.ensembles[1]))
    )
    assert refusal(CLOSED, CLOSED.replace(last_entry_id=15)) == ""


@pytest.mark.parametrize(
    ("before", "changes", "text"),
    [
        (CLOSED, {"last_entry_id": 15}, "entries 16 to 20 are cut off"),
        (CLOSED, {"last_entry_id": 30}, "entries 21 to 30 are added"),
        (CLOSED, {"state": LedgerState.OPEN, "last_entry_id": -1, "length": 0}, "it is OPEN again: its end"),
        (OPEN, {"state": LedgerState.CLOSED, "last_entry_id": 12}, "confirmed entries after 12 are cut off"),
        (OPEN.replace(state=LedgerState.IN_RECOVERY), {"state": LedgerState.OPEN}, "it is OPEN again, while"),
        (CLOSED, {"ensembles": CLOSED.ensembles[:1]}, "fragments begin at 0 instead of 0, 10"),
        (CLOSED, {"ensembles": ((0, members("abx")), CLOSED.ensembles[1])}, "from entry 0 on, x takes the place of c"),
        (
            CLOSED,
            {"ensemble_size": 2, "ensembles": ((0, members("ab")), (10, members("ab")))},
            "from entry 10 on, no bookie takes the place of d",
        ),
        (STRIPED, {"ensembles": ((0, members("bac")), CLOSED.ensembles[1])}, "from entry 0 on, the positions change"),
        (CLOSED, {"write_quorum": 2}, "write_quorum changes"),
        (CLOSED, {"ensemble_size": 4}, "ensemble_size changes"),
        (CLOSED, {"ack_quorum": 3}, "ack_quorum changes"),
        (CLOSED, {"digest_type": DigestType.CRC32}, "digest_type changes"),
        (CLOSED, {"password": b"x"}, "password changes"),
        (CLOSED, {"format_version": 2}, "format 2 does not store all fields of format 3"),
    ],
)
def test_what_may_cost_entries_is_named(before: LedgerMetadata, changes: Mapping[str, object], text: str) -> None:
    assert any(danger.startswith(text) or text in danger for danger in dangers(before, before.replace(**changes)))


def test_what_costs_nothing_has_no_danger() -> None:
    assert dangers(OPEN, OPEN.replace(state=LedgerState.IN_RECOVERY)) == []
    assert dangers(CLOSED, CLOSED.replace(custom_metadata={"app": b"x"}, ctime_ms=5)) == []
    # Every bookie of the ensemble has every entry, whatever its position.
    assert dangers(CLOSED, CLOSED.replace(ensembles=((0, members("cab")), CLOSED.ensembles[1]))) == []


def test_labels_by_which_bookies_delete_or_keep_entries_are_dangers() -> None:
    deleted = CLOSED.replace(custom_metadata={offload.LABEL: b"{}", offload.DELETED: b"1"})
    assert dangers(CLOSED, deleted) == ["its labels allow the bookies to delete its entries"]
    # Only the files have the entries, and they are swept when no record names them.
    unnamed = "entries are not sought in the copy of its labels, and the bookies may have deleted theirs"
    assert dangers(deleted, CLOSED) == [unnamed]
    assert dangers(deleted, deleted.replace(custom_metadata={offload.LABEL: b"{}"})) == [unnamed]
    other = deleted.custom_metadata | {offload.LABEL: b'{"attempt": "b"}'}
    assert dangers(deleted, deleted.replace(custom_metadata=other)) == [unnamed]
    assert dangers(deleted, deleted.replace(custom_metadata=deleted.custom_metadata | {"app": b"x"})) == []
    restoring = CLOSED.replace(custom_metadata={offload.LABEL: b"{}", offload.RESTORING: b"1"})
    assert "a label ends" in dangers(restoring, CLOSED)[0]
    assert dangers(deleted, restoring) == []


def test_a_bookie_gets_another_name_in_finished_fragments_only() -> None:
    """The writer of an open ledger, and a recovery, keep the last ensemble that they have read."""
    made = OPEN.replace(creator_token=4)
    changed = renamed(made, B, X, with_growing=False)
    assert changed is not None
    assert changed.ensembles == ((0, members("axc")), (10, members("abd")))
    assert changed.creator_token == 0
    assert stays_named(OPEN, 10, B, X, with_growing=False)
    assert renamed(changed, B, X, with_growing=False) is None
    whole = renamed(changed, B, X, with_growing=True)
    assert whole is not None
    assert whole.ensembles == ((0, members("axc")), (10, members("axd")))
    closed = renamed(CLOSED, B, X, with_growing=False)
    assert closed is not None
    assert not closed.names(B)


def test_one_bookie_never_holds_two_positions() -> None:
    changed = renamed(CLOSED, B, D, with_growing=True)
    assert changed is not None
    assert changed.ensembles == ((0, members("adc")), (10, members("abd")))
    assert renamed(changed, B, D, with_growing=True) is None
