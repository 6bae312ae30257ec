"""Alerts for Prometheus and dashboards for Grafana, from the tables below: `docs/generate.py` writes the files.

An expression names a metric as `{name}`. The name must be in the tables of `bookies.metrics`, else the generator fails.
"""

from __future__ import annotations

import json
import pathlib
import re
from typing import NamedTuple

HOWTO = pathlib.Path(__file__).parent / "howto"
SUFFIXES = ("_bucket", "_count", "_sum")


class Alert(NamedTuple):
    """`expression`: true while there is a problem, for `lasting`. `page`: how-to page, without its ending."""

    name: str
    expression: str
    lasting: str
    severity: str
    summary: str
    step: str
    page: str


class Panel(NamedTuple):
    """A graph. `unit`: as Grafana names it."""

    title: str
    expression: str
    legend: str = "{{instance}}"
    unit: str = "short"


ALERTS = (
    Alert("BookieLost", 'up{job="bookie"} == 0 and max_over_time(up{job="bookie"}[1h]) == 1', "2m", "critical",
          "the bookie does not answer", "start it, or let auto-recovery copy its ledgers", "recover-a-lost-bookie"),
    Alert("BookieReadOnly", "{bookie_SERVER_STATUS} == 0", "5m", "warning",
          "the bookie refuses ordinary adds", "`bk bookie disks` prints the reason", "read-only-bookie"),
    Alert("BookieNotReady", '{bookies_ready}{condition=~"running|journal|directories"} == 0', "1m", "critical",
          "a condition of readiness does not hold", "`/healthz` prints reason and next step", "probe-a-bookie"),
    Alert("DiskNearLimit", "{bookies_disk_used_ratio} > 0.85", "15m", "warning",
          "a disk is almost full", "`bk bookie space` prints what holds space", "free-a-full-disk"),
    Alert("DiskFillsUp", "predict_linear({bookies_disk_used_ratio}[6h], 14400) > 0.95", "30m", "warning",
          "a disk will be full within four hours", "delete ledgers, or add a bookie", "get-space-back"),
    Alert("DirectoryFailed", "{bookies_directory_failed} == 1", "0m", "critical",
          "the bookie has given up a directory", "replace the disk", "replace-a-disk"),
    Alert("JournalSlow",
          "histogram_quantile(0.99, rate({bookies_journal_sync_seconds}_bucket[5m])) > 0.2", "5m", "warning",
          "a sync of the journal takes more than 200 ms", "`bk why slow` names the cause", "slow-bookie"),
    Alert("AddsSlow",
          "histogram_quantile(0.99, sum without (success) "
          "(rate({bookies_add_request_seconds}_bucket[5m]))) > 1.5", "1m", "warning",
          "adds take more than 1.5 s", "`bk why slow` names the cause", "why-slow"),
    Alert("ReadsSlow",
          "histogram_quantile(0.99, sum without (success) "
          "(rate({bookies_read_request_seconds}_bucket[5m]))) > 1", "5m", "warning",
          "reads take more than a second", "`bk why slow` names the cause", "why-slow"),
    Alert("AddsBlocked", "{bookkeeper_server_ADD_ENTRY_BLOCKED} > 0", "5m", "warning",
          "the bookie does not read from its sockets", "`bk why slow` names the limit", "why-slow"),
    Alert("LoopLag", "histogram_quantile(0.99, rate({bookies_loop_lag_seconds}_bucket[5m])) > 1", "1m", "warning",
          "the event loop stands still for more than a second", "`bk why slow` tells who had the processor",
          "why-slow"),
    Alert("UnderReplicated", "{bookies_underreplicated_ledgers} > 0 and "
          "delta({bookies_underreplicated_ledgers}[30m]) >= 0", "30m", "warning",
          "ledgers lack replicas, and their number does not fall", "`bk recovery why` prints the reason",
          "unrepaired-ledger"),
    Alert("ScrubDamage", "{bookies_scrub_damaged_entries} > 0", "0m", "warning",
          "the scrub has found damaged entries", "repair them from other replicas", "check-for-damage"),
    Alert("CollectionHeld", "{bookies_collector_alarm} == 1 or {bookies_logs_without_room} > 0", "1h", "warning",
          "garbage collection waits for an operator or for free space", "`bk bookie space` prints why",
          "get-space-back"),
)  # fmt: skip


def _quantile(share: str, metric: str, labels: str = "instance") -> str:
    return f"histogram_quantile({share}, sum by (le, {labels}) (rate({{{metric}}}_bucket[5m])))"


def _mean(metric: str, labels: str) -> str:
    return f"sum by ({labels}) (rate({{{metric}}}_sum[5m])) / sum by ({labels}) (rate({{{metric}}}_count[5m]))"


