"""Former ledgers: those that may be older than this bookie's directories.

A bookie may be emptied and return under its id, and so lose the fences of ledgers that have ended. It therefore checks
the record of a former ledger before it accepts an ordinary add (`ledger_checks.py`). A ledger that was created after
the directories needs no check: the directories have seen all its fences.

The ids are taken from the metadata store once, when the directories exist and no request is served yet: everything
below the next id of the generator, and ids above it that clients have chosen. Until that succeeds, every ledger counts.

Source: storage 9.7 (F-44).
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from bookies.config import BookieConfig
from bookies.errors import BookKeeperError, CorruptRecord, StorageError
from bookies.metadata.interface import MetadataDriver
from bookies.protocol.quorums import IdSet
from bookies.runtime.events import Events
from bookies.runtime.ports import Disk, Runtime
from bookies.storage.disks.directories import Directories
from bookies.storage.disks.durable_files import replace_bytes
from bookies.storage.identity import former_ledgers_format as layout

ALL_LEDGERS = 1 << 63
RUNS_MAX = 10_000  # runs of chosen ids; with more, every ledger counts


async def find_former_ledgers(runtime: Runtime, config: BookieConfig, driver: MetadataDriver, events: Events) -> IdSet:
    """Return the ids of former ledgers, from the files, or else from the metadata store; then write the files."""
    directories = Directories(runtime.disk, config)
    names = dict.fromkeys((*directories.journals, *directories.ledgers, *directories.indexes))
    paths = [posixpath.join(directory, layout.FILE_NAME) for directory in names]
    worker = runtime.workers.start("former ledgers")
    try:
        stored, problems = await worker.run(_read, runtime.disk, paths)
        for problem in problems:
            events.warning("former_ledgers.malformed", error=problem, consequence="the file is written again")
        if stored is not None:
            return stored
        try:
            ids = await _former_in(driver)
        except BookKeeperError as error:
            consequence = "until its next start the bookie checks the record of every ledger"
            events.warning("former_ledgers.unknown", error=error, consequence=consequence)
            return IdSet(ALL_LEDGERS)
        for problem in await worker.run(_write, runtime.disk, paths, layout.pack(ids)):
            events.warning("former_ledgers.not_kept", error=problem, consequence="the next start takes them again")
        events.info("former_ledgers.noted", below=ids.bound, chosen=len(ids.runs))
        return ids
    finally:
        worker.close()


async def _former_in(driver: MetadataDriver) -> IdSet:
    """Return the ids of all ledgers that exist or existed, as far as the store knows. Raises: MetadataError."""
    given = await driver.given_ids()
    ids = IdSet(given.next_id)
    for first, last in given.spent:
        ids.add(first, last + 1)
    async for listed in driver.ledger_ids():
        for ledger_id in listed if listed and listed[-1] >= ids.bound else ():
            ids.add(ledger_id, ledger_id + 1)
        if len(ids.runs) > RUNS_MAX:
            break
    return ids if len(ids.runs) <= RUNS_MAX else IdSet(ALL_LEDGERS)


def _read(disk: Disk, paths: Sequence[str]) -> tuple[IdSet | None, list[Exception]]:
    """Return the ids of all files together, and the problems; None if a file is missing or cannot be read.

    The files differ only after a crash while they were written. All of them are true, and so is their union.
    """
    union = IdSet(0)
    problems: list[Exception] = []
    is_complete = True
    for path in paths:
        try:
            ids = layout.parse(disk.read_bytes(path), path=path)
        except FileNotFoundError:
            is_complete = False
        except (CorruptRecord, OSError) as error:
            problems.append(error)
        else:
            for start, stop in ((0, ids.bound), *ids.runs):
                union.add(start, stop)
    return (union if is_complete and not problems else None), problems


def _write(disk: Disk, paths: Sequence[str], data: bytes) -> list[Exception]:
    """Write every file durably; return the failures."""
    failures: list[Exception] = []
    for path in paths:
        try:
            replace_bytes(disk, path, data)
        except (OSError, StorageError) as error:
            failures.append(error)
    return failures
