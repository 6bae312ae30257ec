"""`bk metadata`: create a cluster, show, dump, change, load and check its metadata, move or remove it."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import asdict

from bookies.admin.shared import Progress, Session, UsageError
from bookies.admin.shared.command_line import MACHINE, OneOf, Option, verb
from bookies.admin.shared.common import metadata_uri, on_driver, on_session, refuse_memory, run_async, with_driver
from bookies.admin.shared.operators import object_to
from bookies.admin.shared.report import Report, Table

if TYPE_CHECKING:
    from bookies.metadata.interface import MetadataDriver
    from bookies.metadata.transfer import Difference

T = TypeVar("T")
_SHOWN = 20  # differences that are printed


# -- init, show -------------------------------------------------------------------------------------------------------


async def _init(arguments: argparse.Namespace) -> Report:
    from bookies.errors import MetadataError, NoCluster

    uri = metadata_uri(arguments)
    refuse_memory(uri)

    async def create(driver: MetadataDriver) -> Report:
        existing = await driver.instance_id()
        if existing is not None and arguments.if_missing:
            return Report({"metadata": uri, "instance_id": existing}, [f"there is a cluster at {uri}, {existing}"])
        check_new(existing)
        instance_id = await driver.initialize_cluster()
        facts = {"metadata": uri, "instance_id": instance_id, "layout": driver.layout}
        layout = f", layout {driver.layout}" if driver.layout else ""
        return Report(facts, [f"created cluster {instance_id} at {uri}{layout}"])

    def check_new(existing: str | None) -> None:
        if existing is not None:
            raise MetadataError(f"there is a cluster at {uri} already, {existing}; nothing was changed")

    if not arguments.dry_run:
        return await with_driver(uri, create, may_create=True, must_be_cluster=False)
    with contextlib.suppress(NoCluster):  # The store itself does not exist yet.
        check_new(await with_driver(uri, _existing_cluster, must_be_cluster=False))
    return Report({"metadata": uri, "instance_id": None}, [f"would create a cluster at {uri}"])


async def _existing_cluster(driver: MetadataDriver) -> str | None:
    """Return the instance id of the store, if it has one. Raises `MetadataError` if none could be created."""
    from bookies.metadata.shared import refusals

    instance_id = await driver.instance_id()
    if instance_id is None and (await driver.all_bookies()).bookies:
        raise refusals.half_a_cluster()
    return instance_id


async def _show(driver: MetadataDriver, arguments: argparse.Namespace) -> Report:
    from bookies.metadata.survey import survey

    progress = Progress("ledgers", None, quiet=arguments.json)
    contents = await survey(driver, progress.update)
    progress.clear()
    given = await driver.given_ids()
    facts = {
        "metadata": driver.uri,
        "layout": driver.layout,
        "instance_id": await driver.instance_id(),
        "ledgers": contents.ledgers,
        "bookies": {mode: len(bookies) for mode, bookies in contents.bookies.items()},
        "cookies": len(contents.cookies),
        "records": contents.records,
        "marks": contents.marks,
        "next_id": given.next_id,
        "spent_ids": sum(last - first + 1 for first, last in given.spent),
    }
    return Report(facts, _lines(facts))


def _lines(facts: dict[str, Any]) -> list[str]:
    texts = {name.replace("_", " "): facts[name] for name in ("metadata", "layout", "instance_id") if facts[name]} | {
        "ledgers": ", ".join(f"{count:,} {state.replace('_', ' ')}" for state, count in facts["ledgers"].items()),
        "bookies": ", ".join(f"{count} {mode}" for mode, count in facts["bookies"].items()),
        "cookies": f"{facts['cookies']:,}",
        "records": f"{facts['records']:,}",
        "marks": f"{facts['marks']:,} under-replicated ledgers",
        "ids": f"next {facts['next_id']:,}, {facts['spent_ids']:,} used by deleted ledgers",
    }
    return [f"{name:12} {text}" for name, text in texts.items()]


# -- check ------------------------------------------------------------------------------------------------------------


async def _check(arguments: argparse.Namespace) -> Report:
    from bookies.admin.metadata.metadata_check import check

    async def body(driver: MetadataDriver) -> Report:
        progress = Progress("ledgers", None, quiet=arguments.json)
        result = await check(driver, progress.update)
        progress.clear()
        is_wrong = any(finding.is_fault for finding in result.findings)
        counts = {"ledgers": result.ledgers, "cookies": result.cookies, "logs": result.logs}
        facts = {"metadata": driver.uri, **counts, "findings": list(map(asdict, result.findings)), "ok": not is_wrong}
        rows = [(finding.name, finding.subject or "-", finding.detail) for finding in result.findings]
        text = [Table(("finding", "of", "what"), rows)] if rows else []
        verdict = "faults found, see above" if is_wrong else "no fault found"
        remark = f"{', '.join(f'{count:,} {noun}' for noun, count in counts.items())}: {verdict}"
        return Report(facts, text, int(is_wrong), () if arguments.json else (remark,))

    return await with_driver(metadata_uri(arguments), body, must_be_cluster=False)


# -- migrate ----------------------------------------------------------------------------------------------------------


async def _migrate(arguments: argparse.Namespace) -> Report | int:
    if _place(arguments.source) == _place(arguments.target):
        raise UsageError("FROM and TO are the same store")
    refuse_memory(arguments.target)
    return await with_driver(arguments.source, lambda source: _migrate_from(source, arguments))


def _place(uri: str) -> object:
    """Return a value that is equal for two spellings of one store's URI."""
    from bookies.errors import ConfigError
    from bookies.metadata.zookeeper.zk_layout import parse_uri

    if uri.startswith("file:"):
        return os.path.realpath(uri.removeprefix("file:").removeprefix("//"))
    if uri.startswith("zk"):
        try:
            place = parse_uri(uri)
        except ConfigError:
            return uri  # The open raises the error.
        return sorted(place.hosts.split(",")), place.root
    return uri


