"""`bk bookie`: run a bookie, list and show bookies, copy the ledgers of a lost one, and the verbs in `admin/verbs`."""

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
    _configure_run(verbs)
    list_parser = verbs.add_parser(
        "list", help="list the cluster's bookies with mode and address", epilog="example:  bk bookie list --json"
    )
    add_common(list_parser)
    show_parser = verbs.add_parser(
        "show", help="show one bookie: address, mode, space", epilog="example:  bk bookie show b1"
    )
    add_common(show_parser)
    show_parser.add_argument("bookie", metavar="ID", help="id of the bookie")
    repair_parser = verbs.add_parser(
        "repair",
        help="repair a stopped bookie from its own files",
        description="Replays the journal, rebuilds damaged or missing index files from the entry logs, restores "
        "headers and marks. No data is deleted: replaced files are kept as *.damaged. Reports the remaining damage.",
        epilog="example:  bk bookie repair bk-data/b1/ledgers --dry-run",
    )
    add_common(repair_parser, metadata=False)
    repair_parser.add_argument(
        "path", metavar="DIR", help="one of the bookie's directories; the cookie in it names the others"
    )
    repair_parser.add_argument("--dry-run", action="store_true", help="report the damage, write no file")
    _configure_convert(verbs)
    recover_parser = verbs.add_parser(
        "recover",
        help="copy the replicas of lost bookies to others",
        description="Copies all replicas that the metadata places on stopped or read-only bookies to other bookies. "
        "Open ledgers with entries on them are sealed first. Repeat the command after an interruption.",
        epilog="example:  bk bookie recover b3 --dry-run",
    )
    add_common(recover_parser)
    recover_parser.add_argument("bookies", metavar="ID", nargs="+", help="ids of the lost bookies")
    recover_parser.add_argument("--ledger", type=int, default=None, help="copy only this ledger (default: all)")
    recover_parser.add_argument("--dry-run", action="store_true", help="report what would be copied, and where to")
    recover_parser.add_argument("--skip-open", action="store_true", help="skip ledgers that are being written")
    recover_parser.add_argument(
        "--skip-unrecoverable", action="store_true", help="skip ledgers whose end cannot be determined"
    )
    recover_parser.add_argument(
        "--force", action="store_true", help="copy also from writable bookies, which continue to receive entries"
    )
    add_rate(recover_parser)
    drain.configure(verbs)
    balance.configure(verbs)
    control.configure(verbs)
    scrub.configure(verbs)
    format_command.configure(verbs)


def _configure_run(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    run_parser = verbs.add_parser(
        "run",
        help="run a bookie in the foreground until SIGTERM",
        epilog="example:  bk bookie run --metadata file:/srv/bk/metadata --journal-dir /nvme/bk --ledger-dir /srv/bk",
    )
    add_common(run_parser)
    run_parser.add_argument(
        "--conf", metavar="FILE", help="Apache's bk_server.conf; options and BK_... variables override it"
    )
    run_parser.add_argument("--bookie-id", default=None, help="fixed identity (default: host:port)")
    run_parser.add_argument("--host", default=None, help="address to listen on and to publish (default 127.0.0.1)")
    run_parser.add_argument("--port", type=int, default=None, help="TCP port (default 3181; 0: any, needs --bookie-id)")
    run_parser.add_argument(
        "--journal-dir", action="append", default=None, metavar="DIR", help="directory of journals; may be repeated"
    )
    run_parser.add_argument(
        "--ledger-dir", action="append", default=None, metavar="DIR", help="directory of entry logs; may be repeated"
    )
    run_parser.add_argument(
        "--index-dir",
        action="append",
        default=None,
        metavar="DIR",
        help="directory of index files; may be repeated (default: the ledger directories)",
    )
    run_parser.add_argument(
        "--lease-ms", type=int, default=None, help="lease of the registration, in milliseconds (default 10000)"
    )
    run_parser.add_argument(
        "--ready-file", metavar="FILE", help="file to write the address to, as JSON, once the bookie serves"
    )
    run_parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="set any setting; see --list-settings"
    )
    run_parser.add_argument(
        "--list-settings", action="store_true", help="print every setting with default and help, and exit"
    )
    run_parser.add_argument(
        "--dry-run", action="store_true", help="print the settings that differ from the default, and exit"
    )


