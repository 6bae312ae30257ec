"""What a scrub decides: whom to blame, for what, and what to do about it."""

from __future__ import annotations

import pytest

from bookies.client.repair.scan import BadRun
from bookies.errors import BookKeeperError, DigestMismatch, EntryNotFound, LedgerUnknownToBookie, ReadFailed
from bookies.model import BookieId, Ensemble, LedgerMetadata, LedgerState
from bookies.protocol.repair import Fragment
from bookies.spark.jobs.shared.findings import (
    Finding,
    Repair,
    check_record,
    differing,
    findings_of,
    kind_of,
    one_by_bookie,
    repairs_of,
    too_few,
)


def ensemble(names: str) -> Ensemble:
    return tuple(BookieId(name) for name in names)


def record(*fragments: tuple[int, str], last: int = 99, write_quorum: int = 2, ack_quorum: int = 2) -> LedgerMetadata:
    return LedgerMetadata(
        7, 3, write_quorum, ack_quorum, tuple((first, ensemble(names)) for first, names in fragments),
        LedgerState.CLOSED, last, 1000,
    )  # fmt: skip


FRAGMENT = Fragment(7, 0, 9, ensemble("abc"), 3, is_finished=True)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (EntryNotFound(), "missing"),
        (LedgerUnknownToBookie(), "missing"),
        (DigestMismatch(), "corrupt"),
        (ReadFailed(), "unreadable"),
    ],
)
def test_the_kind_of_a_finding_follows_from_the_error(error: BookKeeperError, kind: str) -> None:
    assert kind_of(error) == kind
    [found] = findings_of(FRAGMENT, "a", [BadRun(3, 5, error)])
    assert found[:6] == (7, 0, "a", 3, 5, kind)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (record((0, "abc")), []),
        (record((0, "abc"), (50, "abd")), []),
        (record((0, "abc"), last=-1), []),
        (record((0, "abx")), ["no such bookie exists"]),
        (record((0, "ab")), ["an ensemble of 2 bookies in place of 3"]),
        (record((0, "aba")), ["2 times in one ensemble"]),
        (record((1, "abc")), ["do not ascend from 0"]),
        (record((0, "abc"), (50, "abd"), (50, "bcd")), ["do not ascend from 0"]),
        (record((0, "abc"), (50, "abd"), last=10), ["before its last fragment begins"]),
        (record((0, "abc"), write_quorum=1), ["its quorums are inconsistent: E3/Qw1/Qa2"]),
        (record(), ["it has no fragment"]),
    ],
)
def test_records_are_checked_without_asking_a_bookie(found: LedgerMetadata, said: list[str]) -> None:
    findings = check_record(found, "abcd")
    assert len(findings) == len(said)
    for finding, text in zip(findings, said, strict=True):
        assert text in finding.detail
        assert (finding.ledger_id, finding.kind) == (7, "metadata")


def test_while_a_ledger_is_written_only_what_no_ack_quorum_has_is_missing() -> None:
    missing = {0: [range(5, 10)], 1: [range(8, 10)], 2: []}
    assert too_few(FRAGMENT, 2, missing) == {0: [range(8, 10)], 1: [range(8, 10)]}
    assert too_few(FRAGMENT, 3, missing) == {0: [range(5, 8), range(8, 10)], 1: [range(8, 10)]}
    assert too_few(FRAGMENT, 1, missing) == {}


def test_the_majority_decides_which_payload_is_right() -> None:
    hashes = {0: {1: b"x", 2: b"x"}, 1: {1: b"x", 2: b"y"}, 2: {1: b"x", 2: b"x"}}
    assert [found[:2] for found in differing(FRAGMENT, hashes)] == [(1, 2)]
    del hashes[2][2]
    assert [found[:2] for found in differing(FRAGMENT, hashes)] == [(0, 2), (1, 2)]
    assert "none has a majority" in differing(FRAGMENT, hashes)[0][2]


def test_a_silent_bookie_is_one_finding() -> None:
    silent = [Finding(each, 0, "c", 0, 9, "unavailable", "it is not registered") for each in range(3)]
    bad = Finding(1, 0, "a", 4, 4, "corrupt", "crc")
    found = one_by_bookie([bad, *silent])
    assert [(each.bookie, each.kind) for each in found] == [("c", "unavailable"), ("a", "corrupt")]
    assert "3 replicas" in found[0].detail


def test_the_plan_renews_what_is_bad_and_replaces_who_is_gone() -> None:
    findings = [
        Finding(1, 0, "a", 4, 6, "corrupt", ""),
        Finding(1, 0, "a", 4, 6, "corrupt", ""),
        Finding(1, 0, "c", 0, 9, "unavailable", ""),
        Finding(2, 0, "d", 0, 9, "unavailable", ""),
        Finding(3, 0, "", 0, 9, "metadata", ""),
        Finding(4, 0, "x", 0, 9, "metadata", ""),
    ]
    assert repairs_of(findings, ["c", "x"]) == [
        Repair(1, 0, "a", 4, 6, "renew", "corrupt"),
        Repair(1, 0, "c", -1, -1, "replace", "unavailable"),
        Repair(4, 0, "x", -1, -1, "replace", "metadata"),
    ]
