"""Metrics of a process: its tables, and the parts from which they are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bookies.bookie.server import BookieServer
from bookies.metrics import bookie_table, process_table, storage_table
from bookies.metrics.health import Health
from bookies.metrics.metric import Collection, Metric
from bookies.metrics.storage_table import CollectionFacts, StorageFacts
from bookies.runtime.activities import LoopLag
from bookies.runtime.ports import Clock
from bookies.runtime.process_usage import process_usage, python_version

if TYPE_CHECKING:
    from bookies.replication.auditor.log_retention import LogRetention
    from bookies.replication.daemon.daemon import AutoRecovery

BOOKIE_TABLES: tuple[tuple[Metric, ...], ...] = (
    bookie_table.REQUESTS,
    bookie_table.STAGES,
    bookie_table.SERVER,
    storage_table.JOURNAL,
    storage_table.STORAGE,
    storage_table.DISKS,
    storage_table.COLLECTION,
    storage_table.SCRUB,
)


def recovery_tables() -> tuple[tuple[Metric, ...], ...]:
    """Return the tables of auto-recovery, which only a process that runs it imports."""
    from bookies.metrics import recovery_table

    return (recovery_table.TABLE, *retention_tables())


def retention_tables() -> tuple[tuple[Metric, ...], ...]:
    """Return the tables of the retention of logs, which only a process that applies it imports."""
    from bookies.metrics import retention_table

    return (retention_table.TABLE,)


def bookie_collection(
    server: BookieServer,
    recovery: Callable[[], AutoRecovery | None] | None,
    health: Health,
    clock: Clock,
    retention: Callable[[], LogRetention | None] | None = None,
) -> Collection:
    """Return the metrics of a bookie. `recovery`: auto-recovery in the same process; None: it runs elsewhere.

    `retention`: of logs, likewise.
    """
    store = server.store
    build = version_labels(server.metadata.uri)
    others = recovery_tables() if recovery is not None else retention_tables() if retention is not None else ()
    return Collection(
        (*BOOKIE_TABLES, process_table.TABLE, *others),
        {
            "served": lambda: server.served,
            "latency": lambda: server.latency,
            "bookie": lambda: server,
            "load": server.load,
            "security": lambda: server.security,
            "rights": lambda: server.rights if server.rights.users is not None else None,
            "certificate": lambda: server.security and server.security.certificate_ends_s(clock.monotonic()),
            "storage": lambda: StorageFacts.of(store),
            "gc": lambda: CollectionFacts.of(store),
            "scrub": lambda: store.scrubber.gauges() if store.scrubber is not None and store.parts else None,
            "process": process_usage,
            "loop": lambda: server.lag,
            "build": lambda: build,
            "metadata": lambda: server.metadata.operations,
            "health": health.conditions,
        }
        | ({"recovery": recovery} if recovery is not None else {})
        | ({"retention": retention} if retention is not None else {}),
        clock.monotonic,
    )


def recovery_collection(
    recovery: Callable[[], AutoRecovery | None], uri: str, health: Health, lag: LoopLag, clock: Clock
) -> Collection:
    """Return the metrics of a process that runs auto-recovery alone."""
    build = version_labels(uri)

    def retention() -> LogRetention | None:
        current = recovery()
        return None if current is None else current.auditor.retention

    def operations() -> object | None:
        current = recovery()
        return None if current is None else current.driver.operations

    return Collection(
        (*recovery_tables(), process_table.TABLE),
        {
            "recovery": recovery,
            "retention": retention,
            "process": process_usage,
            "loop": lambda: lag,
            "build": lambda: build,
            "metadata": operations,
            "health": health.conditions,
        },
        clock.monotonic,
    )


def gateway_collection(
    facts: Callable[[], object],
    usage: Callable[[], object | None],
    uri: str,
    health: Health,
    lag: LoopLag,
    now_s: Callable[[], float],
) -> Collection:
    """Return the metrics of a gateway. `usage`: of its client; None: it has none yet."""
    from bookies.metrics import client_table, gateway_table

    build = version_labels(uri)
    return Collection(
        (gateway_table.TABLE, client_table.TABLE, process_table.TABLE),
        {
            "gateway": facts,
            "client": usage,
            "process": process_usage,
            "loop": lambda: lag,
            "build": lambda: build,
            "health": health.conditions,
        },
        now_s,
    )


def version_labels(uri: str) -> tuple[str, str, str]:
    """Return the labels of `bookies_build_info`: versions of program and interpreter, and the metadata driver."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        program = version("bookies")
    except PackageNotFoundError:
        program = "unknown"
    return program, python_version(), uri.partition(":")[0]
