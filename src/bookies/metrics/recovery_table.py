"""Metrics of auto-recovery, beside a bookie or in a process of its own. Source: operations 2.5.

Apache's names depend on where it runs. Dashboards ask for those of the stand-alone process, so these are used in both
cases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bookies.metrics.metric import Kind, Metric, Sums
from bookies.replication.auditor.checks import Listings, LostBookies, Placement, Replicas
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


def _fact(name: str, key: str, help: str) -> Metric:
    """Return a finding of the last check of placement."""

    def read(recovery: AutoRecovery) -> Any:
        report = recovery.auditor.last.get(Placement.name)
        return None if report is None else report.facts.get(key)

    return Metric(f"auditor_{name}", Kind.GAUGE, "recovery", help, read)


def _copied(name: str, kind: Kind, help: str, read: Callable[[AutoRecovery], Any], unit: str = "") -> Metric:
    return Metric(f"{_WORKER}{name}", kind, "recovery", help, read, unit=unit)


TABLE: tuple[Metric, ...] = (
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
        "NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY",
        "not adhering",
        "ledgers that violate the placement policy, by the last check",
    ),
    _fact(
        "NUM_LEDGERS_SOFTLY_ADHERING_TO_PLACEMENT_POLICY",
        "adhering, less than desired",
        "ledgers that meet the placement policy less than desired, by the last check",
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
