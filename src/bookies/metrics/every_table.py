"""All tables of metrics, with the titles of their sections: for documents, alerts, dashboards and tests.

A process does not import this module: each kind of process has its own tables, see `collections`.
"""

from __future__ import annotations

from collections.abc import Mapping

from bookies.metrics import (
    bookie_table,
    client_table,
    gateway_table,
    process_table,
    recovery_table,
    retention_table,
    storage_table,
    stream_table,
)
from bookies.metrics.metric import Metric

TABLES: Mapping[str, tuple[Metric, ...]] = {
    "Requests": bookie_table.REQUESTS,
    "Stages": bookie_table.STAGES,
    "Server": bookie_table.SERVER,
    "Journal": storage_table.JOURNAL,
    "Storage": storage_table.STORAGE,
    "Disks": storage_table.DISKS,
    "Garbage collection": storage_table.COLLECTION,
    "Scrub": storage_table.SCRUB,
    "Auto-recovery": recovery_table.TABLE,
    "Retention of logs": retention_table.TABLE,
    "Process": process_table.TABLE,
    "Client": client_table.TABLE,
    "Streaming queries of Spark": stream_table.TABLE,
    "Gateway": gateway_table.TABLE,
}
