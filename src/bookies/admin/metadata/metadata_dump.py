"""`bk metadata dump` and `load`: a cluster's metadata as a file. The format is in `metadata/dump_format.py`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

from bookies.admin.shared import Progress, UsageError
from bookies.admin.shared.common import metadata_uri, print_json, refuse_memory, with_driver
from bookies.admin.shared.report import Report

if TYPE_CHECKING:
    from bookies.metadata.interface import MetadataDriver
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


def read_dump(path: str) -> tuple[str, str, int]:
    """Check a dump. Return (instance id, URI of its origin, number of items). Raises UsageError, InvalidArgument."""
    from bookies.metadata.dump_format import FORMAT, parse_item
    from bookies.metadata.interface.driver import GivenIds
    from bookies.metadata.transfer import Damaged, unreadable

    lines = _lines(path)
    first = next(lines, {})
    if first.get("kind") != "cluster" or first.get("format") != FORMAT or not first.get("instance_id"):
        raise UsageError(f"{path} is not a dump of format {FORMAT}: its first line differs")
    count = 0
    for line in lines:
        item = parse_item(line)
        if isinstance(item, GivenIds) is not (count == 0):
            raise UsageError(f"{path}: the line of ids handed out must be the second line, and the only one")
        if isinstance(item, Damaged):
            raise unreadable(item)
        count += 1
    return first["instance_id"], str(first.get("from", path)), count


async def load(arguments: argparse.Namespace) -> Report:
    """Fill an empty store from a dump. Raises UsageError, InvalidArgument, MetadataError."""
    from bookies.errors import MetadataError
    from bookies.metadata.transfer import Filling

    uri = metadata_uri(arguments)
    refuse_memory(uri)
    instance_id, origin, count = read_dump(arguments.file)
    facts = {"metadata": uri, "instance_id": instance_id, "items": count}
    if arguments.dry_run:
        return Report(facts, [f"{count:,} lines of cluster {instance_id}, from {origin}, can be loaded"])

    async def body(driver: MetadataDriver) -> Report:
        filling = Filling(driver, instance_id, arguments.file)
        if await filling.is_there():
            raise MetadataError(f"{uri} is cluster {instance_id} already; nothing was changed")
        progress = Progress("lines", count, quiet=arguments.json)
        await _fill(driver, filling, arguments.file, progress)
        progress.clear()
        await filling.finish()
        return Report(facts, [f"loaded {count:,} lines: {uri} is cluster {instance_id}"])

    return await with_driver(uri, body, may_create=True, must_be_cluster=False)


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
        seen.add(_name_of(item))
        if isinstance(item, GivenIds):
            await filling.begin(item)
            continue
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
