"""`bk bookie`: run a bookie, list and show bookies, copy the ledgers of a lost one, and the verbs in `admin/verbs`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from bookies.admin.shared import UsageError
from bookies.admin.shared.command_line import BOOKIE, JOURNAL_DIR, LEDGER_DIR, MACHINE, RATE, OneOf, Option, verb
from bookies.admin.shared.common import (
    metadata_uri,
    on_client,
    on_session,
    run_async,
    size_text,
    web_site,
    with_driver,
)
from bookies.admin.shared.file_systems import VOLATILE, VOLATILE_REMEDY, file_system_of
from bookies.admin.shared.notes_text import announced_facts, announced_text, read_notes
from bookies.admin.shared.report import Report, Table, print_text
from bookies.admin.verbs import balance, control, drain, format_command, rename, scrub

if TYPE_CHECKING:
    from bookies.admin.shared import Session
    from bookies.bookie.main import Around
    from bookies.bookie.server import BookieServer
    from bookies.client.client import Client
    from bookies.client.transport import BookieStatus
    from bookies.config import BookieConfig
    from bookies.metadata.interface import MetadataDriver
    from bookies.replication.daemon.process import BesideBookie
    from bookies.runtime.ports import Runtime
    from bookies.settings import Given, Layer, Resolved


def _run(arguments: argparse.Namespace) -> Report | int:
    from dataclasses import fields

    from bookies.bookie import main
    from bookies.config import BookieConfig, RecoveryConfig

    if arguments.list_settings:
        settings = (*fields(BookieConfig), *fields(RecoveryConfig))
        rows = [(setting.name, setting.default, setting.metadata["help"]) for setting in settings]
        print_text([Table(("setting", "default", "meaning"), rows)])
        return 0
    resolved, file, uri = _bookie_of(arguments)
    config = resolved.config
    for directory, kind in _volatile(config):
        print(f"bk bookie: {directory} is on {kind}: {VOLATILE_REMEDY}", file=sys.stderr)
    if arguments.dry_run:
        return _changed_settings(config, uri)

    def ready(server: BookieServer) -> None:
        if arguments.ready_file:
            _write_ready_file(arguments.ready_file, main.ready_line(server))
        main.print_ready(server)

    def beside_bookie() -> BesideBookie:
        return _beside(config, arguments, file, uri)

    recovery = beside_bookie() if config.auto_recovery or config.log_housekeeping else None
    around = _http(config, uri, recovery)

    async def fetch_owed(server: BookieServer, runtime: Runtime) -> None:
        await server.store.limbo.has_any.wait()  # Most bookies never import the rest.
        await beside_bookie().run(server, runtime)

    beside = fetch_owed if recovery is None else recovery.run
    try:
        return main.run(config, uri, ready=ready, beside=beside, around=around, origins=resolved.origins)
    except Exception as error:  # also a broken pipe, which is no error in commands whose output is read
        if arguments.debug:
            raise
        print(f"bk bookie: the bookie broke off: {error!r}", file=sys.stderr)
        return main.EXIT_INTERNAL


def _volatile(config: BookieConfig) -> list[tuple[str, str]]:
    """Return the directories whose content does not last, and the kinds of their file systems."""
    from bookies.storage.identity.cookie import directories_of

    kinds = [(directory, file_system_of(directory)) for directory in directories_of(config)]
    return [(directory, kind) for directory, kind in kinds if kind in VOLATILE]


def _bookie_of(arguments: argparse.Namespace) -> tuple[Resolved[BookieConfig], Layer | None, str]:
    """Return the settings, those of Apache's file if one is named, and the metadata store.

    Raises `UsageError`, `ConfigError`.
    """
    conf = None
    if arguments.conf is not None:
        from bookies.admin.shared import apache_conf

        if arguments.config:
            raise UsageError("name one file: --config (bk.toml) or --conf (Apache's)")
        conf = apache_conf.read_conf(arguments.conf)
        apache_conf.print_notices(arguments.conf, conf.notices)
    file = None if conf is None else conf.layer(arguments.conf)
    uri = conf.metadata_uri if conf is not None and not _names_metadata(arguments) else None
    return bookie_settings(arguments, file), file, uri or metadata_uri(arguments)


async def _init(arguments: argparse.Namespace) -> Report:
    from dataclasses import replace

    from bookies.bookie.identity import admit, check_identity, identity
    from bookies.runtime import aio
    from bookies.runtime.events import Events
    from bookies.runtime.ports import Lock
    from bookies.storage.identity.admission import Decision

    resolved, _, uri = _bookie_of(arguments)
    bookie = identity(resolved.config)
    config = replace(resolved.config, new_bookies=(bookie,), lost_directories=())
    check_identity(config)
    for directory, kind in () if arguments.volatile else _volatile(config):
        raise UsageError(f"{directory} is on {kind}: {VOLATILE_REMEDY}. --volatile allows it, for trials")
    runtime = aio.runtime()

    async def stamp(driver: MetadataDriver) -> Decision:
        locks: list[Lock] = []
        try:
            events = Events("bookie", runtime.clock)
            return (await admit(runtime.disk, config, driver, locks, events, "")).decision
        finally:
            for lock in locks:
                lock.release()

    decision = await with_driver(uri, stamp)
    is_new = decision is not Decision.OK
    text = (
        f"bookie {bookie} is new: its directories and {uri} have its cookie"
        if is_new
        else (f"bookie {bookie} has its cookie already; nothing was changed")
    )
    return Report({"bookie": bookie, "metadata": uri, "changed": is_new}, [text])


def _beside(config: BookieConfig, arguments: argparse.Namespace, file: Layer | None, uri: str) -> BesideBookie:
    """Return the part of auto-recovery for the bookie's process that the settings ask for."""
    from bookies.config import ClientConfig, RecoveryConfig
    from bookies.configuration import configured, settings_of
    from bookies.metadata.uri import connect
    from bookies.replication.daemon.process import BesideBookie
    from bookies.runtime import aio

    runtime = aio.runtime()
    return BesideBookie(
        settings_of(RecoveryConfig, _set_options(arguments), file).config,
        configured(ClientConfig),
        lambda: connect(uri, runtime, may_create=False),
        repairs=config.auto_recovery,
        keeps_logs=config.log_housekeeping,
    )


