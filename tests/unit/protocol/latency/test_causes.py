"""Each cause from made-up reports: which one comes first, and how seconds are divided."""

from __future__ import annotations

from typing import Any

import pytest

from bookies.protocol.latency import Report, SlowRequest, rank_causes
from bookies.protocol.latency.causes import overlap

MINUTE_MS = 60_000.0


def add(ended_ms: int = 50_000, seconds: float = 1.0, meanwhile: Any = None, stage: str = "sync", **facts: Any) -> Any:
    kind = {"replica": "append", "memory": "append"}.get(stage, "add")
    return SlowRequest(kind, ended_ms, seconds, {stage: seconds}, meanwhile or {}, facts)


def bookie(*requests: SlowRequest, **fields: Any) -> Report:
    return Report("b1", 0.0, MINUTE_MS, requests, **fields)


def client(*requests: SlowRequest) -> Report:
    return Report("the client", 0.0, MINUTE_MS, requests, is_client=True)


LATE = add(stage="replica", bookie="b1")
RAN_TEN_SECONDS = [("checkpoint", 45_000.0, 55_000.0)]


@pytest.mark.parametrize(
    ("reports", "causes"),
    [
        ([bookie(add())], [("disk", "bookie b1", 1.0)]),
        ([bookie(add(stage="log"))], [("disk", "bookie b1", 1.0)]),
        ([bookie(add(stage="answer"))], [("load", "bookie b1", 1.0)]),
        ([bookie(add(stage="budget"))], [("readers", "bookie b1", 1.0)]),
        ([bookie(add(stage="memory", seconds=0.5))], [("memory", "bookie b1", 0.5)]),
        ([bookie(add(group_size=25_000_000))], [("load", "bookie b1", 0.5), ("disk", "bookie b1", 0.5)]),
        ([bookie(add(meanwhile={"loop": 0.6}))], [("load", "bookie b1", 1.0)]),
        (
            [bookie(add(meanwhile={"loop": 0.6}), ledger_shares={"7": 0.9, "8": 0.1})],
            [("hot ledger", "7", 1.0)],
        ),
        ([bookie(add(meanwhile={"loop": 0.6}), ledger_shares={"7": 1.0})], [("load", "bookie b1", 1.0)]),
        (
            [bookie(add(meanwhile={"stopped": 0.75}))],
            [("stopped", "bookie b1", 0.75), ("disk", "bookie b1", 0.25)],
        ),
        ([bookie(add(meanwhile={"processor": 1.5}))], [("processor", "bookie b1", 1.0)]),
        ([bookie(SlowRequest("pause", 50_000, 2.0, {"cache": 2.0}))], [("cache", "bookie b1", 2.0)]),
        (
            [bookie(add(meanwhile={"checkpoint": 0.9}), activities=RAN_TEN_SECONDS)],
            [("checkpoint", "bookie b1", 1.0)],
        ),
        (  # The checkpoint ran all the time: it does not explain why these requests were slow.
            [bookie(add(meanwhile={"checkpoint": 1.0}), activities=[("checkpoint", 0.0, MINUTE_MS)])],
            [("disk", "bookie b1", 1.0)],
        ),
        (
            [
                bookie(
                    add(meanwhile={"checkpoint": 1.0, "compaction": 1.0}),
                    activities=[*RAN_TEN_SECONDS, ("compaction", 48_000.0, 52_000.0)],
                )
            ],
            [("compaction", "bookie b1", 1.0)],
        ),
        ([client(LATE)], [("unknown", "bookie b1", 1.0)]),
        ([client(LATE), bookie(is_reachable=False)], [("unreachable", "bookie b1", 1.0)]),
        ([client(LATE), bookie()], [("network", "bookie b1", 1.0)]),
        ([client(LATE), bookie(bound_s=0.25)], [("network", "bookie b1", 0.75), ("unknown", "bookie b1", 0.25)]),
        ([client(LATE), bookie(bound_s=2.0)], [("unknown", "bookie b1", 1.0)]),
        ([client(LATE), bookie(add(ended_ms=20_000))], [("network", "bookie b1", 1.0), ("disk", "bookie b1", 1.0)]),
        ([client(LATE), bookie(activities=[("stopped", 0.0, 49_750.0)])],
         [("stopped", "bookie b1", 0.75), ("network", "bookie b1", 0.25)]),
        ([client(LATE), bookie(activities=[("loop", 0.0, MINUTE_MS)])], [("load", "bookie b1", 1.0)]),
        # Memory that a late replica holds counts for the replica alone.
        (
            [client(add(stage="memory"), LATE), bookie(add())],
            [("disk", "bookie b1", 2.0)],
        ),
        ([client(add(stage="memory"))], [("memory", "the client", 1.0)]),
        ([client(add(stage="metadata"))], [("metadata", "the client", 1.0)]),
        ([client(add(meanwhile={"interpreter": 1.0}, stage="memory"))], [("interpreter", "the client", 1.0)]),
        ([bookie()], []),
    ],
)  # fmt: skip
def test_causes(reports: list[Report], causes: list[tuple[str, str, float]]) -> None:
    ranked = rank_causes(reports)
    assert sorted((cause.name, cause.subject, round(cause.seconds, 6)) for cause in ranked) == sorted(causes)
    known = [cause.seconds for cause in ranked if cause.name != "unknown"]
    assert known == sorted(known, reverse=True)
    for cause in ranked:
        finding, step = cause.sentences(sum(other.seconds for other in ranked))
        assert cause.subject in finding
        assert step


def test_the_part_of_a_late_answer_that_the_bookie_explains_is_divided_as_the_bookies_request() -> None:
    late = add(stage="replica", bookie="b1", seconds=2.0)  # from 48 to 50 s
    own = add(ended_ms=49_500, seconds=1.0, meanwhile={"processor": 0.5})
    seconds = {cause.name: cause.seconds for cause in rank_causes([client(late), bookie(own)])}
    assert seconds == {"processor": 1.0, "disk": 1.0, "network": 1.0}  # half of them the bookie's own record


def test_seconds_of_many_requests_are_added() -> None:
    (cause,) = rank_causes([bookie(add(), add(seconds=3.0))])
    assert (cause.seconds, cause.requests, cause.longest_s) == (4.0, 2, 3.0)
    assert cause.sentences(8.0)[0].startswith("50 % (4.0 s in 2 slow requests): the disk of bookie b1 was slow")


@pytest.mark.parametrize(
    ("intervals", "covered"), [([], 0.0), ([(0, 4), (3, 6)], 4.0), ([(9, 12), (-5, 1)], 0.0), ([(3, 4), (3, 4)], 1.0)]
)
def test_intervals_that_overlap_count_once(intervals: list[tuple[float, float]], covered: float) -> None:
    assert overlap(intervals, 2.0, 7.0) == covered


def test_a_report_survives_json() -> None:
    facts = {"process": "b1", "began_ms": 1.0, "ended_ms": 2.0, "requests": [LATE.as_facts()], "bound_s": 0.1}
    report = Report.of_facts(facts)
    assert report.requests == [LATE]
    with pytest.raises(TypeError):
        Report.of_facts({"requests": [], "nonsense": 1})
