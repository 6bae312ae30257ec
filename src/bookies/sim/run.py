"""One run from one seed: cluster, workload, faults, healing, checks. The same seed gives the same run, everywhere."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from bookies.sim.checkers import check_commits, check_ledgers, check_order
from bookies.sim.cluster import SimCluster
from bookies.sim.faults import FaultPlan, Faults, Injected
from bookies.sim.loop import Deadlock, Halted, Livelock, Overdue, SimLoop, current_participant
from bookies.sim.moments import MomentPlan, Moments
from bookies.sim.tap import Tap
from bookies.sim.trace import Trace
from bookies.sim.witness import Witness
from bookies.sim.workload import History, Plan, Workload

HEALED_DEADLINE_S = 300.0  # every operation under way comes to its end within this, once everything is healed
RUN_DEADLINE_S = 7_200.0


@dataclass(frozen=True)
class Profile:
    """What kind of run. `duration_s`: virtual time with faults, unless the work is done earlier."""

    bookies: int = 5
    duration_s: float = 6.0
    plan: Plan = field(default_factory=lambda: Plan(deleters=1))
    faults: FaultPlan = field(default_factory=FaultPlan)
    moments: MomentPlan | None = None
    stall_probability: float = 0.0
    stall_ms: float = 300.0
    lease_s: float = 2.0  # of a bookie's registration
    client_settings: dict[str, object] = field(
        default_factory=lambda: {"add_timeout_ms": 800, "read_timeout_ms": 800, "connect_timeout_ms": 1_000}
    )


PROFILES = {
    "mixed": Profile(),
    "calm": Profile(faults=FaultPlan(weights={})),
    "crashes": Profile(
        faults=FaultPlan(
            gap_ms=150,
            weights={
                "crash bookie": 2,
                "crash bookie in a disk call": 4,
                "crash bookie at an await": 3,
                "crash all bookies": 1,
                "kill client at an await": 2,
            },
        )
    ),
    "network": Profile(
        plan=Plan(digests=("crc32c", "dummy")),
        faults=FaultPlan(
            gap_ms=150,
            weights={
                "cut connection": 5,
                "partition": 3,
                "isolate": 2,
                "slow host": 2,
                "repeat messages": 2,
                "kill client at an await": 2,
            },
        ),
    ),
    "metadata": Profile(
        faults=FaultPlan(
            gap_ms=150,
            weights={
                "metadata trouble": 4,
                "isolate from the store": 3,
                "expire session": 3,
                "crash bookie": 2,
                "cut connection": 2,
                "kill client at an await": 3,
                "pause client": 2,
            },
        )
    ),
    # Short ledgers, recovered while they are written; answers of single bookies come late.
    "races": Profile(
        duration_s=5.0,
        plan=Plan(writers=3, recoverers=3, readers=1, entries_max=25, pause_ms=10, recovery_ms=120),
        faults=FaultPlan(
            gap_ms=200,
            weights={
                "crash bookie": 2,
                "crash bookie at an await": 2,
                "cut connection": 3,
                "kill client at an await": 2,
                "pause client": 3,
                "pause bookie": 1,
            },
        ),
        moments=MomentPlan(),
        stall_probability=0.06,
        client_settings={"add_timeout_ms": 300, "read_timeout_ms": 300, "connect_timeout_ms": 1_000},
    ),
    "tight": Profile(bookies=3),
    # Disks that fail, fill up, and forget.
    "disks": Profile(
        faults=FaultPlan(gap_ms=150, weights={"fail disk calls": 5, "fill disk": 1, "slow disk": 1, "crash bookie": 2})
    ),
    # Bookies that fail single entries and are chosen again at another position, where some of their answers come late.
    "answers": Profile(
        bookies=4,
        duration_s=2.0,
        plan=Plan(
            writers=3,
            recoverers=1,
            readers=1,
            quorums=((3, 3, 3), (3, 3, 3), (3, 3, 2)),
            entries_min=10,
            entries_max=60,
            pause_ms=3,
            recovery_ms=500,
        ),
        faults=FaultPlan(
            gap_ms=10,
            durations_s=(0.02, 0.1, 0.2),
            weights={"refuse adds": 12, "slow disk": 5, "kill client at an await": 0.2},
        ),
        stall_probability=0.02,
        stall_ms=20,
        client_settings={"add_timeout_ms": 600, "read_timeout_ms": 300, "connect_timeout_ms": 1_000},
    ),
    # A bookie that cannot say what it holds, which v2 cannot express.
    "limbo": Profile(
        duration_s=3.0,
        plan=Plan(
            writers=3,
            recoverers=3,
            readers=1,
            quorums=((3, 3, 2), (4, 3, 2), (3, 2, 2), (2, 2, 2)),
            entries_max=25,
            pause_ms=10,
            recovery_ms=120,
        ),
        faults=FaultPlan(gap_ms=60, weights={"limbo": 3, "kill client at an await": 3, "pause client": 1}),
        moments=MomentPlan(),
        stall_probability=0.06,
        client_settings={"wire": "v3", "add_timeout_ms": 300, "read_timeout_ms": 300, "connect_timeout_ms": 1_000},
    ),
    # Ledgers whose entries are durable only when they are forced, and forced while more come.
    "deferred": Profile(
        duration_s=3.0,
        plan=Plan(
            writers=3,
            readers=1,
            quorums=((3, 3, 2), (4, 3, 2), (5, 2, 2)),
            entries_max=25,
            pause_ms=10,
            deferred_probability=1.0,
            overlap_probability=0.5,
        ),
        faults=FaultPlan(gap_ms=300, weights={"crash bookie": 2, "slow host": 1, "kill client at an await": 1}),
        stall_probability=0.06,
    ),
    # Ledgers move to other bookies while they are written and recovered.
    "repair": Profile(
        duration_s=3.0,
        plan=Plan(replicators=2, entries_max=25, recovery_ms=200),
        faults=FaultPlan(gap_ms=300, weights={"crash bookie": 1, "slow host": 1, "kill client at an await": 1}),
    ),
    "rot": Profile(
        plan=Plan(quorums=((3, 3, 2), (3, 2, 2), (4, 3, 2), (5, 3, 2))),
        faults=FaultPlan(gap_ms=150, weights={"rot": 5, "crash bookie": 2, "kill client": 1, "cut connection": 1}),
    ),
}

CONFIGURATIONS = ((3, 3, 2), (3, 2, 2), (6, 2, 2), (5, 3, 2), (4, 3, 2), (1, 1, 1))  # of the profile "small"


def small_profile(seed: int, quorums: tuple[int, int, int]) -> Profile:
    """One ledger of a few entries, four in flight, two recoveries, two faults of bookies, seven bookies.

    Random schedules of this scope find every known mistake of the protocol. Source: client-protocol 8.4.
    """
    random = Random(f"{seed}/scope")
    return Profile(
        bookies=min(7, quorums[0] + random.choice((0, 1, 2, 2))),
        duration_s=3.0,
        plan=Plan(
            writers=1,
            recoverers=random.randint(1, 2),
            readers=random.randint(0, 1),
            deleters=int(random.random() < 0.1),
            delete_ms=60,
            quorums=(quorums,),
            entries_min=random.choice((0, 12)),
            entries_max=20,
            pause_ms=random.choice((0.1, 5)),
            recovery_ms=random.choice((20, 100, 500)),
            read_ms=20,
            in_flight_max=4,
            ledgers_max=1,
            recoveries_max=1,
            reads_max=1,
            is_replaced=False,
        ),
        faults=FaultPlan(
            gap_ms=15,
            count_max=random.randint(0, 2),
            durations_s=(0.005, 0.05, 0.2, 1.0),
            weights={
                "crash bookie": 3,
                "crash bookie in a disk call": 2,
                "crash bookie at an await": 2,
                "pause bookie": 2,
                "cut connection": 2,
            },
        ),
        moments=MomentPlan(random.choice((0.2, 0.6)), random.choice((0.1, 0.3, 0.7))),
        stall_probability=random.choice((0.0, 0.0, 0.05, 0.2)),
        stall_ms=random.choice((5.0, 50.0)),
        lease_s=0.5,
        client_settings={"add_timeout_ms": 60, "read_timeout_ms": 60, "connect_timeout_ms": 100},
    )


SMALL = {f"small-{e}{w}{a}": (e, w, a) for e, w, a in CONFIGURATIONS}
PROFILE_NAMES = (*PROFILES, "small", *SMALL)


def profile_of(name: str, seed: int) -> tuple[str, Profile]:
    """The profile of a run and its exact name: "small" takes its configurations in turn."""
    if name == "small":
        name = list(SMALL)[seed % len(SMALL)]
    return (name, small_profile(seed, SMALL[name])) if name in SMALL else (name, PROFILES[name])


@dataclass
class Result:
    """What came of a run. Empty `violations`: every promise held.

    `faults`: those that happened, name -> what it was. `cpu_s`: processor time, which is not part of the run.
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
        """For a person: what broke, how to see it again, and the last lines of the trace."""
        lines = [f"seed {self.seed}, profile {self.profile}: {len(self.violations)} violations"]
        lines += [f"  {violation}" for violation in self.violations]
        lines += [f"again: bk sim --seed {self.seed} --profile {self.profile} --trace", "", *self.lines[-line_count:]]
        return "\n".join(lines)


