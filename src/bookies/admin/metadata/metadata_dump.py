"""`bk metadata dump` and `load`: a cluster's metadata as a file. The format is in `metadata/dump_format.py`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

from msgspec import Struct
from msgspec.structs import replace

from bookies.admin.shared import Progress, UsageError
from bookies.admin.shared.common import metadata_uri, print_json, refuse_memory, with_driver
from bookies.admin.shared.report import Report

if TYPE_CHECKING:
    from bookies.metadata.interface import MetadataDriver
    from bookies.metadata.interface.driver import GivenIds
    from bookies.metadata.transfer import Filling, Item


async def dump(arguments: argparse.Namespace) -> int:
    """Print all metadata, or the named ledgers. Return 1 if a ledger's record is unreadable."""
    from bookies.admin.metadata.metadata_apply import dump_ledgers

    async def body(driver: MetadataDriver) -> int:
        if arguments.ledgers:
            return await dump_ledgers(driver, arguments.ledgers, passwords=arguments.passwords)
        return await dump_to(driver, sys.stdout, passwords=arguments.passwords)

    return await with_driver(metadata_uri(arguments), body)


async def dump_to(driver: MetadataDriver, file: TextIO, *, passwords: bool) -> int:
    """Write all metadata as lines. Return 1 if a ledger's record is unreadable."""
    from bookies.metadata.dump_format import dump_lines
    from bookies.metadata.transfer import Damaged

    progress = Progress("lines", None)
    count, is_damaged = 0, False
    async for item, line in dump_lines(driver, passwords=passwords):
        print_json(line, file)
        is_damaged |= isinstance(item, Damaged)
        count += 1
        progress.update(count)
    progress.clear()
    return int(is_damaged)


def _lines(path: str) -> Iterator[dict[str, Any]]:
    """Yield all lines except the last, which holds the number of lines. Raises UsageError, InvalidArgument."""
    from bookies.metadata.dump_format import parse_line

    try:
        with open(path, encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                line = parse_line(text)
                if line["kind"] == "end":
                    if line.get("lines") != number or file.readline():
                        raise UsageError(
                            f"{path} is not complete: its last line declares {line.get('lines')} lines, it has others"
                        )
                    return
                yield line
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a dump: it is not text ({error})") from error
    raise UsageError(f"{path} is not complete: its last line is missing. No cluster was created")


class Dump(Struct, frozen=True):
    """A checked dump. `count`: its items; `ids`: those that no new ledger may get."""

    instance_id: str
    origin: str
    count: int
    ids: GivenIds


def read_dump(path: str) -> Dump:
    """Check a dump. Raises UsageError, InvalidArgument."""
    from bookies.metadata.dump_format import FORMAT, ids_of, parse_item
    from bookies.metadata.interface.driver import GivenIds
    from bookies.metadata.transfer import Damaged, unreadable
    from bookies.model import LedgerMetadata

    lines = _lines(path)
    first = next(lines, {})
    if first.get("kind") != "cluster" or first.get("format") != FORMAT or not first.get("instance_id"):
        raise UsageError(f"{path} is not a dump of format {FORMAT}: its first line differs")
    count = 0
    ids: list[GivenIds] = []
    ledger_ids: list[int] = []
    for line in lines:
        item = parse_item(line)
        if len(ids) == 2 or (not ids and not isinstance(item, GivenIds)):
            raise UsageError(f"{path}: lines of ids handed out must be the second line and, if again, the last but one")
        if isinstance(item, Damaged):
            raise unreadable(item)
        if isinstance(item, GivenIds):
            ids.append(item)
        elif isinstance(item, LedgerMetadata):
            ledger_ids.append(item.ledger_id)
        count += 1
    return Dump(first["instance_id"], str(first.get("from", path)), count, ids_of(ids, ledger_ids))


def _ids_from(dump: Dump, path: str, wanted: int | None) -> GivenIds:
    """Return the ids of a dump, and those that its cluster may have used since. Raises `UsageError`."""
    from bookies.metadata.dump_format import IDS_SKIPPED
    from bookies.metadata.transfer import LEDGER_ID_MAX

    next_id = dump.ids.next_id + IDS_SKIPPED if wanted is None else wanted
    if not dump.ids.next_id <= next_id <= LEDGER_ID_MAX:
        raise UsageError(f"--ids-from must be from {dump.ids.next_id} to {LEDGER_ID_MAX}: {path} has ids below it")
    return replace(dump.ids, next_id=next_id)


async def load(arguments: argparse.Namespace) -> Report:
    """Fill an empty store from a dump. Raises UsageError, InvalidArgument, MetadataError."""
    from bookies.errors import MetadataError
    from bookies.metadata.transfer import Filling

    uri = metadata_uri(arguments)
    refuse_memory(uri)
    dump = read_dump(arguments.file)
    instance_id, count = dump.instance_id, dump.count
    ids = _ids_from(dump, arguments.file, arguments.ids_from)
    facts = {"metadata": uri, "instance_id": instance_id, "items": count, "ids_from": ids.next_id}
    if arguments.dry_run:
        return Report(facts, [f"{count:,} lines of cluster {instance_id}, from {dump.origin}, can be loaded"])

    async def body(driver: MetadataDriver) -> Report:
        filling = Filling(driver, instance_id, arguments.file)
        if await filling.is_there():
            raise MetadataError(f"{uri} is cluster {instance_id} already; no item was changed")
        progress = Progress("lines", count, quiet=arguments.json)
        await _begin(filling, ids)
        await _fill(driver, filling, arguments.file, progress)
        progress.clear()
        await filling.finish()
        text = f"loaded {count:,} lines: {uri} is cluster {instance_id}; ids of new ledgers begin at {ids.next_id:,}"
        return Report(facts, [text])

    return await with_driver(uri, body, may_create=True, must_be_cluster=False)


async def _begin(filling: Filling, ids: GivenIds) -> None:
    from bookies.errors import NotSupported

    try:
        await filling.begin(ids)
    except NotSupported as error:
        raise NotSupported(f"{error.message}; or use --ids-from with a lower id that was never handed out") from error


async def _fill(driver: MetadataDriver, filling: Filling, path: str, progress: Progress) -> None:
    from bookies.metadata.dump_format import parse_item
    from bookies.metadata.interface.driver import GivenIds
    from bookies.metadata.transfer import AT_ONCE, read_items

    batch: list[Item] = []
    seen: set[tuple[str, object]] = set()
    lines = _lines(path)
    next(lines)
    for done, line in enumerate(lines):
        item = parse_item(line)
        if isinstance(item, GivenIds):
            continue
        seen.add(_name_of(item))
        batch.append(item)
        if len(batch) >= AT_ONCE:
            await filling.put(batch)
            batch = []
            progress.update(done)
    await filling.put(batch)
    if filling.is_resumed:  # the interrupted load may have used another dump: remove items that this one lacks
        for item in [stored async for stored in read_items(driver) if _name_of(stored) not in seen]:
            await filling.remove(item)


def _name_of(item: Item) -> tuple[str, object]:
    from bookies.metadata.formats.recovery_items import RecoverySettings, UnderReplicated
    from bookies.metadata.transfer import NamedRecord, StoredCookie

    if isinstance(item, StoredCookie):
        return "cookie", item.bookie
    if isinstance(item, NamedRecord):
        return "record", item.name
    if isinstance(item, RecoverySettings):
        return "recovery", ""
    if isinstance(item, UnderReplicated):
        return "mark", item.ledger_id
    return "ledger", getattr(item, "ledger_id", None)
