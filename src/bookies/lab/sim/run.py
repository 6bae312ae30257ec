"""One run from one seed: cluster, workload, faults, healing, checks. The same seed gives the same run everywhere."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import traceback
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from bookies.config import ClientConfig
from bookies.lab.sim.checkers import History
from bookies.lab.sim.checkers.memory_limit import MemoryLimitChecker
from bookies.lab.sim.checkers.space import check_space
from bookies.lab.sim.checkers.wire_tap import WireTap
from bookies.lab.sim.checkers.writer_settings import WriterSettingsChecker
from bookies.lab.sim.clients import LogWorkload, Workload
from bookies.lab.sim.clients.final_checks import check_commits, check_order
from bookies.lab.sim.faults import Faults, Profile
from bookies.lab.sim.faults.fault_schedule import Injected
from bookies.lab.sim.faults.profiles import profile_of
from bookies.lab.sim.faults.targeted_faults import TargetedFaultPlan, TargetedFaults
from bookies.lab.sim.world import SimCluster, Trace
from bookies.lab.sim.world.hostile_process import HostileProcess
from bookies.lab.sim.world.loop import Deadlock, Halted, Livelock, Overdue, SimLoop, current_participant
from bookies.lab.sim.world.witness import Witness

HEALED_DEADLINE_S = 300.0  # within this time after the healing every pending operation must end
RUN_DEADLINE_S = 7_200.0


class Result(Struct):
    """The result of a run. Empty `violations`: every promise held.

    `faults`: those that happened, name -> description. `cpu_s`: processor time, which is not part of the run.
    """

    seed: int
    profile: str
    digest: str
    lines: list[str]
    violations: list[str]
    statistics: dict[str, float]
    faults: dict[str, str]
    cpu_s: float = 0.0

    def report(self, line_count: int = 60) -> str:
        """Return the report for the user: violations, the command that repeats the run, and the end of the trace."""
        lines = [f"seed {self.seed}, profile {self.profile}: {len(self.violations)} violations"]
        lines += [f"  {violation}" for violation in self.violations]
        lines += [f"again: bk sim --seed {self.seed} --profile {self.profile} --trace", "", *self.lines[-line_count:]]
        return "\n".join(lines)


class _TraceHandler(logging.Handler):
    """Handler that copies the production code's log events to the trace."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(logging.INFO)
        self._trace = trace

    def emit(self, record: logging.LogRecord) -> None:
        owner = current_participant()
        self._trace.note(owner.name if owner else "world", record.getMessage())


Scenario = Callable[["Simulation"], Coroutine[Any, Any, None]]


