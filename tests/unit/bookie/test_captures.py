"""The requests that Apache's bookie was captured with, put to ours: the same answers, byte for byte.

`OURS` names the cases in which the reference does what we deliberately do not, and what ours answers. Values that are
facts of the machine (disk sizes, times) are compared by shape.
"""

from __future__ import annotations

import asyncio
import json
import pathlib
from typing import Any

import pytest
from tests.fakes.adds import add_request

from bookies.bookie.server import BookieServer
from bookies.errors import Status
from bookies.kernels import Records
from bookies.model import DigestType
from bookies.wire import digest
from bookies.wire.client import ResponseDecoder
from bookies.wire.messages import GetBookieInfoResponse, ReadResponse, WriteLacRequest

from .conftest import KEY

FOLDER = pathlib.Path(__file__).parents[2] / "golden" / "wire"
SIZE_MAX = 5 << 20

# case -> status of each answer, where it is not the reference's
OURS = {
    "v2-read-minus-2": [Status.NO_ENTRY],  # wire-protocol 5.6
    "v2-add-negative-entry": [Status.BAD_REQUEST],  # 5.4
    "v2-add-negative-ledger": [Status.BAD_REQUEST],
    "v3-read-without-request": [Status.BAD_REQUEST, Status.OK],  # 3.4
    "v3-force-without-request": [Status.BAD_REQUEST],
    "v3-read-minus-2": [Status.NO_ENTRY],
    "v3-add-negative-entry": [Status.BAD_REQUEST],
    "v3-auth-version-1": [Status.OK],  # the header is made, not copied (3.4)
    "write-lac-first": [Status.OK, Status.OK, Status.NO_ENTRY],  # an explicit LAC alone is an answer (5.8)
    "v2-version-128-read": None,  # closed: wire-protocol 1.3
}

# What the capture did on other connections before a case: (ledger, entry id, payload, LAC, length) or (ledger, LAC).
BEFORE: dict[tuple[str, str], list[tuple[Any, ...]]] = {
    ("v3", "list-entries-runs"): [(31, entry_id, b"", -1, 0) for entry_id in (0, 2, 4, 6, 10, 11, 20, 21)],
    ("v3", "longpoll-timeout"): [(40, 0, b"hello", -1, 5)],
    ("v3", "longpoll-at-once"): [(40, 1, b"world!", 0, 11)],
    ("v3", "longpoll-no-piggyback"): [(40, 5)],
    ("v3", "longpoll-woken"): [(41, 0, b"hello", -1, 5)],
    ("v3", "readonly-add-recovery"): [(5, 0, b"", -1, 0), (5, 3)],
    ("v2", "read-lac"): [(105, 1)],
    ("v2", "list-entries-v2"): [(105, 0, b"", -1, 0)],
}


