"""Scenario steps for auto-recovery: its processes, and the marks, locks and copies that they make.

An auto-recovery process is a client whose name begins with H. Its messages to the store are named mark, unmark, lock
and unlock, so a scenario can hold one, and kill or pause the process between any two.
"""

from __future__ import annotations

import asyncio
from typing import Any

from bookies.config import RecoveryConfig
from bookies.errors import BookKeeperError
from bookies.lab.sim.scenario.scenario_failure import ScenarioFailure
from bookies.lab.sim.scenario.scenario_grammar import Given, compare, step
from bookies.lab.sim.scenario.scenario_stage import Stage
from bookies.lab.sim.scenario.scenario_steps import settings_of
from bookies.lab.sim.world.cluster import SimClock
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.interface import RecoveryStore
from bookies.metadata.shared import BookieNotes
from bookies.model import BookieId
from bookies.protocol.repair.repair_work import RepairState
from bookies.replication.daemon import AutoRecovery
from bookies.replication.operator import Drain, Operator

# Short intervals save virtual time. Audits that query bookies are off unless a scenario enables them.
SETTINGS: dict[str, object] = {
    "lost_bookie_delay_s": 2,
    "audit_ledgers_interval_s": 0,
    "audit_bookies_interval_s": 0,
    "audit_verification_percentage": 100,
    "recovery_ledgers_at_once": 1,
    "recovery_open_ledger_grace_ms": 10_000,
    "recovery_backoff_ms": 500,
    "recovery_backoff_max_ms": 5_000,
    "recovery_report_interval_ms": 1_000,
}
PARTS = ("auditor", "worker")


async def _idle() -> None:
    await asyncio.get_running_loop().create_future()


async def _store(stage: Stage) -> RecoveryStore:
    """Return auto-recovery's state in the store."""
    if stage.observer is None:
        stage.observer = MemoryDriver(stage.cluster.memory)
        await stage.observer.open()
    return stage.observer.recovery


# -- processes -----------------------------------------------------------------------------------------------------
@step(
    "CLIENT heal [OPTIONS]",
    "starts an auditor and a worker; auditor=no, worker=no, and settings as in `RecoveryConfig`",
)
async def heal(stage: Stage, given: Given) -> None:
    options = dict(given["options"])
    idle = [part for part in PARTS if options.pop(part, "yes") == "no"]
    config = RecoveryConfig(**{**SETTINGS, **settings_of(RecoveryConfig, options)})  # type: ignore[arg-type]
    client = await stage.connected(given["client"])
    recovery = AutoRecovery(
        client.runtime, client.client, client.driver, config, BookieId(client.name), given["client"]
    )
    for part in idle:
        getattr(recovery, part).run = _idle
    stage.healers[given["client"]] = recovery
    stage.healing[given["client"]] = client.participant.create_task(
        recovery.run(), name=f"auto-recovery of {client.name}"
    )


@step("CLIENT rest", "stops both in an orderly way")
async def rest(stage: Stage, given: Given) -> None:
    _healer(stage, given["client"])
    task = stage.healing.pop(given["client"])
    task.cancel()
    await asyncio.wait((task,))


def _healer(stage: Stage, name: str) -> AutoRecovery:
    if name not in stage.healers:
        raise ScenarioFailure(f"{name} does not take part in auto-recovery; start it with `{name} heal`")
    return stage.healers[name]


# -- administration ------------------------------------------------------------------------------------------------
@step("CLIENT mark BOOKIES", "marks the ledger as one that needs these bookies, as an auditor would")
async def mark(stage: Stage, given: Given) -> None:
    client = await stage.connected(given["client"])
    names = [BookieId(bookie) for bookie in given["bookies"]]

    async def work() -> None:
        await client.driver.recovery.mark(stage.ledger.ledger_id, names, client.runtime.clock.wall_ms())

    await stage.perform(client, f"{given['client']} mark", work(), None)


@step("CLIENT maintain BOOKIE for SECONDS s", "announces a maintenance of the bookie; all clocks agree from then on")
async def maintain(stage: Stage, given: Given) -> None:
    client = await stage.connected(given["client"])
    for other in stage.cluster.clients.values():  # The announced end is a time of the wall clock.
        assert isinstance(other.runtime.clock, SimClock)
        assert isinstance(client.runtime.clock, SimClock)
        other.runtime.clock.skew_ms = client.runtime.clock.skew_ms
    wall_ms = client.runtime.clock.wall_ms
    until_ms = wall_ms() + int(1000 * given["seconds"])
    notes = BookieNotes(client.driver, wall_ms)

    async def work() -> None:
        await notes.begin_maintenance(BookieId(given["bookie"]), until_ms, given["client"])

    await stage.perform(client, f"{given['client']} maintain {given['bookie']}", work(), None)


def _drain(stage: Stage, given: Given) -> tuple[Any, Drain]:
    client = stage.client(given["client"])
    operator = Operator(client.runtime, client.client, client.driver, given["client"])
    return client, Drain(operator, BookieId(given["bookie"]))


