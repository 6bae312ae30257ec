"""Work lists, and the arithmetic of usage and whatif, without Spark."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.fakes.offloaded import GIVEN_UP, named

from bookies.errors import InvalidArgument
from bookies.model import BookieId, LedgerMetadata, LedgerState
from bookies.protocol.quorums.quorum import stores
from bookies.spark.base.extents import Stored
from bookies.spark.jobs import exporting, reconcile, repair, scrub, usage, whatif
from bookies.spark.jobs.shared import common, findings
from bookies.spark.read import tables


def fragment(first: int, last: int | None, size: int | None = 1000, names: str = "abc", **more: Any) -> dict[str, Any]:
    row = {"ledger_id": 7, "fragment": 0, "first_entry": first, "last_entry": last, "bytes": size, "ensemble": [*names]}
    return {**row, "write_quorum": 3, "ack_quorum": 2, **more}


# -- export ----------------------------------------------------------------------------------------------------------


def test_a_repeated_export_writes_an_extent_again_after_a_compaction() -> None:
    """Its file may have a record whose tombstone is gone from a later extent."""
    before = exporting.Piece(0, 7, 0, 9, 100, 0)
    pieces = [before, *(replace(before, stored=Stored(ledger_id, 8, 80, 10)) for ledger_id in (20, 21))]
    items = [item for piece in pieces for item in exporting.items_of(piece, "/there", "text", 1 << 20)]
    assert len({item.name for item in items}) == 3
    assert len({json.loads(item.arguments)["file"] for item in items}) == 1


# -- scrub -----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 1000), st.integers(1, 2_000_000), st.integers(0, 1 << 36), st.sampled_from([1, 2, 3, 4]))
def test_items_cover_a_fragment_once(first: int, count: int, size: int, level: int) -> None:
    items = scrub.items_of([fragment(first, first + count - 1, size)], level)
    ranges = sorted((each["first"], each["last"]) for each in (json.loads(item.arguments) for item in items))
    assert ranges[0][0] == first
    assert ranges[-1][1] == first + count - 1
    assert all(before[1] + 1 == after[0] for before, after in itertools.pairwise(ranges))
    assert len({item.name for item in items}) == len(items)
    if level < 3:
        assert len(items) == 1


def test_an_open_fragment_is_one_item_and_names_are_stable() -> None:
    [item] = scrub.items_of([fragment(10, None)], 3)
    assert item.name == "7:10-"
    assert json.loads(item.arguments)["last"] is None
    assert scrub.items_of([fragment(0, 9)], 3)[0].name == "7:0-9"


def test_a_month_of_fractions_covers_every_ledger_once() -> None:
    for ledger_id in range(200):
        assert sum(scrub.part_of(ledger_id, 30) == day % 30 for day in range(739_000, 739_030)) == 1


@pytest.mark.parametrize(
    "options", [{"ledgers": "1,x"}, {"fraction": "2/3"}, {"fraction": "1/0"}, {"fraction": "half"}]
)
def test_wrong_selections_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument):
        scrub._selection({"ledgers": None, "fraction": "1/1", "seed": None, **options})


def test_a_selection_is_of_ledgers_or_of_a_part() -> None:
    wanted = scrub._selection({"ledgers": "3, 5", "fraction": "1/1", "seed": None})
    assert [each for each in range(10) if wanted(each)] == [3, 5]
    thirds = [scrub._selection({"ledgers": None, "fraction": "1/3", "seed": seed}) for seed in range(3)]
    assert all(sum(third(each) for third in thirds) == 1 for each in range(100))


# -- repair ----------------------------------------------------------------------------------------------------------


def test_a_repair_plan_becomes_an_item_for_each_fragment() -> None:
    rows = [
        {"ledger_id": 1, "fragment": 0, "bookie": "a", "first_entry": 3, "last_entry": 4, "action": "renew"},
        {"ledger_id": 1, "fragment": 0, "bookie": "b", "first_entry": -1, "last_entry": -1, "action": "replace"},
        {"ledger_id": 1, "fragment": 50, "bookie": "a", "first_entry": 60, "last_entry": 60, "action": "renew"},
    ]
    items = repair.items_of(rows)
    assert [(item.name, item.bookies) for item in items] == [("1:0", ("a", "b")), ("1:50", ("a",))]
    assert json.loads(items[1].arguments)["lines"] == [{"bookie": "a", "action": "renew", "first": 60, "last": 60}]


# -- reconcile -------------------------------------------------------------------------------------------------------


def test_unused_ids_are_those_below_the_highest() -> None:
    assert list(reconcile.unused([5, 0, 2])) == [1, 3, 4]
    assert list(reconcile.unused([])) == []


def test_every_bookie_is_asked_for_every_unused_id() -> None:
    items = reconcile.probe_items(list(range(2500)), ["a", "b"])
    asked = [json.loads(item.arguments) for item in items]
    assert sorted((each["bookie"], ledger_id) for each in asked for ledger_id in each["ids"]) == [
        (bookie, ledger_id) for bookie in "ab" for ledger_id in range(2500)
    ]
    assert len({item.name for item in items}) == 6


# -- whatif ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), min_size=1, max_size=6), st.integers(0, 20), st.integers(0, 20), st.integers(1, 6))
def test_fewest_copies_is_that_of_a_count(lives: list[bool], first: int, more: int, write_quorum: int) -> None:
    size = len(lives)
    write_quorum = min(write_quorum, size)
    counted = [
        sum(lives[each] and stores(each, entry_id, size, write_quorum) for each in range(size))
        for entry_id in range(first, first + more + 1)
    ]
    assert whatif.fewest_copies(lives, first, first + more, write_quorum) == min(counted)


@pytest.mark.parametrize(
    ("row", "dead", "outcome", "copies", "size"),
    [
        (fragment(0, 99), "d", None, 3, 0),
        (fragment(0, 99), "a", "reduced", 2, 1000),
        (fragment(0, 99), "ab", "single", 1, 2000),
        (fragment(0, 99), "abc", "lost", 0, 3000),
        (fragment(0, 99, names="abcd", write_quorum=2), "ab", "lost", 0, 1000),
        (fragment(0, 0, names="abcd", write_quorum=2), "cd", None, 2, 0),
        (fragment(0, None, None), "ab", "stuck", 1, 0),
        (fragment(0, None, None), "a", "reduced", 2, 0),
    ],
)
def test_what_becomes_of_a_fragment(row: dict[str, Any], dead: str, outcome: str, copies: int, size: int) -> None:
    found = whatif.Judge(tuple(dead), tuple(each for each in "abcdef" if each not in dead)).fragment(row)
    if outcome is None:
        assert found is None
    else:
        assert found is not None
        assert (found["outcome"], found["copies"], found["bytes"]) == (outcome, copies, size)


def test_repair_takes_the_time_of_reading_and_writing_and_needs_room() -> None:
    alive = [{"bookie": each, "total_bytes": 1000, "free_bytes": 500} for each in "ab"]
    cost = whatif.repair_cost(400, alive, 100.0, 0.9)
    assert (cost.seconds, cost.room, cost.is_enough) == (4.0, 800, True)
    assert [name for name, _, _ in cost.fills] == ["a", "b"]
    assert cost.fills[0][1:] == (0.5, 0.7)
    assert not whatif.repair_cost(900, alive, 100.0, 0.9).is_enough
    assert whatif.repair_cost(1, [], 100.0, 0.9).seconds is None


def test_the_dead_are_bookies_or_domains_that_exist() -> None:
    options = {"dead": "a", "domains": "r2", "fault_domains": "a=r1,b=r2,c=r2"}
    assert whatif.dead_of(options, ["a", "b", "c"]) == ["a", "b", "c"]
    for wrong in ({"dead": "x"}, {"domains": "r9"}, {"dead": None, "domains": None}):
        with pytest.raises(InvalidArgument):
            whatif.dead_of({"dead": None, "domains": None, "fault_domains": "a=r1", **wrong}, ["a", "b"])


# -- usage -----------------------------------------------------------------------------------------------------------


def test_evenness() -> None:
    assert usage.gini([5, 5, 5, 5]) == 0
    assert usage.gini([0, 0, 0, 8]) == 0.75
    assert usage.gini([]) == usage.gini([0, 0]) == 0
    assert usage.lorenz([3, 1]) == [(0, 0), (0.5, 0.25), (1, 1)]


# -- the configuration -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (common.JobConfig("file:x", options={"levle": 3}), "unknown option 'levle'"),
        (common.JobConfig("file:x", options={"level": 9}), "level=9: must be one of"),
        (common.JobConfig("file:x", mode="walk"), "mode='walk'"),
        (common.JobConfig("file:x", bytes_per_s=0), "must be above 0"),
        (common.JobConfig("file:x", run_id="a/b"), "run_id='a/b'"),
    ],
)
def test_wrong_configurations_are_refused(config: common.JobConfig, said: str) -> None:
    with pytest.raises(InvalidArgument, match=r".") as caught:
        common.checked(config, scrub.OPTIONS)
    assert said in caught.value.message


def test_a_run_without_a_name_gets_one() -> None:
    config = common.checked(common.JobConfig("file:x", output="runs/"), scrub.OPTIONS)
    assert config.directory == f"runs/{config.run_id}"
    assert config.options["level"] == 3


# -- tables ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 300), unique=True).map(sorted), st.integers(1, 20))
def test_ids_are_split_into_ranges_without_gaps(ids: list[int], count: int) -> None:
    parts = tables.split_ids([ids[:5], ids[5:]], count)
    assert [each for part in parts for run in part for each in run] == ids
    assert all(sum(map(len, part)) == count for part in parts[:-1])
    assert all(before.stop < after.start for part in parts for before, after in itertools.pairwise(part))


def test_the_replicas_of_a_record_share_its_bytes() -> None:
    members = tuple(BookieId(each) for each in "abc")
    closed = LedgerMetadata(5, 3, 2, 2, ((0, members), (60, members)), LedgerState.CLOSED, 89, 9000)
    rows = tables.replica_rows(closed)
    assert [row["entries"] for row in rows] == [40, 40, 40, 20, 20, 20]
    assert sum(row["bytes"] for row in rows) == 2 * 9000
    assert [row["bytes"] for row in tables.fragment_rows(closed)] == [6000, 3000]
    going_on = closed.replace(state=LedgerState.OPEN, last_entry_id=-1, length=0)
    assert [(row["last_entry"], row["bytes"]) for row in tables.fragment_rows(going_on)] == [(59, None), (None, None)]
    assert tables.ledger_row(closed, 4)["version"] == 4
    assert tables.fragment_rows(closed.replace(last_entry_id=-1, length=0, ensembles=((0, members),))) == []


def test_what_bookies_were_allowed_to_forget_is_on_none_of_them() -> None:
    """So `whatif` loses nothing of it, `scrub` plans no replica of it, `usage` counts no bytes."""
    members = tuple(BookieId(each) for each in "abc")
    closed = LedgerMetadata(5, 3, 2, 2, ((0, members), (60, members)), LedgerState.CLOSED, 89, 9000)
    for state in GIVEN_UP:
        assert tables.fragment_rows(state(closed)) == []
        assert tables.replica_rows(state(closed)) == []
        assert findings.check_record(state(closed), []) == []
    judge = whatif.Judge(("a", "b", "c"), ())
    outcomes = [found and found["outcome"] for found in map(judge.fragment, tables.fragment_rows(named(closed)))]
    assert outcomes == ["lost", "lost"]
    assert findings.check_record(named(closed), [])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": "ledgerz"}, "there are entries, ledgers"),
        ({"table": "entrylogs"}, "bookies do not report their entry logs"),
        ({"table": "ledgers", "ledgersPerPartitoin": "3"}, "did you mean ledgersPerPartition?"),
    ],
)
def test_wrong_options_of_tables_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        tables.schema({"bookkeeper.metadataServiceUri": "file:x", **options})
    assert said in caught.value.message