class Simulation:
    """All parts of one run. A `Scenario` is a coroutine over it, run as the world."""

    def __init__(self, seed: int, profile: Profile, only: frozenset[str] | None = None) -> None:
        self.loop = SimLoop()  # type: ignore[abstract]
        self.trace = Trace(self.loop.time)
        self.history = History(self.trace)
        self.profile = profile
        self.random = Random(f"{seed}/choices")
        self.cluster = SimCluster(
            self.loop,
            self.trace,
            str(seed),
            profile.bookies,
            bookie_settings=profile.bookie_settings,
            # Without a time-out, a writer that still waits after the healing is visible as a violation of I-19.
            client_settings={"add_quorum_timeout_ms": 0, **profile.client_settings},
            lease_s=profile.lease_s,
            defers_syncs=profile.defers_syncs,
            fetches_owed=profile.fetches_owed,
            disks=profile.disks,
            traced_probability=profile.traced_probability,
        )
        conditions = self.cluster.network.conditions
        conditions.stall_probability, conditions.stall_ms = profile.stall_probability, profile.stall_ms
        self.history.witness = self.cluster.witness = Witness(self.cluster.store, self.history.violated)
        self.history.tap = WireTap(
            self.cluster.network, self.cluster.store, self.history.witness, self.history.violated, self.history.instant
        )
        settings = ClientConfig(**self.cluster.client_settings)  # type: ignore[arg-type]
        if "memory_limit" in profile.client_settings:
            self.history.tap.memory_limit = MemoryLimitChecker(
                self.history.violated, self.loop.time, settings.memory_limit, settings.add_timeout_ms / 1000
            )
        self.hostile = HostileProcess(self.cluster, **profile.hostile) if profile.hostile is not None else None
        if self.hostile is not None:
            # What a bookie holds and says can only be told of honest ones.
            self.history.witness = self.cluster.witness = None
            self.history.tap = self.cluster.network.on_join = None
        self.history.writer_settings = WriterSettingsChecker(self.cluster, self.history.violated)
        self.history.record_of = self.cluster.store.record
        self.cluster.store.on_commit = self.history.committed
        random = Random(f"{seed}/workload")
        self.workload: Workload | LogWorkload
        if profile.log is not None:
            self.workload = LogWorkload(self.cluster, self.history, random, profile.log)
        else:
            self.workload = Workload(self.cluster, self.history, random, profile.plan)
        self.injected = Injected(only)
        self.faults = Faults(self.cluster, f"{seed}/faults", profile.faults, self.injected)
        self.targeted_faults = TargetedFaults(
            self.cluster,
            f"{seed}/moments",
            profile.targeted_faults or TargetedFaultPlan(),
            self.injected,
            self.workload.nudge,
        )

    def run(self, scenario: Scenario) -> None:
        """Run the scenario to its end and collect violations in `history`."""
        logger = logging.getLogger("bookies")
        handler = _TraceHandler(self.trace)
        level, propagate = logger.level, logger.propagate
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        try:
            self.loop.run(scenario(self), deadline_s=RUN_DEADLINE_S)
        except Halted:
            pass  # The run was to stop at the first violation.
        except (Deadlock, Livelock, Overdue) as error:
            self.history.violated("I-19", str(error))
        except Exception as error:  # noqa: BLE001
            self.history.violated("errors", "".join(traceback.format_exception(error)))
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate
            self.loop.note_unread_errors()
            for text in (*self.loop.errors, *self.cluster.problems):
                self.history.violated("errors", text)
            self.history.is_over = self.trace.is_over = True
            self.loop.close()

    async def heal_and_check(self) -> None:
        """End all faults and check: pending operations end, every ledger can be recovered, and all promises hold."""
        self.faults.stop()
        self.targeted_faults.stop()
        self.workload.stop()
        if self.hostile is not None:
            self.hostile.reform()
        await self.cluster.heal()
        try:
            async with asyncio.timeout(HEALED_DEADLINE_S):
                await self.workload.check()
                if self.profile.collects:
                    await check_space(self.cluster, self.history.violated)
        except TimeoutError:
            self.history.violated(
                "I-19", f"not over {HEALED_DEADLINE_S:.0f} s after the healing:\n{self.loop.describe_tasks()}"
            )
            return
        check_commits(self.cluster, self.history)
        check_order(self.history)
        await self.cluster.stop()
        if self.hostile is not None:
            await self.hostile.stop()


async def mixed(simulation: Simulation) -> None:
    """Run the random workload under random faults, then heal and check: the scenario of the sweeps."""
    await simulation.cluster.start()
    if simulation.hostile is not None:
        await simulation.hostile.start()
    if simulation.profile.targeted_faults is not None:
        simulation.targeted_faults.start()
    simulation.workload.start()
    faults = asyncio.create_task(simulation.faults.run(), name="faults")
    if simulation.profile.plan.is_replaced:
        await asyncio.sleep(simulation.profile.duration_s)
    else:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(simulation.workload.finish(), simulation.profile.duration_s)
    simulation.faults.stop()
    faults.cancel()
    await simulation.heal_and_check()


def simulate(
    seed: int,
    profile: str = "mixed",
    *,
    scenario: Scenario = mixed,
    duration_s: float | None = None,
    stops_at_first: bool = False,
    only: frozenset[str] | None = None,
) -> Result:
    """Run one seed. Mistakes of the simulated code do not raise: they are in `violations`.

    `duration_s`: virtual seconds with faults; None: those of the profile. `stops_at_first`: end the run at the first
    violation. `only`: names of the faults that may happen; None: all.
    """
    begin_s = time.process_time()
    profile, chosen = profile_of(profile, seed)
    if duration_s is not None:
        chosen = replace(chosen, duration_s=duration_s)
    simulation = Simulation(seed, chosen, only)
    if stops_at_first:
        simulation.history.on_violation = simulation.loop.halt
    simulation.run(scenario)
    loop, network, history = simulation.loop, simulation.cluster.network, simulation.history
    statistics: dict[str, float] = {
        "virtual_s": round(loop.time(), 3),
        "callbacks": loop.steps,
        **network.statistics,
        **history.counts,
    }
    simulation.trace.mix(repr(statistics).encode())
    return Result(
        seed,
        profile,
        simulation.trace.digest(),
        simulation.trace.lines,
        history.violations,
        statistics,
        simulation.injected.happened,
        time.process_time() - begin_s,
    )