def load(group: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((FOLDER / f"{group}.json").read_text())["cases"]
    return cases


def frame_of(frame: dict[str, Any]) -> bytes:
    if "hex" in frame:
        return bytes.fromhex(frame["hex"])
    return bytes.fromhex(frame["hexPrefix"]).ljust(frame["bytes"], b"\0")


def status_of(frame: bytes) -> Status:
    return response_of(frame).status


def response_of(frame: bytes) -> Any:
    wire = "v2" if frame[4] < 8 else "v3"
    (response,) = ResponseDecoder(wire, SIZE_MAX).feed(frame)
    return response


class Replay:
    """Plays a case's frames as the proxy saw them: sends requests, and waits where the reference answered."""

    def __init__(self, world: Any, server: BookieServer, group: str) -> None:
        self._group = group
        self._world = world
        self._server = server
        self._clients: dict[Any, Any] = {}

    async def client(self, name: Any) -> Any:
        if name not in self._clients or self._clients[name].is_lost:
            self._clients[name] = await self._world.connect(self._server)
        return self._clients[name]

    async def play(self, case: dict[str, Any]) -> list[str]:
        """Differences to the reference, in words."""
        name = case["name"]
        self._server.state.hold_read_only(False)
        for each in BEFORE.get((self._group, name), ()):
            await self._prepare(*each)
        self._server.state.hold_read_only(name.startswith("readonly-"))
        self._clients.clear()  # Connections are numbered by case.
        expected: dict[Any, list[bytes]] = {}
        answers: dict[Any, list[bytes]] = {}
        if case.get("closedByBookie") is not None or (name in OURS and OURS[name] is None):
            return await self._play_closed(case)
        for frame in case["frames"]:
            if "closed" in frame:
                continue
            connection = frame.get("conn")
            if frame["dir"].startswith("client"):
                (await self.client(connection)).transport.write(frame_of(frame))
                await asyncio.sleep(0.01)
                continue
            expected.setdefault(connection, []).append(frame_of(frame))
            try:
                async with asyncio.timeout(5):
                    answers.setdefault(connection, []).append(await (await self.client(connection)).frame())
            except TimeoutError:
                return [f"{name}: no answer to {frame}"]
        if name in OURS:
            client = await self.client(case["frames"][0].get("conn"))
            found = [status_of(frame) for frames in answers.values() for frame in frames]
            while len(found) < len(OURS[name]):
                async with asyncio.timeout(5):
                    found.append(status_of(await client.frame()))
            return [] if found == OURS[name] else [f"{name}: {found}"]
        for client in self._clients.values():
            client.transport.close()
        return [
            f"{name}: {ours.hex()} instead of {theirs.hex()}"
            for connection, frames in expected.items()
            for ours, theirs in zip(sorted(answers[connection]), sorted(frames), strict=True)
            if not is_same(ours, theirs)
        ]

    async def _prepare(self, ledger_id: int, number: int, *entry: Any) -> None:
        client = await self._world.connect(self._server)
        if entry:
            payload, lac, length = entry
            body = digest.package_entry(DigestType.CRC32C, b"", ledger_id, number, lac, length, payload)
            request = add_request(3, ledger_id, KEY, [number], Records.of([body]), lac, txn_ids=[1])
        else:
            body = digest.package_lac(DigestType.CRC32C, b"", ledger_id, number)
            request = WriteLacRequest(3, 1, ledger_id, number, KEY, body)
        assert (await client.ask(request)).status is Status.OK
        client.transport.close()

    async def _play_closed(self, case: dict[str, Any]) -> list[str]:
        client = await self._world.connect(self._server)
        for frame in case["frames"]:
            if "closed" not in frame and frame["dir"].startswith("client"):
                client.transport.write(frame_of(frame))
        async with asyncio.timeout(5):
            await client.closed()
        other = await self._world.connect(self._server)
        other.transport.write(bytes.fromhex("000000140202000000000000000000020000000000000000"))
        async with asyncio.timeout(5):
            await other.frame()
        other.transport.close()
        return []


def is_same(ours: bytes, theirs: bytes) -> bool:
    if ours == theirs:
        return True
    mine, reference = response_of(ours), response_of(theirs)
    if type(mine) is not type(reference):
        return False
    if isinstance(mine, GetBookieInfoResponse):
        given = [(each.total_disk_capacity is None, each.free_disk_space is None) for each in (mine, reference)]
        return mine.status is reference.status and given[0] == given[1]
    if isinstance(mine, ReadResponse) and reference.lac_update_ms is not None and mine.lac_update_ms is not None:
        mine.lac_update_ms = reference.lac_update_ms
        return mine == reference
    return False


@pytest.mark.parametrize("groups", [("v3", "raw"), ("v2",), ("session",)], ids="+".join)
def test_captured_clients(world: Any, groups: tuple[str, ...]) -> None:
    async def body(world: Any) -> None:
        server = await world.start()
        differences: list[str] = []
        for group in groups:
            replay = Replay(world, server, group)
            for case in load(group):
                differences += await replay.play(case)
        assert not differences, "\n".join(differences)

    world.run(body)
