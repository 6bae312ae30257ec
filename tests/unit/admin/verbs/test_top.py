"""`bk top`: rates between two samples of a bookie's metrics, and the frame."""

from __future__ import annotations

from bookies.admin.shared.notes_text import announced_facts
from bookies.admin.verbs.top import frame, load_of, parse_sample

METRICS = """# HELP bookies_entries_added_total entries
bookies_entries_added_total {adds}
bookie_WRITE_BYTES {bytes}
bookie_READ_BYTES 0
bookies_connections 3
bookies_add_request_seconds_bucket{{success="true",le="0.001"}} {fast}
bookies_add_request_seconds_bucket{{success="true",le="0.01"}} {adds}
bookies_add_request_seconds_bucket{{success="true",le="+Inf"}} {adds}
bookies_add_request_seconds_bucket{{success="false",le="0.001"}} 77
nonsense
"""


def test_rates_and_the_percentile_are_those_between_two_samples() -> None:
    before = parse_sample(10.0, METRICS.format(adds=1000, bytes=5000, fast=0))
    now = parse_sample(12.0, METRICS.format(adds=1200, bytes=9000, fast=200))
    assert load_of(None, now) == {"connections": 3}
    assert load_of(before, now) == {"connections": 3, "adds": 100, "written": 2000, "read": 0, "p99_s": 0.001}
    late = parse_sample(12.0, METRICS.format(adds=1200, bytes=9000, fast=197))
    assert load_of(before, late)["p99_s"] == 0.01
    restarted = parse_sample(14.0, METRICS.format(adds=1, bytes=1, fast=0))
    assert "adds" not in load_of(now, restarted)
    assert load_of(now, None) == {}


def test_a_frame_shows_what_is_known_and_why_something_is_not() -> None:
    facts = {
        "at_ms": 1_700_000_000_000,
        "under_replicated": 1200,
        "recovery_enabled": False,
        "bookies": [
            {"bookie": "b1", "mode": "writable", "disk_total": 100, "disk_free": 25, "adds": 1234.4, "connections": 3.0,
             "written": 2048.0, "read": 0.0, "p99_s": 0.005},
            {"bookie": "b2", "mode": "read-only", "problem": "metrics: status 401 \x1b[31m"},
            {"bookie": "b3", "mode": "down"},
        ],
    }  # fmt: skip
    facts["bookies"] = [{**row, **announced_facts(None)} for row in facts["bookies"]]  # type: ignore[attr-defined]
    lines = list(frame(facts, "prod"))
    assert lines[0].startswith("prod  20")
    assert "1 writable, 1 read-only, 1 down; ledgers that lack replicas: 1,200; auto-recovery is disabled" in lines[1]
    assert "[########..] 75%" in lines[4]
    assert lines[4].split()[-9:] == ["1,234", "2.0", "KiB", "0", "B", "5.0", "ms", "3", "-"]
    assert lines[5].split()[:3] == ["b2", "read-only", "-"]
    assert lines[-1].startswith("b2: metrics: status 401")
    assert "\x1b" not in "".join(lines)