def _http(config: BookieConfig, uri: str, recovery: BesideBookie | None) -> Around | None:
    """Return the HTTP server around the bookie, if the settings enable it. Raises `ConfigError`."""
    if config.http_port < 0:
        return None
    from bookies.config import ClientConfig
    from bookies.configuration import configured
    from bookies.metadata.uri import connect
    from bookies.runtime import aio

    site, runtime = web_site(), aio.runtime()
    from bookies.admin.remote import remote_api

    around: Around = site.beside_start(
        configured(ClientConfig),
        lambda: connect(uri, runtime, may_create=False),
        None if recovery is None or not config.auto_recovery else lambda: recovery.current,
        remote_api.routes,
        None if recovery is None else lambda: recovery.retention,
    )
    return around


def _names_metadata(arguments: argparse.Namespace) -> bool:
    return bool(arguments.metadata or os.environ.get("BK_METADATA"))


def bookie_settings(arguments: argparse.Namespace, file: Layer | None) -> Resolved[BookieConfig]:
    """Return the settings. Precedence: options, `--set`, the environment, the file (None: that of BK_CONFIG).

    Raises `UsageError`, `ConfigError`.
    """
    from bookies.config import BookieConfig
    from bookies.configuration import file_layer, settings_of
    from bookies.settings import Given

    given: dict[str, tuple[str, object]] = {
        "bookie_id": ("--bookie-id", arguments.bookie_id),
        "host": ("--host", arguments.host),
        "port": ("--port", arguments.port),
        "journal_directories": ("--journal-dir", arguments.journal_dir),
        "ledger_directories": ("--ledger-dir", arguments.ledger_dir),
        "index_directories": ("--index-dir", arguments.index_dir),
        "lease_ms": ("--lease-ms", arguments.lease_ms),
    }
    options = _set_options(arguments) | {
        name: Given(tuple(value) if isinstance(value, list) else value, "option", option)
        for name, (option, value) in given.items()
        if value not in (None, [])
    }
    layer = dict(file_layer(BookieConfig) if file is None else file)
    if arguments.host is not None:
        # --host names the address to listen on and the one to publish: it overrides the file's advertised host.
        layer.pop("advertised_host", None)
    return settings_of(BookieConfig, options, layer)


