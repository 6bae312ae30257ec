"""`bk bench`: closed-loop measurement of appends and reads, with the CPU time and memory of client and bookies.

Without `--metadata` it starts three bookies in a temporary directory and removes them afterwards. The figures of one
run are single samples of a noisy machine; compare systems by alternating runs (docs/internals/benchmarks.md).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

from bookies.admin.shared import UsageError
from bookies.admin.shared.common import add_common, print_json, print_table
from bookies.lab.bench import bench_placement, bench_recovery, bench_storage


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, text: str, example: str) -> argparse.ArgumentParser:
        verb_parser = verbs.add_parser(name, help=text, epilog=f"example:  {example}")
        add_common(verb_parser)
        verb_parser.add_argument("--size", type=int, default=1024, help="payload of an entry, in bytes (default 1024)")
        verb_parser.add_argument("--seconds", type=float, default=8, help="measured time, in seconds (default 8)")
        verb_parser.add_argument(
            "--warmup", type=float, default=2, help="time before the measurement, in seconds (default 2)"
        )
        verb_parser.add_argument("--wire", choices=("v2", "v3"), default="v2", help="wire protocol (default v2)")
        verb_parser.add_argument(
            "--digest",
            default="crc32c",
            choices=("crc32c", "crc32", "hmac", "dummy"),
            help="checksum of each entry (default crc32c)",
        )
        verb_parser.add_argument("--ensemble", type=int, default=3, help="number of bookies of a ledger (default 3)")
        verb_parser.add_argument(
            "--write-quorum", type=int, default=3, help="number of replicas of an entry (default 3)"
        )
        verb_parser.add_argument(
            "--ack-quorum",
            type=int,
            default=2,
            help="number of replicas on disk before an add is confirmed (default 2)",
        )
        verb_parser.add_argument(
            "--state", metavar="DIR", help="directory of a local cluster to measure (cluster.json)"
        )
        verb_parser.add_argument(
            "--bookies", type=int, default=3, help="number of bookies of the temporary cluster (default 3)"
        )
        return verb_parser

    append = verb("append", "measure appends", "bk bench append --size 100 --window 1000")
    append.add_argument("--window", type=int, default=1000, help="entries in flight, in total (default 1000)")
    append.add_argument("--ledgers", type=int, default=1, help="number of ledgers written concurrently (default 1)")
    append.add_argument(
        "--api",
        choices=("single", "many"),
        default="single",
        help="single: one call per entry; many: one call per batch (default single)",
    )
    read = verb("read", "measure reads of a ledger from its beginning, repeatedly", "bk bench read --size 1024")
    read.add_argument("--entries", type=int, default=200_000, help="entries of the ledger to read (default 200000)")
    read.add_argument("--ledger", type=int, default=None, help="id of an existing ledger to read (default: fill one)")
    read.add_argument(
        "--api", choices=("entries", "batches", "arrow"), default="entries", help="API of the reads (default entries)"
    )
    fill = verb("fill", "append a number of entries, seal the ledger, print its id", "bk bench fill --entries 500000")
    fill.add_argument("--entries", type=int, default=200_000, help="number of entries (default 200000)")
    storage = verbs.add_parser(
        "storage",
        help="measure disk use after deletions and compaction, and the latency of adds meanwhile",
        epilog="example:  bk bench storage --quick",
    )
    add_common(storage, metadata=False)
    bench_storage.configure(storage)
    placement = verbs.add_parser(
        "placement",
        help="measure how evenly ensembles are spread over thousands of bookies, and the time per choice",
        epilog="example:  bk bench placement --bookies 500",
    )
    add_common(placement, metadata=False)
    bench_placement.configure(placement)
    recovery = verbs.add_parser(
        "recovery",
        help="kill one of five bookies under load; measure time, bytes and metadata operations until full replication",
        epilog="example:  bk bench recovery --quick",
    )
    add_common(recovery, metadata=False)
    bench_recovery.configure(recovery)
    suite = verb("suite", "measure the cases of docs/internals/benchmarks.md", "bk bench suite --seconds 5")
    suite.add_argument("--runs", type=int, default=3, help="runs per case; medians are printed (default 3)")


def run(arguments: argparse.Namespace) -> int:
    if arguments.verb == "storage":
        return bench_storage.run(arguments)
    if arguments.verb == "placement":
        return bench_placement.run(arguments)
    if arguments.verb == "recovery":
        return bench_recovery.run(arguments)
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
    if arguments.json:
        print_json(result)
    elif arguments.verb == "fill":
        print(result["ledger"])
    else:
        print_table([(name, _text(value)) for name, value in result.items()], ("figure", "value"))
    return int(bool(result.get("errors")))


def _text(value: Any) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


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
        directory = tempfile.mkdtemp(prefix="bk-bench-", dir=os.environ.get("BK_BENCH_DIRECTORY"))
        cluster = LocalCluster(os.path.join(directory, "bk-data"), bookies=arguments.bookies)
        try:
            cluster.start()
            yield cluster.metadata_uri, cluster.pids()
        finally:
            cluster.stop()
            shutil.rmtree(directory, ignore_errors=True)