async def _migrate_from(source: MetadataDriver, arguments: argparse.Namespace) -> Report | int:
    from bookies.metadata.survey import objections, survey

    progress = Progress("ledgers", None)
    contents = await survey(source, progress.update)
    progress.clear()
    texts = objections(contents)
    is_refused = object_to("metadata", texts, arguments)
    if is_refused and not arguments.dry_run:
        return 1
    if arguments.dry_run:
        counts = {"ledgers": contents.ledger_count, "cookies": len(contents.cookies), "records": contents.records}
        text = f"would move {', '.join(f'{count:,} {noun}' for noun, count in counts.items())}"
        return Report({**counts, "objections": texts}, [text], int(is_refused))
    total = contents.ledger_count
    return await with_driver(
        arguments.target,
        lambda target: _move(source, target, total, arguments),
        may_create=True,
        must_be_cluster=False,
    )


async def _move(source: MetadataDriver, target: MetadataDriver, total: int, arguments: argparse.Namespace) -> Report:
    import asyncio

    from bookies.metadata.transfer import Filling, copy, differences, is_same_store

    instance_id = await source.instance_id()
    assert instance_id is not None  # there would be no cluster
    filling = Filling(target, instance_id, source.uri)
    progress = Progress("ledgers", total, quiet=arguments.json)
    was_there = await filling.is_there()
    if was_there and await is_same_store(source, target):
        raise UsageError("FROM and TO are two names of the same store: all versions are equal")
    if was_there:
        left = [difference async for difference in differences(source, target, progress.update)]
    else:
        try:
            left = await copy(source, target, filling, progress.update)
        except asyncio.CancelledError:
            progress.note(f"{target.uri} is half filled and not a cluster yet: repeat the command to continue")
            raise
    progress.clear()
    if left:
        return _not_moved(left, was_there)
    facts = {"from": source.uri, "to": target.uri, "instance_id": instance_id, "ledgers": total}
    result = "the target is complete and equal" if was_there else "moved and compared"
    text = [
        f"{result}: {total:,} ledgers of {instance_id}",
        f"next: start bookies and clients with --metadata '{target.uri}', and none with the old store: it is still "
        "complete, so rename or remove it",
    ]
    return Report({**facts, "was_there": was_there, "differences": []}, text)