def _set_options(arguments: argparse.Namespace) -> dict[str, Given]:
    """Return the settings of `--set`, of the bookie and of its auto-recovery. Raises `UsageError`."""
    from dataclasses import fields

    from bookies.config import BookieConfig, RecoveryConfig
    from bookies.settings import Given

    options: dict[str, Given] = {}
    known = {field.name for config_type in (BookieConfig, RecoveryConfig) for field in fields(config_type)}
    for text in arguments.set:
        name, equals, value = text.partition("=")
        if not equals or name not in known:
            import difflib

            near = difflib.get_close_matches(name, known, 1)
            raise UsageError(
                f"--set {text}: no such setting{f'; did you mean {near[0]}?' if near else ''} (--list-settings)"
            )
        options[name] = Given(value, "option", f"--set {name}")
    return options


def _changed_settings(config: BookieConfig, uri: str) -> Report:
    """Return the settings of the bookie that differ from the default."""
    from dataclasses import fields

    from bookies.bookie.identity import check_identity, identity
    from bookies.metadata.uri import connect
    from bookies.runtime import aio

    check_identity(config)
    connect(uri, aio.runtime(), lease_ms=config.lease_ms)  # checks the URI; the store is not opened
    values = {field.name: (getattr(config, field.name), field.default) for field in fields(config)}
    rows = {name: value for name, (value, default) in values.items() if value != default}
    facts = {"bookie": identity(config), "metadata": uri, "settings": rows}
    return Report(facts, [f"bookie {identity(config)}, metadata {uri}", Table(("setting", "value"), rows.items())])


def _write_ready_file(path: str, text: str) -> None:
    """Write the ready file atomically. Print a warning if it cannot be written; the bookie serves anyway."""
    try:
        with open(f"{path}.tmp", "w") as file:
            file.write(f"{text}\n")
        os.replace(f"{path}.tmp", path)
    except OSError as error:
        print(f"cannot write the ready file {path}: {error.strerror}; the bookie serves anyway", file=sys.stderr)


async def _list(session: Session, arguments: argparse.Namespace) -> Report:
    if arguments.limit is not None and arguments.limit < 1:
        raise UsageError(f"--limit {arguments.limit}: must be at least 1")
    notes = (await read_notes(session.driver)).by_bookie
    bookies = [
        bookie
        for bookie in await session.client.bookies()
        if arguments.mode in (None, bookie.mode) and bookie.id > arguments.after
    ][: arguments.limit]
    rows: list[dict[str, Any]] = [_row(bookie) | announced_facts(notes.get(bookie.id)) for bookie in bookies]
    if arguments.space:
        from bookies.admin.verbs.cluster_health import about_all

        for row, facts in zip(rows, await about_all(session, bookies), strict=True):
            row |= facts
    cells = [
        (
            row["bookie"],
            row["mode"],
            row["address"] or "-",
            _place_text(row),
            *([_space_text(row)] if arguments.space else []),
            announced_text(row),
        )
        for row in rows
    ]
    space = ("disk free",) if arguments.space else ()
    return Report(rows, [Table(("bookie", "mode", "address", "location", *space, "announced"), cells)])


def _place_text(row: Mapping[str, Any]) -> str:
    """Return a bookie's location, and how near that is to this client, if it is known."""
    if row["location"] is None:
        return "-"
    return row["location"] if row["nearness"] == "unknown" else f"{row['location']} ({row['nearness']})"


def _space_text(row: Mapping[str, Any]) -> str:
    if "disk_free" not in row:
        return "-"
    return f"{size_text(row['disk_free'])} of {size_text(row['disk_total'])}"


def _row(bookie: BookieStatus) -> dict[str, object]:
    return {
        "bookie": bookie.id,
        "mode": bookie.mode,
        "address": bookie.address,
        "location": bookie.location,
        "nearness": bookie.nearness,
        "http": bookie.http,
    }


async def _show(session: Session, arguments: argparse.Namespace) -> Report:
    known = {bookie.id: bookie for bookie in await session.client.bookies()}
    if arguments.bookie not in known:
        raise UsageError(f"there is no bookie {arguments.bookie!r}; the cluster has {', '.join(known) or 'none'}")
    bookie = known[arguments.bookie]
    from bookies.admin.verbs.cluster_health import about_all

    row = _row(bookie) | (await about_all(session, [bookie]))[0]
    info = await session.driver.bookie_info(bookie.id)
    if info is not None:
        row |= {"endpoints": to_builtins(info.endpoints), "properties": dict(info.properties)}
    facts = announced_facts((await read_notes(session.driver)).by_bookie.get(bookie.id))
    lines = [
        f"{name:12} {size_text(float(str(value))) if name.startswith('disk') else value}"
        for name, value in (row | {"announced": announced_text(facts)}).items()
        if name not in ("endpoints", "properties", "reasons") or (name == "reasons" and value)
    ]
    for endpoint in () if info is None else info.endpoints:
        more = "".join(f" {word}" for word in (*endpoint.auth, *endpoint.extensions))
        lines.append(f"endpoint     {endpoint.id} {endpoint.protocol}://{endpoint.host}:{endpoint.port}{more}")
    lines += [f"property     {name}={value}" for name, value in (info.properties if info else {}).items()]
    return Report(row | facts, lines)