@step("CLIENT drain BOOKIE [ENDING]", "drains the bookie; fails with `BookKeeperError` if ledgers prevent it")
async def drain(stage: Stage, given: Given) -> None:
    await stage.connected(given["client"])
    client, draining = _drain(stage, given)

    async def work() -> None:
        await draining.start()
        try:
            await draining.begin()
            result = await draining.run(await draining.plan())
        finally:
            draining.stop()
        if not result.is_empty:
            raise BookKeeperError(f"{given['bookie']} is not empty: {result.blocked}")

    await stage.perform(client, f"{given['client']} drain {given['bookie']}", work(), given["ending"])


@step("CLIENT remove BOOKIE [ENDING]", "removes the bookie, which is stopped and empty, from the cluster")
async def remove(stage: Stage, given: Given) -> None:
    await stage.connected(given["client"])
    client, draining = _drain(stage, given)
    await stage.perform(client, f"{given['client']} remove {given['bookie']}", draining.remove(), given["ending"])


# -- expectations --------------------------------------------------------------------------------------------------
@step("expect marked [BOOKIES]", "the ledger is marked, and the mark names these bookies")
async def marked(stage: Stage, given: Given) -> None:
    mark = await (await _store(stage)).mark_of(stage.ledger.ledger_id)
    if mark is None:
        raise ScenarioFailure("the ledger is not marked")
    if given["bookies"] is not None and list(mark.replicas) != given["bookies"]:
        raise ScenarioFailure(f"its mark names {', '.join(mark.replicas) or 'no bookie'}")


@step("expect unmarked", "the ledger is not marked")
async def unmarked(stage: Stage, given: Given) -> None:
    mark = await (await _store(stage)).mark_of(stage.ledger.ledger_id)
    if mark is not None:
        raise ScenarioFailure(f"the ledger is marked; the mark names {', '.join(mark.replicas) or 'no bookie'}")


@step("expect locked by CLIENT", "its worker holds the ledger's lock")
async def locked(stage: Stage, given: Given) -> None:
    owner = (await (await _store(stage)).locks()).get(stage.ledger.ledger_id)
    if owner != given["client"]:
        raise ScenarioFailure(f"it is locked by {owner}" if owner else "it is not locked")


@step("expect unlocked", "the ledger is not locked")
async def unlocked(stage: Stage, given: Given) -> None:
    owner = (await (await _store(stage)).locks()).get(stage.ledger.ledger_id)
    if owner is not None:
        raise ScenarioFailure(f"it is locked by {owner}")


@step("expect auditor CLIENT", "it is the elected auditor")
async def auditor(stage: Stage, given: Given) -> None:
    elected = await (await _store(stage)).auditor()
    if elected != stage.client(given["client"]).name:
        raise ScenarioFailure(f"the auditor is {elected}" if elected else "no auditor is elected")


@step("expect CLIENT reports REPAIR", "why its worker could not repair the ledger")
async def reports(stage: Stage, given: Given) -> None:
    report = _healer(stage, given["client"]).worker.reports.get(stage.ledger.ledger_id)
    if report is None or report.state is not RepairState(given["repair"]):
        raise ScenarioFailure(f"it reports {report}")


@step("expect CLIENT copied COUNT", "entries that its worker has copied, of all copies")
async def copied(stage: Stage, given: Given) -> None:
    name = given["client"]
    compare(f"copied by {name}", given["count"], _healer(stage, name).worker.totals.entries)


@step("expect cookie of BOOKIE", "the cluster has a cookie of the bookie")
async def cookie(stage: Stage, given: Given) -> None:
    await _store(stage)
    assert stage.observer is not None
    if given["bookie"] not in (await stage.observer.all_bookies()).bookies:
        raise ScenarioFailure(f"{given['bookie']} has no cookie")


@step("expect no cookie of BOOKIE", "the cluster has no cookie of the bookie")
async def no_cookie(stage: Stage, given: Given) -> None:
    await _store(stage)
    assert stage.observer is not None
    if given["bookie"] in (await stage.observer.all_bookies()).bookies:
        raise ScenarioFailure(f"{given['bookie']} has its cookie")


async def end_healing(stage: Stage) -> list[str]:
    """End the auto-recovery processes in an orderly way. Return the locks that living ones have left."""
    for name, task in stage.healing.items():
        participant = stage.client(name).participant if stage.is_alive(name) else None
        if participant is None:
            continue
        participant.resume()
        task.cancel()
        await asyncio.wait((task,))
    problems: list[str] = []
    if stage.healing and stage.observer is not None:
        store = await _store(stage)
        killed = [name for name in stage.healing if not stage.is_alive(name)]
        problems += [
            f"ledger {ledger_id} is locked by {owner}"
            for ledger_id, owner in (await store.locks()).items()
            if owner not in killed
        ]
        await stage.observer.close()
    return problems
