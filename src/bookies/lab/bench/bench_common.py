"""Parts that the benchmarks share: directories for their data, clusters of their own, and the table of figures."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bookies.admin.shared.report import Report, Table

if TYPE_CHECKING:
    from bookies.admin.cluster import LocalCluster


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
