"""`bk metadata dump` and `load`: a cluster's metadata as a file, see `metadata/dump_format.py`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bookies.admin.shared import Progress, UsageError
from bookies.admin.shared.common import metadata_uri, print_json, refuse_memory, with_driver

if TYPE_CHECKING:
    from bookies.metadata.interface import MetadataDriver
    from bookies.metadata.transfer import Filling, Item


async def dump(arguments: argparse.Namespace) -> int:
    from bookies.metadata.dump_format import FORMAT, pack_item
    from bookies.metadata.transfer import Damaged, read_items

    async def body(driver: MetadataDriver) -> int:
        first = {"kind": "cluster", "format": FORMAT, "instance_id": await driver.instance_id(), "from": driver.uri}
        print_json(first)
        progress = Progress("lines", None)
        count, is_damaged = 1, False
        async for item in read_items(driver):
            print_json(pack_item(item, passwords=arguments.passwords))
            is_damaged |= isinstance(item, Damaged)
            count += 1
            progress.update(count)
        print_json({"kind": "end", "lines": count + 1})
        progress.clear()
        return int(is_damaged)

    return await with_driver(metadata_uri(arguments), body)


def _lines(path: str) -> Iterator[dict[str, Any]]:
    """All lines but the last one, when that says that there are no more. Raises UsageError, InvalidArgument."""
    from bookies.metadata.dump_format import parse_line

    try:
        with open(path, encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                line = parse_line(text)
                if line["kind"] == "end":
                    if line.get("lines") != number or file.readline():
                        raise UsageError(f"{path} is not complete: it says {line.get('lines')} lines, there are others")
                    return
                yield line
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no dump: it is not text ({error})") from error
    raise UsageError(f"{path} is not complete: its last line is missing. Nothing was made a cluster")


def _read_dump(path: str) -> tuple[str, str, int]:
    """(instance id, where it is from, items) of a dump that can be loaded. Raises UsageError, InvalidArgument."""
    from bookies.metadata.dump_format import FORMAT, parse_item
    from bookies.metadata.interface.driver import GivenIds
    from bookies.metadata.transfer import Damaged, unreadable

    lines = _lines(path)
    first = next(lines, {})
    if first.get("kind") != "cluster" or first.get("format") != FORMAT or not first.get("instance_id"):
        raise UsageError(f"{path} does not begin as a dump of format {FORMAT} does")
    count = 0
    for line in lines:
        item = parse_item(line)
        if isinstance(item, GivenIds) is not (count == 0):
            raise UsageError(f"{path}: the ids that are given have to be on the second line, and nowhere else")
        if isinstance(item, Damaged):
            raise unreadable(item)
        count += 1
    return first["instance_id"], str(first.get("from", path)), count


async def load(arguments: argparse.Namespace) -> int:
    from bookies.errors import MetadataError
    from bookies.metadata.transfer import Filling

    uri = metadata_uri(arguments)
    refuse_memory(uri)
    instance_id, origin, count = _read_dump(arguments.file)
    if arguments.dry_run and arguments.json:
        print_json({"metadata": uri, "instance_id": instance_id, "items": count})
        return 0
    if arguments.dry_run:
        print(f"{count:,} lines of cluster {instance_id}, from {origin}, can be loaded")
        return 0

    async def body(driver: MetadataDriver) -> int:
        filling = Filling(driver, instance_id, arguments.file)
        if await filling.is_there():
            raise MetadataError(f"{uri} is cluster {instance_id} already; nothing was changed")
        progress = Progress("lines", count, quiet=arguments.json)
        await _fill(driver, filling, arguments.file, progress)
        progress.clear()
        await filling.finish()
        if arguments.json:
            print_json({"metadata": uri, "instance_id": instance_id, "items": count})
        else:
            print(f"loaded {count:,} lines: {uri} is cluster {instance_id}")
        return 0

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
    if filling.is_resumed:  # from another dump, perhaps
        for item in [each async for each in read_items(driver) if _name_of(each) not in seen]:
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
