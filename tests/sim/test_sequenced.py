"""Numbered entries while gateways are killed and fight for the lead: each acknowledged number is in the log once.

Clients repeat a number until it is acknowledged, at whichever gateway they find, as HTTP clients do.
"""

from __future__ import annotations

import asyncio
import os
from random import Random

import pytest
from tests.sim.log_world import LogWorld

from bookies.client.log.sequenced import SequencedWriter
from bookies.encoding.envelope import Record, parse_record
from bookies.errors import BookKeeperError, SequenceGap
from bookies.lab.sim.world import SimClient
from bookies.protocol.log import Position
from bookies.protocol.log.sequences import HEADER, parse_number

LOG, WRITERS, NUMBERS, GATEWAYS = "numbered", 3, 25, 2
SEEDS = int(os.environ.get("BK_SWEEP_SEEDS", "2"))


class SimGateway:
    """A process that leads the log when it is asked to append, and can be killed and started again."""

    def __init__(self, world: LogWorld) -> None:
        self.world = world
        self.process: SimClient | None = None
        self._numbered: SequencedWriter | None = None

    async def append(self, writer: str, number: int, value: bytes) -> Position | None:
        if self.process is None:
            self._numbered = None
            self.process = await self.world.process("gateway")
        process = self.process
        return await self.world.as_process(process, self._append(process, writer, number, value))

    async def _append(self, process: SimClient, writer: str, number: int, value: bytes) -> Position | None:
        if self._numbered is None or self._numbered.unknown is not None:
            log = process.client.log(LOG)
            self._numbered = await log.sequenced(await log.lead())
        numbered = self._numbered
        appended = await numbered.append(writer, number, [Record(value)])
        if number % 7 == 0:
            await numbered.save()
        return appended.first

    def kill(self) -> None:
        if self.process is not None:
            self.world.cluster.kill_client(self.process.name)
            self.process = None


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_number_is_in_the_log_once_and_in_order(seed: int) -> None:
    random = Random(seed)
    acknowledged: dict[tuple[str, int], Position | None] = {}
    contents: list[tuple[str, int]] = []
    positions: dict[tuple[str, int], Position] = {}

    async def main(world: LogWorld) -> None:
        maker = await world.process("maker")
        await world.as_process(maker, maker.client.log(LOG).create(record_format="envelope"))
        gateways = [SimGateway(world) for _ in range(GATEWAYS)]

        async def write(name: str) -> None:
            for number in range(NUMBERS):
                while (name, number) not in acknowledged:
                    gateway = random.choice(gateways) if random.random() < 0.1 else gateways[0]
                    try:
                        # A short wait ends while the append goes on, and the repeat arrives meanwhile.
                        async with asyncio.timeout(random.choice((0.002, 0.02, 20))):
                            at = await gateway.append(name, number, b"%d" % number)
                        acknowledged[name, number] = at
                    except SequenceGap:
                        raise  # None is left out, so a gap is a number that was lost.
                    except (BookKeeperError, TimeoutError, asyncio.CancelledError):
                        await asyncio.sleep(random.choice((0, random.uniform(0, 1))))

        async def disturb() -> None:
            while True:
                await asyncio.sleep(random.uniform(0.01, 2))
                random.choice(gateways).kill()

        disturbing = asyncio.ensure_future(disturb())
        await asyncio.gather(*(write(f"w{name}") for name in range(WRITERS)))
        disturbing.cancel()
        reader = await world.process("reader")

        async def read() -> None:
            async with reader.client.log(LOG).lead():
                pass
            async with reader.client.log(LOG).open() as log:
                async for entry in log.read():
                    headers = parse_record(entry.payload).headers
                    numbered = parse_number(dict(headers or ())[HEADER])
                    assert numbered is not None
                    contents.append(numbered)
                    positions[numbered] = entry.position

        await world.as_process(reader, read())

    seen = LogWorld(f"numbered/{seed}").run(main)
    assert not seen.problems
    for name in (f"w{number}" for number in range(WRITERS)):
        assert [number for writer, number in contents if writer == name] == list(range(NUMBERS))
    assert {key: at for key, at in acknowledged.items() if at is not None and at != positions[key]} == {}
