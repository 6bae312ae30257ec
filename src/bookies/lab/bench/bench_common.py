"""Parts that the benchmarks share: directories for their data, clusters of their own, and the table of figures."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bookies.admin.shared.report import Report, Table

if TYPE_CHECKING:
    from bookies.admin.cluster import LocalCluster
    from bookies.client.client import Client

FILLED_AT_ONCE, CHUNK = 8, 64


@contextlib.contextmanager
def data_directory() -> Iterator[str]:
    """Yield a new directory for a benchmark's data, below `BK_BENCH_DIRECTORY`, and remove it afterwards."""
    directory = tempfile.mkdtemp(prefix="bk-bench-", dir=os.environ.get("BK_BENCH_DIRECTORY"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def own_cluster(directory: str, bookies: int, **options: Any) -> Iterator[LocalCluster]:
    """Run a local cluster in this directory. `options`: of `LocalCluster`."""
    from bookies.admin.cluster import LocalCluster

    cluster = LocalCluster(directory, bookies, **options)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


async def fill(client: Client, arguments: argparse.Namespace) -> list[int]:
    """Write sealed ledgers with three replicas, as `--ledgers`, `--entries` and `--size` say; return their ids."""
    payload, waiting, ledgers = os.urandom(arguments.size), iter(range(arguments.ledgers)), list[int]()

    async def lane() -> None:
        for _ in waiting:
            async with await client.create(ensemble=3, write_quorum=3, ack_quorum=2) as ledger:
                for first in range(0, arguments.entries, CHUNK):
                    await ledger.append_many([payload] * min(CHUNK, arguments.entries - first))
            ledgers.append(ledger.ledger_id)

    await asyncio.gather(*(lane() for _ in range(FILLED_AT_ONCE)))
    return ledgers


def figures(result: dict[str, Any], status: int = 0, *, digits: int = 2, spaced: bool = False) -> Report:
    """Return a report with a row for each figure. The rows of a figure with parts are indented.

    `spaced`: names are shown with spaces instead of underscores.
    """
    rows: list[tuple[str, str]] = []
    for name, value in result.items():
        parts = {f"  {part}": figure for part, figure in value.items()} if isinstance(value, dict) else {name: value}
        names = [row.replace("_", " ") if spaced else row for row in parts]
        rows += zip(names, (figure_text(figure, digits) for figure in parts.values()), strict=True)
    return Report(result, [Table(("figure", "value"), rows, (1,))], status)


def figure_text(value: object, digits: int = 2) -> str:
    """Return a figure as text."""
    if isinstance(value, float):
        return f"{value:,.{digits}f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
