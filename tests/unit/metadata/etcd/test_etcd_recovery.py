"""Locks and votes in etcd whose request is carried out long after its client has given up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from tests.fakes.etcd import FakeEtcd, Server

from bookies.errors import MetadataError
from bookies.metadata.etcd import EtcdDriver
from bookies.metadata.etcd.etcd_port import Answer, Condition, Operation, OutcomeUnknown
from bookies.runtime import aio


class LateEtcd(FakeEtcd):
    """Keeps a lost request, see `deliver`. `silences`: no later request gets an answer until then."""

    late: tuple[Sequence[Condition], Sequence[Operation], Sequence[Operation]] | None = None
    silences = False

    async def transact(
        self, conditions: Sequence[Condition], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> Answer:
        try:
            return await super().transact(conditions, then, otherwise)
        except OutcomeUnknown:
            self.late = (conditions, then, otherwise)
            self.server.is_silent = self.silences
            raise

    def deliver(self) -> None:
        """Carry out the lost request, as a leader that wakes up forwards it."""
        assert self.late is not None
        self.server.transact(*self.late)


def play(body: Callable[[Server, LateEtcd, EtcdDriver], Awaitable[None]]) -> None:
    async def main() -> None:
        server = Server("/ledgers")
        etcd = LateEtcd(server)
        driver = EtcdDriver("etcd://fake/ledgers", etcd, aio.runtime(seed=1), "/ledgers", lease_ms=60_000)
        async with asyncio.timeout(120):
            await driver.open()
            await body(server, etcd, driver)
            await driver.close()

    asyncio.run(main())


def test_a_lock_that_comes_late_is_none() -> None:
    async def body(server: Server, etcd: LateEtcd, driver: EtcdDriver) -> None:
        server.lost_requests = 1
        lock = await driver.recovery.lock(7, "a", needs_mark=False)
        assert lock is not None
        await driver.recovery.unlock(lock)
        etcd.deliver()
        assert await driver.recovery.locks() == {}

    play(body)


def test_a_lock_that_comes_after_its_release_is_none() -> None:
    """The release follows an attempt that was not repeated, because no server answered."""

    async def body(server: Server, etcd: LateEtcd, driver: EtcdDriver) -> None:
        nodes = driver.recovery.nodes
        assert await nodes.vote(b"")  # begins the session
        session, place = nodes.session, nodes.places.lock(7)
        assert session is not None
        server.lost_requests, etcd.silences = 1, True
        with pytest.raises(MetadataError, match="has answered"):
            await nodes.create_ephemeral(place, b"")
        server.is_silent = False
        await nodes.release(place, session)
        etcd.deliver()
        assert await driver.recovery.locks() == {}
        assert await nodes.create_ephemeral(place, b"") == session

    play(body)


def test_an_attempt_that_was_carried_out_is_found() -> None:
    async def body(server: Server, etcd: LateEtcd, driver: EtcdDriver) -> None:
        server.lost_replies = 2  # of the lock, and of what makes it void
        lock = await driver.recovery.lock(7, "a", needs_mark=False)
        assert lock is not None
        assert await driver.recovery.locks() == {7: "a"}
        await driver.recovery.unlock(lock)
        assert await driver.recovery.locks() == {}

    play(body)


def test_a_vote_that_comes_late_is_none() -> None:
    async def body(server: Server, etcd: LateEtcd, driver: EtcdDriver) -> None:
        nodes = driver.recovery.nodes
        server.lost_requests = 1
        with pytest.raises(OutcomeUnknown):
            await nodes.vote(b"")
        assert await nodes.own_votes() == []
        etcd.deliver()
        assert await nodes.votes() == []
        vote = await nodes.vote(b"")
        assert await nodes.own_votes() == [vote.place]

    play(body)
