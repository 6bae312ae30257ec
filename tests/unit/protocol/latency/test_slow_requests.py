"""Which slow requests are kept."""

from __future__ import annotations

from bookies.protocol.latency import SlowRequests
from bookies.protocol.latency.slow_requests import KEPT_MAX, RATE_MAX


def observe(slow: SlowRequests, ended_s: float, began_s: float = 0.0) -> bool:
    overlaps = {"flush": 0.5, "cache": 1.0}
    times = began_s, ended_s, int(ended_s * 1000)
    return slow.observe("pause", times, {"cache": 1.0}, lambda began_s, ended_s: overlaps, {"ledger": 3}) is not None


def test_a_request_is_kept_with_other_work_but_not_with_its_own_stage() -> None:
    slow = SlowRequests()
    assert observe(slow, 2.0, 1.0)
    (request,) = slow.since(2000)
    assert (request.meanwhile, request.facts, request.began_ms) == ({"flush": 0.5}, {"ledger": 3}, 1000)
    assert slow.since(2001) == []


def test_some_are_kept_in_each_second_and_all_are_counted() -> None:
    slow = SlowRequests()
    kept = [observe(slow, 5.0 + number / 100) for number in range(RATE_MAX + 5)]
    assert kept == [True] * RATE_MAX + [False] * 5
    assert slow.count == RATE_MAX + 5
    assert round(slow.seconds, 6) == 5 * (RATE_MAX + 5) + sum(range(RATE_MAX + 5)) / 100
    assert observe(slow, 6.0)


def test_the_number_is_bounded() -> None:
    slow = SlowRequests()
    for second in range(KEPT_MAX + 10):
        observe(slow, float(second))
    assert [len(slow.since(0)), slow.since(0)[0].ended_ms] == [KEPT_MAX, 10_000]


def test_a_report_has_wall_clock_times() -> None:
    report = SlowRequests().report("b1", (0.0, 10.0, 100_000), 0.5, [("flush", 8.0, 9.5)], ledger_shares={})
    assert report["activities"] == [("flush", 98_000.0, 99_500.0)]
    assert (report["bound_s"], report["requests"], report["ledger_shares"]) == (0.5, [], {})