def _not_moved(left: list[Difference], was_there: bool) -> Report:
    """Return why the cluster was not moved."""
    lines = [f"{difference.what} {difference.detail}" for difference in left[:_SHOWN]]
    if len(left) > _SHOWN:
        lines.append(f"and {len(left) - _SHOWN:,} more")
    lines.append(
        "the target is this cluster already, and differs from the source: one of the two stores has been used since "
        "the move; nothing was changed"
        if was_there
        else "the old store changed during the copy, so the new one was not marked as the cluster: stop the clients "
        "and bookies that use the old store, then repeat the command"
    )
    rows = [{"what": difference.what, "detail": difference.detail} for difference in left]
    facts = {"was_there": was_there, "differences": rows}
    return Report(facts, status=1, remarks=[f"bk metadata: {line}" for line in lines])


async def _dump(arguments: argparse.Namespace) -> int:
    from bookies.admin.metadata.metadata_dump import dump

    return await dump(arguments)


async def _load(arguments: argparse.Namespace) -> Report:
    from bookies.admin.metadata.metadata_dump import load

    return await load(arguments)


async def _compare(arguments: argparse.Namespace) -> Report:
    from bookies.admin.metadata import metadata_apply

    return await metadata_apply.compare(arguments)


async def _apply(arguments: argparse.Namespace) -> Report:
    from bookies.admin.metadata import metadata_apply

    return await metadata_apply.apply(arguments)


async def _changes(driver: MetadataDriver, arguments: argparse.Namespace) -> Report:
    from bookies.admin.metadata import metadata_apply

    return await metadata_apply.changes(driver, arguments)


async def _orphans(session: Session, arguments: argparse.Namespace) -> Report:
    from bookies.admin.metadata.metadata_orphans import orphans

    return await orphans(session, arguments)


async def _nuke(arguments: argparse.Namespace) -> Report:
    from bookies.admin.metadata.metadata_nuke import nuke

    return await nuke(arguments)


def _awaited(body: Callable[[argparse.Namespace], Awaitable[T]]) -> Callable[[argparse.Namespace], T]:
    return lambda arguments: run_async(lambda: body(arguments))


