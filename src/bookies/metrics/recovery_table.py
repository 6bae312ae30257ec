"""Metrics of auto-recovery, beside a bookie or in a process of its own. Source: operations 2.5.

Apache's names depend on where it runs. Dashboards ask for those of the stand-alone process, so these are used in both
cases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bookies.metrics.client_table import BY_NEARNESS
from bookies.metrics.metric import Kind, Metric, Sums
from bookies.replication.auditor.checks import SHORTAGES, Listings, LostBookies, Placement, Replicas
from bookies.replication.daemon.daemon import AutoRecovery

_WORKER = "replication_worker_"


def _pass_time(name: str, check: str, help: str) -> Metric:
    """Return the duration of passes with one check."""
    return Metric(
        f"auditor_{name}",
        Kind.SUMMARY,
        "recovery",
        help,
        lambda recovery: recovery.auditor.passes.get(check),
        unit="ms",
    )


def _fact(name: str, check: str, key: str, help: str) -> Metric:
    """Return a finding of the last complete pass with one check."""

    def read(recovery: AutoRecovery) -> Any:
        report = recovery.auditor.last.get(check)
        return None if report is None else report.facts.get(key)

    return Metric(name, Kind.GAUGE, "recovery", help, read)


def _shortage(name: str, key: str) -> Metric:
    help = f"ledgers of which {key}, by the last pass that read replicas; each is in one of three such counts"
    return _fact(f"auditor_NUM_LEDGERS_HAVING_{name}_OF_AN_ENTRY", Replicas.name, key, help)


def _passed_s(recovery: AutoRecovery) -> float | None:
    """Return when the last pass ended, in seconds since 1970; None: this process has completed none."""
    ends = [report.ended_ms / 1000 for report in recovery.auditor.last.values() if report.ended_ms is not None]
    return max(ends, default=None)


def _gauge(name: str, help: str, read: Callable[[AutoRecovery], Any], unit: str = "") -> Metric:
    return Metric(f"bookies_{name}", Kind.GAUGE, "recovery", help, read, unit=unit)


def _copied(name: str, kind: Kind, help: str, read: Callable[[AutoRecovery], Any], unit: str = "") -> Metric:
    return Metric(f"{_WORKER}{name}", kind, "recovery", help, read, unit=unit)


TABLE: tuple[Metric, ...] = (
    Metric(
        "bookies_recovery_traffic_bytes_total",
        Kind.COUNTER,
        "recovery",
        f"bytes that checks and copies exchanged with bookies, {BY_NEARNESS}",
        lambda recovery: recovery.client.usage().counts.bytes_by_nearness,
        ("nearness", "direction"),
        "bytes",
    ),
    Metric(
        "auditor_NUM_UNDER_REPLICATED_LEDGERS",
        Kind.SUMMARY,
        "recovery",
        "ledgers that a pass of the auditor has marked; _count is the number of passes",
        lambda recovery: recovery.auditor.marked,
    ),
    Metric(
        "bookies_underreplicated_ledgers",
        Kind.GAUGE,
        "recovery",
        "marked ledgers that this process knows",
        lambda recovery: recovery.worker.waiting_count,
    ),
    Metric(
        "bookies_unrepairable_ledgers",
        Kind.GAUGE,
        "recovery",
        "marked ledgers that this process could not repair in its last attempt",
        lambda recovery: len(recovery.worker.reports),
    ),
    Metric(
        "auditor_NUM_LEDGERS_CHECKED",
        Kind.COUNTER,
        "recovery",
        "ledgers checked by passes of the auditor",
        lambda recovery: recovery.auditor.checked_count,
    ),
    Metric(
        "bookies_auditor_elected",
        Kind.GAUGE,
        "recovery",
        "1: this process is the auditor",
        lambda recovery: int(recovery.auditor.is_at_work),
    ),
    _pass_time("AUDIT_BOOKIES_TIME", LostBookies.name, "passes that look for ledgers of lost bookies"),
    _pass_time("CHECK_ALL_LEDGERS_TIME", Replicas.name, "passes that read replicas"),
    _pass_time("REPLICAS_CHECK_TIME", Listings.name, "passes that compare lists of entries"),
    _pass_time("PLACEMENT_POLICY_CHECK_TIME", Placement.name, "passes that check placement"),
    _fact(
        "auditor_NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY",
        Placement.name,
        "not adhering",
        "ledgers that violate the placement policy, by the last check",
    ),
    _fact(
        "auditor_NUM_LEDGERS_SOFTLY_ADHERING_TO_PLACEMENT_POLICY",
        Placement.name,
        "adhering, less than desired",
        "ledgers that meet the placement policy less than desired, by the last check",
    ),
    *map(
        _shortage,
        ("NO_REPLICA", "LESS_THAN_AQ_REPLICAS", "LESS_THAN_WQ_REPLICAS"),
        SHORTAGES,
    ),
    _fact(
        "bookies_ensemble_size_max",
        LostBookies.name,
        "largest ensemble of open ledgers",
        "largest ensemble size of open ledgers, by the last pass that looked for ledgers of lost bookies",
    ),
    _gauge("audit_ended_seconds", "end of the auditor's last pass, since 1970", _passed_s, "seconds"),
    _gauge(
        "audit_interval_seconds",
        "the setting audit_bookies_interval_s",
        lambda recovery: recovery.config.audit_bookies_interval_s,
        "seconds",
    ),
    Metric(
        "bookies_balance_replicas_total",
        Kind.COUNTER,
        "recovery",
        "replicas that the automatic balance has moved",
        lambda recovery: recovery.auditor.balance.moved.replicas,
    ),
    Metric(
        "bookies_balance_bytes_total",
        Kind.COUNTER,
        "recovery",
        "bytes that the automatic balance has copied",
        lambda recovery: recovery.auditor.balance.moved.size,
        unit="bytes",
    ),
    _gauge(
        "balance_deviation_ratio",
        "largest deviation of a bookie from its share of data, as a fraction of it, by the auditor's last check",
        lambda recovery: recovery.auditor.balance.imbalance,
        "ratio",
    ),
    _gauge("recovery_enabled", "1: repairs are allowed in the cluster", lambda recovery: int(recovery.is_enabled)),
    _gauge(
        "draining_bookies",
        "bookies that are to be emptied",
        lambda recovery: len(recovery.membership.draining),
    ),
    _gauge(
        "ledgers_with_lost_entries",
        "marked ledgers of which entries are on no bookie, by this process's last attempt to repair them",
        lambda recovery: sum(bool(report.losses) for report in recovery.worker.reports.values()),
    ),
    _gauge(
        "recovery_rate_bytes",
        "bytes per second that copies may use now",
        lambda recovery: recovery.pace.bytes_per_s,
        "bytes",
    ),
    Metric(
        "bookies_recovery_failures_total",
        Kind.COUNTER,
        "recovery",
        "failures of the tasks of auto-recovery, which are started again",
        lambda recovery: recovery.failures,
        ("task",),
    ),
    Metric(
        "bookies_repair_stage_seconds",
        Kind.HISTOGRAM,
        "recovery",
        "repairs by stage: claim, check (once per ledger); read, write, rate (once per part of a copy); metadata",
        lambda recovery: recovery.worker.stages.by_name,
        ("stage",),
        "seconds",
    ),
    _copied("rereplicate", Kind.SUMMARY, "repairs of one ledger", lambda r: r.worker.attempts, "ms"),
    _copied("NUM_ENTRIES_READ", Kind.COUNTER, "entries read for copies", lambda r: r.worker.totals.entries),
    _copied("NUM_ENTRIES_WRITTEN", Kind.COUNTER, "entries copied", lambda r: r.worker.totals.entries),
    _copied(
        "NUM_BYTES_READ",
        Kind.SUMMARY,
        "bytes read for copies; _count counts entries",
        lambda r: Sums(r.worker.totals.entries, r.worker.totals.size),
        "bytes",
    ),
    _copied(
        "NUM_BYTES_WRITTEN",
        Kind.SUMMARY,
        "bytes copied; _count counts entries",
        lambda r: Sums(r.worker.totals.entries, r.worker.totals.size),
        "bytes",
    ),
    _copied(
        "NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED",
        Kind.COUNTER,
        "ledgers repaired",
        lambda r: r.worker.totals.ledgers,
    ),
    Metric(
        "bookies_fragments_repaired_total",
        Kind.COUNTER,
        "recovery",
        "fragments repaired",
        lambda recovery: recovery.worker.totals.fragments,
    ),
    Metric(
        "bookies_ledgers_being_repaired",
        Kind.GAUGE,
        "recovery",
        "ledgers that are being repaired now",
        lambda recovery: len(recovery.worker.busy),
    ),
    Metric(
        "bookies_lost_bookies",
        Kind.GAUGE,
        "recovery",
        "bookies that count as lost",
        lambda recovery: len(recovery.membership.lost()),
    ),
)
