"""`bk cookie`: the cookies of bookies in the metadata store. Their purpose: docs/howto/fix-a-refused-start.md."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from bookies.admin.shared import Progress, UsageError
from bookies.admin.shared.command_line import BOOKIE, JOURNAL_DIR, LEDGER_DIR, Option, verb
from bookies.admin.shared.common import metadata_uri, on_driver, run_async, with_driver
from bookies.admin.shared.operators import object_to
from bookies.admin.shared.report import Report, Table

if TYPE_CHECKING:
    from bookies.config import BookieConfig
    from bookies.metadata.interface import MetadataDriver
    from bookies.model import BookieId
    from bookies.storage.identity import Cookie


# -- reading ----------------------------------------------------------------------------------------------------------


async def _list(driver: MetadataDriver, arguments: argparse.Namespace) -> Report:
    from bookies.errors import CorruptRecord
    from bookies.metadata.transfer import read_cookie
    from bookies.storage.identity.cookie import parse

    modes = {bookie: mode.value for bookie, mode in (await driver.modes()).items()}
    rows: list[dict[str, object]] = []
    for bookie in (await driver.all_bookies()).bookies:
        stored = await read_cookie(driver, bookie)
        if stored is None:
            continue
        row: dict[str, object] = {"bookie": bookie, "mode": modes.get(bookie, "down")}
        try:
            row |= _facts(parse(stored.data, path=f"cookie of {bookie}"))
        except CorruptRecord as error:
            row["unreadable"] = error.message
        rows.append(row)
    cells = [
        (row["bookie"], row["mode"], row.get("unreadable") or ", ".join(map(str, _directories(row)))) for row in rows
    ]
    return Report(rows, [Table(("bookie", "mode", "directories"), cells)])


def _directories(row: dict[str, object]) -> list[object]:
    lists = [row[name] for name in ("journal_directories", "ledger_directories", "index_directories")]
    return list(dict.fromkeys(path for paths in lists if isinstance(paths, list) for path in paths))


def _facts(cookie: Cookie) -> dict[str, object]:
    return {
        "layout": cookie.layout,
        "instance_id": cookie.instance_id,
        "journal_directories": list(cookie.journals),
        "ledger_directories": list(cookie.ledger_directories),
        "index_directories": list(cookie.index_directories or ()),
    }


async def _get(driver: MetadataDriver, arguments: argparse.Namespace) -> Report | int:
    from bookies.storage.identity.cookie import parse

    bookie, data, version = await _stored(driver, arguments)
    if arguments.json:
        return Report({"bookie": bookie, "version": version, **_facts(parse(data, path=f"cookie of {bookie}"))})
    sys.stdout.write(data.decode("utf-8", "backslashreplace"))
    return 0


async def _stored(driver: MetadataDriver, arguments: argparse.Namespace) -> tuple[BookieId, bytes, int]:
    """Return (bookie, cookie, version). Raises `UsageError` that lists the known bookies."""
    from bookies.errors import CookieNotFound
    from bookies.model import BookieId

    bookie = BookieId(arguments.bookie)
    try:
        return bookie, *await driver.read_cookie(bookie)
    except CookieNotFound:
        known = ", ".join((await driver.all_bookies()).bookies) or "none"
        raise UsageError(
            f"bookie {bookie} has no cookie in the metadata store; bookies with a cookie: {known}"
        ) from None


# -- changing ---------------------------------------------------------------------------------------------------------


async def _store(driver: MetadataDriver, arguments: argparse.Namespace) -> Report:
    from msgspec.structs import replace

    from bookies.metadata.formats.serde import is_bookie_id
    from bookies.model import BookieId
    from bookies.storage.identity.cookie import parse

    data = _read(arguments.file)
    cookie, instance_id = parse(data, path=arguments.file), await driver.instance_id()
    if cookie.is_encrypted:  # that is a fact about the directory
        data = replace(cookie, is_encrypted=False).pack()
    if not is_bookie_id(arguments.bookie) or cookie.bookie != arguments.bookie:
        raise UsageError(f"{arguments.file} is the cookie of bookie {cookie.bookie}, not of {arguments.bookie}")
    if cookie.instance_id not in (None, instance_id):
        raise UsageError(
            f"{arguments.file} belongs to cluster {cookie.instance_id}, but {driver.uri} is {instance_id}. "
            "Nothing was changed"
        )
    bookie = BookieId(arguments.bookie)
    if arguments.verb == "update":
        _, before, version = await _stored(driver, arguments)
        if not arguments.dry_run and before != data:
            await driver.write_cookie(bookie, data, version)
    elif not arguments.dry_run:
        await driver.create_cookie(bookie, data)
    word = "would be" if arguments.dry_run else "is"
    return Report({"bookie": bookie, **_facts(cookie)}, [f"the cookie of {bookie} {word} stored"])


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}. Nothing was changed") from error


async def _delete(driver: MetadataDriver, arguments: argparse.Namespace) -> Report:
    from bookies.bookie import formatting
    from bookies.errors import CorruptRecord
    from bookies.storage.identity import Cookie

    bookie, _, version = await _stored(driver, arguments)
    progress, texts = Progress("ledgers", None, quiet=arguments.json), []
    try:
        findings = await formatting.find_stored(driver, bookie)
        await formatting.look_up(driver, findings, progress.update)
    except CorruptRecord as error:
        texts = [f"the cookie of {bookie} cannot be read: {error.message}; replace it with `bk cookie update`"]
        findings = formatting.Findings(Cookie(bookie, "", ()), [])
        await formatting.check_stopped(driver, bookie)
        await formatting.find_ledgers(driver, findings, progress.update)
    progress.clear()
    texts += formatting.objections(findings)
    is_refused = object_to("cookie", texts, arguments)
    if not arguments.dry_run and not is_refused:
        await driver.delete_cookie(bookie, version)
    if arguments.dry_run:
        text = [f"the cookie of {bookie} would be {'kept' if is_refused else 'deleted'}"]
    else:
        text = [] if is_refused else [f"the cookie of {bookie} is deleted: the cluster has forgotten the bookie"]
    facts = {"bookie": bookie, "objections": texts, "deleted": not arguments.dry_run and not is_refused}
    return Report(facts, text, int(is_refused))


async def _generate(arguments: argparse.Namespace) -> Report | int:
    from bookies.bookie.identity import check_identity, identity
    from bookies.config import validate
    from bookies.storage.identity.cookie import master_cookie

    config, uri = _config(arguments)
    check_identity(validate(config))
    instance_id = arguments.instance_id or await with_driver(uri or metadata_uri(arguments), _instance_id)
    cookie = master_cookie(config, identity(config), instance_id)
    if arguments.json:
        return Report({"bookie": cookie.bookie, **_facts(cookie), "text": cookie.pack()})
    sys.stdout.write(cookie.pack().decode("utf-8"))
    return 0


async def _instance_id(driver: MetadataDriver) -> str | None:
    return await driver.instance_id()


def _config(arguments: argparse.Namespace) -> tuple[BookieConfig, str | None]:
    """Return the bookie's settings, and the store that its file names unless `--metadata` names one."""
    from bookies.admin.shared.apache_conf import read_conf
    from bookies.config import BookieConfig
    from bookies.configuration import settings_of
    from bookies.settings import Given

    conf = None if arguments.conf is None else read_conf(arguments.conf)
    given = {
        "bookie_id": arguments.bookie_id,
        "journal_directories": arguments.journal_dir and tuple(arguments.journal_dir),
        "ledger_directories": arguments.ledger_dir and tuple(arguments.ledger_dir),
        "index_directories": arguments.index_dir and tuple(arguments.index_dir),
    }
    options = {name: Given(value, "option", name) for name, value in given.items() if value}
    settings = settings_of(BookieConfig, options, None if conf is None else conf.layer(arguments.conf))
    for name in ("journal_directories", "ledger_directories"):
        if name not in settings.origins:
            raise UsageError(
                f"name the bookie's {name.replace('_', ' ')} with --{name[:-12]}-dir DIR, --conf or --config FILE"
            )
    if conf is None and not settings.config.bookie_id:
        raise UsageError("name the bookie: --bookie-id ID")
    return settings.config, conf.metadata_uri if conf is not None and not arguments.metadata else None


