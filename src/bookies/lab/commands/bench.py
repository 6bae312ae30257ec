"""`bk bench`: closed-loop measurement of appends and reads, with the CPU time and memory of client and bookies.

Without `--metadata` it starts three bookies in a temporary directory and removes them afterwards. The figures of one
run are single samples of a noisy machine; compare systems by alternating runs (docs/internals/benchmarks.md).
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator

from bookies.admin.shared import UsageError
from bookies.admin.shared.command_line import CLUSTER, DIGEST, MACHINE, Option, verb
from bookies.admin.shared.report import Report
from bookies.lab.bench import bench_balance, bench_disk, bench_placement, bench_recovery, bench_storage
from bookies.lab.bench.bench_common import data_directory, figures, own_cluster


def _run(arguments: argparse.Namespace) -> Report:
    if arguments.size < 0 or arguments.seconds <= 0:
        raise UsageError("--size must be 0 or more and --seconds above 0")
    for name in ("window", "ledgers", "entries", "runs"):
        if getattr(arguments, name, 1) < 1:
            raise UsageError(f"--{name} {getattr(arguments, name)}: must be 1 or more")
    from bookies.lab.bench.bench_drive import measure

    with _cluster(arguments) as (uri, pids):
        if arguments.verb == "suite":
            from bookies.lab.bench import bench_suite

            return bench_suite.run(arguments, lambda case: measure(case, uri, pids))
        result = measure(arguments, uri, pids)
    report = figures(result, int(bool(result.get("errors"))), digits=1)
    return report._replace(text=[str(result["ledger"])]) if arguments.verb == "fill" else report


@contextlib.contextmanager
def _cluster(arguments: argparse.Namespace) -> Iterator[tuple[str, list[int]]]:
    """Yield the URI of the cluster to measure, and the process ids of its bookies if they are local."""
    from bookies.admin.cluster import LocalCluster

    if arguments.state:
        state = LocalCluster.load(arguments.state)
        yield state.metadata_uri, state.pids()
    elif arguments.metadata:
        yield arguments.metadata, []
    else:
        with data_directory() as directory, own_cluster(f"{directory}/bk-data", arguments.bookies) as cluster:
            yield cluster.metadata_uri, cluster.pids()


_MEASURED = (  # options of all verbs that measure with clients
    *CLUSTER,
    Option("--size", "payload of an entry, in bytes (default 1024)", int, default=1024),
    Option("--seconds", "measured time, in seconds (default 8)", float, default=8),
    Option("--warmup", "time before the measurement, in seconds (default 2)", float, default=2),
    Option("--wire", "wire protocol (default v2)", default="v2", choices=("v2", "v3")),
    DIGEST,
    Option("--ensemble", "number of bookies of a ledger (default 3)", int, default=3),
    Option("--write-quorum", "number of replicas of an entry (default 3)", int, default=3),
    Option("--ack-quorum", "number of replicas on disk before an add is confirmed (default 2)", int, default=2),
    Option("--state DIR", "directory of a local cluster to measure (cluster.json)"),
    Option("--bookies", "number of bookies of the temporary cluster (default 3)", int, default=3),
)
VERBS = (
    verb(
        "bench append",
        "measure appends",
        "bk bench append --size 100 --window 1000",
        _run,
        Option("--window", "entries in flight, in total (default 1000)", int, default=1000),
        Option("--ledgers", "number of ledgers written concurrently (default 1)", int, default=1),
        Option(
            "--api",
            "single: one call per entry; many: one call per batch (default single)",
            default="single",
            choices=("single", "many"),
        ),
        shared=_MEASURED,
    ),
    verb(
        "bench read",
        "measure reads of a ledger from its beginning, repeatedly",
        "bk bench read --size 1024",
        _run,
        Option("--entries", "entries of the ledger to read (default 200000)", int, default=200_000),
        Option("--ledger", "id of an existing ledger to read (default: fill one)", int),
        Option(
            "--api", "API of the reads (default entries)", default="entries", choices=("entries", "batches", "arrow")
        ),
        shared=_MEASURED,
    ),
    verb(
        "bench fill",
        "append a number of entries, seal the ledger, print its id",
        "bk bench fill --entries 500000",
        _run,
        Option("--entries", "number of entries (default 200000)", int, default=200_000),
        shared=_MEASURED,
    ),
    verb(
        "bench storage",
        "measure disk use after deletions and compaction, and the latency of adds meanwhile",
        "bk bench storage --quick",
        bench_storage.run,
        *bench_storage.OPTIONS,
        shared=MACHINE,
    ),
    verb(
        "bench placement",
        "measure how evenly ensembles are spread over thousands of bookies, and the time per choice",
        "bk bench placement --bookies 500",
        bench_placement.run,
        *bench_placement.OPTIONS,
        shared=MACHINE,
    ),
    verb(
        "bench recovery",
        "kill one of five bookies under load; measure time, bytes and metadata operations until full replication",
        "bk bench recovery --quick",
        bench_recovery.run,
        *bench_recovery.OPTIONS,
        shared=MACHINE,
    ),
    verb(
        "bench disk",
        "let bookies lose disks under load; measure time and bytes until they are whole, beside copying a bookie",
        "bk bench disk --quick",
        bench_disk.run,
        *bench_disk.OPTIONS,
        shared=MACHINE,
    ),
    verb(
        "bench balance",
        "add an empty bookie to five full ones under load; measure time, bytes and the p99 of adds until it has its "
        "share",
        "bk bench balance --quick",
        bench_balance.run,
        *bench_balance.OPTIONS,
        shared=MACHINE,
    ),
    verb(
        "bench suite",
        "measure the cases of docs/internals/benchmarks.md",
        "bk bench suite --seconds 5",
        _run,
        Option("--runs", "runs per case; medians are printed (default 3)", int, default=3),
        shared=_MEASURED,
    ),
)
