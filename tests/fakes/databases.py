"""Databases that are plain files of a simulated disk: whole or not there, as those that have got their name are."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Sequence

from bookies.lab.sim.world.disk import SimDisk

MAGIC = b"FAKE"


class FakeReader:
    def __init__(self, pairs: dict[bytes, bytes]) -> None:
        self._pairs = {key: pairs[key] for key in sorted(pairs)}

    def pieces(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        if self._pairs:
            yield list(self._pairs), list(self._pairs.values())

    def get(self, key: bytes) -> bytes | None:
        return self._pairs.get(key)

    def from_key(self, key: bytes) -> Iterator[tuple[bytes, bytes]]:
        return ((each, value) for each, value in self._pairs.items() if each >= key)

    def close(self) -> None:
        pass


class FakeWriter:
    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._pairs: dict[bytes, bytes] = {}

    def put(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        self._pairs.update(zip(keys, values, strict=True))

    def finish(self) -> None:
        self._disk.replace_bytes(self._path, pack(self._pairs))

    def close(self) -> None:
        pass


class FakeLock:
    def release(self) -> None:
        pass


class FakeDatabases:
    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def exists(self, path: str) -> bool:
        return self._disk.exists(path) and self._disk.read_bytes(path).startswith(MAGIC)

    def lock(self, path: str) -> FakeLock:
        return FakeLock()

    def read(self, path: str, *, is_exact: bool = False) -> FakeReader:
        return FakeReader(parse(self._disk.read_bytes(path)))

    def create(self, path: str, *, is_large: bool) -> FakeWriter:
        assert not self._disk.exists(path)
        return FakeWriter(self._disk, path)

    def remove(self, path: str) -> None:
        if not self._disk.is_directory(path):
            if self._disk.exists(path):
                self._disk.unlink(path)
            return
        for each in self._disk.list(path):
            self.remove(posixpath.join(path, each))
        self._disk.sync_directory(path)
        directories = self._disk._directories
        del directories[path]
        parent, name = posixpath.split(path)
        del directories[parent].names[name], directories[parent].durable[name]


def pack(pairs: dict[bytes, bytes]) -> bytes:
    return MAGIC + json.dumps({key.hex(): value.hex() for key, value in pairs.items()}).encode()


def parse(data: bytes) -> dict[bytes, bytes]:
    return {bytes.fromhex(key): bytes.fromhex(value) for key, value in json.loads(data[len(MAGIC) :]).items()}
