"""The note about failed directories: what is no note counts as none."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import Any, cast

import pytest

from bookies.errors import DiskFull
from bookies.storage.checkpoint.failover import Failover, Note, pack_note, parse_note


def test_what_is_packed_is_parsed() -> None:
    note = Note(["/l1"], {31: 4096})
    assert parse_note(pack_note(note)) == note
    assert parse_note(pack_note(note)[:-2]) == Note()


@pytest.mark.parametrize(
    "line", [b"[]", b"{}", b'{"failed": [], "lost": 1}', b'{"failed": [], "lost": {"x": 1}}', b"["]
)
def test_a_right_checksum_over_other_content(line: bytes) -> None:
    line += b"\n"
    assert parse_note(line + f"{zlib.crc32(line):08x}\n".encode()) == Note()


class OnceFull:
    """A worker whose first write finds no space."""

    def __init__(self) -> None:
        self.writes = 0

    async def run(self, write: Callable[[], None]) -> None:
        self.writes += 1
        if self.writes == 1:
            raise DiskFull("no space")


class NoFailures:
    has_new_failures = False

    def take_new_failures(self) -> list[str]:
        return []


def test_a_note_that_could_not_be_written_is_written_by_the_next_call() -> None:
    """Otherwise the catalog would say that a lost log is synced, and no note that it is not."""

    async def act() -> None:
        runtime, worker = cast(Any, type("Ports", (), {"disk": None, "clock": None})), cast(Any, OnceFull())
        failover = Failover(runtime, ["/l1", "/l2"], cast(Any, NoFailures()), cast(Any, None))
        with pytest.raises(DiskFull):
            await failover.react(worker, {31: 0})
        await failover.react(worker, {31: 0})
        await failover.react(worker, {31: 0})
        assert worker.writes == 2

    asyncio.run(act())
