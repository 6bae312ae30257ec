"""Leases on every metadata store: turns in order, at once after a release, with tokens that grow."""

from __future__ import annotations

import asyncio
import pathlib

import pytest
from tests.conformance.test_metadata import NAMES, Cluster, Kind

from bookies.client.turns.lease import Contest, Lease
from bookies.errors import LeaseHeld
from bookies.protocol.log.lease import TTL_MAX_S
from bookies.runtime import aio


@pytest.fixture(params=NAMES)
def kind(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Kind:
    return Kind(request.param, tmp_path)


def test_turns(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        drivers = [await cluster.driver() for _ in range(3)]
        contests = [Contest(aio.runtime(), driver, "locks/nightly", "lock nightly") for driver in drivers]
        tokens: list[int] = []

        async def work(contest: Contest) -> None:
            # With this ttl a process reads the record every 100 s: the watch must have told it.
            async with contest.opening(TTL_MAX_S, True, None, None) as lease:
                await asyncio.sleep(0)
                assert lease.is_held
                tokens.append(lease.token)

        await asyncio.gather(*(work(contest) for contest in contests * 3))
        assert tokens == sorted(tokens)
        assert len(tokens) == 9

    kind.run(body)


def test_a_sign_of_life_refuses_who_does_not_wait(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        drivers = [await cluster.driver() for _ in range(2)]
        contests = [Contest(aio.runtime(), driver, "locks/nightly", "lock nightly") for driver in drivers]
        first: Lease = await contests[0].opening(3.0, True, "first", None)
        with pytest.raises(LeaseHeld, match="held by first"):
            await contests[1].opening(3.0, False, "second", None)
        await first.release()
        second: Lease = await contests[1].opening(3.0, False, "second", None)
        assert second.token > first.token
        await second.release()

    kind.run(body)
