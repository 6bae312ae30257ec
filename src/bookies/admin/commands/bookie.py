"""`bk bookie`: run one, list them, show one, copy what a lost one held to others, and what `admin/verbs/control.py` does."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bookies.admin.shared import UsageError
from bookies.admin.shared.common import (
    add_common,
    add_rate,
    metadata_uri,
    print_json,
    print_table,
    size_text,
    with_client,
    with_session,
)
from bookies.admin.shared.notes_text import announced_facts, announced_text, read_notes
from bookies.admin.verbs import balance, control, drain, format_command, scrub

if TYPE_CHECKING:
    from bookies.admin.shared import Session
    from bookies.apache.server import BookieOptions
    from bookies.bookie.main import Beside
    from bookies.bookie.server import BookieServer
    from bookies.client.client import Client
    from bookies.client.transport import BookieStatus
    from bookies.config import BookieConfig


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    run_parser = verbs.add_parser(
        "run",
        help="run a bookie in the foreground until SIGTERM",
        epilog="example:  bk bookie run --metadata file:/srv/bk/metadata --journal-dir /nvme/bk --ledger-dir /srv/bk",
    )
    add_common(run_parser)
    run_parser.add_argument(
        "--conf", metavar="FILE", help="Apache's bk_server.conf; options and BK_... variables outdo it"
    )
    run_parser.add_argument("--bookie-id", default=None, help="fixed identity (default: host:port)")
    run_parser.add_argument("--host", default=None, help="address to listen on and to publish (default 127.0.0.1)")
    run_parser.add_argument("--port", type=int, default=None, help="TCP port (default 3181; 0: any, needs --bookie-id)")
    run_parser.add_argument("--journal-dir", action="append", default=None, metavar="DIR", help="may be repeated")
    run_parser.add_argument("--ledger-dir", action="append", default=None, metavar="DIR", help="may be repeated")
    run_parser.add_argument("--index-dir", action="append", default=None, metavar="DIR", help="may be repeated")
    run_parser.add_argument("--lease-ms", type=int, default=None, help="registration lease (default 10000)")
    run_parser.add_argument("--ready-file", metavar="FILE", help="written when it serves: its address as JSON")
    run_parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="any setting; --list-settings names them"
    )
    run_parser.add_argument(
        "--list-settings", action="store_true", help="print every setting with default and help, and end"
    )
    run_parser.add_argument(
        "--dry-run", action="store_true", help="print what it would run with, as far as it is not the default, and end"
    )
    list_parser = verbs.add_parser(
        "list", help="every bookie of the cluster and its mode", epilog="example:  bk bookie list --json"
    )
    add_common(list_parser)
    show_parser = verbs.add_parser(
        "show", help="one bookie: address, mode, space", epilog="example:  bk bookie show b1"
    )
    add_common(show_parser)
    show_parser.add_argument("bookie", metavar="ID")
    repair_parser = verbs.add_parser(
        "repair",
        help="put right what can be, with the files alone, of a bookie that is stopped",
        description="Replays the journal, builds damaged or missing index files again from the entry logs, restores "
        "headers and marks. Nothing is deleted; what is replaced is kept as *.damaged. Says what is left to be done.",
        epilog="example:  bk bookie repair bk-data/b1/ledgers --dry-run",
    )
    add_common(repair_parser, metadata=False)
    repair_parser.add_argument("path", metavar="DIR", help="one of its directories; its cookie names the others")
    repair_parser.add_argument("--dry-run", action="store_true", help="only say what is damaged, write nothing")
    _configure_convert(verbs)
    recover_parser = verbs.add_parser(
        "recover",
        help="copy what lost bookies held to others",
        description="Copy all that stopped or read-only bookies hold, by the metadata, to other bookies. Ledgers that "
        "are being written to them are sealed first. What was interrupted is simply repeated.",
        epilog="example:  bk bookie recover b3 --dry-run",
    )
    add_common(recover_parser)
    recover_parser.add_argument("bookies", metavar="ID", nargs="+")
    recover_parser.add_argument("--ledger", type=int, default=None, help="only this one (default: all)")
    recover_parser.add_argument("--dry-run", action="store_true", help="say what would be copied where")
    recover_parser.add_argument("--skip-open", action="store_true", help="leave ledgers alone that are being written")
    recover_parser.add_argument(
        "--skip-unrecoverable", action="store_true", help="leave ledgers alone whose end cannot be decided"
    )
    recover_parser.add_argument(
        "--force", action="store_true", help="also bookies that are writable, and go on receiving entries"
    )
    add_rate(recover_parser)
    drain.configure(verbs)
    balance.configure(verbs)
    control.configure(verbs)
    scrub.configure(verbs)
    format_command.configure(verbs)


def _configure_convert(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "convert",
        help="turn the RocksDB index of Apache's bookie (Pulsar's) into index files, or back",
        description="The bookie has to be stopped. Entry logs and journals stay as they are. Every entry is looked up, "
        "the new index is compared with the old one, and only then takes its place; the old one is kept. What was "
        "interrupted is simply repeated.",
        epilog="example:  bk bookie convert /srv/bk/ledgers --to index-files --dry-run",
    )
    add_common(parser, metadata=False)
    parser.add_argument("path", metavar="DIR", help="one of its directories; its cookie names the others")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--to", choices=("index-files", "rocksdb"), help="what the index becomes")
    what.add_argument("--discard-old", action="store_true", help="remove the index that an earlier conversion kept")
    what.add_argument("--cancel", action="store_true", help="give up a conversion that was interrupted")
    parser.add_argument("--dry-run", action="store_true", help="read and look up everything, write nothing")
    parser.add_argument(
        "--keep-damaged",
        action="store_true",
        help="go on although entries cannot be read: they stay in the index, and are answered with an error",
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.verb == "run":
        return _run(arguments)
    if arguments.verb == "format":
        return format_command.run(arguments)
    if arguments.verb == "scrub":
        return scrub.run(arguments)
    if arguments.verb == "balance":
        return balance.run(arguments)
    if arguments.verb in drain.VERBS:
        return drain.run(arguments)
    if arguments.verb in control.VERBS:
        return control.run(arguments)
    if arguments.verb == "repair":
        from bookies.admin.verbs.repair import repair

        return repair(arguments)
    if arguments.verb == "convert":
        from bookies.admin.verbs.convert import convert

        return convert(arguments)
    if arguments.verb == "recover":
        return with_client(arguments, lambda client: _recover(client, arguments))
    if arguments.verb == "list":
        return with_session(arguments, lambda session: _list(session, arguments))
    return with_session(arguments, lambda session: _show(session, arguments))


def _run(arguments: argparse.Namespace) -> int:
    from dataclasses import fields

    from bookies.bookie import main
    from bookies.config import BookieConfig, RecoveryConfig
    from bookies.errors import BookKeeperError, ConfigError

    if arguments.list_settings:
        print_table(
            [
                (each.name, each.default, each.metadata["help"])
                for kind in (BookieConfig, RecoveryConfig)
                for each in fields(kind)
            ],
            ("setting", "default", "meaning"),
        )
        return 0
    conf = None
    if arguments.conf is not None:
        from bookies.admin.shared import apache_conf

        conf = apache_conf.read_conf(arguments.conf)
    try:
        config = bookie_config(arguments, {} if conf is None else conf.settings)
    except ConfigError as error:
        raise (error if conf is None else conf.explained(error, arguments.conf)) from None
    uri = conf.metadata_uri if conf is not None and not _names_metadata(arguments) else None
    uri = uri or metadata_uri(arguments)
    if conf is not None:
        apache_conf.say(arguments.conf, conf.notices)
    if arguments.dry_run:
        return _show_settings(arguments, config, uri)

    def ready(server: BookieServer) -> None:
        if arguments.ready_file:
            _write_ready_file(arguments.ready_file, main.ready_line(server))
        main.print_ready(server)

    try:
        return main.run(config, uri, ready=ready, beside=_beside(config, arguments, conf, uri))
    except BrokenPipeError as error:
        # A bookie has no reader who may have seen enough: this is never a good end.
        raise BookKeeperError(f"the bookie broke off: {error}") from error


def _beside(config: BookieConfig, arguments: argparse.Namespace, conf: BookieOptions | None, uri: str) -> Beside | None:
    """Auto-recovery in the bookie's process, if it is to take part."""
    if not config.auto_recovery:
        return None
    from bookies.config import ClientConfig, RecoveryConfig, from_environment
    from bookies.metadata.uri import connect
    from bookies.replication.daemon.process import beside_bookie
    from bookies.runtime import aio

    settings = _environment(arguments, {} if conf is None else conf.recovery_settings)
    runtime = aio.runtime()
    return beside_bookie(
        from_environment(RecoveryConfig, settings),
        from_environment(ClientConfig),
        lambda: connect(uri, runtime, may_create=False),
    )


