"""What the benchmarks make of their runs: medians, ratios of pairs, what was asked, tables, and the order of runs."""

from __future__ import annotations

import json
import pathlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.suite import limits, processes, runner, table
from benchmarks.suite.__main__ import select
from benchmarks.suite.cases import BRIEF, CASES, add_large, sizes
from benchmarks.suite.figures import Figure, Row, Run, compare, ratios_of_pairs, spread
from benchmarks.suite.guard import DriveFailed
from benchmarks.suite.limits import Limit, Limits
from benchmarks.suite.stage import Contestant, Costs, figures_of

RATE = Figure("entries_per_s", "entries/s", ratio_min=2, limit=lambda _: Limit(1000, "disk"))
COST = Figure("cpu_us", "us", more_is_better=False, ratio_min=2.5)
MEMORY = Figure("bookie_mb", "MB", more_is_better=False, bound=200)
LIMITS = Limits({1: (200.0, 900.0), 3: (500.0, 4000.0)}, 300.0, 3000.0, 2500.0)


def runs(contestant: str, setting: str, *values: float, key: str = "entries_per_s") -> list[Run]:
    return [Run("add", setting, contestant, pair, {key: value}) for pair, value in enumerate(values)]


def test_medians_and_ratios_of_pairs() -> None:
    found = spread([3, 1, 2])
    assert found is not None
    assert (found.median, found.low, found.high) == (2, 1, 3)
    assert spread([]) is None
    assert ratios_of_pairs({0: 10, 1: 20, 2: 30}, {0: 30, 1: 40, 2: 30}, more_is_better=True) == [3, 2, 1]
    assert ratios_of_pairs({0: 10, 1: 20}, {0: 5, 1: 5}, more_is_better=False) == [2, 4]
    assert ratios_of_pairs({0: 10}, {1: 10}, more_is_better=True) == []


def test_the_best_setting_of_the_reference_counts() -> None:
    both = [
        *runs("Apache", "default", 100, 100, 100, 100, 100),
        *runs("ours", "default", 400, 400, 400, 400, 400),
        *runs("Apache", "RocksDB", 200, 250, 250, 250, 200),
        *runs("ours", "RocksDB", 500, 500, 500, 500, 500),
    ]
    row = compare(both, "add", RATE, "ours", "Apache", limits=LIMITS)
    assert (row.setting, row.ratio, row.asked, row.is_met) == ("RocksDB", 2.0, "2 times", True)
    assert row.limit == Limit(1000, "disk")
    assert row.share_of_limit == 0.5
    assert compare(both, "add", RATE, "ours", "Apache", is_asked=False).is_met is None


def test_failed_runs_enter_no_median() -> None:
    both = [
        *runs("Apache", "default", 10, 20, 15, 15, 15, key="cpu_us"),
        Run("add", "default", "Apache", 5, failure="not enough bookies"),
        *runs("ours", "default", 5, 5, 5, 5, 5, 1, key="cpu_us"),
    ]
    row = compare(both, "add", COST, "ours", "Apache")
    assert (row.ratio, row.pairs, row.is_met, row.failed, row.runs) == (3.0, 5, True, (1, 0), (6, 6))
    assert "1 of 6 failed" in table.markdown([row], "Apache", "ours")


def test_a_bound_needs_no_reference() -> None:
    row = compare(runs("ours", "default", 150, 250, 160, 170, 180, key="bookie_mb"), "add", MEMORY, "ours", "Apache")
    assert (row.asked, row.is_met, row.ratio) == ("at most 200 MB", True, None)


@pytest.mark.parametrize("figure", [RATE, replace(RATE, ratio_min=None, bound=100)])
def test_few_pairs_and_quick_runs_decide_nothing(figure: Figure) -> None:
    def row(count: int, *, is_quick: bool = False) -> Row:
        both = [*runs("Apache", "default", *[100] * 5), *runs("ours", "default", *[300] * count)]
        both += [Run("add", "default", "ours", pair, failure="died") for pair in range(count, 5)]
        return compare(both, "add", figure, "ours", "Apache", is_quick=is_quick)

    assert [row(count).verdict for count in (5, 4, 1, 0)] == ["yes", "too few pairs", "too few pairs", "-"]
    assert [row(count).is_met for count in (5, 4, 1, 0)] == [True, None, None, None]
    assert (row(5, is_quick=True).verdict, row(5, is_quick=True).is_met) == ("too short runs", None)
    assert "| too few pairs |" in table.markdown([row(4)], "Apache", "ours")


