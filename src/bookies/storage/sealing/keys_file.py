"""The file of keys, which is read again when it changes."""

from __future__ import annotations

import asyncio

from bookies.errors import ConfigError
from bookies.runtime.events import Events
from bookies.runtime.ports import Runtime
from bookies.storage.sealing.sealed_format import Keys, label_of, parse_keys
from bookies.storage.sealing.sealer import Sealer

RECHECK_S = 1.0  # between two reads of the file


class KeysFile:
    """The keys in a file. Raises ConfigError if it cannot be used now. A later problem keeps the previous keys."""

    def __init__(self, runtime: Runtime, path: str) -> None:
        self._disk = runtime.disk
        self._path = path
        self._events = Events("encryption", runtime.clock)
        self._read_text = self._read()
        self.sealer = Sealer(self._parsed(self._read_text), runtime.random)

    async def watch(self) -> None:
        """Read the file again forever."""
        while True:
            await asyncio.sleep(RECHECK_S)
            self.reload()

    def reload(self) -> None:
        """Use the file's keys if it has changed."""
        text, before = b"", self.sealer.current
        try:
            text = self._read()
            if text != self._read_text:
                self.sealer.use(self._parsed(text))
                current = self.sealer.current
                self._events.info(
                    "encryption.keys_read", path=self._path, current=_label(current), before=_label(before)
                )
        except ConfigError as error:
            if text != self._read_text:
                self._events.warning("encryption.keys_kept", error=error, consequence="the previous keys stay in use")
        self._read_text = text

    def _read(self) -> bytes:
        try:
            if not self._disk.is_private(self._path):
                raise ConfigError(
                    f"encryption_keys_file {self._path} can be read by other users: chmod 600 {self._path}"
                )
            return self._disk.read_bytes(self._path)
        except OSError as error:
            reason = error.strerror or error
            raise ConfigError(f"encryption_keys_file {self._path} cannot be read: {reason}") from error

    def _parsed(self, text: bytes) -> Keys:
        try:
            return parse_keys(text.decode())
        except (ConfigError, UnicodeDecodeError) as error:
            raise ConfigError(f"encryption_keys_file {self._path}: {error}") from error


def _label(key_id: int | None) -> str | None:
    return None if key_id is None else label_of(key_id)
