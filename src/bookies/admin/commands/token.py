"""`bk token`: the file of users, with hashes of their tokens and verifiers of their passwords."""

from __future__ import annotations

import argparse
import os
import pathlib
import secrets
import sys
from collections.abc import Mapping

from bookies.admin.shared import UsageError
from bookies.admin.shared.command_line import MACHINE, OneOf, Option, verb
from bookies.admin.shared.report import Report, Table
from bookies.protocol.rights.users import (
    CERTIFICATE,
    DIGEST_MD5,
    KERBEROS,
    NOWHERE,
    ROLES,
    SCRAM,
    TOKEN,
    TOKEN_BITS,
    TOKEN_PREFIX,
    Role,
    User,
    hash_of,
    is_principal,
    parse_users,
)

HEAD = "# Users: name, role, and a credential or LABEL=PATTERN. Written by `bk token`; servers read it again.\n"

PASSWORD_SIZE = 16  # random bytes
BY = {
    TOKEN: "token",
    CERTIFICATE: "certificate",
    SCRAM: "SCRAM-SHA-256, PLAIN",
    DIGEST_MD5: "DIGEST-MD5",
    KERBEROS: "GSSAPI",
}


def _path(arguments: argparse.Namespace) -> pathlib.Path:
    path = arguments.users or os.environ.get("BK_USERS_FILE")
    if not path:
        raise UsageError("name the file of users: --users FILE, or BK_USERS_FILE")
    return pathlib.Path(path)


