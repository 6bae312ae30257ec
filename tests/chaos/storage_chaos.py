"""`make chaos-storage`: bookies are killed (SIGKILL) while they collect garbage and compact, under load, many times.

Writers make ledgers and delete most of them; bookies collect and compact as fast as they can, on small logs. In each
round one bookie is asked for a major compaction and killed a moment later, then started again: it must have every entry
of every sealed ledger that it had before. In the end every ledger that was not deleted is read and compared, and no
interrupted compaction may be left after one more.

    python tests/chaos/storage_chaos.py --kills 50 --seed 1 --kind transactional
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import random
import shutil
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field

import bookies as bk
from bookies.admin.cluster import LocalCluster
from bookies.admin.shared import UsageError
from bookies.admin.verbs.control import ask
from bookies.errors import BookKeeperError
from bookies.model import BookieId

BOOKIES = 4
WRITERS = 2
ENTRIES, BATCH = 120, 20  # of a ledger, and of one call
LIVE_MAX = 40  # ledgers that are kept at most; older ones, in random order, are deleted
SETTLED_S = 2.0  # after its seal a ledger is on the disks of all its bookies that are well
SETTINGS: dict[str, object] = {
    "entry_log_size_max": 1 << 20,
    "write_cache_size": 1 << 20,
    "journal_size_max": 8 << 20,
    "journal_preallocate_size": 1 << 20,
    "checkpoint_interval_ms": 200,
    "gc_interval_ms": 300,
    "gc_quarantine_ms": 0,
    "gc_share_max": 100,
    "minor_compaction_interval_ms": 0,
    "major_compaction_interval_ms": 600,
    "major_compaction_threshold": 95,
    "compaction_rate_size": 4 << 20,
}


def payload(ledger_id: int, index: int) -> bytes:
    return f"{ledger_id}/{index} ".encode() * (20 + (ledger_id * 31 + index * 7) % 300)


@dataclass
class Load:
    """What was written. `sealed`: ledger -> when. `open`: ledger -> entries that were acknowledged when it was left."""

    sealed: dict[int, float] = field(default_factory=dict)
    open: dict[int, int] = field(default_factory=dict)
    deleted: dict[int, None] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_over: bool = False
    entries: int = 0

    def write(self, uri: str, seed: int) -> None:
        """A writer's life."""
        chance = random.Random(seed)
        with bk.blocking.connect(uri) as store:
            while not self.is_over:
                try:
                    self._write_one(store)
                    self._delete_some(store, chance)
                except BookKeeperError:
                    time.sleep(0.2)  # too many bookies are down; what was left open is recovered in the end

    def _write_one(self, store: bk.blocking.Client) -> None:
        ledger = store.create(ensemble=3, write_quorum=3, ack_quorum=2)
        ledger_id = ledger.ledger_id
        self.open[ledger_id] = 0
        for first in range(0, ENTRIES, BATCH):
            ledger.append_many([payload(ledger_id, index) for index in range(first, first + BATCH)])
            self.open[ledger_id] = first + BATCH
            self.entries += BATCH
        ledger.seal()
        with self.lock:
            del self.open[ledger_id]
            self.sealed[ledger_id] = time.monotonic()

    def _delete_some(self, store: bk.blocking.Client, chance: random.Random) -> None:
        while True:
            with self.lock:
                if len(self.sealed) <= LIVE_MAX:
                    return
                ledger_id = chance.choice(list(self.sealed))
                del self.sealed[ledger_id]
                self.deleted[ledger_id] = None
            store.delete(ledger_id)

    def settled(self) -> list[int]:
        with self.lock:
            return [each for each, since in self.sealed.items() if time.monotonic() - since > SETTLED_S]


def held_by(store: bk.blocking.Client, bookie: str, ledger_ids: list[int]) -> dict[int, set[int]]:
    """Which entries of these ledgers the bookie says it has."""
    held: dict[int, set[int]] = {}
    for ledger_id in ledger_ids:
        with contextlib.suppress(BookKeeperError):  # it has nothing of it, or not any more
            runs = store.list_entries(BookieId(bookie), ledger_id)
            held[ledger_id] = {entry_id for run in runs for entry_id in run}
    return held