async def _test(session: Session, arguments: argparse.Namespace) -> Report:
    from bookies.model import BookieId
    from bookies.replication.operator.write_and_read import write_and_read

    if arguments.entries < 1 or arguments.timeout <= 0:
        raise UsageError("--entries and --timeout must be above 0")
    bookies = list(map(BookieId, dict.fromkeys(arguments.bookies)))
    modes = await session.driver.modes()
    for bookie in bookies:
        if bookie not in modes or modes[bookie].value != "writable":
            state = modes[bookie].value if bookie in modes else "not registered"
            raise UsageError(f"bookie {bookie} is {state}, so nothing can be written to it; bk bookie list")
    payloads = [b"entry %d" % number for number in range(arguments.entries)]
    problem = await write_and_read(session.client, bookies, payloads, arguments.timeout)
    facts = {"bookies": bookies, "entries": arguments.entries, "passed": not problem, "problem": problem}
    text = problem or f"{arguments.entries:,} entries written to {', '.join(bookies)}, read, and deleted"
    return Report(facts, [text], int(bool(problem)))


async def _recover(client: Client, arguments: argparse.Namespace) -> Report:
    from bookies.admin.verbs.replication import recover_bookies

    return await recover_bookies(client, arguments)


def _repair(arguments: argparse.Namespace) -> Report:
    from bookies.admin.verbs.repair import repair

    return repair(arguments)


def _convert(arguments: argparse.Namespace) -> Report:
    from bookies.admin.verbs.convert import convert

    return convert(arguments)


_DIRECTORY = Option("path DIR", "one of the bookie's directories; the cookie in it names the others")
_SETTINGS = (
    Option("--conf FILE", "Apache's bk_server.conf instead of --config; options and BK_... variables override it"),
    Option("--bookie-id", "fixed identity (default: host:port)"),
    Option("--host", "address to listen on and to publish (default 127.0.0.1)"),
    Option("--port", "TCP port (default 3181; 0: any, needs --bookie-id)", int),
    JOURNAL_DIR,
    LEDGER_DIR,
    Option(
        "--index-dir DIR",
        "directory of index files; may be repeated (default: the ledger directories)",
        may_repeat=True,
    ),
    Option("--lease-ms", "lease of the registration, in milliseconds (default 10000)", int),
    Option("--set NAME=VALUE", "set any setting; see `bk bookie run --list-settings`", may_repeat=True),
)


def _new_key(arguments: argparse.Namespace) -> Report:
    import secrets

    from bookies.errors import ConfigError
    from bookies.runtime.files import OsDisk
    from bookies.storage.sealing.keys_file import add_key
    from bookies.storage.sealing.sealed_format import KEY_SIZE, label_of

    path = os.path.abspath(arguments.file)
    try:
        key_id = label_of(add_key(OsDisk(), path, secrets.token_bytes(KEY_SIZE)))
    except ConfigError as error:
        raise UsageError(error.message) from error
    text = f"key {key_id} is the first one in {path}; bookies with encryption_keys_file={path} use it within seconds"
    return Report({"key": key_id, "file": path}, [text], remarks=["keep a copy: without the key its entries are lost"])


