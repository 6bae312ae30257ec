"""Whole clusters on virtual time: the same run everywhere, named scenarios, and a sweep over seeds and profiles.

The sweep runs `BK_SWEEP_SEEDS` seeds of each profile.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import os
import subprocess
import sys

import pytest

from bookies import kernels
from bookies.errors import BookKeeperError, LedgerFenced
from bookies.lab.sim.checkers.history import payload_of
from bookies.lab.sim.faults.profiles import PROFILES
from bookies.lab.sim.run import Scenario, Simulation, simulate
from bookies.lab.sim.world import SimClient, SimCluster
from bookies.lab.sim.world.disk import NOTHING_SURVIVES

SWEEP_SEEDS = int(os.environ.get("BK_SWEEP_SEEDS", "1"))  # for each profile; `bk sim` runs any number of them
SWEPT_PROFILES = (
    *("mixed", "crashes", "network", "metadata", "races", "tight", "disks", "rot", "small"),
    *("answers", "limbo", "deferred", "repair"),
    *("advanced", "delayed", "reads", "foreign", "fragments", "logs", "many-ledgers"),
    *("limits", "checkpoints", "passwords", "health", "collecting", "recovery", "recovery-small"),
    *("emptied", "emptied-writers", "emptied-bookies", "transactions", "operations", "balance"),
    *("retention", "rolled-up", "turns", "numbers"),
    *("hostile", "offloading", "lost-disks", "traced", "databases"),
)


NEEDS_NATIVE = pytest.mark.skipif(not kernels.NATIVE, reason="the compiled kernels are not there")
NEEDS_UVLOOP = pytest.mark.skipif(importlib.util.find_spec("uvloop") is None, reason="uvloop is not installed")


# -- determinism ---------------------------------------------------------------------------------------------------


def test_a_seed_is_one_run() -> None:
    first, second = simulate(3), simulate(3)
    assert first.lines == second.lines
    assert first.digest == second.digest
    assert first.statistics == second.statistics
    assert first.digest != _digests()[0]


WITHOUT_UVLOOP = "import sys; sys.modules['uvloop'] = None; "
WITH_UVLOOP = "import asyncio, uvloop; asyncio.set_event_loop_policy(uvloop.EventLoopPolicy()); "
DIGESTS = "from bookies.lab.sim.run import simulate; print(simulate(5).digest, simulate(9, 'small').digest)"


@pytest.mark.parametrize(
    ("prelude", "environment"),
    [
        (WITHOUT_UVLOOP, {"BOOKIES_KERNELS": "python", "PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo"}),
        pytest.param(WITHOUT_UVLOOP, {"BOOKIES_KERNELS": "native", "PYTHONHASHSEED": "4242"}, marks=NEEDS_NATIVE),
        pytest.param(WITH_UVLOOP, {"BOOKIES_KERNELS": "python", "PYTHONHASHSEED": "9"}, marks=NEEDS_UVLOOP),
    ],
    ids=["no uvloop, python", "no uvloop, native", "uvloop, python"],
)
def test_a_seed_is_one_run_in_every_process(prelude: str, environment: dict[str, str]) -> None:
    """Whatever the hash seed and the zone are, whichever kernels run, with uvloop or without."""
    process = subprocess.run(
        [sys.executable, "-c", prelude + DIGESTS],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.split() == _digests()


@functools.cache
def _digests() -> list[str]:
    return [simulate(5).digest, simulate(9, "small").digest]


# -- scenarios -----------------------------------------------------------------------------------------------------


def run(scenario: Scenario, seed: int = 1) -> None:
    result = simulate(seed, "calm", scenario=scenario)
    assert not result.violations, result.report()


async def _connect(cluster: SimCluster, name: str) -> SimClient:
    client = cluster.new_client(name)
    await client.participant.create_task(cluster.open_client(client))
    return client


def _payloads(ledger_id: int, count: int, first: int = 0) -> list[bytes]:
    return [payload_of(ledger_id, entry_id) for entry_id in range(first, first + count)]


@pytest.mark.parametrize("seed", range(4))
def test_killed_writer_is_recovered_to_its_exact_end(seed: int) -> None:
    async def scenario(simulation: Simulation) -> None:
        cluster = simulation.cluster
        await cluster.start()
        writer, other = await _connect(cluster, "writer"), await _connect(cluster, "recoverer")
        confirmed: list[int] = []
        ids: list[int] = []

        async def write() -> None:
            ledger = await writer.client.create(ensemble=3, write_quorum=3, ack_quorum=2)
            ids.append(ledger.ledger_id)
            while True:
                confirmed.append(await ledger.append(payload_of(ids[0], len(confirmed))))

        writer.participant.create_task(write())
        await asyncio.sleep(0.2 + seed / 100)
        cluster.kill_client("writer")

        async def recover() -> None:
            ledger = await other.client.recover(ids[0])
            assert ledger.last_add_confirmed in (len(confirmed) - 1, len(confirmed))
            entries = [entry async for entry in ledger.read()]
            assert [entry.payload for entry in entries] == _payloads(ids[0], ledger.last_add_confirmed + 1)
            await ledger.close()

        await other.participant.create_task(recover())
        assert len(confirmed) > 10
        await cluster.stop()

    run(scenario, seed)


def test_power_failure_of_all_bookies_loses_nothing_acknowledged() -> None:
    async def scenario(simulation: Simulation) -> None:
        cluster = simulation.cluster
        await cluster.start()
        client, other = await _connect(cluster, "writer"), await _connect(cluster, "recoverer")

        async def write() -> int:
            ledger = await client.client.create(ensemble=4, write_quorum=3, ack_quorum=2)
            await ledger.append_many(_payloads(ledger.ledger_id, 50))
            return ledger.ledger_id

        ledger_id = await client.participant.create_task(write())
        for name in cluster.bookies:
            cluster.crash_bookie(name, NOTHING_SURVIVES, is_silent=True, restart_after_s=1.0)
        await asyncio.sleep(0.5)
        await cluster.heal()

        async def check() -> None:
            ledger = await other.client.recover(ledger_id)
            assert ledger.last_add_confirmed == 49
            assert [entry.payload async for entry in ledger.read()] == _payloads(ledger_id, 50)
            await ledger.close()

        await other.participant.create_task(check())
        await cluster.stop()

    run(scenario)


def test_isolated_writer_confirms_nothing_after_a_recovery() -> None:
    """The writer reaches no bookie and not the store while another client recovers; then it comes back. X-12, X-13."""

    async def scenario(simulation: Simulation) -> None:
        cluster = simulation.cluster
        network = cluster.network
        await cluster.start()
        writer, other = await _connect(cluster, "writer"), await _connect(cluster, "recoverer")
        handle = await writer.participant.create_task(_create(writer))
        await writer.participant.create_task(handle.append_many(_payloads(handle.ledger_id, 10)))
        for host in [*cluster.bookies, "metadata"]:
            network.block("writer", host)
            network.block(host, "writer")
        late = writer.participant.create_task(handle.append(payload_of(handle.ledger_id, 10)))

        async def recover() -> int:
            ledger = await other.client.recover(handle.ledger_id)
            await ledger.close()
            return ledger.last_add_confirmed

        assert await other.participant.create_task(recover()) == 9
        network.heal()
        with pytest.raises(BookKeeperError):
            await late
        with pytest.raises(BookKeeperError):
            await writer.participant.create_task(handle.append(b"too late"))
        await writer.participant.create_task(handle.close())
        await cluster.stop()

    run(scenario)


def test_paused_writer_finds_itself_fenced() -> None:
    """X-78: a process that stood still for an hour goes on as if nothing had happened, and is refused."""

    async def scenario(simulation: Simulation) -> None:
        cluster = simulation.cluster
        await cluster.start()
        writer, other = await _connect(cluster, "writer"), await _connect(cluster, "recoverer")
        handle = await writer.participant.create_task(_create(writer))
        await writer.participant.create_task(handle.append(payload_of(handle.ledger_id, 0)))
        writer.participant.pause()
        await asyncio.sleep(3600)

        async def recover() -> None:
            await (await other.client.recover(handle.ledger_id)).close()

        await other.participant.create_task(recover())
        writer.participant.resume()
        with pytest.raises(LedgerFenced):
            await writer.participant.create_task(handle.append(payload_of(handle.ledger_id, 1)))
        await writer.participant.create_task(handle.close())
        await cluster.stop()

    run(scenario)


async def _create(client: SimClient):  # type: ignore[no-untyped-def]
    return await client.client.create(ensemble=3, write_quorum=3, ack_quorum=2)


# -- sweep ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", SWEPT_PROFILES)
def test_sweep(profile: str) -> None:
    """No promise is broken. `bk sim --seed N --profile P --trace` prints the whole run of a seed that fails."""
    for seed in range(1, SWEEP_SEEDS + 1):
        result = simulate(seed, profile)
        assert not result.violations, result.report()


def test_profiles_are_swept() -> None:
    assert set(SWEPT_PROFILES) == set(PROFILES) - {"calm"} | {"small"}
