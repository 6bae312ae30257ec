"""What the scrub decides: order, pace, when a pass is due, and which findings stand."""

from __future__ import annotations

from bookies.storage.scrub.scrub_format import Finding, Progress
from bookies.storage.scrub.scrub_plan import FINDINGS_MAX, RATE_MIN, Plan, Spans, merged

DAY = 86_400_000
RATE = 64 << 20


def plan_of(*log_ids: int, now_ms: int = 1000) -> Plan:
    plan = Plan(Progress(), DAY, RATE)
    plan.begin(now_ms)
    plan.update_logs(log_ids, now_ms, is_new_pass=True)
    return plan


def finding(entry: int, *, log_id: int = 3, ledger_id: int = 7, problem: str = "flipped", found_ms: int = 5) -> Finding:
    return Finding(log_id, 1024 + 100 * entry, ledger_id, entry, entry, problem, found_ms)


def test_a_pass_takes_what_was_there_the_longest_unverified_first() -> None:
    plan = plan_of(1, 2, 3)
    assert plan.next_log((1, 2, 3)) == 1
    assert plan.start_log(1, 2000) == 0
    plan.reached(1, 500)
    plan.reached(1, 400)  # never back
    assert plan.start_log(1, 9000) == 500
    plan.finish_log(1)
    plan.update_logs((1, 2, 4), 3000, is_new_pass=False)  # 3 is gone, 4 is the next pass's
    assert plan.next_log((1, 2, 4)) == 2
    assert plan.next_log((1, 2, 4), skipped=[2]) is None
    assert plan.next_log((1, 4)) is None  # 2 is in a directory that has failed
    plan.start_log(2, 3500)
    plan.finish_log(2)
    assert plan.next_log((1, 2, 4)) is None
    assert plan.progress.logs[1].good_ms == 2000
    plan.end(4000)
    plan.begin(5000)
    assert (plan.next_log((1, 2, 4)), plan.next_log((1, 2, 4), skipped=[1])) == (1, 4)


def test_logs_of_a_directory_that_has_failed_are_kept_in_mind() -> None:
    plan = plan_of(1, 2)
    plan.update_logs((1,), 2000, is_new_pass=False, is_whole=False)
    assert list(plan.progress.logs) == [1, 2]
    plan.update_logs((1,), 2000, is_new_pass=False)
    assert list(plan.progress.logs) == [1]


def test_a_pass_is_due_a_period_after_the_last_one_began() -> None:
    plan = Plan(Progress(), DAY, RATE)
    assert plan.wait_ms(1000) == 0
    plan.begin(1000)
    assert plan.is_running
    plan.end(2000)
    assert plan.wait_ms(1000 + DAY // 2) == DAY // 2
    assert plan.wait_ms(2000 + DAY) == 0
    assert plan.wait_ms(500) == 0  # the clock went back
    assert plan.oldest_ms() == 1000


def test_the_pace_follows_from_what_is_left_and_never_exceeds_the_budget() -> None:
    plan = plan_of(1, 2, now_ms=0)
    large = {1: 200 << 30, 2: 200 << 30}
    wanted = plan.rate(0, large)
    assert RATE_MIN < wanted < RATE
    assert abs(wanted - (400 << 30) / (0.8 * DAY / 1000)) < 1
    assert plan.rate(int(0.6 * DAY), large) > wanted
    assert plan.rate(2 * DAY, large) == RATE
    assert plan.rate(0, {1: 10, 2: 10}) == RATE_MIN
    plan.is_hurried = True
    assert plan.rate(0, {}) == RATE
    assert Plan(Progress(), DAY, 4096).rate(0, {}) == 4096
    plan.reached(1, 100 << 30)
    assert plan.size_left(large) == 300 << 30


def test_findings_are_kept_once_and_neighbours_together() -> None:
    plan = plan_of(3)
    assert [
        (each.first, each.last) for each in plan.add_findings([finding(4), finding(5), finding(5), finding(9)])
    ] == [
        (4, 5),
        (9, 9),
    ]
    assert plan.add_findings([finding(5)]) == []
    assert [(each.first, each.last) for each in plan.add_findings([finding(5), finding(6)])] == [(6, 6)]
    assert plan.damaged_logs() == {3: "byte 1,424: flipped (found by the scrub)"}
    plan.replace(plan.progress.findings[0], [finding(4)])
    assert sum(each.entry_count for each in plan.progress.findings) == 3


def test_the_list_is_bounded_and_what_is_beyond_is_counted() -> None:
    plan = plan_of(3)
    fresh = plan.add_findings([finding(2 * entry) for entry in range(FINDINGS_MAX + 5)])
    assert len(fresh) == FINDINGS_MAX + 5
    assert (len(plan.progress.findings), plan.progress.dropped_count) == (FINDINGS_MAX, 5)


def test_what_is_wrong_with_a_log_as_a_whole_keeps_nobody_from_its_entries() -> None:
    plan = plan_of(3)
    plan.add_findings([finding(0, ledger_id=-1)])
    assert plan.progress.findings[0].entry_count == 0
    assert plan.damaged_logs() == {}
    assert plan.add_findings([finding(0, ledger_id=-1, found_ms=99)]) == []
    assert plan.progress.findings[0].found_ms == 99


def test_only_neighbours_with_the_same_problem_are_merged() -> None:
    found = [finding(1), finding(2, problem="gone"), finding(3, problem="gone"), finding(4, ledger_id=8)]
    assert [(each.ledger_id, each.first, each.last) for each in merged(found)] == [(7, 1, 1), (7, 2, 3), (8, 4, 4)]


def test_spans_that_are_near_are_one() -> None:
    spans = Spans()
    for start in (0, 100, 50_000, 40_000):
        spans.add(start, start + 10)
    spans.failed_count = 2
    assert spans.take() == ([(0, 110), (40_000, 50_010)], 2)
    assert spans.take() == ([], 0)
