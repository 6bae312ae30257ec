"""The file of keys, which is read again when it changes."""

from __future__ import annotations

import asyncio

from bookies.errors import ConfigError
from bookies.runtime.events import Events
from bookies.runtime.ports import Disk, Runtime
from bookies.storage.sealing.sealed_format import PLAIN, Keys, id_of, label_of, pack_line, parse_keys
from bookies.storage.sealing.sealer import Opener, Sealer

HEAD = "# Keys of stored entries: the first one encrypts, all decrypt. Written by `bk bookie new-key`.\n"
RECHECK_S = 1.0  # between two reads of the file


def read_opener(disk: Disk, path: str) -> Opener | None:
    """Return the keys of a file for reading a stopped bookie's files; None without a path. Raises: ConfigError."""
    return Opener(_read_keys(disk, path)[0]) if path else None


def _read_keys(disk: Disk, path: str) -> tuple[Keys, bytes]:
    """Return the keys and the text of a file. Raises: ConfigError."""
    text = _read(disk, path)
    try:
        return parse_keys(text.decode()), text
    except (ConfigError, UnicodeDecodeError) as error:
        raise ConfigError(f"encryption_keys_file {path}: {error}") from error


def _read(disk: Disk, path: str) -> bytes:
    try:
        if not disk.is_private(path):
            raise ConfigError(f"encryption_keys_file {path} can be read by other users: chmod 600 {path}")
        return disk.read_bytes(path)
    except OSError as error:
        raise ConfigError(f"encryption_keys_file {path} cannot be read: {error.strerror or error}") from error


class KeysFile:
    """The keys in a file. Raises ConfigError if it cannot be used now. A later problem keeps the previous keys."""

    def __init__(self, runtime: Runtime, path: str) -> None:
        self._disk = runtime.disk
        self._path = path
        self._events = Events("encryption", runtime.clock)
        keys, self._text = _read_keys(runtime.disk, path)
        self.sealer = Sealer(keys, runtime.random)

    async def watch(self) -> None:
        """Read the file again forever."""
        while True:
            await asyncio.sleep(RECHECK_S)
            self.reload()

    def reload(self) -> None:
        """Use the file's keys if it has changed."""
        text, before = b"", self.sealer.current
        try:
            text = _read(self._disk, self._path)
            if text != self._text:
                self.sealer.use(_read_keys(self._disk, self._path)[0])
                current = _label(self.sealer.current)
                self._events.info("encryption.keys_read", path=self._path, current=current, before=_label(before))
        except ConfigError as error:
            if text != self._text:
                self._events.warning("encryption.keys_kept", error=error, consequence="the previous keys stay in use")
        self._text = text


def add_key(disk: Disk, path: str, key: bytes) -> int:
    """Make a key the first one of a keys file, which is created if it is missing; return the key's id.

    A first line `plain` is removed. Raises: ConfigError if the file is not one of keys; OSError.
    """
    try:
        text = disk.read_bytes(path).decode() if disk.exists(path) else ""
        if text.strip():
            parse_keys(text)
    except (ConfigError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}. Nothing was changed") from error
    rest = [line for line in text.splitlines(keepends=True) if line.strip() != PLAIN and line != HEAD]
    disk.replace_bytes(path, (HEAD + pack_line(key) + "".join(rest)).encode(), is_private=True)
    return id_of(key)


def _label(key_id: int | None) -> str | None:
    return None if key_id is None else label_of(key_id)
