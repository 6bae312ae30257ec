"""`bk bookie repair`: what can be put right with a bookie's own files, offline.

A start of the storage without a port: the journal is replayed (a torn end is left behind the mark, holes are noted),
damaged or missing index files are built again from the entry logs, headers are restored, marks and catalog are written.
Nothing is deleted: what is replaced stays beside it as `*.damaged`. A running bookie holds the directories' locks, so
this refuses, also with `--dry-run`, which writes nothing at all.
"""

from __future__ import annotations

import argparse
import posixpath
from collections.abc import Iterable

from bookies.admin.shared import UsageError
from bookies.admin.shared.common import print_json
from bookies.config import BookieConfig
from bookies.errors import DirectoryInUse, StorageError
from bookies.runtime import aio
from bookies.runtime.files import OsDisk
from bookies.storage.identity.cookie import EMPTYING
from bookies.storage.offline import bookie_at
from bookies.storage.offline.inspection import current_of
from bookies.storage.offline.verification import describe, verify_rows
from bookies.storage.store import LedgerStore


def repair(arguments: argparse.Namespace) -> int:
    """Exit status: 0 when nothing is left to be done, 1 when some damage needs other replicas."""
    disk = OsDisk()
    if not disk.is_directory(arguments.path):
        raise UsageError(f"{arguments.path} is not a directory")
    if disk.exists(posixpath.join(current_of(disk, arguments.path), EMPTYING)):
        raise UsageError(f"{arguments.path} is being emptied by bk bookie format: repeat that, nothing can be repaired")
    there = bookie_at(disk, arguments.path)
    if arguments.dry_run:
        _refuse_running(disk, dict.fromkeys([*there.journals, *there.ledgers, *there.indexes]))
    else:
        done = aio.run(replay_and_repair(there.config()))
    findings = [row for row in verify_rows(disk, arguments.path) if row["row"] == "finding"]
    if arguments.json:
        print_json({"done": None if arguments.dry_run else done, "findings": findings})
    else:
        if not arguments.dry_run:
            print(f"{done['ledgers']:,} ledgers, {done['rebuilt']:,} index files built again, {_rest(done)}")
        for row in findings:
            print(describe(row))
        if arguments.dry_run and not findings:
            print("nothing is damaged; what the journal has beyond the last checkpoint is replayed by the next start")
    return 1 if findings else 0


def _refuse_running(disk: OsDisk, directories: Iterable[str]) -> None:
    """Raises DirectoryInUse: the files of a running bookie change while they are read."""
    for each in directories:
        try:
            disk.lock_directory(current_of(disk, each)).release()
        except DirectoryInUse as error:
            raise DirectoryInUse(
                f"{error.message}: stop the bookie first, its files change while they are read"
            ) from None
        except (OSError, StorageError):
            continue  # What is wrong with it, the check says.


def _rest(done: dict[str, int]) -> str:
    return f"{done['uncertain']:,} still uncertain: other replicas may have what is missing here"


async def replay_and_repair(config: BookieConfig) -> dict[str, int]:
    """An orderly start and stop of the storage, and what `LedgerStore.repair` counts."""
    failures: list[BaseException] = []
    store = LedgerStore(aio.runtime(), config, failures.append)
    await store.start()
    try:
        done = await store.repair()
        await store.stop()
    finally:
        store.abort()
    return done
