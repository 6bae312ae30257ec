"""Profiles of random runs: workload, number of bookies, faults and settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from bookies.lab.sim.clients.plan import LogPlan, Plan, Settings
from bookies.lab.sim.faults.emptied_profiles import EMPTIED
from bookies.lab.sim.faults.fault_schedule import FaultPlan
from bookies.lab.sim.faults.targeted_faults import TargetedFaultPlan


@dataclass(frozen=True)
class Profile:
    """The parameters of a run. `duration_s`: virtual time with faults, unless the work is done earlier."""

    bookies: int = 5
    duration_s: float = 6.0
    plan: Plan = field(default_factory=lambda: Plan(deleters=1))
    log: LogPlan | None = None  # instead of the plan
    faults: FaultPlan = field(default_factory=FaultPlan)
    targeted_faults: TargetedFaultPlan | None = None
    stall_probability: float = 0.0
    stall_ms: float = 300.0
    lease_s: float = 2.0  # of a bookie's registration
    defers_syncs: bool = False
    collects: bool = False  # at the end bookies must release all the space that they can
    bookie_settings: dict[str, object] = field(default_factory=dict)
    client_settings: dict[str, object] = field(
        default_factory=lambda: {"add_timeout_ms": 800, "read_timeout_ms": 800, "connect_timeout_ms": 1_000}
    )


EVERY_WAY_OF_READING = {
    "all": 2,
    "tail": 2,
    "end": 2,
    "unconfirmed": 1,
    "try end": 2,
    "batches": 3,
    "entries": 3,
    "poll": 3,
    "unconfirmed batch": 2,
}
READER_SETTINGS: tuple[Settings, ...] = (
    {},
    {"wire": "v3"},
    {"sticky_reads": True},
    {"hedged_reads": False},
    {"read_ahead_size": 64 << 10, "hedge_delay_max_ms": 20},
)
DOMAINS = "b1=x,b2=x,b3=x,b4=y,b5=y,b6=y,b7=z"
WRITER_SETTINGS: tuple[Settings, ...] = (
    {"delay_ensemble_change": True},
    {"delay_ensemble_change": True, "add_quorum_timeout_ms": 1_000},
    {"delay_ensemble_change": True, "wire": "v3"},
    {"add_quorum_timeout_ms": 400},
    {"ensemble_changes_allowed": False, "add_quorum_timeout_ms": 1_500},
    {"fault_domains": DOMAINS, "fault_domains_min": 2, "add_quorum_timeout_ms": 2_000},
    {"fault_domains": DOMAINS, "fault_domains_min": 3, "delay_ensemble_change": True, "add_quorum_timeout_ms": 2_000},
    {"opportunistic_striping": True},
)

HEALER_SETTINGS: Settings = {
    "lost_bookie_delay_s": 1,
    "audit_ledgers_interval_s": 4,
    "audit_replicas_interval_s": 0,
    "audit_bookies_interval_s": 20,
    "audit_verification_percentage": 100,
    "recovery_ledgers_at_once": 3,
    "recovery_open_ledger_grace_ms": 1_000,
    "recovery_backoff_ms": 500,
    "recovery_backoff_max_ms": 5_000,
    "recovery_report_interval_ms": 2_000,
}
HEALING_FAULTS: dict[str, float] = {
    "lose bookie": 1,
    "flap": 1,
    "kill auditor": 1,
    "kill busy worker": 1,
    "kill worker in a copy": 2,
    "pause worker in a copy": 1.5,
    "crash bookie": 2,
    "crash bookie at an await": 1,
    "pause bookie": 1,
    "cut connection": 2,
    "slow host": 1,
    "slow disk": 1,
    "limbo": 1,
    "fail disk calls": 0.5,
    "fill disk": 1,
    "refuse adds": 1,
    "metadata trouble": 1.5,
    "isolate from the store": 1,
    "expire session": 1,
    "kill client": 2,
    "kill client at an await": 2,
    "pause client": 2,
}
# Settings of clients with short time-outs.
HASTY: dict[str, object] = {"add_timeout_ms": 300, "read_timeout_ms": 300, "connect_timeout_ms": 500}
IMPATIENT: dict[str, object] = {"add_timeout_ms": 300, "read_timeout_ms": 300, "connect_timeout_ms": 1_000}
QUICK_COLLECTION: dict[str, object] = {
    "gc_interval_ms": 1_000,
    "gc_quarantine_ms": 500,
    "gc_share_max": 100,
    "gc_surplus_ms": 1_000,
    "minor_compaction_interval_ms": 0,
    "major_compaction_interval_ms": 0,
    "scrub_period_ms": 0,
    "control": False,
}

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
    # Short ledgers, recovered while they are written; single bookies answer late.
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
        targeted_faults=TargetedFaultPlan(),
        stall_probability=0.06,
        client_settings=IMPATIENT,
    ),
    "tight": Profile(bookies=3),
    # Disks that fail, fill up, and forget.
    "disks": Profile(
        faults=FaultPlan(gap_ms=150, weights={"fail disk calls": 5, "fill disk": 1, "slow disk": 1, "crash bookie": 2})
    ),
    # Bookies that fail single entries and are chosen again for another position, where some of their answers are late.
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
    # A bookie whose contents are unknown; only v3 has a status code for it.
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
        targeted_faults=TargetedFaultPlan(),
        stall_probability=0.06,
        client_settings={"wire": "v3", "add_timeout_ms": 300, "read_timeout_ms": 300, "connect_timeout_ms": 1_000},
    ),
    # Ledgers with deferred sync, forced while further entries are appended.
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
            unforced_probability=0.5,
        ),
        defers_syncs=True,
        faults=FaultPlan(gap_ms=300, weights={"crash bookie": 2, "slow host": 1, "kill client at an await": 1}),
        stall_probability=0.06,
    ),
    # Ledgers move to other bookies while they are written and recovered.
    "repair": Profile(
        duration_s=3.0,
        plan=Plan(replicators=2, entries_max=25, recovery_ms=200),
        faults=FaultPlan(gap_ms=300, weights={"crash bookie": 1, "slow host": 1, "kill client at an await": 1}),
    ),
    # A bookie is lost for good, others fail and return, and auditors and workers that die themselves repair the data.
    "recovery": Profile(
        bookies=6,
        duration_s=4.0,
        lease_s=0.4,  # so that repairs of lost data begin while faults still happen
        plan=Plan(
            writers=2,
            recoverers=1,
            readers=1,
            deleters=1,
            healers=2,
            operators=1,
            quorums=((3, 3, 2), (3, 2, 2), (4, 3, 2), (2, 2, 2), (5, 3, 2), (4, 4, 3)),
            entries_max=25,
            pause_ms=80,
            read_ms=600,
            deferred_probability=0.0,
            healer_settings=HEALER_SETTINGS,
        ),
        faults=FaultPlan(
            gap_ms=150,
            weights=HEALING_FAULTS,
        ),
        bookie_settings=QUICK_COLLECTION,
        client_settings=HASTY,
    ),
    # The same with a small scope: one or two ledgers, and few faults, mostly in copies.
    "recovery-small": Profile(
        bookies=5,
        duration_s=4.5,
        lease_s=0.3,
        plan=Plan(
            writers=1,
            recoverers=0,
            readers=0,
            healers=2,
            quorums=((3, 3, 2), (3, 2, 2), (2, 2, 2), (4, 3, 2)),
            entries_min=4,
            entries_max=14,
            pause_ms=60,
            ledgers_max=1,
            deferred_probability=0.0,
            healer_settings=HEALER_SETTINGS,
        ),
        faults=FaultPlan(
            gap_ms=300,
            count_max=10,
            durations_s=(0.05, 0.5, 1.5, 3.0),
            weights=HEALING_FAULTS | {"lose bookie": 8, "kill worker in a copy": 6, "pause worker in a copy": 4},
        ),
        bookie_settings=QUICK_COLLECTION,
        client_settings=HASTY,
    ),
    # Writers that choose entry ids: out of order, with gaps, some twice; some leave without closing.
    "advanced": Profile(
        duration_s=3.0,
        plan=Plan(
            writers=3,
            recoverers=2,
            readers=1,
            entries_max=30,
            pause_ms=5,
            recovery_ms=300,
            read_ms=100,
            in_flight_max=6,
            advanced_probability=0.85,
            deferred_probability=0.2,
        ),
        faults=FaultPlan(
            gap_ms=150,
            weights={
                "crash bookie": 2,
                "crash bookie at an await": 1,
                "cut connection": 3,
                "refuse adds": 2,
                "slow host": 1,
                "kill client at an await": 1,
                "pause client": 1,
            },
        ),
        targeted_faults=TargetedFaultPlan(0.3, 0.05),
        stall_probability=0.04,
        client_settings=IMPATIENT,
    ),
    # Writers with individual settings: delayed, disallowed or switched ensemble changes; time-outs; fault domains;
    # fewer bookies than requested.
    "delayed": Profile(
        bookies=7,
        duration_s=4.0,
        plan=Plan(
            writers=4,
            recoverers=1,
            readers=1,
            quorums=((3, 3, 2), (5, 5, 3), (4, 3, 2), (6, 3, 2), (8, 3, 2), (3, 3, 3), (3, 3, 1)),
            entries_min=5,
            entries_max=40,
            pause_ms=10,
            recovery_ms=1_000,
            switch_probability=0.03,
            writer_settings=WRITER_SETTINGS,
        ),
        faults=FaultPlan(
            gap_ms=80,
            durations_s=(0.05, 0.2, 0.6, 2.0),
            weights={
                "crash bookie": 3,
                "pause bookie": 2,
                "refuse adds": 6,
                "cut connection": 2,
                "slow host": 1,
                "slow disk": 1,
                "kill client at an await": 0.5,
            },
        ),
        stall_probability=0.03,
        client_settings=HASTY,
    ),
    # Clients with a low memory limit, and entries that reach it while a bookie is slow.
    "limits": Profile(
        duration_s=1.0,
        plan=Plan(
            writers=2,
            recoverers=1,
            readers=1,
            quorums=((3, 3, 2), (4, 3, 2), (3, 3, 1)),
            entries_min=30,
            entries_max=90,
            payload_sizes_min=(1_500, 1_500, 8_000),
            pause_ms=20,
            spread_ms=0.1,
            in_flight_max=40,
            recovery_ms=1_000,
            read_ms=500,
            ledgers_max=1,
            deferred_probability=0.0,
        ),
        faults=FaultPlan(
            gap_ms=60,
            durations_s=(0.05, 0.2, 0.6),
            weights={
                "slow disk": 4,
                "pause bookie": 3,
                "slow host": 1,
                "refuse adds": 2,
                "cut connection": 1,
                "crash bookie": 1,
                "kill client at an await": 0.5,
            },
        ),
        client_settings={
            "memory_limit": 64 << 10,
            "add_timeout_ms": 600,
            "read_timeout_ms": 300,
            "connect_timeout_ms": 250,
        },
    ),
    # Ledgers are fenced, and writers send explicit LACs, while bookies make checkpoints; then the bookies die.
    "checkpoints": Profile(
        bookies=4,
        duration_s=1.2,
        plan=Plan(
            writers=2,
            recoverers=2,
            readers=0,
            quorums=((3, 3, 2), (3, 2, 2), (2, 2, 2)),
            entries_max=15,
            pause_ms=30,
            recovery_ms=400,
            ledgers_max=1,
            in_flight_max=4,
        ),
        faults=FaultPlan(
            gap_ms=120, durations_s=(0.02, 0.1), weights={"crash bookie": 4, "kill client at an await": 1}
        ),
        targeted_faults=TargetedFaultPlan(0.0, 0.0, index_probability=0.5),
        bookie_settings={"checkpoint_interval_ms": 100},
        client_settings={
            "add_timeout_ms": 400,
            "read_timeout_ms": 400,
            "connect_timeout_ms": 300,
            "explicit_lac_interval_ms": 10,
        },
    ),
    # A long-lived client, and bookies that fail it repeatedly and then recover.
    "health": Profile(
        bookies=4,
        duration_s=2.5,
        plan=Plan(
            writers=0,
            recoverers=0,
            readers=1,
            veterans=2,
            quorums=((3, 3, 2), (2, 2, 2)),
            entries_max=8,
            pause_ms=30,
            in_flight_max=3,
            deferred_probability=0.0,
        ),
        faults=FaultPlan(
            gap_ms=250,
            durations_s=(0.05, 0.4, 1.0),
            weights={"crash bookie": 3, "pause bookie": 3, "isolate": 1, "cut connection": 1},
        ),
        client_settings={"add_timeout_ms": 200, "read_timeout_ms": 200, "connect_timeout_ms": 200},
    ),
    # Writers, recoveries and readers, and other clients with a wrong password.
    "passwords": Profile(
        duration_s=0.6,
        plan=Plan(writers=2, recoverers=1, readers=1, intruders=3, entries_max=25, pause_ms=20, read_ms=40),
        faults=FaultPlan(gap_ms=200, weights={"crash bookie": 2, "cut connection": 2, "kill client at an await": 1}),
    ),
    # Every way of reading, while ledgers are written, recovered and closed.
    "reads": Profile(
        duration_s=3.0,
        plan=Plan(
            writers=2,
            recoverers=1,
            readers=5,
            entries_max=40,
            pause_ms=20,
            read_ms=30,
            advanced_probability=0.1,
            reads=EVERY_WAY_OF_READING,
            reader_settings=READER_SETTINGS,
        ),
        faults=FaultPlan(
            gap_ms=150,
            weights={
                "crash bookie": 2,
                "cut connection": 4,
                "partition": 1,
                "slow host": 2,
                "slow disk": 1,
                "expire session": 1,
                "kill client": 1,
                "pause client": 1,
            },
        ),
        stall_probability=0.05,
    ),
    # Entries that another implementation's recovery left after a ledger's end, with headers that confirm them.
    "foreign": Profile(
        duration_s=2.0,
        plan=Plan(
            writers=1,
            recoverers=1,
            readers=4,
            foreigners=2,
            entries_max=20,
            pause_ms=30,
            recovery_ms=100,
            read_ms=40,
            reads=EVERY_WAY_OF_READING,
        ),
        faults=FaultPlan(gap_ms=300, weights={"crash bookie": 1, "cut connection": 2, "slow host": 1}),
    ),
    # Single fragments are moved, of ledgers whose writers change ensembles all the time and are paused in between.
    "fragments": Profile(
        bookies=6,
        duration_s=2.0,
        plan=Plan(
            writers=3,
            recoverers=0,
            readers=0,
            replicators=3,
            quorums=((3, 3, 3), (3, 3, 2), (4, 3, 3)),
            entries_min=15,
            entries_max=60,
            pause_ms=3,
            recovery_ms=15,
            fragment_probability=0.95,
            deferred_probability=0.0,
        ),
        faults=FaultPlan(
            gap_ms=15,
            durations_s=(0.02, 0.1, 0.3),
            weights={"refuse adds": 12, "pause client": 4, "slow host": 1, "crash bookie": 0.5},
        ),
        targeted_faults=TargetedFaultPlan(0.8, 0.02, (0.05, 0.2, 0.4)),
        stall_probability=0.02,
        stall_ms=20,
        client_settings={"add_timeout_ms": 600, "read_timeout_ms": 300, "connect_timeout_ms": 1_000},
    ),
    # One log whose leaders take over from each other, roll and truncate.
    "logs": Profile(
        bookies=4,
        duration_s=4.0,
        log=LogPlan(),
        faults=FaultPlan(
            gap_ms=120,
            weights={
                "crash bookie": 2,
                "crash bookie in a disk call": 1,
                "crash all bookies": 0.2,
                "pause bookie": 1,
                "cut connection": 3,
                "partition": 1,
                "isolate": 1,
                "slow host": 1,
                "isolate from the store": 1,
                "metadata trouble": 3,
                "expire session": 1,
                "kill client": 2,
                "kill client at an await": 3,
                "pause client": 3,
            },
        ),
        targeted_faults=TargetedFaultPlan(0.3, 0.03),
        client_settings=IMPATIENT,
    ),
    # Ledgers are deleted all the time, and bookies release their space as fast as possible, and crash.
    "collecting": Profile(
        bookies=4,
        duration_s=1.2,
        plan=Plan(
            writers=3,
            recoverers=1,
            readers=1,
            deleters=3,
            replicators=1,
            quorums=((3, 3, 2), (3, 2, 2), (2, 2, 2)),
            entries_min=5,
            entries_max=20,
            pause_ms=10,
            recovery_ms=400,
            read_ms=60,
            delete_ms=150,
            ledgers_max=6,
        ),
        collects=True,
        faults=FaultPlan(
            gap_ms=120,
            weights={
                "crash bookie": 3,
                "crash bookie in a disk call": 4,
                "fail disk calls": 1,
                "metadata trouble": 1,
                "isolate from the store": 1,
                "slow disk": 1,
                "kill client": 1,
            },
        ),
        bookie_settings={
            "checkpoint_interval_ms": 100,
            "entry_log_size_max": 4 << 10,
            "gc_interval_ms": 150,
            "gc_quarantine_ms": 150,
            "gc_share_max": 100,
            "gc_surplus_ms": 400,
            "minor_compaction_interval_ms": 0,
            "major_compaction_interval_ms": 200,
            "major_compaction_threshold": 95,
            "scrub_period_ms": 400,
            "control": False,
        },
        client_settings=HASTY,
    ),
    # Clients that fill many ledgers in turn, so that nearly every add on a connection changes the ledger.
    "many-ledgers": Profile(
        bookies=3,
        duration_s=1.0,
        plan=Plan(
            writers=2,
            recoverers=1,
            readers=3,
            quorums=((3, 3, 2),),
            entries_min=20,
            entries_max=60,
            pause_ms=10,
            recovery_ms=500,
            read_ms=40,
            ledgers_max=1,
            ledgers_in_turn=24,
            deferred_probability=0.0,
            reads=EVERY_WAY_OF_READING,
            reader_settings=({"wire": "v3"}, {}),
        ),
        faults=FaultPlan(
            gap_ms=250,
            weights={"crash bookie": 1, "crash bookie in a disk call": 4, "slow disk": 1, "kill client at an await": 1},
        ),
        client_settings=HASTY,
    ),
    **{name: Profile(**fields) for name, fields in EMPTIED.items()},
    "rot": Profile(
        plan=Plan(quorums=((3, 3, 2), (3, 2, 2), (4, 3, 2), (5, 3, 2))),
        faults=FaultPlan(gap_ms=150, weights={"rot": 5, "crash bookie": 2, "kill client": 1, "cut connection": 1}),
    ),
}

CONFIGURATIONS = ((3, 3, 2), (3, 2, 2), (6, 2, 2), (5, 3, 2), (4, 3, 2), (1, 1, 1))  # of the profile "small"


def small_profile(seed: int, quorums: tuple[int, int, int]) -> Profile:
    """Return a profile of small scope: one ledger of at most 20 entries, four in flight; at most two recoveries, two
    bookie faults, seven bookies.

    Random schedules of this scope find every known protocol mistake. Source: client-protocol 8.4.
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
        targeted_faults=TargetedFaultPlan(random.choice((0.2, 0.6)), random.choice((0.1, 0.3, 0.7))),
        stall_probability=random.choice((0.0, 0.0, 0.05, 0.2)),
        stall_ms=random.choice((5.0, 50.0)),
        lease_s=0.5,
        client_settings={"add_timeout_ms": 60, "read_timeout_ms": 60, "connect_timeout_ms": 100},
    )


SMALL = {f"small-{e}{w}{a}": (e, w, a) for e, w, a in CONFIGURATIONS}
PROFILE_NAMES = (*PROFILES, "small", *SMALL)


def profile_of(name: str, seed: int) -> tuple[str, Profile]:
    """Return the exact name and the profile of a run. "small" selects its configurations in turn, by seed."""
    if name == "small":
        name = list(SMALL)[seed % len(SMALL)]
    return (name, small_profile(seed, SMALL[name])) if name in SMALL else (name, PROFILES[name])