def test_what_no_device_counts_is_no_figure(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes.os, "major", lambda _: 0)
    monkeypatch.setattr(processes.os, "minor", lambda _: 999_999)
    assert processes.device_written(tmp_path) is None
    assert processes.written_between(None, None) is None
    assert processes.written_between(5, 12) == 7
    result = {"entries": 1000, "bytes": 100_000, "elapsed_s": 2.0, "p50_us": 5, "p99_us": 9, "ledger": -1}
    driven = figures_of(result, Costs(written_bytes=None))
    assert {"disk_mb_s", "written_per_payload"}.isdisjoint(driven)
    stage: Any = SimpleNamespace(drive=lambda *_: driven, limits=LIMITS)
    assert add_large(stage, Contestant("ours", "ours", "ours")) == driven
    case = next(each for each in CASES if each.run is add_large)
    both = [Run(case.name, "default", name, pair, driven) for name in ("Apache", "ours") for pair in range(5)]
    shares = [figure for figure in case.figures if figure.key in ("disk_share", "written_per_payload")]
    rows = [compare(both, case.name, figure, "ours", "Apache") for figure in shares]
    assert [(row.reference, row.found, row.verdict) for row in rows] == [(None, None, "-"), (None, None, "")]
    assert "**no**" not in table.markdown(rows, "Apache", "ours")
    assert "| - | ours: - | - | at least 80 % | - |" in table.markdown(rows, "Apache", "ours")


def test_limits_name_what_sets_them() -> None:
    assert limits.adds(100)(LIMITS) == Limit(1e6, "disk")
    assert limits.reads(1000)(LIMITS) == Limit(2.5e6, "copying")
    assert limits.sync(0.99)(LIMITS).value == 4000
    assert limits.syncs_per_second(2)(LIMITS).value == 2500
    assert limits.percentile([4, 1, 3, 2], 0.5) == 2
    assert limits.percentile([4, 1, 3, 2], 0.99) == 4
    assert "p50 0.50 ms" in LIMITS.describe()


def test_costs_are_for_each_entry() -> None:
    result = {"entries": 1000, "bytes": 100_000, "elapsed_s": 2.0, "p50_us": 5, "p99_us": 9, "ledger": -1}
    found = figures_of(result, Costs(0.01, 0.02, 600_000, 40.0, 90.0))
    assert found["entries_per_s"] == 500
    assert found["cpu_us"] == pytest.approx(30)
    assert found["written_per_payload"] == 6
    with pytest.raises(DriveFailed):
        figures_of(result | {"entries": 0}, Costs())


def test_one_cluster_of_apaches_at_a_time() -> None:
    planned = runner.contests(CASES, is_apache=True)
    servers = [each.contestants[0].servers for each in planned if not each.case.has_own_cluster]
    assert servers == sorted(servers, key=["Apache: default", "Apache: low latency", "Apache: RocksDB"].index)
    assert [each.case.has_own_cluster for each in planned] == sorted(
        (each.case.has_own_cluster for each in planned), reverse=True
    )
    crossed = next(each for each in planned if each.case.is_crossed)
    assert [each.client for each in crossed.contestants] == ["Java", "Java", "ours"]


def test_revisions_meet_in_each_case_once() -> None:
    planned = runner.contests(CASES, is_apache=False)
    names = [each.case.name for each in planned]
    assert len(names) == len(set(names)) == len(CASES) - 2  # without the crossed one and Apache's low latency
    assert all({each.client for each in contest.contestants} == {"before", "now"} for contest in planned)


def test_cases_are_found_by_name_or_part_of_it() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert [case.name for case in select(CASES, None, is_brief=True)] == list(BRIEF)
    assert [case.name for case in select(CASES, ["add 1 KiB, one in flight"])] == ["add 1 KiB, one in flight"]
    assert len(select(CASES, ["one in flight"])) == 2
    assert select(CASES, ["nothing"]) == []


def test_sizes_are_the_same_every_time() -> None:
    found = sizes(512, 7)
    assert found == sizes(512, 7)
    assert 20 <= min(found) < sorted(found)[256] < 600 < max(found) <= 16_000


def test_the_document_holds_everything() -> None:
    both = [*runs("Apache", "default", *[100] * 5), *runs("ours", "default", *[300] * 5)]
    row = compare(both, "add", RATE, "ours", "Apache", limits=LIMITS)
    document = json.loads(json.dumps(table.document([row], both, LIMITS)))
    assert document["rows"][0]["ratio"] == 3
    assert document["rows"][0]["is_met"] is True
    assert (document["rows"][0]["pairs"], document["rows"][0]["verdict"]) == (5, "yes")
    assert len(document["runs"]) == 10