VERBS = (
    verb(
        "bookie run",
        "run a bookie in the foreground until SIGTERM",
        "bk bookie run --metadata file:/srv/bk/metadata --journal-dir /nvme/bk --ledger-dir /srv/bk",
        _run,
        *_SETTINGS,
        Option("--ready-file FILE", "file to write the address to, as JSON, once the bookie serves"),
        Option("--list-settings", "print every setting with default and help, and exit", bool),
        Option("--dry-run", "print the settings that differ from the default, and exit", bool),
    ),
    verb(
        "bookie init",
        "make a bookie on empty directories: write its cookie there and into the metadata store",
        "bk bookie init --metadata zk://zk1:2181/ledgers --config /etc/bookies/bk.toml",
        lambda arguments: run_async(lambda: _init(arguments)),
        *_SETTINGS,
        Option("--volatile", "allow directories that do not outlast the container (overlay, tmpfs)", bool),
        description="For bookies whose `new_bookies` does not name them: those refuse to start on empty directories "
        "until this command has run. Refuses what a start would refuse, and a store without a cluster. Leaves a bookie "
        "that exists as it is.",
    ),
    verb(
        "bookie list",
        "list the cluster's bookies with mode and address",
        "bk bookie list --mode down",
        on_session(_list),
        Option("--mode", "list only bookies in this mode", choices=("writable", "read-only", "down")),
        Option("--space", "also ask the bookies for the space on their disks", bool),
        Option("--after ID", "list only bookies with a greater id", default=""),
        Option("--limit COUNT", "list at most this number of bookies", int),
    ),
    verb(
        "bookie show",
        "show one bookie: address, mode, space, endpoints",
        "bk bookie show b1",
        on_session(_show),
        BOOKIE,
    ),
    verb(
        "bookie test",
        "write a ledger to bookies, read it, delete it; the exit status is 1 if that fails",
        "bk bookie test b1",
        on_session(_test),
        Option("bookies ID", "ids of the bookies; each gets every entry", values="+"),
        Option("--entries COUNT", "number of entries (default 10)", int, default=10),
        Option("--timeout SECONDS", "time for all of it (default 10)", float, default=10.0),
    ),
    verb(
        "bookie repair",
        "repair a stopped bookie from its own files",
        "bk bookie repair bk-data/b1/ledgers --dry-run",
        _repair,
        _DIRECTORY,
        Option("--dry-run", "report the damage, write no file", bool),
        description="Replays the journal, rebuilds damaged or missing index files from the entry logs, restores "
        "headers and marks. No data is deleted: replaced files are kept as *.damaged. Reports the remaining damage.",
        shared=MACHINE,
    ),
    verb(
        "bookie convert",
        "convert the RocksDB index of Apache's bookie (Pulsar's) to index files, or back",
        "bk bookie convert /srv/bk/ledgers --to index-files --dry-run",
        _convert,
        _DIRECTORY,
        OneOf(
            Option("--to", "format of the new index", choices=("index-files", "rocksdb")),
            Option("--discard-old", "delete the index that an earlier conversion kept", bool),
            Option("--cancel", "discard an interrupted conversion", bool),
            is_required=True,
        ),
        Option("--dry-run", "look up every entry, write no file", bool),
        Option(
            "--keep-damaged",
            "convert even if entries cannot be read; they stay in the index, and reads of them fail",
            bool,
        ),
        description="The bookie must be stopped. Looks up every entry, builds the new index, compares it with the old "
        "one, and then switches. Keeps the old index, and does not change entry logs and journals. Repeat the command "
        "after an interruption.",
        shared=MACHINE,
    ),
    verb(
        "bookie recover",
        "copy the replicas of lost bookies to others",
        "bk bookie recover b3 --dry-run",
        on_client(_recover),
        Option("bookies ID", "ids of the lost bookies", values="+"),
        Option("--ledger", "copy only this ledger (default: all)", int),
        Option("--dry-run", "report what would be copied, and where to", bool),
        Option("--skip-open", "skip ledgers that are being written", bool),
        Option("--skip-unrecoverable", "skip ledgers whose end cannot be determined", bool),
        Option("--force", "copy also from writable bookies, which continue to receive entries", bool),
        RATE,
        description="Copies all replicas that the metadata places on stopped or read-only bookies to other bookies. "
        "Open ledgers with entries on them are sealed first. Repeat the command after an interruption.",
    ),
    verb(
        "bookie new-key",
        "create a key for the encryption of stored entries, and make it the first one of a keys file",
        "bk bookie new-key /etc/bookies/keys",
        _new_key,
        Option("file FILE", "the bookies' encryption_keys_file; created if it is missing"),
        description="Running bookies use the key within seconds. The keys before it stay in the file, because they "
        "decrypt what was stored before. `bk bookie encryption` shows when a key is not needed any more. Keep a copy "
        "of the file: without it the entries are lost.",
    ),
    *drain.VERBS,
    *balance.VERBS,
    *rename.VERBS,
    *control.VERBS,
    *scrub.VERBS,
    *format_command.VERBS,
)
