"""Does a scrub find everything, and nothing else? Damage a cluster's files, scrub it, repair it, scrub it again.

    python benchmarks/scrub.py [--flips 1000] [--missing 100] [--ledgers 120] [--entries 1000] [--size 1024]

Random bits are flipped in digests and payloads in the entry logs of stopped bookies, and the index files of some
replicas are deleted, so that a bookie has lost everything of a ledger. Then: scrub (level 3), repair, scrub. Exit
status 1 unless exactly what was damaged is found and the second scrub is clean. Before that, the speed of a scrub on
one core, in bytes for each second of CPU of the reading process, beside that of reading alone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import pathlib
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from bookies.admin.cluster import LocalCluster
from bookies.client.client import Client
from bookies.client.connect import connect
from bookies.config import BookieConfig
from bookies.model import BookieId, LedgerMetadata
from bookies.protocol.repair.fragments import fragments_to_check
from bookies.runtime.files import OsDisk
from bookies.spark.jobs import repair, scrub
from bookies.spark.jobs.shared.common import JobConfig
from bookies.storage.index.catalog import CatalogFile
from bookies.storage.index.catalog_format import pack
from bookies.storage.offline.inspection import entry_log_rows, entry_logs_of, index_files_of

ENTRY_HEADER = 4 + 32  # bytes of a record before its digest
SETTINGS = {"journal_preallocate_size": 1 << 20, "index_cache_size": 4 << 20}
Copy = tuple[int, str, int]  # ledger, bookie, entry


class Damage(NamedTuple):
    """`flipped`: copies of entries with one wrong bit; `removed`: (ledger, bookie) of replicas that are gone."""

    flipped: list[Copy]
    removed: list[tuple[int, str]]


# -- a cluster with data ---------------------------------------------------------------------------------------------


def write(cluster: LocalCluster, ledgers: int, entries: int, size: int) -> list[LedgerMetadata]:
    """Write sealed ledgers, one in four of them striped, and return their records. Every replica is stored."""
    found = []
    with cluster.connect() as store:
        for number in range(ledgers):
            write_quorum = 2 if number % 4 == 3 else 3
            with store.create(ensemble=3, write_quorum=write_quorum, ack_quorum=write_quorum) as ledger:
                for start in range(0, entries, 200):
                    ledger.append_many([os.urandom(size) for _ in range(min(200, entries - start))])
            found.append(store.metadata(ledger.ledger_id))
    return found


def damage(cluster: LocalCluster, records: list[LedgerMetadata], flips: int, missing: int, seed: int) -> Damage:
    """Spoil the files of a cluster that does not run. Of every entry at least one copy stays good."""
    chance, disk = random.Random(seed), OsDisk()
    removed = [(each.ledger_id, str(chance.choice(each.last_ensemble))) for each in chance.sample(records, missing)]
    gone = dict(removed)
    by_id = {each.ledger_id: each for each in records}
    copies: dict[Copy, tuple[str, int, int]] = {}  # -> path, offset and size of the record's body
    for bookie in cluster.bookies:
        for _, path in entry_logs_of(disk, str(bookie.directory / "ledgers")):
            for row in entry_log_rows(disk, path):
                if row["row"] == "record" and row.get("kind") == "entry" and row["ledger"] in by_id:
                    copies[row["ledger"], bookie.id, row["entry"]] = path, row["offset"], row["size"]
    spared = {ledger_id for ledger_id in gone if by_id[ledger_id].write_quorum < 3}
    candidates = sorted(each for each in copies if gone.get(each[0]) != each[1] and each[0] not in spared)
    chance.shuffle(candidates)
    flipped: dict[tuple[int, int], Copy] = {}
    for ledger_id, bookie_id, entry_id in candidates:
        if len(flipped) == flips:
            break
        flipped.setdefault((ledger_id, entry_id), (ledger_id, bookie_id, entry_id))
    for copy in flipped.values():
        _flip(*copies[copy], chance)
    for bookie in cluster.bookies:
        _forget(disk, str(bookie.directory / "ledgers"), {each for each, where in removed if where == bookie.id})
    assert len(flipped) == flips, f"only {len(flipped)} copies to damage: write more"
    return Damage(sorted(flipped.values()), sorted(removed))


def _forget(disk: OsDisk, directory: str, ledger_ids: set[int]) -> None:
    """Remove all that a bookie knows of these ledgers: without the catalog's line it would build the index again."""
    for ledger_id, path in index_files_of(disk, directory):
        if ledger_id in ledger_ids:
            os.unlink(path)
    catalog = CatalogFile(disk, [os.path.join(directory, "current")], BookieConfig().index_page_size)
    contents = catalog.load()
    assert contents is not None
    for ledger_id in ledger_ids:
        del contents.ledgers[ledger_id]
    catalog.replace(list(pack(contents)))


def _flip(path: str, offset: int, size: int, chance: random.Random) -> None:
    """One random bit of digest and payload."""
    at = offset + ENTRY_HEADER + chance.randrange(size + 4 - ENTRY_HEADER)
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ (1 << chance.randrange(8))]))


# -- what was found --------------------------------------------------------------------------------------------------


class Score(NamedTuple):
    """`others`: copies that were blamed and are good."""

    flipped: int
    removed: int
    others: int


