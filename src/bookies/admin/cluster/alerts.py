"""Alerts for Prometheus, as a table. `docs/observe/alerts.yml` and `docs/howto/alerts.md` are made from it.

An expression names a metric as `{name}`. Names and labels must be those of the tables in `bookies.metrics`.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bookies.metrics.every_table import TABLES
from bookies.metrics.metric import Kind, Metric

JOB = "bookie"  # of every process with an HTTP server of ours, bookie or auto-recovery
PAGE = "docs/howto/alerts.md"
OTHER_LABELS = frozenset(("instance", "job", "cluster"))  # that the scrape configuration sets
SUFFIXES = {Kind.SUMMARY: ("_count", "_sum"), Kind.HISTOGRAM: ("_bucket", "_count", "_sum")}
_NAMED = re.compile(r"\{(\w+?)\}(_bucket|_count|_sum)?(?:\{([^{}]*)\})?")
_GROUPED = re.compile(r"\b(?:by|without|on|ignoring) \(([^()]*)\)")
_DURATION = re.compile(r"\b(\d+)([smh])\b")
SECONDS = {"s": 1, "m": 60, "h": 3600}


class Alert(NamedTuple):
    """`expression`: true while there is a problem, for `lasting`. `pages`: how-to pages, without their endings.

    `summary`: what is wrong; `step`: what to do. `subject`: the label whose value begins the message; empty: none.
    """

    name: str
    expression: str
    lasting: str
    severity: str
    summary: str
    step: str
    pages: tuple[str, ...]
    subject: str = "instance"


def _p99(metric: str, labels: str = "instance") -> str:
    return f"histogram_quantile(0.99, sum by (le, {labels}) (rate({{{metric}}}_bucket[5m])))"


_LOST = 'up{job="bookie"} == 0 and max_over_time(up{job="bookie"}[1h]) == 1'
_FAILED_ADDS = 'rate({bookies_add_request_seconds}_count{success="false"}[5m])'
_REFUSED_ADDS = "rate({bookkeeper_server_ADD_ENTRY_REJECTED}[5m])"

ALERTS = (
    Alert("BookieLost", f"{_LOST} or {{bookie_SERVER_STATUS}} == -1", "2m", "warning",
          "the bookie does not answer, or is not registered",
          "Read its log and start it again. If it does not return, auto-recovery copies its ledgers after the "
          "lost-bookie delay: `bk recovery status` reports the progress.",
          ("fix-a-refused-start", "recover-a-lost-bookie")),
    Alert("BookiesLost", f"count({_LOST}) > 1", "2m", "critical",
          "more than one bookie does not answer",
          "Bring one of them back first: ledgers may have a single replica left. `bk recovery list` prints the ledgers "
          "at risk, those with the fewest replicas first.",
          ("fix-a-refused-start", "recover-a-lost-bookie"), ""),
    Alert("BookieReadOnly", "{bookie_SERVER_STATUS} == 0", "5m", "warning",
          "the bookie refuses ordinary adds", "`bk bookie disks --bookie ID` prints the reason.",
          ("read-only-bookie", "free-a-full-disk")),
    Alert("BookieNotReady", '{bookies_ready}{condition=~"running|journal|directories"} == 0', "1m", "critical",
          "a condition of readiness does not hold", "`/healthz` of the bookie prints the reason and the next step.",
          ("probe-a-bookie",)),
    Alert("NoRoomForEnsemble",
          "(count({bookie_SERVER_STATUS} == 1) or vector(0)) < max({bookies_ensemble_size_max})", "1m", "critical",
          "fewer bookies are writable than the largest ensemble in use needs",
          "Writers cannot replace a failed bookie and cannot open new ledgers. Start the bookies that are down, make "
          "read-only ones writable, or add bookies.",
          ("add-a-bookie", "read-only-bookie"), ""),
    Alert("DiskNearLimit", "{bookies_disk_used_ratio} > 0.85", "15m", "warning",
          "a disk is more than 85 % full", "`bk bookie space --bookie ID` prints what holds the space.",
          ("free-a-full-disk", "get-space-back")),
    Alert("DiskAlmostFull", "{bookies_disk_used_ratio} > 0.92", "5m", "critical",
          "a disk is more than 92 % full",
          "The bookie becomes read-only at `disk_usage_threshold`. Delete ledgers, add a disk, or move replicas to "
          "other bookies.",
          ("free-a-full-disk", "add-a-disk", "balance-bookies")),
    Alert("DiskFillsUp", "predict_linear({bookies_disk_used_ratio}[6h], 14400) > 0.95", "30m", "warning",
          "a disk will be full within four hours", "Shorten the retention of applications, or add a bookie.",
          ("get-space-back", "add-a-bookie")),
    Alert("DirectoryFailed", "{bookies_directory_failed} == 1", "0m", "critical",
          "the bookie has given up a directory",
          "The bookie serves from its other directories. Replace the disk, and let the bookie fetch what it lacks.",
          ("replace-a-disk",)),
    Alert("OpenFilesNearLimit", "{process_open_fds} > 0.9 * {process_max_fds}", "5m", "warning",
          "more than 90 % of the allowed files are open, and at the limit new connections are refused",
          "Raise the limit (LimitNOFILE in the unit, `ulimit -n`), or find out who opens the connections: `ss -tnp`.",
          ("run-as-a-service", "check-a-bookie")),
    Alert("JournalSlow", f"{_p99('bookies_journal_sync_seconds')} > 0.2", "5m", "warning",
          "a sync of the journal takes more than 200 ms",
          "`bk why slow` names the cause: the device, its neighbours, or the kernel's write-back.",
          ("slow-bookie", "why-slow")),
    Alert("AddsSlow", f"{_p99('bookies_add_request_seconds')} > 1.5", "1m", "warning",
          "adds take more than 1.5 s", "`bk why slow` names the cause. The dashboard *bookie* shows the stages.",
          ("why-slow",)),
    Alert("ReadsSlow", f"{_p99('bookies_read_request_seconds')} > 1", "5m", "warning",
          "reads take more than a second", "`bk why slow` names the cause. The dashboard *bookie* shows the stages.",
          ("why-slow",)),
    Alert("AddsRefused",
          f"sum by (instance) ({_FAILED_ADDS}) + sum by (instance) ({_REFUSED_ADDS}) > "
          "0.01 * sum by (instance) (rate({bookies_add_request_seconds}_count[5m]))", "5m", "critical",
          "the bookie refuses or fails more than 1 % of the adds",
          "Read its log, then `bk bookie state --bookie ID`: it may be stopping, read-only, or out of memory for adds.",
          ("check-a-bookie", "free-a-full-disk")),
    Alert("AddsBlocked", "{bookkeeper_server_ADD_ENTRY_BLOCKED} > 0", "5m", "warning",
          "the bookie does not read from its sockets", "`bk why slow` names the limit that is reached.", ("why-slow",)),
    Alert("LoopLag", f"{_p99('bookies_loop_lag_seconds')} > 1", "1m", "warning",
          "the event loop stands still for more than a second", "`bk why slow` names what used the processor.",
          ("why-slow",)),
    Alert("MetadataSlow",
          f"{_p99('bookies_metadata_seconds')} > 1 or increase({{bookies_registration_sessions_lost_total}}[10m]) >= 2",
          "5m", "warning",
          "requests to the metadata store take more than a second, or the bookie loses its session again and again",
          "Check ZooKeeper or etcd: its disk, its memory, the network to it. Entries are stored meanwhile; ledgers "
          "cannot be created or closed.",
          ("why-slow",)),
    Alert("CertificateEnds", "{bookies_certificate_ends_seconds} - time() < 14 * 86400", "1h", "warning",
          "the certificate expires within 14 days", "Replace the files; the bookie loads them without a restart.",
          ("renew-certificates",)),
    Alert("UnderReplicated", "{bookies_underreplicated_ledgers} > 0 and "
          "delta({bookies_underreplicated_ledgers}[30m]) >= 0", "30m", "warning",
          "ledgers lack replicas, and their number does not fall",
          "`bk recovery list` prints the reason of each; `bk recovery why LEDGER` explains one.",
          ("unrepaired-ledger", "watch-auto-recovery")),
    Alert("LedgerWithoutReplica",
          "{auditor_NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY} > 0 or {bookies_ledgers_with_lost_entries} > 0",
          "0m", "critical",
          "entries are on no bookie that answers",
          "Delete nothing, and format no bookie. `bk recovery list` names the ledgers, `bk ledger explain LEDGER` the "
          "bookies that had the entries: bring one of these back.",
          ("unreadable-entry", "unrepaired-ledger")),
    Alert("NoAuditor", "(sum({bookies_auditor_elected}) or vector(0)) == 0 and on () "
          "max_over_time(sum({bookies_auditor_elected})[24h:5m]) > 0", "10m", "warning",
          "no process of auto-recovery is the auditor",
          "Lost bookies are not detected. `bk recovery status` lists the processes; start one.",
          ("run-auto-recovery",), ""),
    Alert("AuditOverdue",
          "time() - max({bookies_audit_ended_seconds}) > 2 * max({bookies_audit_interval_seconds} > 0)",
          "10m", "warning",
          "the auditor has completed no pass for two intervals",
          "`bk recovery status` prints what the auditor does. Enable auto-recovery if it is disabled.",
          ("watch-auto-recovery",), ""),
    Alert("RecoveryOff", "max({bookies_recovery_enabled}) == 0", "4h", "warning",
          "auto-recovery is disabled",
          "The logger `bookies.audit` has who disabled it over HTTP. `bk recovery enable` enables it.",
          ("watch-auto-recovery",), ""),
    Alert("DrainStuck",
          "max({bookies_draining_bookies}) > 0 and max({bookies_underreplicated_ledgers}) > 0 and "
          "sum(increase({replication_worker_NUM_ENTRIES_WRITTEN}[30m])) == 0", "30m", "warning",
          "a bookie is to be emptied, and no entry was copied for half an hour",
          "`bk bookie drain` lists the drains; `bk bookie drain ID --dry-run` lists what prevents one.",
          ("remove-a-bookie", "unrepaired-ledger"), ""),
    Alert("ScrubDamage", "{bookies_scrub_damaged_entries} > 0", "0m", "warning",
          "the scrub has found damaged entries",
          "Repair them from other replicas: `bk ledger repair LEDGER`. If more appear, replace the disk.",
          ("check-for-damage", "replace-a-disk")),
    Alert("ScrubBehind",
          "{bookies_scrub_oldest_unverified_seconds} > 2 * {bookies_scrub_period_seconds} > 0", "1h", "info",
          "data was not verified for two periods of the scrub",
          "Raise `scrub_rate_size`, or lengthen `scrub_period_ms`: `bk bookie settings --set NAME=VALUE`.",
          ("check-for-damage",)),
    Alert("CollectionHeld", "{bookies_collector_alarm} == 1 or {bookies_logs_without_room} > 0", "1h", "warning",
          "garbage collection waits for an operator or for free space", "`bk bookie space --bookie ID` prints why.",
          ("get-space-back",)),
    Alert("CollectionFails", "increase({bookie_RECLAIM_FAILED_TO_DELETE}[1h]) > 0", "1h", "warning",
          "steps of garbage collection fail", "Read the bookie's log: a disk may be damaged or full.",
          ("get-space-back", "replace-a-disk")),
    Alert("SparkLag",
          "{bookies_stream_lag_seconds} > 60 and deriv({bookies_stream_lag_seconds}[15m]) > 0", "15m", "warning",
          "a streaming query falls behind",
          "Give the query more executors, or a larger batch. If `bk why slow` reports slow reads, treat these first.",
          ("spark-observe-tasks", "spark-resume-a-stream"), "query"),
)  # fmt: skip


@functools.cache
def known_metrics() -> Mapping[str, Metric]:
    """Return all metrics by name."""
    return {metric.name: metric for table in TABLES.values() for metric in table}


def expression_of(text: str, legends: Iterable[str] = (), selector: str = "") -> str:
    """Replace each `{name}` by the metric's name.

    `legends`: Grafana's, whose labels have to be known too. `selector`: labels that every metric has to have.

    Raises LookupError for a metric or a label that does not exist, and for a suffix that its type does not have.
    """
    known, labels = known_metrics(), set(OTHER_LABELS)
    for name, suffix, matchers in _NAMED.findall(text):
        metric = known.get(name)
        if metric is None:
            raise LookupError(f"no metric has the name {name}: {text}")
        if suffix not in ("", *SUFFIXES.get(metric.kind, ())) or (metric.kind is Kind.HISTOGRAM and not suffix):
            raise LookupError(f"{name} is a {metric.kind.value} and has no {name}{suffix}: {text}")
        own = {*metric.labels, *({"le"} if suffix == "_bucket" else ())}
        if metric.kind is Kind.SUMMARY or name in ("bookies_add_request_seconds", "bookies_read_request_seconds"):
            own.add("success")
        if metric.kind is Kind.SUMMARY and not suffix:
            own.add("quantile")
        labels |= own
        for label in re.findall(r"(\w+)\s*(?:=|!)", matchers):
            if label not in own | OTHER_LABELS:
                raise LookupError(f"{name} has no label {label}: {text}")
    matched = [label.strip() for group in _GROUPED.findall(text) for label in group.split(",") if label]
    matched += [label for legend in legends for label in re.findall(r"{{\s*(\w+)\s*}}", legend)]
    if unknown := [label for label in matched if label not in labels]:
        raise LookupError(f"no metric of the expression has the label {unknown[0]}: {text}")

    def selected(match: re.Match[str]) -> str:
        matchers = ", ".join(filter(None, (match[3], selector)))
        return match[1] + (match[2] or "") + (f"{{{matchers}}}" if matchers else "")

    return _NAMED.sub(selected, text)


def alerts_file(faster: int = 1) -> str:
    """Return the rules for Prometheus. `faster`: divides every duration, for a trial; 1: as they are.

    A window keeps at least twelve scrapes of a trial: in a shorter one a bookie that stands still now and then has too
    few for a rate.
    """

    def duration(match: re.Match[str], seconds_min: int = 4) -> str:
        seconds = int(match[1]) * SECONDS[match[2]]
        return match[0] if faster == 1 else f"{max(seconds_min, seconds // faster) if seconds else 0}s"

    def window(match: re.Match[str]) -> str:
        return duration(match, 12)

    lines = ["groups:", "  - name: bookies", "    rules:"]
    for alert in ALERTS:
        subject = f"{{{{ $labels.{alert.subject} }}}}: " if alert.subject else ""
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(_DURATION.sub(window, expression_of(alert.expression)))}",
            f"        for: {_DURATION.sub(duration, alert.lasting)}",
            f"        labels: {{severity: {alert.severity}}}",
            "        annotations:",
            f"          summary: {json.dumps(subject + alert.summary)}",
            f"          description: {json.dumps(alert.step)}",
            f"          runbook: {PAGE}#{alert.name.lower()}",
        ]
    return "\n".join(lines) + "\n"
