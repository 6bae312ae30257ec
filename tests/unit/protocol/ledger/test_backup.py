"""What a run of a backup lists, carries over and calls complete."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.fakes.offloaded import forgotten

from bookies.errors import InvalidArgument, NotSupported
from bookies.model import BookieId, DigestType, LedgerMetadata, LedgerState
from bookies.protocol.ledger.backup import (
    FORMAT,
    Contents,
    FileDigest,
    LedgerCopy,
    Omitted,
    RunManifest,
    carried_over,
    chosen_run,
    end_name,
    kept_runs,
    pack,
    parse_contents,
    parse_copy,
    parse_run,
    sealed_as,
    unwritten,
)

ENSEMBLE = (BookieId("a"), BookieId("b"))
RECORD = LedgerMetadata(5, 2, 2, 1, ((0, ENSEMBLE),), LedgerState.CLOSED, 2, 30, ctime_ms=900)
COPY = LedgerCopy(5, "one", 3, 30, 7, 9, 1000, 900, (("part-0.parquet", 50),))
MANIFEST = RunManifest(FORMAT, "monday", "c1", "", 1, 2, 1, 30, 0, 0, FileDigest(5, "aa"), FileDigest(6, "bb"))


def test_a_copy_serves_as_long_as_the_ledger_is_the_same() -> None:
    others = [
        RECORD.replace(ledger_id=6),
        RECORD.replace(ctime_ms=901),
        RECORD.replace(last_entry_id=3),
        RECORD.replace(length=31),
    ]
    assert COPY.is_of(RECORD)
    assert not any(COPY.is_of(other) for other in others)
    names = {end_name(record) for record in [RECORD, *others[1:]]}
    assert len(names) == 4
    assert end_name(RECORD.replace(ctime_ms=None)) == "end-0-3-30.json"


def test_a_run_carries_over_what_did_not_change_and_names_what_was_deleted() -> None:
    before = [replace(COPY, ledger=ledger_id) for ledger_id in (5, 6, 7, 8)]
    sealed = {5: RECORD, 6: RECORD.replace(ledger_id=6, last_entry_id=9), 9: RECORD.replace(ledger_id=9)}
    copies, deleted = carried_over(before, sealed, [5, 6, 7, 9])  # 7 exists, and is not sealed
    assert copies == {5: COPY}
    assert deleted == (8,)


def test_a_record_is_restored_open_and_without_its_offload() -> None:
    old = forgotten(RECORD.replace(custom_metadata={"owner": b"me"}, creator_token=4))
    new = unwritten(old, {"migrated.from": b"c1/5"})
    assert (new.state, new.last_entry_id, new.length) == (LedgerState.OPEN, -1, 0)
    assert new.custom_metadata == {"owner": b"me", "migrated.from": b"c1/5"}
    assert (new.ctime_ms, new.password, new.creator_token) == (900, b"", 0)
    oldest = unwritten(RECORD.replace(format_version=1, digest_type=None, password=None), {})
    assert (oldest.format_version, oldest.digest_type, oldest.password) == (2, DigestType.CRC32C, b"")
    opened = RECORD.replace(state=LedgerState.OPEN, last_entry_id=-1, length=0)
    assert sealed_as(opened, COPY) == RECORD


def test_a_copy_is_named_as_an_offload() -> None:
    offload = COPY.offload("/safe/one")
    assert (offload.uri, offload.attempt, offload.rows, offload.bytes) == ("/safe/one", "one", 3, 30)
    assert (offload.crc, offload.index, offload.at_ms) == (7, 9, 1000)


def test_the_newest_runs_are_kept() -> None:
    runs = [replace(MANIFEST, run=name, ended_ms=ended) for name, ended in (("b", 3), ("a", 9), ("c", 5))]
    kept, old = kept_runs(runs, 2)
    assert [run.run for run in kept] == ["c", "a"]
    assert [run.run for run in old] == ["b"]
    assert kept_runs(runs, 5)[1] == []
    assert chosen_run(runs, None, "/safe").run == "a"
    assert chosen_run(runs, "b", "/safe").run == "b"
    with pytest.raises(InvalidArgument, match="/safe has no complete backup run x; the latest are b, c, a"):
        chosen_run(runs, "x", "/safe")
    with pytest.raises(InvalidArgument, match="has no complete backup run: `bk spark backup`"):
        chosen_run([], None, "/safe")


def test_descriptions_are_read_as_they_were_written() -> None:
    contents = Contents((COPY,), (Omitted(7, "it is open"),), (8,))
    assert parse_contents(pack(contents), "x") == contents
    assert parse_run(pack(MANIFEST), "x") == MANIFEST
    assert parse_copy(pack(COPY)) == COPY
    assert parse_copy(b"{") is None
    for data in (b"", b"{}", b"[]", pack(COPY)):
        with pytest.raises(InvalidArgument, match=r"/m\.json is no manifest"):
            parse_run(data, "/m.json")
        with pytest.raises(InvalidArgument, match="no list of ledgers"):
            parse_contents(data, "x")
    with pytest.raises(NotSupported, match="format 2; this version"):
        parse_run(pack(replace(MANIFEST, format=FORMAT + 1)), "x")