_CHECKED = (
    "The file must be a cookie of this bookie and of this cluster. A bookie starts only if the stored cookie and those "
    "in its directories agree."
)
_STORED = (
    BOOKIE,
    Option("file FILE", "cookie, such as current/VERSION of a directory"),
    Option("--dry-run", "check the file, report what would be stored", bool),
)
VERBS = (
    verb("cookie list", "list the bookies that have a cookie", "bk cookie list --json", on_driver(_list)),
    verb("cookie get", "print a cookie as it is stored", "bk cookie get b1", on_driver(_get), BOOKIE),
    verb(
        "cookie create",
        "store the cookie of a bookie that has none, from a file such as VERSION",
        "bk cookie create b1 /d1/ledgers/current/VERSION",
        on_driver(_store),
        *_STORED,
        description=_CHECKED,
    ),
    verb(
        "cookie update",
        "replace the stored cookie of a bookie, from a file such as VERSION",
        "bk cookie update b1 /d1/ledgers/current/VERSION",
        on_driver(_store),
        *_STORED,
        description=_CHECKED,
    ),
    verb(
        "cookie delete",
        "delete a bookie's cookie: the cluster forgets the bookie",
        "bk cookie delete b1 --dry-run",
        on_driver(_delete),
        BOOKIE,
        Option("--dry-run", "report the objections, delete nothing", bool),
        Option("--force", "delete even if ledgers have entries on it, or the cookie is unreadable", bool),
        description="Refuses while the bookie is registered. Refuses while ledgers have entries on it: a new bookie "
        "of this name would report them as missing. Copy them to other bookies first: bk bookie recover.",
    ),
    verb(
        "cookie generate",
        "print the cookie of a bookie with these directories, without storing it",
        "bk cookie generate --bookie-id b1 --journal-dir /j --ledger-dir /d1 > VERSION",
        lambda arguments: run_async(lambda: _generate(arguments)),
        Option("--conf FILE", "Apache's bk_server.conf"),
        Option("--bookie-id ID", "id of the bookie"),
        JOURNAL_DIR,
        LEDGER_DIR,
        Option("--index-dir DIR", "directory of index files; may be repeated", may_repeat=True),
        Option("--instance-id ID", "instance id of the cluster (default: read from its store)"),
    ),
)
