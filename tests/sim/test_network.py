"""The simulator's network: order, chunks, back-pressure, breaks, partitions, crashes."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from bookies.lab.sim.world import Trace
from bookies.lab.sim.world.loop import Participant, SimLoop
from bookies.lab.sim.world.network import SOCKET_BUFFER_SIZE, SimNetwork


class Peer(asyncio.Protocol):
    """Remembers what happens; echoes when told to."""

    def __init__(self, echoes: bool = False) -> None:
        self.received = b""
        self.chunks = 0
        self.lost: list[BaseException | None] = []
        self.paused = 0
        self.echoes = echoes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert not self.lost
        self.received += data
        self.chunks += 1
        if self.echoes:
            self.transport.write(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.lost.append(exc)

    def pause_writing(self) -> None:
        self.paused += 1

    def resume_writing(self) -> None:
        self.paused -= 1


class World:
    """Two hosts, a and b; b listens on port 1."""

    def __init__(self, seed: int = 1, echoes: bool = False) -> None:
        self.loop = SimLoop()
        self.trace = Trace(self.loop.time)
        self.network = SimNetwork(self.loop, self.trace, Random(seed))
        self.a, self.b = Participant(self.loop, "a"), Participant(self.loop, "b")
        self.accepted: list[Peer] = []
        self.echoes = echoes

    def make(self) -> Peer:
        self.accepted.append(Peer(self.echoes))
        return self.accepted[-1]

    async def open(self) -> Peer:
        if self.network.listener_at(("b", 1)) is None:
            await self.b.create_task(self.network.port("b").listen("b", 1, self.make))
        _, protocol = await self.a.create_task(self.network.port("a").connect("b", 1, Peer))
        assert isinstance(protocol, Peer)
        return protocol

    def run(self, main: object) -> None:
        self.loop.run(main)  # type: ignore[arg-type]
        self.loop.close()
        assert not self.loop.errors


def test_echo_keeps_order_and_content() -> None:
    world = World(echoes=True)

    async def main() -> None:
        peer = await world.open()
        sent = b"".join(b"%d," % i for i in range(500))
        for i in range(500):
            peer.transport.write(b"%d," % i)
            if i % 50 == 0:
                await asyncio.sleep(0.001)
        await asyncio.sleep(1)
        assert peer.received == sent == world.accepted[0].received
        assert 1 < world.accepted[0].chunks < 700
        peer.transport.close()
        await asyncio.sleep(1)
        assert peer.lost == world.accepted[0].lost == [None]

    world.run(main())


def test_reader_that_pauses_stops_the_writer() -> None:
    world = World()

    async def main() -> None:
        peer = await world.open()
        await asyncio.sleep(0.01)
        far = world.accepted[0]
        far.transport.pause_reading()
        peer.transport.set_write_buffer_limits(high=1000, low=10)
        peer.transport.write(bytes(SOCKET_BUFFER_SIZE))
        assert not peer.paused
        peer.transport.write(bytes(1001))
        assert peer.paused == 1
        await asyncio.sleep(1)
        assert far.received == b""
        assert peer.paused == 1
        far.transport.resume_reading()
        await asyncio.sleep(1)
        assert peer.paused == 0
        assert len(far.received) == SOCKET_BUFFER_SIZE + 1001

    world.run(main())


@pytest.mark.parametrize("half_open", [False, True])
def test_cut_loses_a_suffix(half_open: bool) -> None:
    kept = set()
    for seed in range(20):
        world = World(seed)

        async def main(world: World = world) -> None:
            peer = await world.open()
            for _ in range(10):
                peer.transport.write(b"0123456789")
            world.network.cut(world.network.connections("a")[0], is_half_open=half_open)
            await asyncio.sleep(5)
            far = world.accepted[0]
            assert far.received == (b"0123456789" * 10)[: len(far.received)]
            assert isinstance(peer.lost[0], ConnectionResetError)
            assert bool(far.lost) != half_open
            far.transport.write(b"into the void")
            world.network.heal()
            await asyncio.sleep(5)
            assert isinstance(far.lost[0], ConnectionResetError)
            assert peer.received == b""
            kept.add(len(far.received))

        world.run(main())
    assert len(kept) > 3


def test_partition_holds_back_and_refuses_nothing() -> None:
    world = World(echoes=True)

    async def main() -> None:
        peer = await world.open()
        world.network.block("b", "a")
        peer.transport.write(b"hello")
        await asyncio.sleep(5)
        assert world.accepted[0].received == b"hello"
        assert peer.received == b""
        with pytest.raises(TimeoutError):
            await world.open()
        world.network.unblock("b", "a")
        await asyncio.sleep(1)
        assert peer.received == b"hello"

    world.run(main())


@pytest.mark.parametrize("silent", [False, True])
def test_crash_breaks_connections_and_frees_the_address(silent: bool) -> None:
    world = World()

    async def main() -> None:
        peer = await world.open()
        with pytest.raises(ConnectionRefusedError):
            await world.network.port("a").connect("b", 2, Peer)
        world.b.on_kill(lambda: world.network.crash(world.b, is_silent=silent))
        world.b.kill()
        await asyncio.sleep(1)
        assert bool(peer.lost) != silent
        with pytest.raises(ConnectionRefusedError):
            await world.network.port("a").connect("b", 1, Peer)
        world.b = Participant(world.loop, "b")
        world.network.report_half_open("b")
        await asyncio.sleep(1)
        again = await world.open()
        assert isinstance(peer.lost[0], ConnectionResetError)
        assert not again.lost

    world.run(main())


def test_paused_participant_hears_everything_later() -> None:
    world = World(echoes=True)

    async def main() -> None:
        peer = await world.open()
        world.b.pause()
        second = await world.open()
        peer.transport.write(b"one")
        second.transport.write(b"two")
        await asyncio.sleep(60)
        assert peer.received == second.received == b""
        world.b.resume()
        await asyncio.sleep(1)
        assert (peer.received, second.received) == (b"one", b"two")

    world.run(main())