def _names_metadata(arguments: argparse.Namespace) -> bool:
    return bool(arguments.metadata or os.environ.get("BK_METADATA"))


def bookie_config(arguments: argparse.Namespace, from_file: Mapping[str, Any]) -> BookieConfig:
    """Settings from options, `--set`, the environment, and then a file. Raises UsageError, `ConfigError`."""
    from bookies.config import BookieConfig, from_environment

    given: dict[str, object] = {
        "bookie_id": arguments.bookie_id,
        "host": arguments.host,
        "port": arguments.port,
        "journal_directories": arguments.journal_dir,
        "ledger_directories": arguments.ledger_dir,
        "index_directories": arguments.index_dir,
        "lease_ms": arguments.lease_ms,
    }
    values = {
        name: tuple(value) if isinstance(value, list) else value for name, value in given.items() if value is not None
    }
    if arguments.host is not None and "advertised_host" in from_file:
        # Who names an address names the one to publish, too, unless the file's was meant for that alone.
        from_file = {name: value for name, value in from_file.items() if name != "advertised_host"}
    return from_environment(BookieConfig, _environment(arguments, from_file), **values)


def _environment(arguments: argparse.Namespace, from_file: Mapping[str, Any]) -> dict[str, str]:
    """`BK_...` variables: those of `--set`, the real ones, and what a file says. Raises UsageError."""
    from dataclasses import fields

    from bookies.config import BookieConfig, RecoveryConfig

    overrides: dict[str, str] = {}
    known = {each.name for kind in (BookieConfig, RecoveryConfig) for each in fields(kind)}
    for text in arguments.set:
        name, equals, value = text.partition("=")
        if not equals or name not in known:
            import difflib

            near = difflib.get_close_matches(name, known, 1)
            raise UsageError(
                f"--set {text}: no such setting{f'; did you mean {near[0]}?' if near else ''} (--list-settings)"
            )
        overrides[f"BK_{name.upper()}"] = value
    said: dict[str, str] = {}
    if from_file:
        from bookies.admin.shared.apache_conf import as_environment

        said = as_environment(dict(from_file))
    return {**said, **os.environ, **overrides}


