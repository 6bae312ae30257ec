"""`bk bookie repair`: offline repair of a bookie from its own files.

The storage is started without a port: the journal is replayed (a torn end stays after the mark, holes are noted),
damaged or missing index files are rebuilt from the entry logs, headers are restored, marks and catalog are written. No
data is deleted: replaced files are kept as `*.damaged`. A running bookie holds the directories' locks, so the repair
refuses, also with `--dry-run`, which writes no file.
"""

from __future__ import annotations

import argparse
import posixpath
from collections.abc import Iterable

from bookies.admin.shared import UsageError
from bookies.admin.shared.report import Report
from bookies.config import BookieConfig
from bookies.errors import DirectoryInUse, StorageError
from bookies.runtime import aio
from bookies.runtime.files import OsDisk
from bookies.storage.identity.cookie import EMPTYING
from bookies.storage.offline import bookie_at
from bookies.storage.offline.inspection import current_of
from bookies.storage.offline.verification import describe, verify_rows
from bookies.storage.store import LedgerStore


def repair(arguments: argparse.Namespace) -> Report:
    """Repair the bookie. Status 0: no damage is left; 1: the remaining damage needs other replicas."""
    disk = OsDisk()
    if not disk.is_directory(arguments.path):
        raise UsageError(f"{arguments.path} is not a directory")
    if disk.exists(posixpath.join(current_of(disk, arguments.path), EMPTYING)):
        raise UsageError(
            f"{arguments.path} is being emptied by bk bookie format and cannot be repaired: repeat that command"
        )
    bookie = bookie_at(disk, arguments.path)
    done: dict[str, int] | None = None
    if arguments.dry_run:
        _refuse_running(disk, dict.fromkeys([*bookie.journals, *bookie.ledgers, *bookie.indexes]))
    else:
        done = aio.run(replay_and_repair(bookie.config()))
    findings = [row for row in verify_rows(disk, arguments.path) if row["row"] == "finding"]
    lines = list(map(describe, findings))
    if done is not None:
        lines.insert(0, f"{done['ledgers']:,} ledgers, {done['rebuilt']:,} index files rebuilt, {_uncertain(done)}")
    elif not findings:
        lines = ["no damage found; the next start replays the journal from the last checkpoint"]
    return Report({"done": done, "findings": findings}, lines, int(bool(findings)))


def _refuse_running(disk: OsDisk, directories: Iterable[str]) -> None:
    """Raise DirectoryInUse if the bookie runs: its files would change while they are read."""
    for directory in directories:
        try:
            disk.lock_directory(current_of(disk, directory)).release()
        except DirectoryInUse as error:
            raise DirectoryInUse(
                f"{error.message}: stop the bookie first, its files change while they are read"
            ) from None
        except (OSError, StorageError):
            continue  # The check reports it.


def _uncertain(done: dict[str, int]) -> str:
    return f"{done['uncertain']:,} ledgers with unknown entries, which other replicas may have"


async def replay_and_repair(config: BookieConfig) -> dict[str, int]:
    """Start, repair and stop the storage. Return the counts of `LedgerStore.repair`."""
    failures: list[BaseException] = []
    store = LedgerStore(aio.runtime(), config, failures.append)
    await store.start()
    try:
        done = await store.repair()
        await store.stop()
    finally:
        store.abort()
    return done
