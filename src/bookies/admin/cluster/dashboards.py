"""Dashboards for Grafana 10 and newer, as a table. `docs/observe/*-dashboard.json` are made from it.

Expressions name metrics as in `alerts.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from bookies.admin.cluster.alerts import JOB, expression_of

INSTANCE, SECONDS, BYTES, PER_S, BYTES_PER_S, SHARE = "{{instance}}", "s", "bytes", "ops", "Bps", "percentunit"
SELECTED = 'job=~"$job", instance=~"$instance"'  # by Grafana's variables


class Panel(NamedTuple):
    """A graph. `lines`: expressions by legend. `unit`: as Grafana names it."""

    title: str
    lines: Mapping[str, str]
    unit: str = "short"


def _one(title: str, expression: str, unit: str = "short", legend: str = INSTANCE) -> Panel:
    return Panel(title, {legend: expression}, unit)


def _rate(metric: str) -> str:
    return f"rate({{{metric}}}[5m])"


def _quantile(share: float, metric: str, labels: str = "instance") -> str:
    return f"histogram_quantile({share}, sum by (le, {labels}) (rate({{{metric}}}_bucket[5m])))"


def _quantiles(title: str, metric: str, labels: str = "instance") -> Panel:
    legend = " ".join(f"{{{{{label}}}}}" for label in labels.split(", "))
    shares = (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))
    return Panel(title, {f"{name} {legend}": _quantile(share, metric, labels) for name, share in shares}, SECONDS)


def _stages(title: str, metric: str) -> tuple[Panel, Panel]:
    mean = f"sum by (stage) (rate({{{metric}}}_sum[5m])) / sum by (stage) (rate({{{metric}}}_count[5m]))"
    return (
        _one(f"{title} by stage, mean", mean, SECONDS, "{{stage}}"),
        _one(f"{title} by stage, p99", _quantile(0.99, metric, "stage"), SECONDS, "{{stage}}"),
    )


def _mean(title: str, metric: str, unit: str, label: str = "") -> Panel:
    legend = f"{INSTANCE} {{{{{label}}}}}" if label else INSTANCE
    labels = f"instance, {label}" if label else "instance"
    ratio = f"sum by ({labels}) (rate({{{metric}}}_sum[5m])) / sum by ({labels}) (rate({{{metric}}}_count[5m]))"
    return _one(title, ratio, unit, legend)


DASHBOARDS: Mapping[str, tuple[Panel, ...]] = {
    "cluster": (
        Panel("Bookies", {
            "writable": "count({bookie_SERVER_STATUS} == 1) or vector(0)",
            "read-only": "count({bookie_SERVER_STATUS} == 0) or vector(0)",
            "not registered": "count({bookie_SERVER_STATUS} == -1) or vector(0)",
            "not reachable": f'count(up{{job="{JOB}"}} == 0) or vector(0)'}),
        _one("Conditions of health that do not hold", "{bookies_ready} == 0", legend="{{instance}} {{condition}}"),
        _one("Entries added", _rate("bookies_entries_added_total"), PER_S),
        Panel("Bytes", {"in {{instance}}": _rate("bookie_WRITE_BYTES"), "out {{instance}}": _rate("bookie_READ_BYTES")},
              BYTES_PER_S),
        _quantiles("Adds", "bookies_add_request_seconds"),
        _quantiles("Reads", "bookies_read_request_seconds"),
        _one("Five slowest bookies, adds p99", f"topk(5, {_quantile(0.99, 'bookies_add_request_seconds')})", SECONDS),
        _one("Under-replicated ledgers", "max({bookies_underreplicated_ledgers})", legend="ledgers"),
        _one("Disks used", "{bookies_disk_used_ratio}", SHARE, "{{instance}} {{directory}}"),
        _one("Days until a disk is full, by the last week",
             "clamp_min(1 - {bookies_disk_used_ratio}, 0) / "
             "clamp_min(deriv({bookies_disk_used_ratio}[7d]) * 86400, 0.000001) < 365",
             "d", "{{instance}} {{directory}}"),
    ),
    "bookie": (
        _one("Status: 1 writable, 0 read-only, -1 not registered", "{bookie_SERVER_STATUS}"),
        Panel("Requests", {
            "adds, success {{success}}": "sum by (success) (rate({bookies_add_request_seconds}_count[5m]))",
            "reads, success {{success}}": "sum by (success) (rate({bookies_read_request_seconds}_count[5m]))"}, PER_S),
        Panel("In progress and blocked", {
            "adds {{instance}}": "{bookkeeper_server_ADD_ENTRY_IN_PROGRESS}",
            "reads {{instance}}": "{bookkeeper_server_READ_ENTRY_IN_PROGRESS}",
            "connections not read {{instance}}": "{bookkeeper_server_ADD_ENTRY_BLOCKED}",
            "reads blocked {{instance}}": "{bookkeeper_server_READ_ENTRY_BLOCKED}"}),
        _one("Slow requests", _rate("bookies_slow_requests_total"), PER_S),
        *_stages("Adds", "bookies_add_stage_seconds"),
        *_stages("Reads", "bookies_read_stage_seconds"),
        Panel("Connections", {"open {{instance}}": "{bookies_connections}",
                              "refused in 5 m: {{reason}}": "increase({bookies_peers_refused_total}[5m])"}),
        Panel("Memory that a limit bounds", {
            "{{part}} {{instance}}": "{bookies_memory_bytes}",
            "limit: {{part}} {{instance}}": "{bookies_memory_limit_bytes}"}, BYTES),
        _one("Event loop delay, p99", _quantile(0.99, "bookies_loop_lag_seconds"), SECONDS),
        _one("Processor time", _rate("process_cpu_seconds_total"), SHARE),
        _one("Resident memory", "{process_resident_memory_bytes}", BYTES),
        Panel("Open files", {"open {{instance}}": "{process_open_fds}", "limit {{instance}}": "{process_max_fds}"}),
        _one("Metadata requests, p99", _quantile(0.99, "bookies_metadata_seconds", "request"), SECONDS, "{{request}}"),
        _one("Days until the certificate expires", "({bookies_certificate_ends_seconds} - time()) / 86400", "d"),
    ),
    "journal": (
        _quantiles("Syncs", "bookies_journal_sync_seconds", "instance, journal"),
        _quantiles("Records, queued to durable", "bookies_journal_add_seconds", "instance, journal"),
        Panel("Queue", {
            "records {{instance}} {{journalIndex}}": "{bookie_journal_JOURNAL_QUEUE_SIZE}",
            "groups being written {{instance}} {{journalIndex}}": "{bookie_journal_JOURNAL_FORCE_WRITE_QUEUE_SIZE}"}),
        _mean("Wait in the queue, mean", "bookie_journal_JOURNAL_QUEUE_LATENCY", "ms", "journalIndex"),
        _mean("Records in a group, mean", "bookie_journal_JOURNAL_FORCE_WRITE_GROUPING_TOTAL", "short", "journalIndex"),
        _mean("Bytes in a group, mean", "bookie_journal_JOURNAL_FORCE_WRITE_BATCH_BYTES", BYTES, "journalIndex"),
        _one("Bytes written", _rate("bookie_journal_JOURNAL_WRITE_BYTES"), BYTES_PER_S,
             "{{instance}} {{journalIndex}}"),
        _one("Bytes queued or being written", "{bookie_journal_JOURNAL_MEMORY_USED}", BYTES,
             "{{instance}} {{journalIndex}}"),
        _one("Groups slower than a second, in 5 m", "increase({bookies_journal_slow_groups_total}[5m])"),
        _one("Entries that the last start replayed", "{bookies_replay_entries}"),
    ),
    "storage": (
        Panel("Write cache", {"used {{instance}}": "{bookie_write_cache_size}",
                              "limit {{instance}}": "{bookie_write_cache_max_size}"}, BYTES),
        _quantiles("Checkpoints", "bookies_checkpoint_seconds"),
        _mean("Bytes of a flush, mean", "bookie_flush_size", BYTES),
        _one("Reads of entry logs, p99", _quantile(0.99, "bookies_log_read_seconds"), SECONDS),
        Panel("Reads answered", {
            "from the write cache {{instance}}": _rate("bookie_write_cache_hits"),
            "from the page cache {{instance}}": _rate("bookie_read_cache_hits"),
            "by a worker {{instance}}": _rate("bookie_read_cache_misses")}, PER_S),
        Panel("Entry logs", {"live bytes {{instance}}": "{bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES}",
                             "all bytes {{instance}}": "{bookie_ENTRY_LOG_SPACE_BYTES}"}, BYTES),
        Panel("Entry logs by their live share", {
            f"{10 * step} to {10 * step + 10} %": f"sum({{bookie_entry_log_usage_buckets_le_{10 * step + 10}}})"
            for step in range(10)}),
        Panel("Ledgers", {"stored {{instance}}": "{bookie_ledgers_count}",
                          "in quarantine {{instance}}": "{bookies_ledgers_in_quarantine}",
                          "pinned {{instance}}": "{bookies_ledgers_pinned}"}),
        Panel("Bytes given back", {"deleted logs {{instance}}": _rate("bookie_RECLAIMED_DELETION_SPACE_BYTES"),
                                   "compaction {{instance}}": _rate("bookie_RECLAIMED_COMPACTION_SPACE_BYTES")},
              BYTES_PER_S),
        Panel("Compactions and failures, in an hour", {
            "minor {{instance}}": "increase({bookie_MINOR_COMPACTION_TOTAL}[1h])",
            "major {{instance}}": "increase({bookie_MAJOR_COMPACTION_TOTAL}[1h])",
            "failed steps {{instance}}": "increase({bookie_RECLAIM_FAILED_TO_DELETE}[1h])"}),
        Panel("Collection held", {"waits for an operator {{instance}}": "{bookies_collector_alarm}",
                                  "logs without room {{instance}}": "{bookies_logs_without_room}",
                                  "logs set aside {{instance}}": "{bookies_entry_logs_set_aside}"}),
        Panel("Directories", {"writable {{instance}}": "{bookie_ledger_writable_dirs}",
                              "all {{instance}}": "{bookie_ledger_num_dirs}",
                              "failed {{instance}} {{directory}}": "{bookies_directory_failed}"}),
        _one("Index pages in memory", "{bookies_index_cache_bytes}", BYTES, "{{instance}} {{state}}"),
        Panel("Scrub: age of the oldest unverified data", {
            "age {{instance}}": "{bookies_scrub_oldest_unverified_seconds}",
            "period {{instance}}": "{bookies_scrub_period_seconds}"}, SECONDS),
        Panel("Scrub: findings", {
            "damaged entries {{instance}}": "{bookies_scrub_damaged_entries}",
            "failures in an hour {{instance}}": "increase({bookies_scrub_failures_total}[1h])"}),
    ),
    "recovery": (
        Panel("Auditor and switch", {"auditor: {{instance}}": "{bookies_auditor_elected}",
                                     "repairs allowed": "max({bookies_recovery_enabled})"}),
        _one("Time since the last pass", "time() - max({bookies_audit_ended_seconds})", SECONDS, "age"),
        Panel("Ledgers", {"waiting": "max({bookies_underreplicated_ledgers})",
                          "being repaired": "sum({bookies_ledgers_being_repaired})",
                          "not repaired {{instance}}": "{bookies_unrepairable_ledgers}",
                          "with lost entries {{instance}}": "{bookies_ledgers_with_lost_entries}"}),
        Panel("Ledgers by the entry with the fewest replicas, last check", {
            "none": "{auditor_NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY}",
            "less than the ack quorum": "{auditor_NUM_LEDGERS_HAVING_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY}",
            "less than the write quorum": "{auditor_NUM_LEDGERS_HAVING_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY}"}),
        _one("Entries copied", _rate("replication_worker_NUM_ENTRIES_WRITTEN"), PER_S),
        Panel("Bytes copied", {"copied {{instance}}": "rate({replication_worker_NUM_BYTES_WRITTEN}_sum"
                                                      '{success="true"}[5m])',
                               "allowed {{instance}}": "{bookies_recovery_rate_bytes}"}, BYTES_PER_S),
        *_stages("Repairs", "bookies_repair_stage_seconds"),
        Panel("Bookies", {"lost": "max({bookies_lost_bookies})", "to be emptied": "max({bookies_draining_bookies})"}),
        _one("Failures of tasks, in an hour", "increase({bookies_recovery_failures_total}[1h])",
             legend="{{instance}} {{task}}"),
        Panel("Retention of logs: removed", {
            "ledgers": "sum(rate({bookies_log_retention_ledgers_total}[5m]))",
            "entries": "sum(rate({bookies_log_retention_entries_total}[5m]))"}, PER_S),
        _one("Retention of logs: bytes removed", "sum(rate({bookies_log_retention_bytes_total}[5m]))", BYTES_PER_S,
             "bytes"),
        Panel("Ledgers that violate the placement policy", {
            "violate": "{auditor_NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY}",
            "less than desired": "{auditor_NUM_LEDGERS_SOFTLY_ADHERING_TO_PLACEMENT_POLICY}"}),
    ),
    "client": (
        _quantiles("Appends", "bookies_client_append_seconds"),
        Panel("Entries", {"confirmed {{instance}}": _rate("bookies_client_entries_confirmed_total"),
                          "failed {{instance}}": _rate("bookies_client_entries_failed_total")}, PER_S),
        _one("Bytes sent", _rate("bookies_client_sent_bytes_total"), BYTES_PER_S),
        _one("Traffic by nearness of the bookie", f"sum by (nearness) ({_rate('bookies_client_traffic_bytes_total')})",
             BYTES_PER_S, "{{nearness}}"),
        Panel("Reads", {"requests {{instance}}": _rate("bookies_client_read_requests_total"),
                        "without an entry {{instance}}": _rate("bookies_client_read_failures_total"),
                        "hedged {{instance}}": _rate("bookkeeper_client_SPECULATIVE_READ_COUNT"),
                        "digest mismatches {{instance}}": _rate("bookkeeper_client_READ_ENTRY_DM")}, PER_S),
        Panel("Memory of unanswered entries", {"used {{instance}}": "{bookies_client_memory_bytes}",
                                               "limit {{instance}}": "{bookies_client_memory_limit_bytes}"}, BYTES),
        _one("Bytes that a bookie has not answered", "{bookies_client_pending_bytes}", BYTES,
             "{{instance}} to {{bookie}}"),
        Panel("Trouble, in 5 m", {
            "ensemble changes {{instance}}": "increase({bookkeeper_client_NUM_ENSEMBLE_CHANGE}[5m])",
            "timeouts {{instance}}": "increase({bookies_client_timeouts_total}[5m])",
            "connections lost {{instance}}": "increase({bookies_client_connections_lost_total}[5m])"}),
        _one("Connections", "{bookies_client_connections}"),
        *_stages("Recoveries of ledgers", "bookies_client_recovery_stage_seconds"),
    ),
    "spark": (
        _one("Queries that run", "{bookies_stream_active}", legend="{{query}}"),
        _one("Rows", _rate("bookies_stream_rows_total"), PER_S, "{{query}}"),
        _quantiles("Batches", "bookies_stream_batch_seconds", "query"),
        _one("Lag in entries", "{bookies_stream_lag_entries}", legend="{{query}}"),
        _one("Lag in bytes", "{bookies_stream_lag_bytes}", BYTES, "{{query}}"),
        _one("Age of the first entry that is not read", "{bookies_stream_lag_seconds}", SECONDS, "{{query}}"),
        _one("Runs that ended with an error, in an hour", "increase({bookies_stream_failures_total}[1h])",
             legend="{{query}}"),
    ),
}  # fmt: skip


_SOURCE = {"name": "source", "type": "datasource", "query": "prometheus", "label": "Data source"}


def _variable(label: str, series: str) -> dict[str, Any]:
    """Return a variable with the values of a label; several may be chosen, at first all."""
    return {
        "name": label,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": f"label_values({series}, {label})",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard_file(name: str) -> str:
    """Return a dashboard as JSON."""
    source = {"type": "prometheus", "uid": "${source}"}
    panels = [
        {
            "id": number + 1,
            "type": "timeseries",
            "title": panel.title,
            "datasource": source,
            "gridPos": {"x": 12 * (number % 2), "y": 8 * (number // 2), "w": 12, "h": 8},
            "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
            "targets": [
                {"refId": chr(ord("A") + at), "datasource": source, "expr": expression_of(text, [legend], SELECTED),
                 "legendFormat": legend}
                for at, (legend, text) in enumerate(panel.lines.items())
            ],
        }
        for number, panel in enumerate(DASHBOARDS[name])
    ]  # fmt: skip
    changes = {
        "name": "Settings changed",
        "enable": True,
        "datasource": source,
        "expr": expression_of("increase({bookies_setting_changes_total}[2m]) > 0", selector=SELECTED),
        "titleFormat": INSTANCE,
        "iconColor": "blue",
    }
    facts: dict[str, Any] = {
        "uid": f"bookies-{name}",
        "title": f"bookies: {name}",
        "tags": ["bookies"],
        "schemaVersion": 38,
        "time": {"from": "now-3h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [_SOURCE, _variable("job", "up"), _variable("instance", 'up{job=~"$job"}')]},
        "annotations": {"list": [changes]},
        "panels": panels,
    }
    return json.dumps(facts, indent=1) + "\n"