def _read(path: pathlib.Path, *, may_be_missing: bool = False) -> tuple[str, Mapping[str, User]]:
    from bookies.errors import ConfigError

    try:
        text = path.read_text()
        return text, parse_users(text).by_name
    except FileNotFoundError:
        if may_be_missing:
            return HEAD, {}
        raise UsageError(
            f"{path} is missing: create it with `bk token add NAME --role viewer --users {path}`"
        ) from None
    except (ConfigError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error


def _write(path: pathlib.Path, text: str, *, is_private: bool = False) -> None:
    """Replace the file. A server that reads it meanwhile sees the old one or the new one."""
    from bookies.runtime.files import OsDisk

    # A bookie under another user has to read it too, and hashes of 256 random bits reveal nothing. Verifiers let their
    # readers guess passwords.
    is_private = is_private or (path.exists() and not path.stat().st_mode & 0o077)
    OsDisk().replace_bytes(str(path.resolve()), text.encode(), is_private=is_private)


def _add(arguments: argparse.Namespace) -> Report:
    from bookies.errors import ConfigError

    path = _path(arguments)
    text, users = _read(path, may_be_missing=True)
    name = arguments.name
    if name in users:
        raise UsageError(f"{name} is listed already: choose another name, or `bk token revoke {name}` first")
    is_sasl = bool(arguments.sasl or arguments.password_file)
    if arguments.digest_md5 and not is_sasl:
        raise UsageError("--digest-md5 is about a password: add --sasl or --password-file FILE")
    secret = ""
    if arguments.certificate:
        credentials = [f"{CERTIFICATE}{arguments.certificate}"]
    elif arguments.kerberos:
        credentials = _principals(arguments.kerberos)
    elif is_sasl:
        secret = "" if arguments.password_file else secrets.token_hex(PASSWORD_SIZE)
        credentials = _verifiers(name, secret or _password(arguments.password_file), arguments.digest_md5)
    else:
        secret = f"{TOKEN_PREFIX}{secrets.token_hex(TOKEN_BITS // 8)}"
        credentials = [hash_of(secret)]
    grants = [tuple(grant.partition(":")[::2]) for grant in arguments.on or ()]
    lines = [f"{name} {arguments.role} {credential}" for credential in credentials]
    lines += [f"{name} {role} {where}" for role, where in grants]
    text = text if text.endswith("\n") or not text else f"{text}\n"
    added = text + "".join(f"{line}\n" for line in lines)
    try:
        user = parse_users(added).by_name[name]
    except (ConfigError, KeyError) as error:
        raise UsageError(f"{name} cannot be added: {error}") from error
    _write(path, added, is_private=is_sasl)
    remark = f"{user.rights}, on servers with users_file={path.resolve()}"
    kind = "password" if is_sasl else "token"
    facts = {"name": name, "role": arguments.role, kind: secret or None}
    remarks = [remark + (f"; the {kind} is not shown again" * bool(secret))]
    return Report(facts, [secret] if secret else [], remarks=remarks)


def _principals(text: str) -> list[str]:
    """Return the credentials of principals that commas separate."""
    principals = [principal.strip() for principal in text.split(",")]
    for principal in principals:
        if not is_principal(principal):
            raise UsageError(
                f"--kerberos {text}: {principal!r} is not a whole principal such as app@EXAMPLE.ORG (`klist` shows it)"
            )
    return [f"{KERBEROS}{principal}" for principal in principals]


def _verifiers(name: str, password: str, has_digest_md5: bool) -> list[str]:
    """Return the credentials that check a password."""
    from bookies.encoding.digest_md5 import secret_of_password
    from bookies.errors import Unauthorized
    from bookies.wire.sasl.scram import SALT_SIZE, verifier_of

    try:
        verifier = verifier_of(password, secrets.token_bytes(SALT_SIZE))
    except Unauthorized as error:
        raise UsageError(f"{error.message}: choose another one") from error
    return [verifier.text, *([f"{DIGEST_MD5}{secret_of_password(name, password).hex()}"] if has_digest_md5 else [])]


def _password(path: str) -> str:
    try:
        text = sys.stdin.readline() if path == "-" else pathlib.Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--password-file {path} cannot be read: {error}") from error
    return text.rstrip("\r\n")


def _list(arguments: argparse.Namespace) -> Report:
    _, users = _read(_path(arguments))
    rows = [
        {
            "name": user.name,
            "role": user.role.word if user.role is not Role.ANYONE else NOWHERE,
            "by": ", ".join(BY[credential.partition(":")[0] + ":"] for credential in user.credentials),
            "on": ", ".join(f"{grant.role.word} {grant.key}={grant.pattern}" for grant in user.grants),
        }
        for user in users.values()
    ]
    return Report(rows, [Table(("name", "role", "by", "on"), [tuple(row.values()) for row in rows])])


def _revoke(arguments: argparse.Namespace) -> Report:
    path = _path(arguments)
    text, users = _read(path)
    if arguments.name not in users:
        raise UsageError(f"{path} lists no {arguments.name}: it has {', '.join(users) or 'none'}")
    kept = [line for line in text.splitlines(keepends=True) if line.split()[:1] != [arguments.name]]
    _write(path, "".join(kept))
    return Report({"revoked": arguments.name}, [f"{arguments.name} is revoked: servers refuse it within a second"])


_USERS = Option("--users FILE", "file of users, the servers' users_file (default: BK_USERS_FILE)")
_NAME = Option("name NAME", "name of the user, as audit lines show it")
VERBS = (
    verb(
        "token add",
        "add a user, and print the token or password",
        "bk token add prometheus --role viewer --users /etc/bookies/users",
        _add,
        _NAME,
        _USERS,
        Option("--role", "what the user may do everywhere", choices=(*ROLES, NOWHERE), is_required=True),
        Option("--on ROLE:LABEL=PATTERN", "and on ledgers with this label: writer:log=orders-*", may_repeat=True),
        OneOf(
            Option("--certificate SUBJECT", "no token: identify the user by this subject, such as commonName=alice"),
            Option("--kerberos PRINCIPALS", "no token: identify the user by these principals, such as app@EXAMPLE.ORG"),
            Option("--sasl", "no token: a password for SASL, which is printed", bool),
            Option("--password-file FILE", "no token: the password for SASL in this file; `-`: from the input"),
        ),
        Option("--digest-md5", "store what DIGEST-MD5 needs too, for Apache's clients", bool),
        description="Creates the file if it is missing. It holds only hashes of tokens and verifiers of passwords.",
        shared=MACHINE,
    ),
    verb("token list", "list the users and their roles", "bk token list --users users", _list, _USERS, shared=MACHINE),
    verb("token revoke", "remove a user", "bk token revoke prometheus", _revoke, _NAME, _USERS, shared=MACHINE),
)