def _configure_convert(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "convert",
        help="convert the RocksDB index of Apache's bookie (Pulsar's) to index files, or back",
        description="The bookie must be stopped. Looks up every entry, builds the new index, compares it with the old "
        "one, and then switches. Keeps the old index, and does not change entry logs and journals. Repeat the command "
        "after an interruption.",
        epilog="example:  bk bookie convert /srv/bk/ledgers --to index-files --dry-run",
    )
    add_common(parser, metadata=False)
    parser.add_argument(
        "path", metavar="DIR", help="one of the bookie's directories; the cookie in it names the others"
    )
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--to", choices=("index-files", "rocksdb"), help="format of the new index")
    action.add_argument("--discard-old", action="store_true", help="delete the index that an earlier conversion kept")
    action.add_argument("--cancel", action="store_true", help="discard an interrupted conversion")
    parser.add_argument("--dry-run", action="store_true", help="look up every entry, write no file")
    parser.add_argument(
        "--keep-damaged",
        action="store_true",
        help="convert even if entries cannot be read; they stay in the index, and reads of them fail",
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
                (field.name, field.default, field.metadata["help"])
                for config_type in (BookieConfig, RecoveryConfig)
                for field in fields(config_type)
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
        apache_conf.print_notices(arguments.conf, conf.notices)
    if arguments.dry_run:
        return _show_settings(arguments, config, uri)

    def ready(server: BookieServer) -> None:
        if arguments.ready_file:
            _write_ready_file(arguments.ready_file, main.ready_line(server))
        main.print_ready(server)

    try:
        return main.run(config, uri, ready=ready, beside=_beside(config, arguments, conf, uri))
    except BrokenPipeError as error:
        # Nothing reads a bookie's output, so a broken pipe is an error here, unlike in other commands.
        raise BookKeeperError(f"the bookie broke off: {error}") from error


def _beside(config: BookieConfig, arguments: argparse.Namespace, conf: BookieOptions | None, uri: str) -> Beside | None:
    """Return auto-recovery for the bookie's process, if the settings enable it."""
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
    """Return the settings. Precedence: options, `--set`, the environment, the file.

    Raises `UsageError`, `ConfigError`.
    """
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
        # --host names the address to listen on and the one to publish: it overrides the file's advertised host.
        from_file = {name: value for name, value in from_file.items() if name != "advertised_host"}
    return from_environment(BookieConfig, _environment(arguments, from_file), **values)


def _environment(arguments: argparse.Namespace, from_file: Mapping[str, Any]) -> dict[str, str]:
    """Return `BK_...` variables: those of `--set`, of the environment, of a file. Raises `UsageError`."""
    from dataclasses import fields

    from bookies.config import BookieConfig, RecoveryConfig

    overrides: dict[str, str] = {}
    known = {field.name for config_type in (BookieConfig, RecoveryConfig) for field in fields(config_type)}
    for text in arguments.set:
        name, equals, value = text.partition("=")
        if not equals or name not in known:
            import difflib

            near = difflib.get_close_matches(name, known, 1)
            raise UsageError(
                f"--set {text}: no such setting{f'; did you mean {near[0]}?' if near else ''} (--list-settings)"
            )
        overrides[f"BK_{name.upper()}"] = value
    file_variables: dict[str, str] = {}
    if from_file:
        from bookies.admin.shared.apache_conf import as_environment

        file_variables = as_environment(dict(from_file))
    return {**file_variables, **os.environ, **overrides}


def _show_settings(arguments: argparse.Namespace, config: BookieConfig, uri: str) -> int:
    """Print the settings of the bookie that differ from the default."""
    from dataclasses import fields

    from bookies.bookie.identity import check_identity, identity
    from bookies.metadata.uri import connect
    from bookies.runtime import aio

    check_identity(config)
    connect(uri, aio.runtime(), lease_ms=config.lease_ms)  # checks the URI; the store is not opened
    rows = {field.name: getattr(config, field.name) for field in fields(config)}
    rows = {field.name: rows[field.name] for field in fields(config) if rows[field.name] != field.default}
    if arguments.json:
        print_json({"bookie": identity(config), "metadata": uri, "settings": rows})
        return 0
    print(f"bookie {identity(config)}, metadata {uri}")
    print_table(list(rows.items()), ("setting", "value"))
    return 0


def _write_ready_file(path: str, text: str) -> None:
    """Write the ready file atomically. Print a warning if it cannot be written; the bookie serves anyway."""
    try:
        with open(f"{path}.tmp", "w") as file:
            file.write(f"{text}\n")
        os.replace(f"{path}.tmp", path)
    except OSError as error:
        print(f"cannot write the ready file {path}: {error.strerror}; the bookie serves anyway", file=sys.stderr)


async def _list(session: Session, arguments: argparse.Namespace) -> int:
    bookies, notes = await session.client.bookies(), (await read_notes(session.driver)).by_bookie
    if arguments.json:
        print_json([_row(bookie) | announced_facts(notes.get(bookie.id)) for bookie in bookies])
    else:
        rows = [
            (
                bookie.id,
                bookie.mode,
                bookie.address or "-",
                bookie.location or "-",
                announced_text(announced_facts(notes.get(bookie.id))),
            )
            for bookie in bookies
        ]
        print_table(rows, ("bookie", "mode", "address", "location", "announced"))
    return 0


def _row(bookie: BookieStatus) -> dict[str, object]:
    return {"bookie": bookie.id, "mode": bookie.mode, "address": bookie.address, "location": bookie.location}


async def _show(session: Session, arguments: argparse.Namespace) -> int:
    known = {bookie.id: bookie for bookie in await session.client.bookies()}
    if arguments.bookie not in known:
        raise UsageError(f"there is no bookie {arguments.bookie!r}; the cluster has {', '.join(known) or 'none'}")
    bookie = known[arguments.bookie]
    row = _row(bookie)
    if bookie.mode != "down":
        total, free = await session.client.bookie_space(bookie.id)
        row |= {"disk_total": total, "disk_free": free}
    facts = announced_facts((await read_notes(session.driver)).by_bookie.get(bookie.id))
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
