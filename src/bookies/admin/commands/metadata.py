"""`bk metadata`: begin a cluster, show, dump, load and check its metadata, move it to another store."""

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
        help="make a cluster where there is none",
        description="Writes the instance id, and in ZooKeeper what Apache's initnewcluster writes. A cluster that is "
        "there is refused, and left as it is. The first bookie does the same by itself.",
        epilog="example:  bk metadata init --metadata 'zk+hierarchical://zk1:2181/ledgers'",
    )
    add_common(init)
    init.add_argument("--dry-run", action="store_true", help="only say whether it would be made")
    show = verbs.add_parser(
        "show",
        help="the store, its layout, the instance id, and how much there is of what",
        epilog="example:  bk metadata show --json",
    )
    add_common(show)
    dump = verbs.add_parser(
        "dump",
        help="everything as lines of JSON",
        description="One line for every ledger, cookie and record, and for the ids that are given. Registrations are "
        "left out. A ledger that cannot be read is a line of its own; then the exit status is 1.",
        epilog="example:  bk metadata dump --passwords > cluster.jsonl",
    )
    add_common(dump)
    dump.add_argument(
        "--passwords", action="store_true", help="the passwords of ledgers, too: `bk metadata load` needs them"
    )
    load = verbs.add_parser(
        "load",
        help="fill an empty store from a dump",
        description="The whole cluster, with its instance id, and the ids that were spent. What was interrupted is "
        "simply repeated.",
        epilog="example:  bk metadata load cluster.jsonl --metadata file:/srv/bk/metadata",
    )
    add_common(load)
    load.add_argument("file", metavar="FILE", help="what `bk metadata dump --passwords` wrote")
    load.add_argument("--dry-run", action="store_true", help="read the whole file, write nothing")
    check = verbs.add_parser(
        "check",
        help="look at every record; the exit status is 1 if something is wrong",
        description="Formats, ensembles, cookies, the lists of logs, ids. Changes nothing, and can run at any time.",
        epilog="example:  bk metadata check --json",
    )
    add_common(check)
    migrate = verbs.add_parser(
        "migrate",
        help="move the cluster to another store",
        description="Copies everything to a store that is empty, compares record by record, and only then makes it the "
        "cluster: until then no bookie starts on it. The old store is only read. What was interrupted is simply "
        "repeated. Stop all clients, then all bookies, before.",
        epilog="example:  bk metadata migrate file:/srv/bk/metadata 'zk://zk1:2181/ledgers'",
    )
    add_common(migrate, metadata=False)
    migrate.add_argument("source", metavar="FROM", help="metadata URI")
    migrate.add_argument("target", metavar="TO", help="metadata URI of an empty store")
    migrate.add_argument("--dry-run", action="store_true", help="say what would be moved, and what speaks against it")
    migrate.add_argument(
        "--force",
        action="store_true",
        help="although bookies are registered or ledgers open: what changes in the old store from now on is lost",
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
            found = await with_driver(uri, _makeable, must_be_cluster=False)
        except NoCluster:
            found = None  # There is not even a store.
        if found is None:
            print_json({"metadata": uri, "instance_id": None}) if arguments.json else print(f"would be made at {uri}")
            return 0
        raise MetadataError(f"there is a cluster at {uri} already, {found}; nothing was changed")

    async def make(driver: MetadataDriver) -> int:
        found = await driver.instance_id()
        if found is not None:
            raise MetadataError(f"there is a cluster at {uri} already, {found}; nothing was changed")
        made = await driver.initialize_cluster()
        if arguments.json:
            print_json({"metadata": uri, "instance_id": made, "layout": driver.layout})
        else:
            print(f"made cluster {made} at {uri}{f', layout {driver.layout}' if driver.layout else ''}")
        return 0

    return await with_driver(uri, make, may_create=True, must_be_cluster=False)


async def _makeable(driver: MetadataDriver) -> str | None:
    """The instance id that is there. Raises `MetadataError` when one could not be made."""
    from bookies.metadata.shared import store_driver

    found = await driver.instance_id()
    if found is None and (await driver.all_bookies()).bookies:
        raise store_driver.half_a_cluster()
    return found


async def _show(arguments: argparse.Namespace) -> int:
    from bookies.metadata.survey import survey

    async def show(driver: MetadataDriver) -> dict[str, Any]:
        progress = Progress("ledgers", None, quiet=arguments.json)
        found = await survey(driver, progress.update)
        progress.clear()
        given = await driver.given_ids()
        return {
            "metadata": driver.uri,
            "layout": driver.layout,
            "instance_id": await driver.instance_id(),
            "ledgers": found.ledgers,
            "bookies": {mode: len(each) for mode, each in found.bookies.items()},
            "cookies": len(found.cookies),
            "records": found.records,
            "marks": found.marks,
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
    print(f"{'ids':12} next {facts['next_id']:,}, {facts['spent_ids']:,} spent by deleted ledgers")
    return 0


# -- check ------------------------------------------------------------------------------------------------------------


async def _check(arguments: argparse.Namespace) -> int:
    from bookies.admin.verbs.metadata_check import check

    async def body(driver: MetadataDriver) -> int:
        progress = Progress("ledgers", None, quiet=arguments.json)
        report = await check(driver, progress.update)
        progress.clear()
        is_wrong = any(each.is_fault for each in report.findings)
        if arguments.json:
            rows = [{"name": each.name, "subject": each.subject, "detail": each.detail} for each in report.findings]
            counts = {"ledgers": report.ledgers, "cookies": report.cookies, "logs": report.logs}
            print_json({"metadata": driver.uri, **counts, "findings": rows, "ok": not is_wrong})
            return int(is_wrong)
        if report.findings:
            print_table(
                [(each.name, each.subject or "-", each.detail) for each in report.findings],
                ("finding", "of", "what"),
            )
        looked = f"{report.ledgers:,} ledgers, {report.cookies:,} cookies, {report.logs:,} logs"
        print(f"{looked}: {'see above' if is_wrong else 'nothing wrong'}", file=sys.stderr)
        return int(is_wrong)

    return await with_driver(metadata_uri(arguments), body, must_be_cluster=False)


# -- migrate ----------------------------------------------------------------------------------------------------------


async def _migrate(arguments: argparse.Namespace) -> int:
    if _place(arguments.source) == _place(arguments.target):
        raise UsageError("FROM and TO are the same store")
    refuse_memory(arguments.target)
    return await with_driver(arguments.source, lambda source: _migrate_from(source, arguments))


def _place(uri: str) -> object:
    """The same for two spellings of one store."""
    from bookies.errors import ConfigError
    from bookies.metadata.zookeeper.zk_layout import parse_uri

    if uri.startswith("file:"):
        return os.path.realpath(uri.removeprefix("file:").removeprefix("//"))
    if uri.startswith("zk"):
        try:
            place = parse_uri(uri)
        except ConfigError:
            return uri  # Opening it says what is wrong.
        return sorted(place.hosts.split(",")), place.root
    return uri


async def _migrate_from(source: MetadataDriver, arguments: argparse.Namespace) -> int:
    from bookies.metadata.survey import objections, survey

    progress = Progress("ledgers", None)
    found = await survey(source, progress.update)
    progress.clear()
    texts = objections(found)
    for text in texts:
        print(f"bk metadata: {text}", file=sys.stderr)
    is_refused = bool(texts) and not arguments.force
    if is_refused and not arguments.dry_run:
        print("bk metadata: nothing was changed; --force does it all the same", file=sys.stderr)
        return 1
    if arguments.dry_run:
        counts = {"ledgers": found.ledger_count, "cookies": len(found.cookies), "records": found.records}
        if arguments.json:
            print_json({**counts, "objections": texts})
        else:
            print(f"would move {', '.join(f'{count:,} {kind}' for kind, count in counts.items())}")
        return int(is_refused)
    total = found.ledger_count
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
        raise UsageError("FROM and TO are the same store by two names: versions are the same in both")
    if was_there:
        left = [each async for each in differences(source, target, progress.update)]
        if not left:
            await filling.finish()
    else:
        try:
            left = await copy(source, target, filling, progress.update)
        except asyncio.CancelledError:
            progress.note(f"{target.uri} is half filled, and no cluster yet: say the same again")
            raise
    progress.clear()
    if left:
        return _not_moved(arguments, left, was_there)
    facts = {"from": source.uri, "to": target.uri, "instance_id": instance_id, "ledgers": total}
    if arguments.json:
        print_json({**facts, "was_there": was_there, "differences": []})
        return 0
    print(f"{'is there, and the same' if was_there else 'moved and compared'}: {total:,} ledgers of {instance_id}")
    print(f"next: start bookies and clients with --metadata '{target.uri}', and none with the old one, ever:", end=" ")
    print("it is still complete, so move it out of the way")
    return 0


def _not_moved(arguments: argparse.Namespace, left: list[Difference], was_there: bool) -> int:
    """Exit status 1, and why."""
    if arguments.json:
        rows = [{"what": each.what, "detail": each.detail} for each in left]
        print(json.dumps({"was_there": was_there, "differences": rows}))
    for each in left[:_SHOWN]:
        print(f"bk metadata: {each.what} {each.detail}", file=sys.stderr)
    if len(left) > _SHOWN:
        print(f"bk metadata: and {len(left) - _SHOWN:,} more", file=sys.stderr)
    text = (
        "the target is this cluster already, and not the same any more: one of the two stores has been used since; "
        "nothing was changed"
        if was_there
        else "the old store changed meanwhile, so the new one was not made a cluster: stop what uses it, say it again"
    )
    print(f"bk metadata: {text}", file=sys.stderr)
    return 1