def score(findings: list[dict[str, Any]], records: list[LedgerMetadata], done: Damage) -> Score:
    """How much of the damage is in the findings, and what else is."""
    blamed = {
        (row["ledger_id"], row["bookie"], entry_id)
        for row in findings
        for entry_id in range(row["first_entry"], row["last_entry"] + 1)
        if entry_id in _stored(records, row["ledger_id"], row["bookie"])
    }
    unplaced = sum(row["first_entry"] < 0 for row in findings)
    whole = {pair: {(*pair, entry_id) for entry_id in _stored(records, *pair)} for pair in done.removed}
    flipped = blamed & set(done.flipped)
    removed = [pair for pair, copies in whole.items() if copies <= blamed]
    others = blamed - flipped - {copy for copies in whole.values() for copy in copies}
    return Score(len(flipped), len(removed), len(others) + unplaced)


_cache: dict[tuple[int, str], set[int]] = {}


def _stored(records: list[LedgerMetadata], ledger_id: int, bookie: str) -> set[int]:
    """What a bookie has to hold of a ledger."""
    if (ledger_id, bookie) not in _cache:
        [record] = [each for each in records if each.ledger_id == ledger_id]
        found: set[int] = set()
        for fragment in fragments_to_check(record, -1):
            if BookieId(bookie) in fragment.ensemble:
                found.update(fragment.stored(fragment.ensemble.index(BookieId(bookie))))
        _cache[ledger_id, bookie] = found
    return _cache[ledger_id, bookie]


# -- speed -----------------------------------------------------------------------------------------------------------


async def speeds(uri: str, records: list[LedgerMetadata]) -> tuple[float, float]:
    """MB for each second of CPU of this process: reading alone (one copy, verified), scanning (every copy)."""
    async with connect(uri) as store:
        await _read(store, records[:1])
        begin = time.process_time()
        read = await _read(store, records) / (time.process_time() - begin)
        administration, size = store.administration(), 0
        begin = time.process_time()
        for record in records:
            for fragment in fragments_to_check(record, -1):
                for position, bookie in enumerate(fragment.ensemble):
                    scan = await administration.scan_replica(record, bookie, fragment.stored(position))
                    size += scan.size
        return read / 1e6, size / 1e6 / (time.process_time() - begin)


async def _read(store: Client, records: list[LedgerMetadata]) -> int:
    size = 0
    for record in records:
        async with store.open(record.ledger_id) as ledger:
            async for batch in ledger.read_batches():
                size += batch.size
    return size


# -- the whole -------------------------------------------------------------------------------------------------------


def play(spark: Any, cluster: LocalCluster, records: list[LedgerMetadata], done: Damage, runs: str) -> Iterator[str]:
    """Scrub, repair, scrub; a line for each. Raises AssertionError when something was not as it has to be."""
    uri = cluster.metadata_uri
    begin = time.monotonic()
    found = scrub.job(spark, JobConfig(uri, "first", output=runs, is_quiet=True)).toArrow().to_pylist()
    first = score(found, records, done)
    yield (
        f"scrub:  {first.flipped:,} of {len(done.flipped):,} flipped bits, {first.removed:,} of {len(done.removed):,} "
        f"missing replicas, {first.others:,} others blamed  ({time.monotonic() - begin:.0f} s)"
    )
    assert first == (len(done.flipped), len(done.removed), 0), first
    begin = time.monotonic()
    config = JobConfig(uri, "mend", output=runs, options={"plan": f"{runs}/first/plan"}, is_quiet=True)
    actions = repair.job(spark, config).toArrow().to_pylist()
    written = sum(row["entries"] for row in actions)
    yield f"repair: {len(actions):,} fragments, {written:,} entries written  ({time.monotonic() - begin:.0f} s)"
    assert {row["outcome"] for row in actions} <= {"done"}, actions
    begin = time.monotonic()
    left = scrub.job(spark, JobConfig(uri, "second", output=runs, is_quiet=True)).count()
    yield f"scrub:  {left:,} findings  ({time.monotonic() - begin:.0f} s)"
    assert left == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    for name, default in (("flips", 1000), ("missing", 100), ("ledgers", 120), ("entries", 1000), ("size", 1024)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bookies", type=int, default=5)
    arguments = parser.parse_args()
    from bookies.spark.base.session import session

    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="scrub-"))
        cluster = LocalCluster(pathlib.Path(directory, "bk-data"), arguments.bookies, settings=SETTINGS)
        stack.enter_context(cluster)
        records = write(cluster, arguments.ledgers, arguments.entries, arguments.size)
        print(f"{len(records):,} ledgers of {arguments.entries:,} entries of {arguments.size:,} bytes", flush=True)
        read, scanned = asyncio.run(speeds(cluster.metadata_uri, records))
        print(f"MB/s per core: reading alone {read:.0f}, scrubbing {scanned:.0f} of every copy", flush=True)
        cluster.stop()
        done = damage(cluster, records, arguments.flips, arguments.missing, arguments.seed)
        cluster.start()
        spark = stack.enter_context(session("scrub benchmark"))
        try:
            for line in play(spark, cluster, records, done, os.path.join(directory, "runs")):
                print(line, flush=True)
        except AssertionError as error:
            print(f"NOT as it has to be: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
