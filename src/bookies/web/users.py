"""Users of the HTTP server: their roles, and the file that lists them, which is read again when it changes.

One user a line: name, role, and `sha256:` with the hash of a token, or `certificate:` with a subject. A token has 256
random bits, so a fast hash is enough: `bk token add` creates it, and only its hash is stored.
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Mapping

from msgspec import Struct

from bookies.errors import ConfigError
from bookies.runtime.events import Events
from bookies.runtime.ports import Clock, Disk

RECHECK_S = 1.0  # between two reads of the file
TOKEN_PREFIX = "bk_"  # lets scanners of repositories recognize a leaked token
TOKEN_BITS = 256
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_HASH = re.compile("sha256:[0-9a-f]{64}")
CERTIFICATE = "certificate:"


class Role(enum.IntEnum):
    """Right to use an endpoint. A higher role includes the lower ones."""

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


class User(Struct, frozen=True):
    """User of the server. `credential`: `sha256:HASH` or `certificate:SUBJECT`."""

    name: str
    role: Role
    credential: str

    @property
    def line(self) -> str:
        return f"{self.name} {self.role.word} {self.credential}"


def hash_of(token: str) -> str:
    """Return the credential of a token."""
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


def parse_users(text: str) -> list[User]:
    """Return the users of a file. Raises `ConfigError`, which names the line and no credential."""
    users: dict[str, User] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, role, credential = [*line.split(None, 2), "", ""][:3]
        if not _NAME.fullmatch(name) or name in users:
            raise ConfigError(f"line {number}: {name!r} is not a name, or is listed twice")
        if role not in ROLES:
            raise ConfigError(f"line {number}: the role of {name} has to be one of {', '.join(ROLES)}")
        credential = credential.strip()
        if not (_HASH.fullmatch(credential) or credential.removeprefix(CERTIFICATE) not in (credential, "")):
            raise ConfigError(f"line {number}: {name} needs sha256:HASH or certificate:SUBJECT")
        users[name] = User(name, ROLES[role], credential)
    return list(users.values())


class UsersFile:
    """The users in a file. Raises `ConfigError` if it cannot be read now. A later damage keeps the previous users."""

    def __init__(self, disk: Disk, path: str, clock: Clock) -> None:
        self._disk = disk
        self._path = path
        self._clock = clock
        self._events = Events("http", clock)
        self._text = b""
        self._by_credential: Mapping[str, User] = {}
        self._read_at = clock.monotonic()
        self._load(self._read())

    def find(self, credential: str) -> User | None:
        """Return the user with this credential."""
        if self._clock.monotonic() - self._read_at >= RECHECK_S:
            self._read_at = self._clock.monotonic()
            self._reload()
        return self._by_credential.get(credential)

    def _reload(self) -> None:
        text = b""
        try:
            text = self._read()
            if text != self._text:
                self._load(text)
                self._events.info("http.users_reloaded", path=self._path, users=len(self._by_credential))
        except ConfigError as error:
            if text != self._text or not text:
                self._events.warning("http.users_kept", error=error, consequence="the previous users stay valid")
            self._text = text or self._text

    def _read(self) -> bytes:
        try:
            return self._disk.read_bytes(self._path)
        except OSError as error:
            raise ConfigError(f"http_users_file {self._path} cannot be read: {error.strerror or error}") from error

    def _load(self, text: bytes) -> None:
        try:
            users = parse_users(text.decode())
        except (ConfigError, UnicodeDecodeError) as error:
            raise ConfigError(f"http_users_file {self._path}: {error}") from error
        self._text = text
        self._by_credential = {user.credential: user for user in users}