def _show_settings(arguments: argparse.Namespace, config: BookieConfig, uri: str) -> int:
    """What a bookie would run with, as far as it is not the default."""
    from dataclasses import fields

    from bookies.bookie.identity import check_identity, identity
    from bookies.metadata.uri import connect
    from bookies.runtime import aio

    check_identity(config)
    connect(uri, aio.runtime(), lease_ms=config.lease_ms)  # which is only looked at, not opened
    rows = {each.name: getattr(config, each.name) for each in fields(config)}
    rows = {each.name: rows[each.name] for each in fields(config) if rows[each.name] != each.default}
    if arguments.json:
        print_json({"bookie": identity(config), "metadata": uri, "settings": rows})
        return 0
    print(f"bookie {identity(config)}, metadata {uri}")
    print_table(list(rows.items()), ("setting", "value"))
    return 0


def _write_ready_file(path: str, text: str) -> None:
    """Whole or not at all. A bookie that cannot serves all the same."""
    try:
        with open(f"{path}.tmp", "w") as file:
            file.write(f"{text}\n")
        os.replace(f"{path}.tmp", path)
    except OSError as error:
        print(f"cannot write the ready file {path}: {error.strerror}; the bookie serves", file=sys.stderr)


async def _list(session: Session, arguments: argparse.Namespace) -> int:
    bookies, notes = await session.client.bookies(), (await read_notes(session.driver)).by_bookie
    if arguments.json:
        print_json([_row(each) | announced_facts(notes.get(each.id)) for each in bookies])
    else:
        rows = [
            (
                each.id,
                each.mode,
                each.address or "-",
                each.location or "-",
                announced_text(announced_facts(notes.get(each.id))),
            )
            for each in bookies
        ]
        print_table(rows, ("bookie", "mode", "address", "location", "announced"))
    return 0


def _row(each: BookieStatus) -> dict[str, object]:
    return {"bookie": each.id, "mode": each.mode, "address": each.address, "location": each.location}


async def _show(session: Session, arguments: argparse.Namespace) -> int:
    known = {each.id: each for each in await session.client.bookies()}
    if arguments.bookie not in known:
        raise UsageError(f"no bookie named {arguments.bookie!r}; `bk bookie list` names {', '.join(known) or 'none'}")
    each = known[arguments.bookie]
    row = _row(each)
    if each.mode != "down":
        total, free = await session.client.bookie_space(each.id)
        row |= {"disk_total": total, "disk_free": free}
    facts = announced_facts((await read_notes(session.driver)).by_bookie.get(each.id))
    if arguments.json:
        print_json(row | facts)
        return 0
    for name, value in (row | {"announced": announced_text(facts)}).items():
        print(f"{name:12} {size_text(float(str(value))) if name.startswith('disk') else value}")
    return 0


async def _recover(client: Client, arguments: argparse.Namespace) -> int:
    from bookies.admin.verbs.replication import recover_bookies

    return await recover_bookies(
        client,
        arguments.bookies,
        ledger_id=arguments.ledger,
        dry_run=arguments.dry_run,
        skip_open=arguments.skip_open,
        skip_unrecoverable=arguments.skip_unrecoverable,
        force=arguments.force,
        bytes_per_s=arguments.rate,
        as_json=arguments.json,
    )
