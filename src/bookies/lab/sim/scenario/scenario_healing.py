"""Scenario steps for auto-recovery: its processes, and the marks, locks and copies that they make.

An auto-recovery process is a client whose name begins with H. Its messages to the store are named mark, unmark, lock
and unlock, so a scenario can hold one, and kill or pause the process between any two.
"""

from __future__ import annotations

import asyncio

from bookies.config import RecoveryConfig
from bookies.errors import BookKeeperError
from bookies.lab.sim.scenario.scenario_failure import ScenarioFailure
from bookies.lab.sim.scenario.scenario_grammar import check, compare, operation, step
from bookies.lab.sim.scenario.scenario_stage import Stage
from bookies.lab.sim.scenario.scenario_steps import settings_of
from bookies.lab.sim.world import SimClient
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
async def heal(stage: Stage, client: str, options: dict[str, str]) -> None:
    idle = [part for part in PARTS if options.get(part) == "no"]
    settings = settings_of(RecoveryConfig, {name: text for name, text in options.items() if name not in PARTS})
    config = RecoveryConfig(**{**SETTINGS, **settings})  # type: ignore[arg-type]
    process = await stage.connected(client)
    recovery = AutoRecovery(process.runtime, process.client, process.driver, config, BookieId(process.name), client)
    for part in idle:
        getattr(recovery, part).run = _idle
    stage.actors[client].recovery = recovery
    name = f"auto-recovery of {process.name}"
    stage.actors[client].healing = process.participant.create_task(recovery.run(), name=name)


@step("CLIENT rest", "stops both in an orderly way")
async def rest(stage: Stage, client: str) -> None:
    _healer(stage, client)
    task, stage.actors[client].healing = stage.actors[client].healing, None
    if task is not None:
        task.cancel()
        await asyncio.wait((task,))


def _healer(stage: Stage, name: str) -> AutoRecovery:
    recovery = stage.actors[name].recovery
    if recovery is None:
        raise ScenarioFailure(f"{name} does not take part in auto-recovery; start it with `{name} heal`")
    return recovery


# -- administration ------------------------------------------------------------------------------------------------
@operation("CLIENT mark BOOKIES", "marks the ledger as one that needs these bookies, as an auditor would")
async def mark(stage: Stage, client: SimClient, name: str, bookies: list[BookieId]) -> None:
    await client.driver.recovery.mark(stage.ledger.ledger_id, bookies, client.runtime.clock.wall_ms())


@operation(
    "CLIENT maintain BOOKIE for SECONDS s", "announces a maintenance of the bookie; all clocks agree from then on"
)
async def maintain(stage: Stage, client: SimClient, name: str, bookie: str, seconds: float) -> None:
    clock = client.runtime.clock
    for other in stage.cluster.clients.values():  # The announced end is a time of the wall clock.
        assert isinstance(other.runtime.clock, SimClock)
        assert isinstance(clock, SimClock)
        other.runtime.clock.skew_ms = clock.skew_ms
    notes = BookieNotes(client.driver, clock.wall_ms)
    await notes.begin_maintenance(BookieId(bookie), clock.wall_ms() + int(1000 * seconds), name)


def _draining(client: SimClient, name: str, bookie: str) -> Drain:
    return Drain(Operator(client.runtime, client.client, client.driver, name), BookieId(bookie))


@operation("CLIENT drain BOOKIE [ENDING]", "drains the bookie; fails with `BookKeeperError` if ledgers prevent it")
async def drain(stage: Stage, client: SimClient, name: str, bookie: str) -> None:
    draining = _draining(client, name, bookie)
    await draining.start()
    try:
        await draining.begin()
        result = await draining.run(await draining.plan())
    finally:
        draining.stop()
    if not result.is_empty:
        raise BookKeeperError(f"{bookie} is not empty: {result.blocked}")


@operation("CLIENT remove BOOKIE [ENDING]", "removes the bookie, which is stopped and empty, from the cluster")
async def remove(stage: Stage, client: SimClient, name: str, bookie: str) -> None:
    await _draining(client, name, bookie).remove()


# -- expectations --------------------------------------------------------------------------------------------------
@step("expect marked [BOOKIES]", "the ledger is marked, and the mark names these bookies")
async def marked(stage: Stage, bookies: list[str] | None) -> None:
    mark = await (await _store(stage)).mark_of(stage.ledger.ledger_id)
    if mark is None:
        raise ScenarioFailure("the ledger is not marked")
    check(bookies in (None, list(mark.replicas)), f"its mark names {', '.join(mark.replicas) or 'no bookie'}")


@step("expect unmarked", "the ledger is not marked")
async def unmarked(stage: Stage) -> None:
    mark = await (await _store(stage)).mark_of(stage.ledger.ledger_id)
    names = ", ".join(mark.replicas if mark is not None else ())
    check(mark is None, f"the ledger is marked; the mark names {names or 'no bookie'}")


@step("expect locked by CLIENT", "its worker holds the ledger's lock")
@step("expect unlocked", "the ledger is not locked")
async def locked(stage: Stage, client: str | None = None) -> None:
    owner = (await (await _store(stage)).locks()).get(stage.ledger.ledger_id)
    check(owner == client, f"it is locked by {owner}" if owner else "it is not locked")


@step("expect auditor CLIENT", "it is the elected auditor")
async def auditor(stage: Stage, client: str) -> None:
    elected = await (await _store(stage)).auditor()
    check(elected == stage.client(client).name, f"the auditor is {elected}" if elected else "no auditor is elected")


@step("expect CLIENT reports REPAIR", "why its worker could not repair the ledger")
async def reports(stage: Stage, client: str, repair: str) -> None:
    report = _healer(stage, client).worker.reports.get(stage.ledger.ledger_id)
    check(report is not None and report.state is RepairState(repair), f"it reports {report}")


@step("expect CLIENT copied COUNT", "entries that its worker has copied, of all copies")
async def copied(stage: Stage, client: str, count: str) -> None:
    compare(f"copied by {client}", count, _healer(stage, client).worker.totals.entries)


@step("expect cookie of BOOKIE", "the cluster has a cookie of the bookie", is_there=True)
@step("expect no cookie of BOOKIE", "the cluster has no cookie of the bookie", is_there=False)
async def cookie(stage: Stage, bookie: str, is_there: bool) -> None:
    await _store(stage)
    assert stage.observer is not None
    has_cookie = bookie in (await stage.observer.all_bookies()).bookies
    check(has_cookie == is_there, f"{bookie} {'has its' if has_cookie else 'has no'} cookie")


async def end_healing(stage: Stage) -> list[str]:
    """End the auto-recovery processes in an orderly way. Return the locks that living ones have left."""
    healing = {name: actor.healing for name, actor in stage.actors.items() if actor.healing is not None}
    for name, task in healing.items():
        if stage.is_alive(name):
            stage.client(name).participant.resume()
            task.cancel()
            await asyncio.wait((task,))
    if not healing or stage.observer is None:
        return []
    killed = [name for name in healing if not stage.is_alive(name)]
    locks = await (await _store(stage)).locks()
    await stage.observer.close()
    return [f"ledger {ledger_id} is locked by {owner}" for ledger_id, owner in locks.items() if owner not in killed]
