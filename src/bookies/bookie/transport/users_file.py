"""The file of users, which is read again when it changes. Bookies and HTTP servers use the same one."""

from __future__ import annotations

from bookies.errors import ConfigError
from bookies.protocol.rights import User, Users, parse_users
from bookies.protocol.rights.users import SCRAM
from bookies.runtime.events import Events
from bookies.runtime.ports import Clock, Disk
from bookies.wire.sasl.scram import parse_verifier

RECHECK_S = 0.2  # at least, between two reads of the file


class UsersFile:
    """The users in a file. Raises `ConfigError` if it cannot be read now. A later damage keeps the previous users."""

    def __init__(self, disk: Disk, path: str, clock: Clock) -> None:
        self._disk = disk
        self._path = path
        self._clock = clock
        self._events = Events("users", clock)
        self._text = b""
        self._users = Users({}, {})
        self._read_at = clock.monotonic()
        self._load(self._read())

    def current(self) -> Users:
        """Return the users: the same object until the file changes."""
        if self._clock.monotonic() - self._read_at >= RECHECK_S:
            self._read_at = self._clock.monotonic()
            self._reload()
        return self._users

    def _reload(self) -> None:
        text = b""
        try:
            text = self._read()
            if text != self._text:
                self._load(text)
                self._events.info("users.reloaded", path=self._path, users=len(self._users.by_name))
        except ConfigError as error:
            if text != self._text or not text:
                self._events.warning("users.kept", error=error, consequence="the previous users stay valid")
            self._text = text or self._text

    def _read(self) -> bytes:
        try:
            return self._disk.read_bytes(self._path)
        except OSError as error:
            raise ConfigError(f"users_file {self._path} cannot be read: {error.strerror or error}") from error

    def _load(self, text: bytes) -> None:
        try:
            users = parse_users(text.decode())
            for user in users.by_name.values():
                _check_verifier(user)
            self._users = users
        except (ConfigError, UnicodeDecodeError) as error:
            raise ConfigError(f"users_file {self._path}: {error}") from error
        self._text = text


def _check_verifier(user: User) -> None:
    for credential in user.credentials:
        try:
            if credential.startswith(SCRAM):
                parse_verifier(credential)
        except ValueError as error:
            raise ConfigError(f"the verifier of {user.name} is malformed: set the password again") from error
