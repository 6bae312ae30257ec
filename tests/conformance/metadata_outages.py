"""A metadata service is killed, paused and started again under a cluster: appends continue, and nothing is lost.

The tests of each service derive a class from `MetadataOutages` and provide the fixture `server`.
"""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Awaitable, Callable
from typing import ClassVar, Protocol

import pytest

import bookies
from bookies.bookie.server import BookieServer
from bookies.config import BookieConfig
from bookies.errors import MetadataError, VersionConflict
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.uri import connect
from bookies.model import BookieId, BookieInfo, BookieMode, Endpoint, LedgerMetadata
from bookies.runtime import aio

LEASE_MS = 1000
PATIENCE_S = 60.0
A = BookieId("bk-a:3181")
INFO = BookieInfo((Endpoint("bookie", "127.0.0.1", 3181, "bookie-rpc"),))


class Server(Protocol):
    """A process of the service that a test can interrupt."""

    @property
    def address(self) -> str: ...

    def start(self) -> None: ...

    def kill(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


async def driver_of(uri: str) -> MetadataDriver:
    driver = connect(uri, aio.runtime(), lease_ms=LEASE_MS)
    await driver.open()
    return driver


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask now and then; an unreachable store is no answer."""
    while True:
        try:
            if await condition():
                return
        except MetadataError:
            pass
        await asyncio.sleep(0.05)


async def bounce(server: Server, how: str) -> None:
    """Interrupt the service for longer than a session, twice: kill and start it again, or stop and continue it.

    Whether sessions survive differs: ZooKeeper and etcd give those they knew another term when they are started again,
    and not when they were stopped.
    """
    for _ in range(2):
        if how == "kill":
            server.kill()
        else:
            server.pause()
        await asyncio.sleep(2.5 * LEASE_MS / 1000)
        if how == "kill":
            await asyncio.to_thread(server.start)
        else:
            server.resume()
        await asyncio.sleep(1.0)


class MetadataOutages:
    """Tests for one service. `scheme`: of its addresses; `product`: its name in errors."""

    scheme: ClassVar[str]
    product: ClassVar[str]

    def uri(self, server: Server) -> str:
        return f"{self.scheme}://{server.address}/ledgers"

    def uri_of_several(self, server: Server) -> str:
        """Return an address that names two servers that do not exist beside this one, and a longer path."""
        return f"{self.scheme}://127.0.0.1:1;{server.address};no-such-host.invalid:2181/prod/ledgers"

    @pytest.mark.parametrize("how", ["kill", "pause"])
    def test_no_increment_is_lost_in_an_outage(self, server: Server, how: str) -> None:
        """Every increment counts once, though its answer may be lost: each driver keeps its last number."""

        async def main() -> None:
            uri = self.uri(server)
            drivers = [await driver_of(uri) for _ in range(3)]
            await drivers[0].initialize_cluster()
            start = LedgerMetadata(7, 1, 1, 1, ((0, (A,)),), custom_metadata={"n": b"0"})
            await drivers[0].create_ledger(start)
            is_over = False

            async def increment(name: str, driver: MetadataDriver) -> int:
                done = 0
                while not is_over:
                    try:
                        found = await driver.read_ledger(7)
                        values = dict(found.metadata.custom_metadata)
                        if int(values.get(name, b"0")) > done:  # what raised had happened
                            done += 1
                            continue
                        values |= {"n": b"%d" % (int(values["n"]) + 1), name: b"%d" % (done + 1)}
                        await driver.write_ledger(found.metadata.replace(custom_metadata=values), found.version)
                        done += 1
                    except (VersionConflict, MetadataError):
                        continue
                return done

            tasks = [asyncio.create_task(increment(f"d{index}", driver)) for index, driver in enumerate(drivers)]
            await bounce(server, how)
            is_over = True
            counts = await asyncio.gather(*tasks)
            values = (await drivers[0].read_ledger(7)).metadata.custom_metadata
            assert sum(int(values.get(f"d{index}", b"0")) for index in range(3)) == int(values["n"])
            # The last write of a driver may have happened without its knowing.
            assert all(int(values.get(f"d{index}", b"0")) - count in (0, 1) for index, count in enumerate(counts))
            assert min(counts) > 0
            for driver in drivers:
                await driver.close()

        asyncio.run(asyncio.wait_for(main(), PATIENCE_S))

    def test_one_of_several_servers_is_enough(self, server: Server) -> None:
        async def main() -> None:
            driver = await driver_of(self.uri_of_several(server))
            assert await driver.initialize_cluster() == await driver.instance_id()
            await driver.close()

        asyncio.run(asyncio.wait_for(main(), PATIENCE_S))

    def test_a_short_outage_keeps_the_registration(self, server: Server) -> None:
        async def main() -> None:
            driver = connect(self.uri(server), aio.runtime(), lease_ms=20_000)
            await driver.open()
            await driver.initialize_cluster()
            await driver.register(A, BookieMode.WRITABLE, INFO)
            driver.on_session_expired(lambda: pytest.fail("the session was lost"))
            before = await driver.bookies(BookieMode.WRITABLE)
            server.kill()
            await asyncio.to_thread(server.start)
            assert await driver.bookies(BookieMode.WRITABLE) == before
            await driver.close()

        asyncio.run(asyncio.wait_for(main(), PATIENCE_S))

    @pytest.mark.parametrize("how", ["kill", "pause"])
    def test_appends_go_on_and_bookies_come_back(self, server: Server, tmp_path: pathlib.Path, how: str) -> None:
        uri = self.uri(server)

        async def main() -> None:
            drivers, servers = [], []
            for name in ("b1", "b2", "b3"):
                driver = await driver_of(uri)
                folder = str(tmp_path / name)
                config = BookieConfig(
                    bookie_id=name,
                    port=0,
                    journal_directories=(f"{folder}/journal",),
                    ledger_directories=(f"{folder}/ledgers",),
                    lease_ms=LEASE_MS,
                )
                bookie = BookieServer(aio.runtime(), config, driver)
                await bookie.start()
                drivers.append(driver)
                servers.append(bookie)
            async with bookies.connect(uri) as client:
                writer = await client.create()
                assert await writer.append(b"0") == 0  # on a new connection it needs the store (client-protocol 2.21)
                outage = asyncio.create_task(bounce(server, how))
                count = 1
                while not outage.done():
                    assert await writer.append(b"%d" % count, timeout=10) == count
                    count += 1
                    await asyncio.sleep(0.002)
                await outage

                async def is_back() -> bool:
                    return len((await drivers[0].bookies(BookieMode.WRITABLE)).bookies) == 3

                await until(is_back)
                await (await client.create()).close()
                await writer.close()
                reader = await client.recover(writer.ledger_id)
                assert reader.last_add_confirmed == count - 1
            for bookie, driver in zip(servers, drivers, strict=True):
                await bookie.stop()
                await driver.close()

        asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE_S))

    def test_while_nothing_answers_calls_say_so(self, server: Server) -> None:
        async def main() -> None:
            driver = await driver_of(self.uri(server))
            await driver.initialize_cluster()
            server.kill()
            with pytest.raises(
                MetadataError, match=rf"no {self.product} server at .* has answered|was lost before it answered"
            ):
                await driver.read_ledger(7)
            with pytest.raises(MetadataError, match=rf"no {self.product} server at .* has answered for 1 s"):
                await driver.next_ledger_id()
            await asyncio.to_thread(server.start)

            async def answers() -> bool:
                return await driver.next_ledger_id() >= 0

            await until(answers)
            await driver.close()

        asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
