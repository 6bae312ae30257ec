"""`bk token`: the file of users of the HTTP server, with the hashes of their tokens."""

from __future__ import annotations

import argparse
import os
import pathlib
import secrets

from bookies.admin.shared import UsageError
from bookies.admin.shared.command_line import MACHINE, Option, verb
from bookies.admin.shared.report import Report, Table
from bookies.web.users import CERTIFICATE, ROLES, TOKEN_BITS, TOKEN_PREFIX, User, hash_of, parse_users

HEAD = "# Users of the HTTP server: name, role, credential. Written by `bk token`; servers read it again.\n"


def _path(arguments: argparse.Namespace) -> pathlib.Path:
    path = arguments.users or os.environ.get("BK_HTTP_USERS_FILE")
    if not path:
        raise UsageError("name the file of users: --users FILE, or BK_HTTP_USERS_FILE")
    return pathlib.Path(path)


def _read(path: pathlib.Path, *, may_be_missing: bool = False) -> tuple[str, list[User]]:
    from bookies.errors import ConfigError

    try:
        text = path.read_text()
        return text, parse_users(text)
    except FileNotFoundError:
        if may_be_missing:
            return HEAD, []
        raise UsageError(
            f"{path} is missing: create it with `bk token add NAME --role viewer --users {path}`"
        ) from None
    except (ConfigError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error


def _write(path: pathlib.Path, text: str) -> None:
    """Replace the file. A server that reads it meanwhile sees the old one or the new one."""
    from bookies.runtime.files import OsDisk

    # A bookie under another user has to read it too, and hashes of 256 random bits reveal nothing.
    is_private = path.exists() and not path.stat().st_mode & 0o077
    OsDisk().replace_bytes(str(path.resolve()), text.encode(), is_private=is_private)


def _add(arguments: argparse.Namespace) -> Report:
    path = _path(arguments)
    text, users = _read(path, may_be_missing=True)
    name = arguments.name
    if name in [user.name for user in users]:
        raise UsageError(f"{name} is listed already: choose another name, or `bk token revoke {name}` first")
    token = None if arguments.certificate else f"{TOKEN_PREFIX}{secrets.token_hex(TOKEN_BITS // 8)}"
    credential = hash_of(token) if token else f"{CERTIFICATE}{arguments.certificate}"
    user = User(name, ROLES[arguments.role], credential)
    text = text if text.endswith("\n") or not text else f"{text}\n"
    added = f"{text}{user.line}\n"
    try:
        parse_users(added)
    except Exception as error:
        raise UsageError(f"{name} cannot be added: {error}") from error
    _write(path, added)
    facts = {"name": name, "role": user.role.word, "token": token}
    remark = f"{name} is {user.role.word} on servers with http_users_file={path.resolve()}"
    return Report(facts, [token] if token else [], remarks=[remark + ("; the token is not shown again" * bool(token))])


def _list(arguments: argparse.Namespace) -> Report:
    _, users = _read(_path(arguments))
    rows = [
        {"name": user.name, "role": user.role.word, "by": user.credential.partition(":")[0].replace("sha256", "token")}
        for user in users
    ]
    return Report(rows, [Table(("name", "role", "by"), [tuple(row.values()) for row in rows])])


def _revoke(arguments: argparse.Namespace) -> Report:
    path = _path(arguments)
    text, users = _read(path)
    if arguments.name not in [user.name for user in users]:
        raise UsageError(f"{path} lists no {arguments.name}: it has {', '.join(user.name for user in users) or 'none'}")
    kept = [line for line in text.splitlines(keepends=True) if line.split()[:1] != [arguments.name]]
    _write(path, "".join(kept))
    return Report({"revoked": arguments.name}, [f"{arguments.name} is revoked: servers refuse it within two seconds"])


_USERS = Option("--users FILE", "file of users, the servers' http_users_file (default: BK_HTTP_USERS_FILE)")
_NAME = Option("name NAME", "name of the user, as audit lines show it")
VERBS = (
    verb(
        "token add",
        "add a user, and print the token",
        "bk token add prometheus --role viewer --users /etc/bookies/users",
        _add,
        _NAME,
        _USERS,
        Option("--role", "what the user may do", choices=tuple(ROLES), is_required=True),
        Option("--certificate SUBJECT", "no token: identify the user by this subject, such as commonName=alice"),
        description="Creates the file if it is missing. It holds only the hash of the token.",
        shared=MACHINE,
    ),
    verb("token list", "list the users and their roles", "bk token list --users users", _list, _USERS, shared=MACHINE),
    verb("token revoke", "remove a user", "bk token revoke prometheus", _revoke, _NAME, _USERS, shared=MACHINE),
)