class _TraceHandler(logging.Handler):
    """The production code's own events, in the trace."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(logging.INFO)
        self._trace = trace

    def emit(self, record: logging.LogRecord) -> None:
        owner = current_participant()
        self._trace.note(owner.name if owner else "world", record.getMessage())


Scenario = Callable[["Simulation"], Coroutine[Any, Any, None]]


class Simulation:
    """Everything that one run consists of. A `Scenario` is a coroutine over it, run as the world."""

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
            # No writer gives up by itself: one that still waits when everything is healed is to be seen (I-19).
            client_settings={"add_quorum_timeout_ms": 0, **profile.client_settings},
            lease_s=profile.lease_s,
        )
        self.cluster.network.stall_probability = profile.stall_probability
        self.cluster.network.stall_ms = profile.stall_ms
        self.history.witness = self.cluster.witness = Witness(self.cluster.store, self.history.violated)
        self.history.tap = Tap(
            self.cluster.network, self.cluster.store, self.history.witness, self.history.violated, self.history.instant
        )
        self.history.record_of = self.cluster.store.record
        self.cluster.store.on_commit = self.history.committed
        self.workload = Workload(self.cluster, self.history, Random(f"{seed}/workload"), profile.plan)
        self.injected = Injected(only)
        self.faults = Faults(self.cluster, f"{seed}/faults", profile.faults, self.injected)
        self.moments = Moments(
            self.cluster, f"{seed}/moments", profile.moments or MomentPlan(), self.injected, self.workload.nudge
        )

    def run(self, scenario: Scenario) -> None:
        """Run to the end and collect violations in `history`."""
        logger = logging.getLogger("bookies")
        handler = _TraceHandler(self.trace)
        level, propagate = logger.level, logger.propagate
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        try:
            self.loop.run(scenario(self), deadline_s=RUN_DEADLINE_S)
        except Halted:
            pass  # The first violation is all that was asked for.
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
        """End all faults; then everything under way ends, every ledger can be recovered, and all promises hold."""
        self.faults.stop()
        self.moments.stop()
        self.workload.stop()
        await self.cluster.heal()
        try:
            async with asyncio.timeout(HEALED_DEADLINE_S):
                finishing = asyncio.create_task(self.workload.finish())
                await check_ledgers(self.cluster, self.history, self.workload)
                await finishing
        except TimeoutError:
            self.history.violated(
                "I-19", f"not over {HEALED_DEADLINE_S:.0f} s after the healing:\n{self.loop.describe_tasks()}"
            )
            return
        check_commits(self.cluster, self.history)
        check_order(self.history)
        await self.cluster.stop()


async def _mixed(simulation: Simulation) -> None:
    """The scenario of the sweeps."""
    await simulation.cluster.start()
    if simulation.profile.moments is not None:
        simulation.moments.start()
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
    scenario: Scenario = _mixed,
    duration_s: float | None = None,
    stops_at_first: bool = False,
    only: frozenset[str] | None = None,
) -> Result:
    """Run one seed. Never raises for what the simulated code does wrong: that is in `violations`.

    `stops_at_first`: at the first violation. `only`: the names of the faults that happen; None: all.
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