DASHBOARDS = {
    "cluster": (
        Panel("Status: 1 writable, 0 read-only, -1 not registered", "{bookie_SERVER_STATUS}"),
        Panel("Entries added", "rate({bookies_entries_added_total}[5m])", unit="ops"),
        Panel("Bytes added", "rate({bookie_WRITE_BYTES}[5m])", unit="Bps"),
        Panel("Bytes read", "rate({bookie_READ_BYTES}[5m])", unit="Bps"),
        Panel("Adds, p99", _quantile("0.99", "bookies_add_request_seconds"), unit="s"),
        Panel("Reads, p99", _quantile("0.99", "bookies_read_request_seconds"), unit="s"),
        Panel("Under-replicated ledgers", "{bookies_underreplicated_ledgers}"),
        Panel("Disks used", "{bookies_disk_used_ratio}", "{{instance}} {{directory}}", "percentunit"),
    ),
    "bookie": (
        Panel("Stages of adds, mean", _mean("bookies_add_stage_seconds", "stage"), "{{stage}}", "s"),
        Panel("Stages of adds, p99", _quantile("0.99", "bookies_add_stage_seconds", "stage"), "{{stage}}", "s"),
        Panel("Stages of reads, mean", _mean("bookies_read_stage_seconds", "stage"), "{{stage}}", "s"),
        Panel("Slow requests", "rate({bookies_slow_requests_total}[5m])", unit="ops"),
        Panel("Journal sync, p99", _quantile("0.99", "bookies_journal_sync_seconds"), unit="s"),
        Panel("Records waiting for the journal", "{bookie_journal_JOURNAL_QUEUE_SIZE}"),
        Panel("Write cache", "{bookie_write_cache_size}", unit="bytes"),
        Panel("Checkpoints, p99", _quantile("0.99", "bookies_checkpoint_seconds"), unit="s"),
        Panel("Event loop delay, p99", _quantile("0.99", "bookies_loop_lag_seconds"), unit="s"),
        Panel("Processor time", "rate({process_cpu_seconds_total}[5m])", unit="percentunit"),
        Panel("Live bytes in entry logs", "{bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES}", unit="bytes"),
        Panel("All bytes in entry logs", "{bookie_ENTRY_LOG_SPACE_BYTES}", unit="bytes"),
    ),
}


def known_names() -> set[str]:
    """Return the names of all metrics."""
    from bookies.metrics import bookie_table, process_table, recovery_table, storage_table

    tables = (bookie_table.REQUESTS, bookie_table.STAGES, bookie_table.SERVER, storage_table.TABLE,
              recovery_table.TABLE, process_table.TABLE)  # fmt: skip
    return {metric.name for table in tables for metric in table}


def expression_of(text: str) -> str:
    """Replace `{name}` by the metric's name. Raises LookupError for a metric that does not exist."""
    names = known_names()

    def name_of(match: re.Match[str]) -> str:
        if match[1] not in names:
            raise LookupError(f"no metric has the name {match[1]}: {text}")
        return match[1]

    return re.sub(r"\{(\w+)\}", name_of, text)


def alerts_file() -> str:
    """Return the rules for Prometheus."""
    lines = ["# Made by docs/generate.py from docs/observe.py.", "groups:", "  - name: bookies", "    rules:"]
    for alert in ALERTS:
        if not (HOWTO / f"{alert.page}.md").exists():
            raise LookupError(f"alert {alert.name}: docs/howto/{alert.page}.md does not exist")
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(expression_of(alert.expression))}",
            f"        for: {alert.lasting}",
            f"        labels: {{severity: {alert.severity}}}",
            "        annotations:",
            f"          summary: {json.dumps('{{ $labels.instance }}: ' + alert.summary)}",
            f"          description: {json.dumps(alert.step)}",
            f"          runbook: docs/howto/{alert.page}.md",
        ]
    return "\n".join(lines) + "\n"


def dashboard_file(name: str) -> str:
    """Return a dashboard for Grafana 10 or newer."""
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
                {"refId": "A", "datasource": source, "expr": expression_of(panel.expression),
                 "legendFormat": panel.legend}
            ],
        }
        for number, panel in enumerate(DASHBOARDS[name])
    ]  # fmt: skip
    variable = {"name": "source", "type": "datasource", "query": "prometheus", "label": "Data source"}
    facts = {
        "uid": f"bookies-{name}",
        "title": f"bookies: {name}",
        "schemaVersion": 38,
        "time": {"from": "now-3h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [variable]},
        "panels": panels,
    }
    return json.dumps(facts, indent=1) + "\n"


def files() -> dict[str, str]:
    """Return the generated files by path below `docs`."""
    dashboards = {f"observe/{name}-dashboard.json": dashboard_file(name) for name in DASHBOARDS}
    return {"observe/alerts.yml": alerts_file()} | dashboards
