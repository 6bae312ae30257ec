"""Two client processes measured together on one bookie, for a moment."""

from __future__ import annotations

import pathlib

import pytest
from benchmarks.scale import Bench, Cell, RateLimit, Team
from benchmarks.suite.servers import OurCluster

WINDOW = 2_000  # entries that each client has in flight


@pytest.mark.live
@pytest.mark.parametrize("case", ["add 1 KiB", "read 1 KiB", "create and seal"])
def test_clients_count_together_and_leave_nothing(tmp_path: pathlib.Path, case: str) -> None:
    pace = RateLimit(0.4, 0.1, 500, (1,), (2,))
    clients = 1 if case == "create and seal" else 2
    with Bench(tmp_path, pace, 100.0) as bench:
        found = bench.run(Cell(case, 1, clients))
        assert (tmp_path / "1-bookies").is_dir()
    assert list(tmp_path.iterdir()) == []
    assert found["entries_per_s"] > 0
    assert found["client_cpu_us"] > 0
    assert found["busy"] > 0
    if case == "add 1 KiB":
        assert found["written_per_payload"] > 1, "the journal has each entry at least once"
        # The bytes of those that were under way when counting began had gone before.
        entries = found["entries_per_s"] * pace.seconds
        assert found["loopback_per_entry"] * entries > max(0, 1024 * (entries - clients * WINDOW))


@pytest.mark.live
def test_drivers_that_are_done_early_can_still_be_looked_at(tmp_path: pathlib.Path) -> None:
    cluster = OurCluster(tmp_path / "cluster", 1, zookeeper=False)
    try:
        cluster.start()
        words = ["add", "--window", "10", "--quorums", "1,1,1", "--metadata", cluster.metadata_uri]
        words += ["--together", "yes", "--warmup", "0", "--seconds", "0.05"]
        with Team(cluster, [words]) as team:
            assert team.measure(0.8)["entries_per_s"] > 0
    finally:
        cluster.stop()