_RECORDS = (
    Option("file FILE", "a dump with lines of ledgers, perhaps edited; - for standard input"),
    Option("ledgers LEDGER", "ledger ids (default: all ledgers of the file)", int, values="*"),
)
VERBS = (
    verb(
        "metadata init",
        "create a cluster in an empty store",
        "bk metadata init --metadata 'zk+hierarchical://zk1:2181/ledgers'",
        _awaited(_init),
        OneOf(
            Option("--dry-run", "report whether a cluster would be created", bool),
            Option("--if-missing", "leave an existing cluster as it is, and report it", bool),
        ),
        description="Writes the instance id, and in ZooKeeper what Apache's initnewcluster writes. Refuses a store "
        "that has a cluster and leaves it unchanged. The first bookie does the same automatically.",
    ),
    verb(
        "metadata show",
        "show the store, its layout, the instance id, and the number of ledgers, bookies and records",
        "bk metadata show --json",
        on_driver(_show),
    ),
    verb(
        "metadata dump",
        "print all metadata as lines of JSON",
        "bk metadata dump --passwords > cluster.jsonl",
        _awaited(_dump),
        Option(
            "ledgers LEDGER",
            "ledger ids: print only their records, with versions (default: all metadata)",
            int,
            values="*",
        ),
        Option("--passwords", "include the ledgers' passwords, which `bk metadata load` needs", bool),
        description="Prints one line per ledger, cookie and record, and one for the ledger ids already used. Omits "
        "registrations. An unreadable ledger has a line of its own, and the exit status is 1.",
    ),
    verb(
        "metadata diff",
        "compare ledgers' records with a dump; the exit status is 1 if they differ",
        "bk metadata diff cluster.jsonl 17",
        _awaited(_compare),
        *_RECORDS,
    ),
    verb(
        "metadata apply",
        "write ledgers' records from a dump, with a reason",
        "bk metadata apply 17.jsonl --reason 'wrong end after the crash' --dry-run",
        _awaited(_apply),
        *_RECORDS,
        Option("--reason TEXT", "reason, which `bk metadata changes` shows", is_required=True),
        Option(
            "--accept WORDS", "words that the command asks for if entries may be lost; may be repeated", may_repeat=True
        ),
        Option("--dry-run", "report the differences and dangers, write nothing", bool),
        description="Writes each record only over the version that was compared, under the ledger's lock. A line of "
        "`bk metadata dump LEDGER` applies only to the version that it shows. Also creates the record of a deleted "
        "ledger again. Refuses a record that no client can use.",
    ),
    verb(
        "metadata changes",
        "show the last changes of records by operators: who, when, why, and the differences",
        "bk metadata changes --json",
        on_driver(_changes),
    ),
    verb(
        "metadata load",
        "fill an empty store from a dump",
        "bk metadata load cluster.jsonl --metadata file:/srv/bk/metadata",
        _awaited(_load),
        Option("file FILE", "output of `bk metadata dump --passwords`"),
        Option(
            "--ids-from ID",
            "id that new ledgers begin at, above every id handed out before the store was lost (default: 1,000,000 "
            "above the dump's next id)",
            int,
        ),
        Option("--dry-run", "check the whole file, write nothing", bool),
        description="Restores the whole cluster, with its instance id and the ids already used. Bookies may have "
        "entries of ledgers that were created after the dump, so their ids are skipped. Repeat the command after an "
        "interruption.",
    ),
    verb(
        "metadata check",
        "check every record; the exit status is 1 if one is faulty",
        "bk metadata check --json",
        _awaited(_check),
        description="Checks record formats, ensembles, cookies, ledger ids and the ledgers of logs. Reads only; can "
        "run at any time.",
    ),
    verb(
        "metadata orphans",
        "list records of ledgers of which no bookie has any entry; mark them, delete them after a wait",
        "bk metadata orphans --mark",
        on_session(_orphans),
        OneOf(
            Option("--mark", "mark what was found; a later --delete needs the mark", bool),
            Option("--delete", "delete records that were marked long enough ago, and are orphaned still", bool),
        ),
        Option("--wait DURATION", "time between mark and deletion (default 24h)", default="24h"),
        Option("--reason TEXT", "reason of --delete, which `bk metadata changes` shows", default=""),
        Option("--rate RECORDS", "records to read per second, at most (default: no limit)", float),
        Option("--dry-run", "report what would be marked or deleted", bool),
        description="Asks every bookie for the entries of closed ledgers. A bookie that does not answer, or has a "
        "cookie and is not registered, keeps its ledgers. Keeps ledgers that a log lists. The exit status is 1 while "
        "there are orphans, or unknown ledgers. Entries without a record: bk bookie orphans.",
    ),
    verb(
        "metadata nuke",
        "remove the cluster from its metadata store, after a dump",
        "bk metadata nuke --instance-id 2f0c... --dump /safe/cluster.jsonl --dry-run",
        _awaited(_nuke),
        Option("--instance-id ID", "instance id of the cluster, as `bk metadata show` prints it", is_required=True),
        Option("--dump FILE", "new file for the dump, with passwords, that is written first", is_required=True),
        Option("--dry-run", "check, and report what would be removed", bool),
        description="Refuses while a bookie is registered, or auto-recovery runs. Deletes the instance id first, so no "
        "bookie starts on a cluster that is half removed. Repeat the command after an interruption. Files of bookies "
        "are not changed.",
    ),
    verb(
        "metadata migrate",
        "move the cluster to another store",
        "bk metadata migrate file:/srv/bk/metadata 'zk://zk1:2181/ledgers'",
        _awaited(_migrate),
        Option("source FROM", "metadata URI of the present store"),
        Option("target TO", "metadata URI of an empty store"),
        Option("--dry-run", "report what would be moved, and the objections", bool),
        Option(
            "--force",
            "move even if bookies are registered or ledgers are open; later changes in the old store are lost",
            bool,
        ),
        description="Stop all clients first, then all bookies. Copies all metadata to an empty store, compares every "
        "record, and then marks the new store as the cluster's; bookies do not start on it earlier. Only reads the "
        "old store. Repeat the command after an interruption.",
        shared=MACHINE,
    ),
)
