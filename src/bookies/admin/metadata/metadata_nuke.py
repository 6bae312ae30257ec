"""`bk metadata nuke`: remove a cluster from its metadata store, behind three locks.

The locks: the operator names the instance id; no bookie is registered; a dump, which `bk metadata load` accepts, is on
disk. The record `REMOVAL` marks an interrupted removal, which the same command continues.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING, TextIO

from bookies.admin.metadata.metadata_dump import dump_to, read_dump
from bookies.admin.shared import Progress, UsageError
from bookies.admin.shared.common import metadata_uri, refuse_memory, with_driver
from bookies.admin.shared.report import Report

if TYPE_CHECKING:
    from bookies.metadata.interface import MetadataDriver

REMOVAL = "removal"  # the record of a cluster that is being removed


async def nuke(arguments: argparse.Namespace) -> Report:
    """Remove the cluster. Raises `UsageError` for a wrong instance id, `MetadataError`."""
    uri = metadata_uri(arguments)
    refuse_memory(uri)
    return await with_driver(uri, lambda driver: _nuke(driver, arguments), must_be_cluster=False)


async def _nuke(driver: MetadataDriver, arguments: argparse.Namespace) -> Report:
    from bookies.errors import MetadataError

    stored = await driver.instance_id()
    removal = await _removal(driver) if stored is None else {}
    is_resumed = stored is None and removal.get("instance_id") == arguments.instance_id
    if stored is None and not is_resumed:
        raise MetadataError(f"there is no cluster at {driver.uri}; nothing was changed")
    if not is_resumed and stored != arguments.instance_id:
        raise UsageError(
            f"{driver.uri} is cluster {stored}, not {arguments.instance_id}: name the instance id of the cluster that "
            "is to be removed. Nothing was changed"
        )
    await _check_stopped(driver)
    counts = {} if is_resumed else await _counts(driver, arguments)
    facts = {"metadata": driver.uri, "instance_id": arguments.instance_id, **counts, "dry_run": arguments.dry_run}
    contents = ", ".join(f"{count:,} {noun}" for noun, count in counts.items()) or "the rest of it"
    subject = f"cluster {arguments.instance_id} at {driver.uri}: {contents}"
    if arguments.dry_run:
        first = f"the dump is {removal['dump']}; would" if is_resumed else f"would write a dump to {arguments.dump} and"
        return Report(facts, [f"{first} remove {subject}"])
    dump = str(removal["dump"]) if is_resumed else _absolute(arguments.dump)
    next_id = removal.get("next_id")
    if not is_resumed:
        next_id = await _dump(driver, dump)
        await _check_stopped(driver)  # A bookie that started meanwhile may have entries of ledgers the dump lacks.
        await _note_removal(driver, json.dumps({"instance_id": stored, "dump": dump, "next_id": next_id}).encode())
    await driver.remove_cluster(arguments.instance_id)
    # No ledger was created after the dump, so its next id is exact.
    exact = "" if next_id is None else f" --ids-from {next_id}"
    text = [
        f"removed {subject}",
        f"the dump is {dump}; `bk metadata load FILE{exact}` restores the cluster from it",
        "next: bk bookie format empties the directories of its bookies; bk metadata init creates a new cluster here",
    ]
    return Report(facts | {"dump": dump}, text)


async def _check_stopped(driver: MetadataDriver) -> None:
    """Raise `MetadataError` while a bookie is registered, or auto-recovery runs."""
    from bookies.errors import MetadataError
    from bookies.metadata.transfer import counted_names

    registered = list(await driver.modes())
    if registered:
        raise MetadataError(
            f"{counted_names(registered, 'bookie')} registered: stop all clients, then all bookies, and wait until "
            "their registrations end. Nothing was changed"
        )
    if auditor := await driver.recovery.auditor():
        raise MetadataError(f"auto-recovery runs, with auditor {auditor}: stop it. Nothing was changed")


async def _note_removal(driver: MetadataDriver, data: bytes) -> None:
    """Store which dump belongs to this removal. An earlier removal that did not begin may have left a record."""
    from bookies.errors import RecordExists

    try:
        await driver.create_record(REMOVAL, data)
    except RecordExists:
        await driver.write_record(REMOVAL, data, (await driver.read_record(REMOVAL))[1])


async def _counts(driver: MetadataDriver, arguments: argparse.Namespace) -> dict[str, int]:
    from bookies.metadata.survey import survey

    progress = Progress("ledgers", None, quiet=arguments.json)
    contents = await survey(driver, progress.update)
    progress.clear()
    return {"ledgers": contents.ledger_count, "cookies": len(contents.cookies), "records": contents.records}


async def _removal(driver: MetadataDriver) -> dict[str, object]:
    """Return the instance id and the dump of a cluster whose removal was interrupted; empty: there is none."""
    from bookies.metadata.transfer import read_record

    record = await read_record(driver, REMOVAL)
    return {} if record is None else dict(json.loads(record.data))


async def _dump(driver: MetadataDriver, path: str) -> int:
    """Write a dump with passwords to a new file, durably, and check that it can be loaded. Return its next id.

    Raises `UsageError`: the file exists, or cannot be written. Raises `MetadataCorrupt`: a record cannot be read.
    """
    with _new_file(path) as file:
        await dump_to(driver, file, passwords=True)
        _sync(file, path)
    return read_dump(path).ids.next_id


def _absolute(path: str) -> str:
    return os.path.abspath(path)


def _new_file(path: str) -> TextIO:
    try:
        return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8")
    except FileExistsError:
        raise UsageError(f"{path} exists: name a new file for the dump. Nothing was changed") from None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}. Nothing was changed") from error


def _sync(file: TextIO, path: str) -> None:
    """Put the file and its name on the disk."""
    file.flush()
    os.fsync(file.fileno())
    directory = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
