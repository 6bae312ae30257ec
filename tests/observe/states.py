"""Series of a calm cluster, and for each alert the series that differ when it has to fire."""

from __future__ import annotations

import json
from collections.abc import Mapping

HOURS = 5
STEPS = HOURS * 60  # a value a minute
Series = Mapping[str, str]  # values in promtool's notation, by series


def histogram(name: str, labels: str, seconds: float, per_minute: int = 60) -> dict[str, str]:
    """Return a histogram that gets values of one duration."""
    series = {}
    for bound in ("0.01", "0.1", "0.5", "1", "2", "5", "60", "+Inf"):
        rate = per_minute if bound == "+Inf" or float(bound) >= seconds else 0
        series[f'{name}_bucket{{{labels}, le="{bound}"}}'] = f"0+{rate}x{STEPS}"
    series[f"{name}_count{{{labels}}}"] = f"0+{per_minute}x{STEPS}"
    return series


def steady(value: float) -> str:
    return f"{value}x{STEPS}"


B1, B2, B3 = (f'job="bookie", instance="b{number}"' for number in (1, 2, 3))
PLACE = f'{B1}, ledgerDir="/l", indexDir="/i"'
DISK = f'bookies_disk_used_ratio{{{B1}, directory="/l"}}'
BEFORE_LOSS = f"1x{STEPS - 30} 0x30"  # it answered within the last hour

