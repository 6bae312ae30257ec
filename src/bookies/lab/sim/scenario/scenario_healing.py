"""The steps of scenarios about auto-recovery: processes that take part, and what is marked, locked and copied.

A process that takes part is a client whose name begins with H. Its messages to the store are of the kinds mark, unmark,
lock and unlock, so a schedule can hold one, and kill or pause the process between any two.
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
from bookies.replication.operator import Drain

# So that little virtual time passes; checks that ask bookies are made only when a schedule wants them.
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
    """What auto-recovery keeps, as the store has it."""
    if stage.looker is None:
        stage.looker = MemoryDriver(stage.cluster.memory)
        await stage.looker.open()
    return stage.looker.recovery


# -- who takes part ------------------------------------------------------------------------------------------------
@step(
    "CLIENT heal [OPTIONS]",
    "take part with an auditor and a worker; auditor=no, worker=no, and settings as in `RecoveryConfig`",
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


@step("CLIENT rest", "take part no more, in the orderly way")
async def rest(stage: Stage, given: Given) -> None:
    _healer(stage, given["client"])
    task = stage.healing.pop(given["client"])
    task.cancel()
    await asyncio.wait((task,))


def _healer(stage: Stage, name: str) -> AutoRecovery:
    if name not in stage.healers:
        raise ScenarioFailure(f"{name} does not take part in auto-recovery")
    return stage.healers[name]


# -- administration ------------------------------------------------------------------------------------------------
@step("CLIENT mark BOOKIES", "mark the ledger as one that needs these bookies, as an auditor would")
async def mark(stage: Stage, given: Given) -> None:
    client = await stage.connected(given["client"])
    names = [BookieId(each) for each in given["bookies"]]

    async def work() -> None:
        await client.driver.recovery.mark(stage.ledger.ledger_id, names, client.runtime.clock.wall_ms())

    await stage.perform(client, f"{given['client']} mark", work(), None)


@step("CLIENT maintain BOOKIE for SECONDS s", "announce a maintenance of the bookie; all clocks agree from then on")
async def maintain(stage: Stage, given: Given) -> None:
    client = await stage.connected(given["client"])
    for each in stage.cluster.clients.values():  # What is announced is a time of the wall clock.
        assert isinstance(each.runtime.clock, SimClock)
        assert isinstance(client.runtime.clock, SimClock)
        each.runtime.clock.skew_ms = client.runtime.clock.skew_ms
    wall_ms = client.runtime.clock.wall_ms
    until_ms = wall_ms() + int(1000 * given["seconds"])
    notes = BookieNotes(client.driver, wall_ms)

    async def work() -> None:
        await notes.begin_maintenance(BookieId(given["bookie"]), until_ms, given["client"])

    await stage.perform(client, f"{given['client']} maintain {given['bookie']}", work(), None)


def _drain(stage: Stage, given: Given) -> tuple[Any, Drain]:
    client = stage.client(given["client"])
    return client, Drain(client.runtime, client.client, client.driver, BookieId(given["bookie"]), given["client"])


@step("CLIENT drain BOOKIE [ENDING]", "empty the bookie; fails `BookKeeperError` when ledgers are in the way")
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


@step("CLIENT remove BOOKIE [ENDING]", "let the cluster forget the bookie, which is stopped and empty")
async def remove(stage: Stage, given: Given) -> None:
    await stage.connected(given["client"])
    client, draining = _drain(stage, given)
    await stage.perform(client, f"{given['client']} remove {given['bookie']}", draining.remove(), given["ending"])


# -- what has to be so ---------------------------------------------------------------------------------------------
@step("expect marked [BOOKIES]", "the ledger is marked, and the mark names these")
async def marked(stage: Stage, given: Given) -> None:
    found = await (await _store(stage)).mark_of(stage.ledger.ledger_id)
    if found is None:
        raise ScenarioFailure("the ledger is not marked")
    if given["bookies"] is not None and list(found.replicas) != given["bookies"]:
        raise ScenarioFailure(f"its mark names {', '.join(found.replicas) or 'nobody'}")


@step("expect unmarked", "the ledger is not marked")
async def unmarked(stage: Stage, given: Given) -> None:
    found = await (await _store(stage)).mark_of(stage.ledger.ledger_id)
    if found is not None:
        raise ScenarioFailure(f"the ledger is marked; the mark names {', '.join(found.replicas) or 'nobody'}")


@step("expect locked by CLIENT", "its worker has the ledger's lock")
async def locked(stage: Stage, given: Given) -> None:
    owner = (await (await _store(stage)).locks()).get(stage.ledger.ledger_id)
    if owner != given["client"]:
        raise ScenarioFailure(f"it is locked by {owner or 'nobody'}")


@step("expect unlocked", "nobody has the ledger's lock")
async def unlocked(stage: Stage, given: Given) -> None:
    owner = (await (await _store(stage)).locks()).get(stage.ledger.ledger_id)
    if owner is not None:
        raise ScenarioFailure(f"it is locked by {owner}")


@step("expect auditor CLIENT", "it is the elected auditor")
async def auditor(stage: Stage, given: Given) -> None:
    found = await (await _store(stage)).auditor()
    if found != stage.client(given["client"]).name:
        raise ScenarioFailure(f"the auditor is {found or 'nobody'}")


@step("expect CLIENT reports REPAIR", "why its worker could not repair the ledger")
async def reports(stage: Stage, given: Given) -> None:
    report = _healer(stage, given["client"]).worker.reports.get(stage.ledger.ledger_id)
    if report is None or report.state is not RepairState(given["repair"]):
        raise ScenarioFailure(f"it reports {report}")


@step("expect CLIENT copied COUNT", "entries that its worker has copied, of all copies")
async def copied(stage: Stage, given: Given) -> None:
    name = given["client"]
    compare(f"copied by {name}", given["count"], _healer(stage, name).worker.totals.entries)


@step("expect cookie of BOOKIE", "the cluster knows the bookie")
async def cookie(stage: Stage, given: Given) -> None:
    await _store(stage)
    assert stage.looker is not None
    if given["bookie"] not in (await stage.looker.all_bookies()).bookies:
        raise ScenarioFailure(f"{given['bookie']} has no cookie")


@step("expect no cookie of BOOKIE", "the cluster has forgotten the bookie")
async def no_cookie(stage: Stage, given: Given) -> None:
    await _store(stage)
    assert stage.looker is not None
    if given["bookie"] in (await stage.looker.all_bookies()).bookies:
        raise ScenarioFailure(f"{given['bookie']} has its cookie")


async def end_healing(stage: Stage) -> list[str]:
    """End those that take part, in the orderly way; what they leave behind."""
    for name, task in stage.healing.items():
        participant = stage.client(name).participant if stage.is_alive(name) else None
        if participant is None:
            continue
        participant.resume()
        task.cancel()
        await asyncio.wait((task,))
    left: list[str] = []
    if stage.healing and stage.looker is not None:
        store = await _store(stage)
        killed = [name for name in stage.healing if not stage.is_alive(name)]
        left += [
            f"ledger {each} is locked by {owner}"
            for each, owner in (await store.locks()).items()
            if owner not in killed
        ]
        await stage.looker.close()
    return left