def kill_once(cluster: LocalCluster, store: bk.blocking.Client, load: Load, chance: random.Random) -> list[str]:
    """One round; what the bookie has lost."""
    bookie = cluster.bookies[chance.randrange(BOOKIES)]
    before = held_by(store, bookie.id, load.settled())
    with contextlib.suppress(UsageError):
        ask(bookie.directory / "ledgers" / "control.json", "compact", {"kind": "major"})
    time.sleep(chance.random() * 0.8)
    cluster.kill(bookie.id)
    cluster.restart(bookie.id)
    after = held_by(store, bookie.id, list(before))
    lost = []
    for ledger_id, entries in before.items():
        missing = entries - after.get(ledger_id, set())
        with load.lock:
            if missing and ledger_id not in load.deleted:
                lost.append(f"{bookie.id} has lost {len(missing)} entries of ledger {ledger_id}")
    return lost


def check(store: bk.blocking.Client, load: Load) -> list[str]:
    """Read back everything that was not deleted."""
    wrong = []
    for ledger_id, count in [*((each, ENTRIES) for each in load.sealed), *load.open.items()]:
        try:
            if ledger_id in load.open:
                store.recover(ledger_id).close()
            with store.open(ledger_id) as ledger:
                found = [bytes(entry.payload) for entry in ledger.read()]
        except BookKeeperError as error:
            wrong.append(f"ledger {ledger_id}: {error}")
            continue
        if len(found) < count or any(data != payload(ledger_id, index) for index, data in enumerate(found)):
            wrong.append(f"ledger {ledger_id}: {len(found)} entries, of {count} acknowledged, or not those written")
    return wrong


def leftovers(cluster: LocalCluster) -> tuple[list[str], int, int, int]:
    """(files of interrupted compactions after one more, log bytes, live bytes, logs compacted) of all bookies."""
    files: list[str] = []
    totals = [0, 0, 0]
    for bookie in cluster.bookies:
        path = bookie.directory / "ledgers" / "control.json"
        ask(path, "compact", {"kind": "major", "wait": True})
        _, space = ask(path, "gc", {"wait": True})
        names = [each.name for each in (bookie.directory / "ledgers" / "current").iterdir()]
        files += [f"{bookie.id}: {name}" for name in names if ".log." in name]
        files += [f"{bookie.id}: {log} was set aside: {reason}" for log, reason in space["logs_set_aside"].items()]
        for number, name in enumerate(("entry_log_bytes", "live_bytes", "logs_compacted")):
            totals[number] += space[name]
    return files, totals[0], totals[1], totals[2]


def run(base: pathlib.Path, kills: int, seed: int, kind: str) -> list[str]:
    """All rounds and the end; what went wrong."""
    chance = random.Random(seed)
    load = Load()
    problems: list[str] = []
    with LocalCluster(base / "bk-data", BOOKIES, lease_ms=2000, settings={**SETTINGS, "compaction": kind}) as cluster:
        writers = [
            threading.Thread(target=load.write, args=(cluster.metadata_uri, seed * 100 + number))
            for number in range(WRITERS)
        ]
        for writer in writers:
            writer.start()
        try:
            with bk.blocking.connect(cluster.metadata_uri) as store:
                for number in range(kills):
                    time.sleep(0.5 + chance.random())
                    problems += kill_once(cluster, store, load, chance)
                    deleted, kept = len(load.deleted), len(load.sealed)
                    print(f"kill {number + 1} of {kills}: {load.entries:,} entries, {deleted} ledgers deleted, {kept} "
                          f"kept, {len(problems)} problems", flush=True)  # fmt: skip
        finally:
            load.is_over = True
            for writer in writers:
                writer.join()
        with bk.blocking.connect(cluster.metadata_uri) as store:
            problems += check(store, load)
        files, log_size, live_size, compacted = leftovers(cluster)
        problems += files
        print(f"{len(load.sealed)} ledgers read back; {log_size:,} bytes in logs of which {live_size:,} live; "
              f"{compacted} logs compacted in the bookies' last lives", flush=True)  # fmt: skip
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=("transactional", "plain"), default="transactional")
    parser.add_argument("--keep", action="store_true", help="leave the directory of the run")
    arguments = parser.parse_args()
    base = pathlib.Path(tempfile.mkdtemp(prefix="storage-chaos-"))
    problems = ["it did not get to its end"]
    try:
        problems = run(base, arguments.kills, arguments.seed, arguments.kind)
    finally:
        if arguments.keep or problems:
            print(f"kept: {base}", file=sys.stderr)
        else:
            shutil.rmtree(base)
    for problem in problems:
        print(problem)
    print(f"{arguments.kills} kills, {len(problems)} problems (seed {arguments.seed}, {arguments.kind})")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
