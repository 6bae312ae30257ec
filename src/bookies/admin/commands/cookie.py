"""`bk cookie`: the cookies of bookies in the metadata store. Their purpose: docs/howto/fix-a-refused-start.md."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from bookies.admin.shared import Progress, UsageError
from bookies.admin.shared.common import add_common, metadata_uri, print_json, print_table, run_async, with_driver

if TYPE_CHECKING:
    from bookies.config import BookieConfig
    from bookies.metadata.interface import MetadataDriver
    from bookies.model import BookieId
    from bookies.storage.identity import Cookie


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    add_common(
        verbs.add_parser("list", help="list the bookies that have a cookie", epilog="example:  bk cookie list --json")
    )
    get = verbs.add_parser("get", help="print a cookie as it is stored", epilog="example:  bk cookie get b1")
    add_common(get)
    get.add_argument("bookie", metavar="ID", help="id of the bookie")
    for verb, text in (
        ("create", "store the cookie of a bookie that has none"),
        ("update", "replace the stored cookie of a bookie"),
    ):
        verb_parser = verbs.add_parser(
            verb,
            help=f"{text}, from a file such as VERSION",
            description="The file must be a cookie of this bookie and of this cluster. A bookie starts only if the "
            "stored cookie and those in its directories agree.",
            epilog=f"example:  bk cookie {verb} b1 /d1/ledgers/current/VERSION",
        )
        add_common(verb_parser)
        verb_parser.add_argument("bookie", metavar="ID", help="id of the bookie")
        verb_parser.add_argument("file", metavar="FILE", help="cookie, such as current/VERSION of a directory")
        verb_parser.add_argument("--dry-run", action="store_true", help="check the file, report what would be stored")
    delete = verbs.add_parser(
        "delete",
        help="delete a bookie's cookie: the cluster forgets the bookie",
        description="Refuses while the bookie is registered. Refuses while ledgers have entries on it: a new bookie of "
        "this name would report them as missing. Copy them to other bookies first: bk bookie recover.",
        epilog="example:  bk cookie delete b1 --dry-run",
    )
    add_common(delete)
    delete.add_argument("bookie", metavar="ID", help="id of the bookie")
    delete.add_argument("--dry-run", action="store_true", help="report the objections, delete nothing")
    delete.add_argument(
        "--force", action="store_true", help="delete even if ledgers have entries on it, or the cookie is unreadable"
    )
    _configure_generate(verbs)


def _configure_generate(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    generate = verbs.add_parser(
        "generate",
        help="print the cookie of a bookie with these directories, without storing it",
        epilog="example:  bk cookie generate --bookie-id b1 --journal-dir /j --ledger-dir /d1 > VERSION",
    )
    add_common(generate)
    generate.add_argument("--conf", metavar="FILE", help="Apache's bk_server.conf")
    generate.add_argument("--bookie-id", metavar="ID", default=None, help="id of the bookie")
    generate.add_argument(
        "--journal-dir", action="append", default=None, metavar="DIR", help="directory of journals; may be repeated"
    )
    generate.add_argument(
        "--ledger-dir", action="append", default=None, metavar="DIR", help="directory of entry logs; may be repeated"
    )
    generate.add_argument(
        "--index-dir", action="append", default=None, metavar="DIR", help="directory of index files; may be repeated"
    )
    generate.add_argument(
        "--instance-id", default=None, metavar="ID", help="instance id of the cluster (default: read from its store)"
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.verb == "generate":
        return run_async(lambda: _generate(arguments))
    verbs = {"list": _list, "get": _get, "create": _store, "update": _store, "delete": _delete}
    return run_async(
        lambda: with_driver(metadata_uri(arguments), lambda driver: verbs[arguments.verb](driver, arguments))
    )


# -- reading ----------------------------------------------------------------------------------------------------------


async def _list(driver: MetadataDriver, arguments: argparse.Namespace) -> int:
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
    if arguments.json:
        print_json(rows)
        return 0
    print_table(
        [
            (line["bookie"], line["mode"], line.get("unreadable") or ", ".join(map(str, _directories(line))))
            for line in rows
        ],
        ("bookie", "mode", "directories"),
    )
    return 0


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


async def _get(driver: MetadataDriver, arguments: argparse.Namespace) -> int:
    from bookies.storage.identity.cookie import parse

    bookie, data, version = await _stored(driver, arguments)
    if arguments.json:
        print_json({"bookie": bookie, "version": version, **_facts(parse(data, path=f"cookie of {bookie}"))})
    else:
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


async def _store(driver: MetadataDriver, arguments: argparse.Namespace) -> int:
    from bookies.metadata.formats.serde import is_bookie_id
    from bookies.model import BookieId
    from bookies.storage.identity.cookie import parse

    data = _read(arguments.file)
    cookie, instance_id = parse(data, path=arguments.file), await driver.instance_id()
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
    print_json({"bookie": bookie, **_facts(cookie)}) if arguments.json else print(
        f"the cookie of {bookie} {word} stored"
    )
    return 0


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}. Nothing was changed") from error


async def _delete(driver: MetadataDriver, arguments: argparse.Namespace) -> int:
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
    for text in texts:
        print(f"bk cookie: {text}", file=sys.stderr)
    is_refused = bool(texts) and not arguments.force
    if is_refused and not arguments.dry_run:
        print("bk cookie: nothing was changed; --force overrides the objections", file=sys.stderr)
    if not arguments.dry_run and not is_refused:
        await driver.delete_cookie(bookie, version)
    if arguments.json:
        print_json({"bookie": bookie, "objections": texts, "deleted": not arguments.dry_run and not is_refused})
    elif arguments.dry_run:
        print(f"the cookie of {bookie} would be deleted" if not is_refused else f"the cookie of {bookie} would be kept")
    elif not is_refused:
        print(f"the cookie of {bookie} is deleted: the cluster has forgotten the bookie")
    return int(is_refused)


async def _generate(arguments: argparse.Namespace) -> int:
    from bookies.bookie.identity import check_identity, identity
    from bookies.config import validate
    from bookies.storage.identity.cookie import master_cookie

    config, uri = _config(arguments)
    check_identity(validate(config))
    instance_id = arguments.instance_id or await with_driver(uri or metadata_uri(arguments), _instance_id)
    cookie = master_cookie(config, identity(config), instance_id)
    if arguments.json:
        print_json({"bookie": cookie.bookie, **_facts(cookie), "text": cookie.pack()})
    else:
        sys.stdout.write(cookie.pack().decode("utf-8"))
    return 0


async def _instance_id(driver: MetadataDriver) -> str | None:
    return await driver.instance_id()


def _config(arguments: argparse.Namespace) -> tuple[BookieConfig, str | None]:
    """Return the bookie's settings, and the store that its file names unless `--metadata` names one."""
    from bookies.admin.shared.apache_conf import read_conf
    from bookies.config import BookieConfig

    conf = None if arguments.conf is None else read_conf(arguments.conf)
    settings = {} if conf is None else dict(conf.settings)
    given = {
        "bookie_id": arguments.bookie_id,
        "journal_directories": arguments.journal_dir and tuple(arguments.journal_dir),
        "ledger_directories": arguments.ledger_dir and tuple(arguments.ledger_dir),
        "index_directories": arguments.index_dir and tuple(arguments.index_dir),
    }
    settings |= {name: value for name, value in given.items() if value}
    for name in ("journal_directories", "ledger_directories"):
        if name not in settings:
            raise UsageError(
                f"name the bookie's {name.replace('_', ' ')} with --{name[:-12]}-dir DIR, or its --conf FILE"
            )
    if conf is None and not arguments.bookie_id:
        raise UsageError("name the bookie: --bookie-id ID")
    return BookieConfig(**settings), conf.metadata_uri if conf is not None and not arguments.metadata else None