CALM: Series = {
    **{f"up{{{bookie}}}": steady(1) for bookie in (B1, B2, B3)},
    **{f"bookie_SERVER_STATUS{{{bookie}}}": steady(1) for bookie in (B1, B2, B3)},
    f'bookies_ready{{{B1}, condition="journal"}}': steady(1),
    f"bookies_ensemble_size_max{{{B1}}}": steady(3),
    DISK: steady(0.5),
    f'bookies_directory_failed{{{B1}, directory="/l"}}': steady(0),
    **histogram("bookies_journal_sync_seconds", f'{B1}, journal="0"', 0.01),
    **histogram("bookies_add_request_seconds", f'{B1}, success="true"', 0.01),
    **histogram("bookies_add_request_seconds", f'{B1}, success="false"', 0.01, 0),
    **histogram("bookies_read_request_seconds", f'{B1}, success="true"', 0.01),
    f"bookkeeper_server_ADD_ENTRY_REJECTED{{{B1}}}": steady(0),
    f"bookkeeper_server_ADD_ENTRY_BLOCKED{{{B1}}}": steady(0),
    **histogram("bookies_loop_lag_seconds", B1, 0.01),
    **histogram("bookies_metadata_seconds", f'{B1}, request="bookies"', 0.01),
    f"bookies_registration_sessions_lost_total{{{B1}}}": steady(1),
    f"bookies_certificate_ends_seconds{{{B1}}}": steady(100 * 86400),
    f"bookies_underreplicated_ledgers{{{B1}}}": steady(0),
    f"auditor_NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY{{{B1}}}": steady(0),
    f"bookies_ledgers_with_lost_entries{{{B1}}}": steady(0),
    f"bookies_auditor_elected{{{B1}}}": steady(1),
    f"bookies_auditor_elected{{{B2}}}": steady(0),
    f"bookies_audit_ended_seconds{{{B1}}}": f"0+60x{STEPS}",
    f"bookies_audit_interval_seconds{{{B1}}}": steady(3600),
    f"bookies_recovery_enabled{{{B1}}}": steady(1),
    f"bookies_draining_bookies{{{B1}}}": steady(0),
    f"replication_worker_NUM_ENTRIES_WRITTEN{{{B1}}}": steady(7),
    f"bookies_scrub_damaged_entries{{{B1}}}": steady(0),
    f"bookies_scrub_oldest_unverified_seconds{{{B1}}}": steady(3600),
    f"bookies_scrub_period_seconds{{{B1}}}": steady(604800),
    f"bookies_collector_alarm{{{B1}}}": steady(0),
    f"bookies_logs_without_room{{{B1}}}": steady(0),
    f"bookie_RECLAIM_FAILED_TO_DELETE{{{PLACE}}}": steady(2),
    'bookies_stream_lag_seconds{job="spark", query="orders"}': steady(0),
}
STATES: Mapping[str, Series] = {
    "BookieLost": {f"up{{{B2}}}": BEFORE_LOSS},
    "BookiesLost": {f"up{{{B2}}}": BEFORE_LOSS, f"up{{{B3}}}": BEFORE_LOSS},
    "BookieReadOnly": {f"bookie_SERVER_STATUS{{{B2}}}": steady(0)},
    "BookieNotReady": {f'bookies_ready{{{B1}, condition="journal"}}': steady(0)},
    "NoRoomForEnsemble": {f"bookie_SERVER_STATUS{{{bookie}}}": steady(0) for bookie in (B1, B2, B3)},
    "DiskNearLimit": {DISK: steady(0.9)},
    "DiskAlmostFull": {DISK: steady(0.93)},
    "DiskFillsUp": {DISK: f"0.4+0.0015x{STEPS}"},
    "DirectoryFailed": {f'bookies_directory_failed{{{B1}, directory="/l"}}': steady(1)},
    "OpenFilesNearLimit": {f"process_open_fds{{{B1}}}": steady(61_000), f"process_max_fds{{{B1}}}": steady(65_536)},
    "JournalSlow": histogram("bookies_journal_sync_seconds", f'{B1}, journal="0"', 0.5),
    "AddsSlow": histogram("bookies_add_request_seconds", f'{B1}, success="true"', 5),
    "ReadsSlow": histogram("bookies_read_request_seconds", f'{B1}, success="true"', 5),
    "AddsRefused": histogram("bookies_add_request_seconds", f'{B1}, success="false"', 0.01, 2),
    "AddsBlocked": {f"bookkeeper_server_ADD_ENTRY_BLOCKED{{{B1}}}": steady(3)},
    "LoopLag": histogram("bookies_loop_lag_seconds", B1, 2),
    "MetadataSlow": {f"bookies_registration_sessions_lost_total{{{B1}}}": f"0+1x{STEPS}"},
    "CertificateEnds": {f"bookies_certificate_ends_seconds{{{B1}}}": steady(13 * 86400)},
    "UnderReplicated": {f"bookies_underreplicated_ledgers{{{B1}}}": steady(4)},
    "LedgerWithoutReplica": {f"bookies_ledgers_with_lost_entries{{{B1}}}": steady(1)},
    "NoAuditor": {f"bookies_auditor_elected{{{B1}}}": f"1x{STEPS - 60} 0x60"},
    "AuditOverdue": {f"bookies_audit_ended_seconds{{{B1}}}": steady(60)},
    "RecoveryOff": {f"bookies_recovery_enabled{{{B1}}}": steady(0)},
    "DrainStuck": {
        f"bookies_draining_bookies{{{B1}}}": steady(1),
        f"bookies_underreplicated_ledgers{{{B1}}}": steady(4),
    },
    "ScrubDamage": {f"bookies_scrub_damaged_entries{{{B1}}}": steady(1)},
    "ScrubBehind": {f"bookies_scrub_oldest_unverified_seconds{{{B1}}}": steady(3 * 604800)},
    "CollectionHeld": {f"bookies_collector_alarm{{{B1}}}": steady(1)},
    "CollectionFails": {f"bookie_RECLAIM_FAILED_TO_DELETE{{{PLACE}}}": f"0+1x{STEPS}"},
    "SparkLag": {'bookies_stream_lag_seconds{job="spark", query="orders"}': f"0+60x{STEPS}"},
}


def rule_tests(rules: str) -> str:
    """Return the tests for `promtool test rules`, as JSON, which YAML contains. `rules`: path of the rules."""
    tests = [_test("", {})] + [_test(alert, series) for alert, series in STATES.items()]
    return json.dumps({"rule_files": [rules], "evaluation_interval": "5m", "tests": tests}, indent=1)


def _test(alert: str, differing: Series) -> dict[str, object]:
    series = {**CALM, **differing}
    matchers = f'alertstate="firing", alertname="{alert}"' if alert else 'alertstate="firing"'
    samples = [{"labels": "{}", "value": 1}] if alert else []
    return {
        "name": alert or "calm",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f"count(count by (alertname) (ALERTS{{{matchers}}}))",
                "eval_time": f"{HOURS - 1}h55m" if alert in ("BookieLost", "BookiesLost") else f"{HOURS}h",
                "exp_samples": samples,
            }
        ],
    }
