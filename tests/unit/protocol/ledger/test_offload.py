"""What the entries of a ledger come to, in whatever pieces; and what its record may say of a copy."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.fakes.offloaded import GIVEN_UP, URI, coming_back, named

from bookies.errors import LedgerClosed, MetadataCorrupt, VersionConflict
from bookies.kernels import crc32c
from bookies.model import BookieId, LedgerMetadata, LedgerState
from bookies.protocol.ledger.offload import (
    DELETED,
    LABEL,
    RESTORING,
    SWEPT,
    Content,
    Offload,
    given_up,
    is_coming_back,
    is_given_up,
    joined_crc,
    kept,
    may_be_forgotten,
    offload_of,
    offloaded,
    offloaded_to,
    restored,
    restoring,
    swept,
)
from bookies.protocol.repair.absence import is_endangered
from bookies.protocol.repair.drain import replicas_elsewhere
from bookies.protocol.repair.fragments import fragments_to_check, fragments_without_entries, is_named, is_stored_on

ENSEMBLE = (BookieId("a"), BookieId("b"))
COPY = Offload("one", "/cold/one", "parquet", 3, 30, 7, 9, 1000)


def record(**changes: object) -> LedgerMetadata:
    made = LedgerMetadata(5, 2, 2, 1, ((0, ENSEMBLE),), LedgerState.CLOSED, 2, 30)
    return made.replace(**changes)


@given(st.binary(), st.binary())
def test_the_crc_of_two_buffers_follows_from_theirs(first: bytes, second: bytes) -> None:
    assert joined_crc(crc32c(first), crc32c(second), len(second)) == crc32c(first + second)


@given(st.lists(st.binary(max_size=50)), st.data())
def test_content_is_the_same_in_any_pieces(payloads: list[bytes], data: st.DataObject) -> None:
    ends, total = [], 0
    for payload in payloads:
        total += len(payload)
        ends.append(struct.pack("<q", total))
    whole = Content().extended(b"".join(payloads), b"".join(ends))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(payloads)), max_size=4)))
    pieces = Content()
    for low, high in zip([0, *cuts], [*cuts, len(payloads)], strict=True):
        pieces = pieces.joined(Content().extended(b"".join(payloads[low:high]), b"".join(ends[low:high])))
    assert pieces == whole
    assert whole.crc == crc32c(b"".join(payloads) + b"".join(ends))


def test_where_entries_end_counts() -> None:
    one = Content().extended(b"ab", struct.pack("<qq", 1, 2))
    other = Content().extended(b"ab", struct.pack("<qq", 0, 2))
    assert one.crc != other.crc


def test_a_copy_is_named_once_and_only_if_it_is_whole() -> None:
    named = offloaded(record(), COPY)
    assert named is not None
    assert offload_of(named) == COPY
    assert offloaded(named, COPY) is None
    with pytest.raises(VersionConflict, match="names copy one"):
        offloaded(named, Offload("two", "/cold/two", "parquet", 3, 30, 7, 9, 1000))
    with pytest.raises(VersionConflict, match="the copy has 3 entries"):
        offloaded(record(length=31), COPY)
    with pytest.raises(LedgerClosed):
        offloaded(record(state=LedgerState.OPEN, last_entry_id=-1, length=0), COPY)


def test_a_label_that_cannot_be_read_is_said() -> None:
    named = offloaded(record(), COPY)
    assert named is not None
    (label,) = [name for name in named.custom_metadata if name not in record().custom_metadata]
    for wrong in (b"{", b"[1]", b'{"attempt": "one"}'):
        with pytest.raises(MetadataCorrupt, match="cannot be read"):
            offload_of(named.replace(custom_metadata={label: wrong}))


def test_what_was_given_up_comes_back_in_two_steps() -> None:
    with pytest.raises(VersionConflict):
        given_up(record(), "one", 5)
    named = offloaded(record(), COPY)
    assert named is not None
    assert not is_given_up(named)
    assert restoring(named) is None
    gone = given_up(named, "one", 5)
    assert gone is not None
    assert is_given_up(gone)
    assert may_be_forgotten(gone)
    assert not is_coming_back(gone)
    assert given_up(gone, "one", 6) is None
    coming = restoring(gone)
    assert coming is not None
    assert is_given_up(coming)
    assert is_coming_back(coming)
    assert not may_be_forgotten(coming)
    assert given_up(coming, "one", 6) is None  # nobody may forget what is being written
    assert set(coming.custom_metadata) == {LABEL, RESTORING}
    fresh = ((0, (BookieId("c"), BookieId("d"))),)
    with pytest.raises(VersionConflict, match="offloaded again"):
        restored(gone, "one", fresh)
    back = restored(coming, "one", fresh)
    assert back is not None
    assert back.ensembles == fresh
    assert set(back.custom_metadata) == {LABEL}
    assert DELETED not in back.custom_metadata
    assert restored(back, "one", fresh) is None


@pytest.mark.parametrize("state", GIVEN_UP)
def test_of_what_was_given_up_nothing_is_on_bookies(state: Callable[[LedgerMetadata], LedgerMetadata]) -> None:
    gone, a, b = state(record()), *ENSEMBLE
    for each, is_there in ((record(), True), (named(record()), True), (gone, False)):
        assert bool(fragments_to_check(each, -1)) is is_there
        assert is_stored_on(each, a) is is_there
        assert is_named(each, a) is is_there
        assert is_endangered(each, [a, b]) is False, "none is left, or none is needed"
        assert replicas_elsewhere(each, [a, b]) == (0 if is_there else 2)
    assert fragments_without_entries(gone.replace(last_entry_id=-1)) == []
    three = (*ENSEMBLE, BookieId("c"))
    wide = record(ensemble_size=3, write_quorum=3, ensembles=((0, three),))
    assert is_endangered(wide, [a, b])
    assert not is_endangered(state(wide), [a, b])
    back = restored(coming_back(record()), "one", ((0, (b, a)),))
    assert back is not None
    assert [each.ensemble for each in fragments_to_check(back, -1)] == [(b, a)]


@pytest.mark.parametrize("state", GIVEN_UP)
def test_labels_without_a_copy_or_of_an_open_ledger_give_nothing_up(
    state: Callable[[LedgerMetadata], LedgerMetadata],
) -> None:
    """Labels are anybody's to write."""
    gone = state(record())
    alone = gone.replace(custom_metadata={k: v for k, v in gone.custom_metadata.items() if k != LABEL})
    still_open = gone.replace(state=LedgerState.OPEN, last_entry_id=-1, length=0)
    for each in (alone, still_open):
        assert not is_given_up(each)
        assert not may_be_forgotten(each)
        assert not is_coming_back(each)
        assert fragments_to_check(each, 2)
        assert is_stored_on(each, ENSEMBLE[0])
        assert offloaded_to(each) is None
    assert offloaded_to(gone) == URI
    spoiled = gone.replace(custom_metadata=dict(gone.custom_metadata) | {LABEL: b"{"})
    assert (offloaded_to(spoiled), fragments_to_check(spoiled, -1)) == ("files", [])


def test_a_copy_that_is_of_no_use_is_not_named_any_more() -> None:
    assert kept(record(), "one") is None
    named = offloaded(record(), COPY)
    assert named is not None
    gone = given_up(named, "one", 5)
    assert gone is not None
    with pytest.raises(VersionConflict, match="offloaded again"):
        kept(gone, "one")  # bookies may be about to forget it
    coming = restoring(gone)
    assert coming is not None
    with pytest.raises(VersionConflict, match="offloaded again"):
        kept(coming, "two")
    back = kept(coming, "one")
    assert back is not None
    assert back.custom_metadata == record().custom_metadata


def test_a_swept_attempt_is_never_named_and_a_named_one_never_swept() -> None:
    once = swept(record(), "one")
    assert once is not None
    with pytest.raises(VersionConflict, match="the files of one were swept: repeat the run"):
        offloaded(once, COPY)
    assert swept(once, "one") is None
    twice = swept(once, "two")
    assert twice is not None
    assert twice.custom_metadata[SWEPT] == b"one\ntwo"
    assert swept(twice, "one") is None
    third = offloaded(twice, replace(COPY, attempt="three"))
    assert third is not None
    with pytest.raises(VersionConflict, match="names copy three"):
        swept(third, "three")
