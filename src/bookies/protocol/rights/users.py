"""Users of bookies and HTTP servers: the file that lists them, and their roles on ledgers.

A line is a name, a role and a third part: a credential, or the ledgers on which the user has that role. With a
credential the role holds everywhere; `none` is a user who may only do what other lines allow. Ledgers are chosen by a
label of their custom metadata and a pattern for its value. The ledgers of a log have the label `log`.

    alice    administrator  sha256:HASH                              a token
    app      none           scram-sha-256:4096:SALT:KEY:KEY          SASL, a verifier of the password
    app      writer         log=orders-*
    app      reader         team=billing
    app      limit          bytes=10m requests=500                   per second, at each bookie and gateway
    batch    reader         certificate:commonName=batch
    etl      writer         kerberos:etl/host1@EXAMPLE.ORG

No line has a password or a token, only what checks them.
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

from msgspec import Struct

from bookies.errors import ConfigError
from bookies.units import parse_size

TOKEN, CERTIFICATE, SCRAM, DIGEST_MD5 = "sha256:", "certificate:", "scram-sha-256:", "digest-md5:"
KERBEROS = "kerberos:"
TOKEN_PREFIX = "bk_"  # lets scanners of repositories recognize a leaked token
TOKEN_BITS = 256  # random bits; a fast hash is enough then
RATE_LENGTH_MAX = 20  # digits and unit
LABELS_S = 60.0  # for which servers keep the labels of a ledger, or a role that follows from them
LIMIT, NOWHERE = "limit", "none"
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_BASE64 = "[A-Za-z0-9+/]+={0,2}"
_PRINCIPAL = r"[^@\s]+@[^@\s]+"
_CREDENTIAL = re.compile(
    f"{TOKEN}[0-9a-f]{{64}}|{CERTIFICATE}.+|{SCRAM}[0-9]{{1,9}}(?::{_BASE64}){{3}}|{DIGEST_MD5}[0-9a-f]{{32}}"
    f"|{KERBEROS}{_PRINCIPAL}"
)
_GRANT = re.compile(r"([^=\s]+)=(.+)")


class Role(enum.IntEnum):
    """Right to use ledgers and endpoints. A higher role includes the lower ones."""

    ANYONE = 0
    VIEWER = 1
    READER = 2
    WRITER = 3
    OPERATOR = 4
    ADMINISTRATOR = 5

    @property
    def word(self) -> str:
        return self.name.lower()


ROLES: Mapping[str, Role] = {role.word: role for role in Role if role is not Role.ANYONE}


class Grant(Struct, frozen=True):
    """A role on the ledgers whose label `key` has a value that matches `pattern`, with `*`, `?` and `[...]`."""

    role: Role
    key: str
    pattern: str

    def covers(self, labels: Mapping[str, bytes]) -> bool:
        value = labels.get(self.key)
        return value is not None and fnmatchcase(value.decode("utf-8", "backslashreplace"), self.pattern)


class User(Struct, frozen=True):
    """User of bookies and HTTP servers. `role`: everywhere. `bytes_rate`, `requests_rate`: per second; None: any."""

    name: str
    role: Role
    credentials: tuple[str, ...]
    grants: tuple[Grant, ...] = ()
    bytes_rate: int | None = None
    requests_rate: int | None = None

    @property
    def is_limited(self) -> bool:
        """Report whether the user has a rate."""
        return self.bytes_rate is not None or self.requests_rate is not None

    @property
    def highest_role(self) -> Role:
        """Return the highest role that the user has on any ledger."""
        return max([self.role, *(grant.role for grant in self.grants)])

    @property
    def rights(self) -> str:
        """Describe the roles, for messages."""
        grants = [f"{grant.role.word} on {grant.key}={grant.pattern}" for grant in self.grants]
        role = self.role.word if self.role is not Role.ANYONE else NOWHERE
        return f"{self.name} has the role {', '.join([f'{role} everywhere', *grants])}"

    def role_on(self, labels: Mapping[str, bytes] | None) -> Role:
        """Return the role on a ledger with these labels; None: there is no such ledger."""
        granted = [grant.role for grant in self.grants if labels is not None and grant.covers(labels)]
        return max([self.role, *granted])

    def lost_rights(self, later: User) -> bool:
        """Report whether `later`, the same user after a change, lacks a credential or a right of this one."""
        return (
            later.role < self.role
            or not set(self.credentials) <= set(later.credentials)
            or not set(self.grants) <= set(later.grants)
        )

    def credential(self, kind: str) -> str | None:
        """Return the first credential that begins with `kind`."""
        return next((credential for credential in self.credentials if credential.startswith(kind)), None)


class Users(Struct, frozen=True):
    """The users of a file."""

    by_name: Mapping[str, User]
    by_credential: Mapping[str, User]


def hash_of(token: str) -> str:
    """Return the credential of a token."""
    return f"{TOKEN}{hashlib.sha256(token.encode()).hexdigest()}"


def is_principal(text: str) -> bool:
    """Report whether this is a principal of Kerberos with its realm."""
    return re.fullmatch(_PRINCIPAL, text) is not None


def parse_users(text: str) -> Users:
    """Return the users of a file. Raises `ConfigError`, which names the line and no credential."""
    lines: dict[str, list[tuple[int, str, str]]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, word, rest = [*line.split(None, 2), "", ""][:3]
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"line {number}: {name!r} is not a name: 1 to 64 letters, digits, and . _ @ - (`bk token add`)"
            )
        lines.setdefault(name, []).append((number, word, rest.strip()))
    users = {name: _user(name, items) for name, items in lines.items()}
    by_credential: dict[str, User] = {}
    for user in users.values():
        for credential in user.credentials:
            if (other := by_credential.setdefault(credential, user)) is not user:
                raise ConfigError(f"{other.name} and {user.name} have the same credential: give each one of its own")
    return Users(users, by_credential)


def _user(name: str, lines: list[tuple[int, str, str]]) -> User:
    role: Role | None = None
    credentials: list[str] = []
    grants: list[Grant] = []
    rates: dict[str, int] = {}
    for number, word, rest in lines:
        if word == LIMIT:
            rates |= _rates(number, name, rest)
            continue
        if word not in ROLES and word != NOWHERE:
            raise ConfigError(f"line {number}: the role of {name} has to be one of {', '.join([*ROLES, NOWHERE])}")
        given = ROLES.get(word, Role.ANYONE)
        if _CREDENTIAL.fullmatch(rest):
            if role not in (None, given):
                raise ConfigError(f"line {number}: {name} has another role in a line above: give all credentials one")
            kind = f"{rest.partition(':')[0]}:"
            if kind in (SCRAM, DIGEST_MD5) and any(credential.startswith(kind) for credential in credentials):
                raise ConfigError(f"line {number}: {name} has a password in a line above: a user has one")
            role = given
            credentials.append(rest)
        elif rest.startswith((TOKEN, CERTIFICATE, SCRAM, DIGEST_MD5, KERBEROS)) or not (
            match := _GRANT.fullmatch(rest)
        ):
            raise ConfigError(
                f"line {number}: {name} needs a credential (sha256:HASH, certificate:SUBJECT, scram-sha-256:..., "
                "digest-md5:HASH, kerberos:NAME@REALM), or ledgers (LABEL=PATTERN, log=PATTERN)"
            )
        else:
            grants.append(Grant(given, match[1], match[2]))
    if role is None:
        raise ConfigError(f"line {lines[0][0]}: {name} has no line with a credential, so no client can be {name}")
    return User(name, role, tuple(credentials), tuple(grants), rates.get("bytes"), rates.get("requests"))


def _rates(number: int, name: str, text: str) -> dict[str, int]:
    """Return the rates of a line such as `bytes=10m requests=500`."""
    rates: dict[str, int] = {}
    for item in text.split() or [""]:
        key, _, value = item.partition("=")
        rate = parse_size(value) if len(value) <= RATE_LENGTH_MAX else None
        if key not in ("bytes", "requests") or not rate:
            raise ConfigError(
                f"line {number}: the limit of {name} is bytes=10m requests=500, or one of them: not {item!r}"
            )
        rates[key] = rate
    return rates
