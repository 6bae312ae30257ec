"""`bk metadata`: create a cluster, show, dump, load and check its metadata, move it to another store."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from bookies.admin.shared import Progress, UsageError
from bookies.admin.shared.common import (
    add_common,
    metadata_uri,
    print_json,
    print_table,
    refuse_memory,
    run_async,
    with_driver,
)

if TYPE_CHECKING:
    from bookies.metadata.interface import MetadataDriver
    from bookies.metadata.transfer import Difference

T = TypeVar("T")
_SHOWN = 20  # differences that are printed


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    init = verbs.add_parser(
        "init",
        help="create a cluster in an empty store",
        description="Writes the instance id, and in ZooKeeper what Apache's initnewcluster writes. Refuses a store "
        "that has a cluster and leaves it unchanged. The first bookie does the same automatically.",
        epilog="example:  bk metadata init --metadata 'zk+hierarchical://zk1:2181/ledgers'",
    )
    add_common(init)
    init.add_argument("--dry-run", action="store_true", help="report whether a cluster would be created")
    show = verbs.add_parser(
        "show",
        help="show the store, its layout, the instance id, and the number of ledgers, bookies and records",
        epilog="example:  bk metadata show --json",
    )
    add_common(show)
    dump = verbs.add_parser(
        "dump",
        help="print all metadata as lines of JSON",
        description="Prints one line per ledger, cookie and record, and one for the ledger ids already used. Omits "
        "registrations. An unreadable ledger has a line of its own, and the exit status is 1.",
        epilog="example:  bk metadata dump --passwords > cluster.jsonl",
    )
    add_common(dump)
    dump.add_argument(
        "--passwords", action="store_true", help="include the ledgers' passwords, which `bk metadata load` needs"
    )
    load = verbs.add_parser(
        "load",
        help="fill an empty store from a dump",
        description="Restores the whole cluster, with its instance id and the ids already used. Repeat the command "
        "after an interruption.",
        epilog="example:  bk metadata load cluster.jsonl --metadata file:/srv/bk/metadata",
    )
    add_common(load)
    load.add_argument("file", metavar="FILE", help="output of `bk metadata dump --passwords`")
    load.add_argument("--dry-run", action="store_true", help="check the whole file, write nothing")
    check = verbs.add_parser(
        "check",
        help="check every record; the exit status is 1 if one is faulty",
        description="Checks record formats, ensembles, cookies, ledger ids and the ledgers of logs. Reads only; can "
        "run at any time.",
        epilog="example:  bk metadata check --json",
    )
    add_common(check)
    migrate = verbs.add_parser(
        "migrate",
        help="move the cluster to another store",
        description="Stop all clients first, then all bookies. Copies all metadata to an empty store, compares every "
        "record, and then marks the new store as the cluster's; bookies do not start on it earlier. Only reads the old "
        "store. Repeat the command after an interruption.",
        epilog="example:  bk metadata migrate file:/srv/bk/metadata 'zk://zk1:2181/ledgers'",
    )
    add_common(migrate, metadata=False)
    migrate.add_argument("source", metavar="FROM", help="metadata URI of the present store")
    migrate.add_argument("target", metavar="TO", help="metadata URI of an empty store")
    migrate.add_argument("--dry-run", action="store_true", help="report what would be moved, and the objections")
    migrate.add_argument(
        "--force",
        action="store_true",
        help="move even if bookies are registered or ledgers are open; later changes in the old store are lost",
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.verb in ("dump", "load"):
        from bookies.admin.verbs.metadata_dump import dump, load

        return run_async(lambda: dump(arguments) if arguments.verb == "dump" else load(arguments))
    verbs = {"init": _init, "show": _show, "check": _check, "migrate": _migrate}
    return run_async(lambda: verbs[arguments.verb](arguments))


# -- init, show -------------------------------------------------------------------------------------------------------


async def _init(arguments: argparse.Namespace) -> int:
    from bookies.errors import MetadataError, NoCluster

    uri = metadata_uri(arguments)
    refuse_memory(uri)
    if arguments.dry_run:
        try:
            existing = await with_driver(uri, _existing_cluster, must_be_cluster=False)
        except NoCluster:
            existing = None  # The store itself does not exist yet.
        if existing is None:
            if arguments.json:
                print_json({"metadata": uri, "instance_id": None})
            else:
                print(f"would create a cluster at {uri}")
            return 0
        raise MetadataError(f"there is a cluster at {uri} already, {existing}; nothing was changed")

    async def create(driver: MetadataDriver) -> int:
        existing = await driver.instance_id()
        if existing is not None:
            raise MetadataError(f"there is a cluster at {uri} already, {existing}; nothing was changed")
        instance_id = await driver.initialize_cluster()
        if arguments.json:
            print_json({"metadata": uri, "instance_id": instance_id, "layout": driver.layout})
        else:
            print(f"created cluster {instance_id} at {uri}{f', layout {driver.layout}' if driver.layout else ''}")
        return 0

    return await with_driver(uri, create, may_create=True, must_be_cluster=False)


async def _existing_cluster(driver: MetadataDriver) -> str | None:
    """Return the instance id of the store, if it has one. Raises `MetadataError` if none could be created."""
    from bookies.metadata.shared import refusals

    instance_id = await driver.instance_id()
    if instance_id is None and (await driver.all_bookies()).bookies:
        raise refusals.half_a_cluster()
    return instance_id


async def _show(arguments: argparse.Namespace) -> int:
    from bookies.metadata.survey import survey

    async def show(driver: MetadataDriver) -> dict[str, Any]:
        progress = Progress("ledgers", None, quiet=arguments.json)
        contents = await survey(driver, progress.update)
        progress.clear()
        given = await driver.given_ids()
        return {
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

    facts = await with_driver(metadata_uri(arguments), show)
    if arguments.json:
        print_json(facts)
        return 0
    for name in ("metadata", "layout", "instance_id"):
        if facts[name]:
            print(f"{name.replace('_', ' '):12} {facts[name]}")
    counts = [f"{count:,} {state.replace('_', ' ')}" for state, count in facts["ledgers"].items()]
    print(f"{'ledgers':12} {', '.join(counts)}")
    print(f"{'bookies':12} {', '.join(f'{count} {mode}' for mode, count in facts['bookies'].items())}")
    print(f"{'cookies':12} {facts['cookies']:,}")
    print(f"{'records':12} {facts['records']:,}")
    print(f"{'marks':12} {facts['marks']:,} under-replicated ledgers")
    print(f"{'ids':12} next {facts['next_id']:,}, {facts['spent_ids']:,} used by deleted ledgers")
    return 0


# -- check ------------------------------------------------------------------------------------------------------------


async def _check(arguments: argparse.Namespace) -> int:
    from bookies.admin.verbs.metadata_check import check

    async def body(driver: MetadataDriver) -> int:
        progress = Progress("ledgers", None, quiet=arguments.json)
        report = await check(driver, progress.update)
        progress.clear()
        is_wrong = any(finding.is_fault for finding in report.findings)
        if arguments.json:
            rows = [
                {"name": finding.name, "subject": finding.subject, "detail": finding.detail}
                for finding in report.findings
            ]
            counts = {"ledgers": report.ledgers, "cookies": report.cookies, "logs": report.logs}
            print_json({"metadata": driver.uri, **counts, "findings": rows, "ok": not is_wrong})
            return int(is_wrong)
        if report.findings:
            print_table(
                [(finding.name, finding.subject or "-", finding.detail) for finding in report.findings],
                ("finding", "of", "what"),
            )
        counts_text = f"{report.ledgers:,} ledgers, {report.cookies:,} cookies, {report.logs:,} logs"
        print(f"{counts_text}: {'faults found, see above' if is_wrong else 'no fault found'}", file=sys.stderr)
        return int(is_wrong)

    return await with_driver(metadata_uri(arguments), body, must_be_cluster=False)


# -- migrate ----------------------------------------------------------------------------------------------------------


async def _migrate(arguments: argparse.Namespace) -> int:
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


async def _migrate_from(source: MetadataDriver, arguments: argparse.Namespace) -> int:
    from bookies.metadata.survey import objections, survey

    progress = Progress("ledgers", None)
    contents = await survey(source, progress.update)
    progress.clear()
    texts = objections(contents)
    for text in texts:
        print(f"bk metadata: {text}", file=sys.stderr)
    is_refused = bool(texts) and not arguments.force
    if is_refused and not arguments.dry_run:
        print("bk metadata: nothing was changed; --force overrides the objections", file=sys.stderr)
        return 1
    if arguments.dry_run:
        counts = {"ledgers": contents.ledger_count, "cookies": len(contents.cookies), "records": contents.records}
        if arguments.json:
            print_json({**counts, "objections": texts})
        else:
            print(f"would move {', '.join(f'{count:,} {noun}' for noun, count in counts.items())}")
        return int(is_refused)
    total = contents.ledger_count
    return await with_driver(
        arguments.target,
        lambda target: _move(source, target, total, arguments),
        may_create=True,
        must_be_cluster=False,
    )


async def _move(source: MetadataDriver, target: MetadataDriver, total: int, arguments: argparse.Namespace) -> int:
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
        if not left:
            await filling.finish()
    else:
        try:
            left = await copy(source, target, filling, progress.update)
        except asyncio.CancelledError:
            progress.note(f"{target.uri} is half filled and not a cluster yet: repeat the command to continue")
            raise
    progress.clear()
    if left:
        return _not_moved(arguments, left, was_there)
    facts = {"from": source.uri, "to": target.uri, "instance_id": instance_id, "ledgers": total}
    if arguments.json:
        print_json({**facts, "was_there": was_there, "differences": []})
        return 0
    result = "the target is complete and equal" if was_there else "moved and compared"
    print(f"{result}: {total:,} ledgers of {instance_id}")
    print(f"next: start bookies and clients with --metadata '{target.uri}', and none with the old store:", end=" ")
    print("it is still complete, so rename or remove it")
    return 0


def _not_moved(arguments: argparse.Namespace, left: list[Difference], was_there: bool) -> int:
    """Print why the cluster was not moved. Return exit status 1."""
    if arguments.json:
        rows = [{"what": difference.what, "detail": difference.detail} for difference in left]
        print(json.dumps({"was_there": was_there, "differences": rows}))
    for difference in left[:_SHOWN]:
        print(f"bk metadata: {difference.what} {difference.detail}", file=sys.stderr)
    if len(left) > _SHOWN:
        print(f"bk metadata: and {len(left) - _SHOWN:,} more", file=sys.stderr)
    text = (
        "the target is this cluster already, and differs from the source: one of the two stores has been used since "
        "the move; nothing was changed"
        if was_there
        else "the old store changed during the copy, so the new one was not marked as the cluster: stop the clients "
        "and bookies that use the old store, then repeat the command"
    )
    print(f"bk metadata: {text}", file=sys.stderr)
    return 1
