"""Profiles of random runs: workload, number of bookies, faults and settings.

`TEXT` has a paragraph for each profile: its name and purpose, then a row for each part that differs from the default.
A row is a list of items: fields of the part's struct with their values, and faults with their relative frequency. A
name in capitals stands for one of `NAMED`; later items override its items. A line that is indented further continues
its row.
"""

from __future__ import annotations

import ast
import re
from random import Random
from typing import Any

from msgspec import Struct, field

from bookies.lab.sim.clients.plan import LogPlan, Plan, Settings
from bookies.lab.sim.faults.fault_schedule import FaultPlan
from bookies.lab.sim.faults.targeted_faults import TargetedFaultPlan


def timeouts(add_ms: int, read_ms: int, connect_ms: int) -> dict[str, object]:
    """Return the time-outs of clients, as settings."""
    return {"add_timeout_ms": add_ms, "read_timeout_ms": read_ms, "connect_timeout_ms": connect_ms}


class Profile(Struct, frozen=True):
    """The parameters of a run. `duration_s`: virtual time with faults, unless the work is done earlier."""

    bookies: int = 5
    disks: int = 1  # ledger directories of a bookie
    duration_s: float = 6.0
    plan: Plan = field(default_factory=lambda: Plan(deleters=1))
    log: LogPlan | None = None  # instead of the plan
    faults: FaultPlan = field(default_factory=FaultPlan)
    targeted_faults: TargetedFaultPlan | None = None
    stall_probability: float = 0.0
    stall_ms: float = 300.0
    lease_s: float = 2.0  # of a bookie's registration
    defers_syncs: bool = False
    fetches_owed: bool = False  # bookies fetch the entries that they owe
    traced_probability: float = 0.0  # of an append or a read of one entry
    hostile: Settings | None = None  # behaviour of one more bookie, which is hostile
    collects: bool = False  # at the end bookies must release all the space that they can
    bookie_settings: dict[str, object] = field(default_factory=dict)
    client_settings: dict[str, object] = field(default_factory=lambda: timeouts(800, 800, 1_000))


READER_SETTINGS: tuple[Settings, ...] = (
    {},
    {"wire": "v3"},
    {"sticky_reads": True},
    {"hedged_reads": False},
    {"read_ahead_size": 64 << 10, "hedge_delay_max_ms": 20},
    {"location": "/x", "fault_domains": "b1=/x,b2=/y,b3=/x", "locations_banned": "/y", "hedge_delay_max_ms": 20},
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

# Values and lists of items that profiles name.
NAMED: dict[str, Any] = {
    "HASTY": timeouts(300, 300, 500),
    "IMPATIENT": timeouts(300, 300, 1_000),
    "RACK": "/y",
    "RACKS": "b1=/x,b2=/x,b3=/x,b4=/y,b5=/y,b6=/z",
    "READER_SETTINGS": READER_SETTINGS,
    "V2_AND_V3": ({"wire": "v3"}, {}),
    "WRITER_SETTINGS": WRITER_SETTINGS,
}
LISTS = """
EVERY_WAY  all 2, tail 2, end 2, unconfirmed 1, try end 2, batches 3, entries 3, poll 3, unconfirmed batch 2
HEALER     lost_bookie_delay_s 1, audit_ledgers_interval_s 4, audit_replicas_interval_s 0,
           audit_bookies_interval_s 20, audit_verification_percentage 100, recovery_ledgers_at_once 3,
           recovery_open_ledger_grace_ms 1000, recovery_backoff_ms 500, recovery_backoff_max_ms 5000,
           recovery_report_interval_ms 2000
BALANCER   HEALER, balance_interval_s 1, balance_excess_size 500, balance_rate_size 0
COLLECTING gc_interval_ms 1000, gc_quarantine_ms 500, gc_share_max 100, gc_surplus_ms 1000,
           minor_compaction_interval_ms 0, major_compaction_interval_ms 0, scrub_period_ms 0, control False
MIXED      crash bookie 3, crash bookie in a disk call 3, crash bookie at an await 2, crash all bookies 0.3,
           pause bookie 1, cut connection 4, partition 2, isolate 1, slow host 1.5, repeat messages 1, slow disk 1.5,
           metadata trouble 1.5, expire session 0.7, kill client 2, kill client at an await 2, pause client 1.5,
           turn a clock 0.5
HEALING    lose bookie 1, flap 1, kill auditor 1, kill busy worker 1, kill worker in a copy 2,
           pause worker in a copy 1.5, crash bookie 2, crash bookie at an await 1, pause bookie 1, cut connection 2,
           slow host 1, slow disk 1, limbo 1, fail disk calls 0.5, fill disk 1, refuse adds 1, metadata trouble 1.5,
           isolate from the store 1, expire session 1, kill client 2, kill client at an await 2, pause client 2
EMPTIED    writers 3, recoverers 1, readers 1, emptiers 2, quorums 3/3/2 3/2/2 2/2/2 4/3/2, entries_max 30,
           pause_ms 400, recovery_ms 600, deferred_probability 0.05, advanced_probability 0.1
EMPTYING   crash bookie 2, cut connection 2, slow host 1, metadata trouble 2, isolate from the store 1,
           kill client at an await 1
"""

TEXT = """
mixed: every operation and nearly every fault
    faults   MIXED

calm: no faults

crashes: bookies that crash, also in the middle of a disk call
    faults   gap_ms 150, crash bookie 2, crash bookie in a disk call 4, crash bookie at an await 3,
             crash all bookies 1, kill client at an await 2

network: connections that break, hosts that are cut off or slow
    plan     digests crc32c dummy
    faults   gap_ms 150, cut connection 5, partition 3, isolate 2, slow host 2, repeat messages 2,
             kill client at an await 2

metadata: the metadata store fails, is out of reach, and ends sessions
    faults   gap_ms 150, metadata trouble 4, isolate from the store 3, expire session 3, crash bookie 2,
             cut connection 2, kill client at an await 3, pause client 2

races: short ledgers, recovered while they are written; single bookies answer late
    run      duration_s 5, stall_probability 0.06
    plan     writers 3, recoverers 3, readers 1, entries_max 25, pause_ms 10, recovery_ms 120
    faults   gap_ms 200, crash bookie 2, crash bookie at an await 2, cut connection 3, kill client at an await 2,
             pause client 3, pause bookie 1
    targeted
    clients  IMPATIENT

tight: as many bookies as most ledgers need
    run      bookies 3
    faults   MIXED

disks: disks that fail, fill up, and forget
    faults   gap_ms 150, fail disk calls 5, fill disk 1, slow disk 1, crash bookie 2

answers: bookies that fail single entries and are chosen again for another position, where some answers are late
    run      bookies 4, duration_s 2, stall_probability 0.02, stall_ms 20
    plan     writers 3, recoverers 1, readers 1, quorums 3/3/3 3/3/3 3/3/2, entries_min 10, entries_max 60, pause_ms 3,
             recovery_ms 500
    faults   gap_ms 10, durations_s 0.02 0.1 0.2, refuse adds 12, slow disk 5, kill client at an await 0.2
    clients  IMPATIENT, add_timeout_ms 600

limbo: a bookie whose contents are unknown; only v3 has a status code for it
    run      duration_s 3, stall_probability 0.06
    plan     writers 3, recoverers 3, readers 1, quorums 3/3/2 4/3/2 3/2/2 2/2/2, entries_max 25, pause_ms 10,
             recovery_ms 120
    faults   gap_ms 60, limbo 3, kill client at an await 3, pause client 1
    targeted
    clients  IMPATIENT, wire v3

deferred: ledgers with deferred sync, forced while further entries are appended
    run      duration_s 3, stall_probability 0.06, defers_syncs True
    plan     writers 3, readers 1, quorums 3/3/2 4/3/2 5/2/2, entries_max 25, pause_ms 10, deferred_probability 1,
             overlap_probability 0.5, unforced_probability 0.5
    faults   gap_ms 300, crash bookie 2, slow host 1, kill client at an await 1

repair: ledgers move to other bookies while they are written and recovered
    run      duration_s 3
    plan     replicators 2, entries_max 25, recovery_ms 200
    faults   gap_ms 300, crash bookie 1, slow host 1, kill client at an await 1

recovery: a bookie is lost for good, others fail, and auditors and workers that die repair data while faults happen
    run      bookies 6, duration_s 4, lease_s 0.4
    plan     writers 2, recoverers 1, readers 1, deleters 1, healers 2, operators 1,
             quorums 3/3/2 3/2/2 4/3/2 2/2/2 5/3/2 4/4/3, entries_max 25, pause_ms 80, read_ms 600,
             deferred_probability 0, healer_settings HEALER
    faults   gap_ms 150, HEALING
    bookies  COLLECTING
    clients  HASTY

recovery-small: the same with a small scope: one or two ledgers, and few faults, mostly in copies
    run      duration_s 4.5, lease_s 0.3
    plan     writers 1, recoverers 0, readers 0, healers 2, quorums 3/3/2 3/2/2 2/2/2 4/3/2, entries_min 4,
             entries_max 14, pause_ms 60, ledgers_max 1, deferred_probability 0, healer_settings HEALER
    faults   gap_ms 300, count_max 10, durations_s 0.05 0.5 1.5 3, HEALING, lose bookie 8, kill worker in a copy 6,
             pause worker in a copy 4
    bookies  COLLECTING
    clients  HASTY

operations: everything that operators do, beside auto-recovery and the automatic balance, with racks as a rule
    run      bookies 6, duration_s 5, lease_s 0.3
    plan     writers 2, recoverers 1, readers 1, deleters 1, healers 1, operators 2, operate_ms 300, repairs True,
             emptiers 1, quorums 3/3/2 3/2/2 2/2/2 4/3/2, entries_max 25, pause_ms 80, read_ms 600,
             deferred_probability 0, healer_settings BALANCER
    faults   gap_ms 250, HEALING, lose bookie 0
    bookies  COLLECTING
    clients  HASTY, placement rack, placement_rule True, fault_domains RACKS, location RACK

balance: auditors balance data all the time, while bookies are lost for good and repaired
    run      bookies 6, duration_s 4, lease_s 0.4
    plan     writers 3, recoverers 0, readers 1, deleters 1, healers 2, quorums 3/3/2 3/2/2 4/3/2 2/2/2, entries_max 25,
             pause_ms 60, read_ms 600, deferred_probability 0, healer_settings BALANCER
    faults   gap_ms 150, HEALING, lose bookie 2
    bookies  COLLECTING
    clients  HASTY

advanced: writers that choose entry ids: out of order, with gaps, some twice; some leave without closing
    run      duration_s 3, stall_probability 0.04
    plan     writers 3, recoverers 2, readers 1, entries_max 30, pause_ms 5, recovery_ms 300, read_ms 100,
             in_flight_max 6, advanced_probability 0.85, deferred_probability 0.2
    faults   gap_ms 150, crash bookie 2, crash bookie at an await 1, cut connection 3, refuse adds 2, slow host 1,
             kill client at an await 1, pause client 1
    targeted update_probability 0.3, answer_probability 0.05
    clients  IMPATIENT

delayed: writers with individual settings: delayed, disallowed or switched ensemble changes; time-outs; fault domains
    run      bookies 7, duration_s 4, stall_probability 0.03
    plan     writers 4, recoverers 1, readers 1, quorums 3/3/2 5/5/3 4/3/2 6/3/2 8/3/2 3/3/3 3/3/1, entries_min 5,
             entries_max 40, pause_ms 10, recovery_ms 1000, switch_probability 0.03, writer_settings WRITER_SETTINGS
    faults   gap_ms 80, durations_s 0.05 0.2 0.6 2, crash bookie 3, pause bookie 2, refuse adds 6, cut connection 2,
             slow host 1, slow disk 1, kill client at an await 0.5
    clients  HASTY

limits: clients with a low memory limit, and entries that reach it while a bookie is slow
    run      duration_s 1
    plan     writers 2, recoverers 1, readers 1, quorums 3/3/2 4/3/2 3/3/1, entries_min 30, entries_max 90,
             payload_sizes_min 1500 1500 8000, pause_ms 20, spread_ms 0.1, in_flight_max 40, recovery_ms 1000,
             read_ms 500, ledgers_max 1, deferred_probability 0
    faults   gap_ms 60, durations_s 0.05 0.2 0.6, slow disk 4, pause bookie 3, slow host 1, refuse adds 2,
             cut connection 1, crash bookie 1, kill client at an await 0.5
    clients  memory_limit 65536, add_timeout_ms 600, read_timeout_ms 300, connect_timeout_ms 250

checkpoints: ledgers are fenced, and writers send explicit LACs, while bookies make checkpoints; then the bookies die
    run      bookies 4, duration_s 1.2
    plan     writers 2, recoverers 2, readers 0, quorums 3/3/2 3/2/2 2/2/2, entries_max 15, pause_ms 30,
             recovery_ms 400, ledgers_max 1, in_flight_max 4
    faults   gap_ms 120, durations_s 0.02 0.1, crash bookie 4, kill client at an await 1
    targeted update_probability 0, answer_probability 0, index_probability 0.5
    bookies  checkpoint_interval_ms 100
    clients  add_timeout_ms 400, read_timeout_ms 400, connect_timeout_ms 300, explicit_lac_interval_ms 10

health: a long-lived client, and bookies that fail it repeatedly and then recover
    run      bookies 4, duration_s 2.5
    plan     writers 0, recoverers 0, readers 1, veterans 2, quorums 3/3/2 2/2/2, entries_max 8, pause_ms 30,
             in_flight_max 3, deferred_probability 0
    faults   gap_ms 250, durations_s 0.05 0.4 1, crash bookie 3, pause bookie 3, isolate 1, cut connection 1
    clients  add_timeout_ms 200, read_timeout_ms 200, connect_timeout_ms 200

passwords: writers, recoveries and readers, and other clients with a wrong password
    run      duration_s 0.6
    plan     writers 2, recoverers 1, readers 1, intruders 3, entries_max 25, pause_ms 20, read_ms 40
    faults   gap_ms 200, crash bookie 2, cut connection 2, kill client at an await 1

reads: every way of reading, while ledgers are written, recovered and closed
    run      duration_s 3, stall_probability 0.05
    plan     writers 2, recoverers 1, readers 5, entries_max 40, pause_ms 20, read_ms 30, advanced_probability 0.1,
             reads EVERY_WAY, reader_settings READER_SETTINGS
    faults   gap_ms 150, crash bookie 2, cut connection 4, partition 1, slow host 2, slow disk 1, expire session 1,
             kill client 1, pause client 1

foreign: entries that another implementation's recovery left after a ledger's end, with headers that confirm them
    run      duration_s 2
    plan     writers 1, recoverers 1, readers 4, foreigners 2, entries_max 20, pause_ms 30, recovery_ms 100,
             read_ms 40, reads EVERY_WAY
    faults   gap_ms 300, crash bookie 1, cut connection 2, slow host 1

fragments: single fragments are moved, of ledgers whose writers change ensembles all the time and are paused in between
    run      bookies 6, duration_s 2, stall_probability 0.02, stall_ms 20
    plan     writers 3, recoverers 0, readers 0, replicators 3, quorums 3/3/3 3/3/2 4/3/3, entries_min 15,
             entries_max 60, pause_ms 3, recovery_ms 15, fragment_probability 0.95, deferred_probability 0
    faults   gap_ms 15, durations_s 0.02 0.1 0.3, refuse adds 12, pause client 4, slow host 1, crash bookie 0.5
    targeted update_probability 0.8, answer_probability 0.02, durations_s 0.05 0.2 0.4
    clients  IMPATIENT, add_timeout_ms 600

logs: one log whose leaders take over from each other, roll and truncate
    run      bookies 4, duration_s 4
    log
    faults   gap_ms 120, crash bookie 2, crash bookie in a disk call 1, crash all bookies 0.2, pause bookie 1,
             cut connection 3, partition 1, isolate 1, slow host 1, isolate from the store 1, metadata trouble 3,
             expire session 1, kill client 2, kill client at an await 3, pause client 3
    targeted update_probability 0.3, answer_probability 0.03
    clients  IMPATIENT

transactions: a log to which jobs commit transactions beside leaders, with reapers, cursors and truncations
    run      bookies 4, duration_s 4
    log      leaders 1, jobs 4, reapers 1, grace_ms 300, consumers 3, read_ms 600, truncate_ms 150
    faults   gap_ms 200, crash bookie 2, crash bookie in a disk call 1, cut connection 2, slow host 1,
             isolate from the store 1, metadata trouble 3, expire session 1, kill client 3, kill client at an await 3,
             pause client 2
    targeted update_probability 0.4, answer_probability 0.01, durations_s 0.001 0.01 0.1 0.3
    clients  IMPATIENT

retention: a log of records that loses old ledgers by limits and is searched by time, while clocks differ and step
    run      bookies 4, duration_s 6
    log      record_format envelope, turns 0.3, consumers 2, retainers 3, seekers 3, jobs 1, skew 0.01, truncators 0
    faults   gap_ms 250, crash bookie 2, cut connection 1, slow host 1, isolate from the store 1, metadata trouble 2,
             kill client 3, kill client at an await 3, pause client 2, turn a client clock 1
    targeted update_probability 0.2, answer_probability 0.01, durations_s 0.001 0.01 0.1
    clients  IMPATIENT

rolled-up: a log whose small ledgers are merged all the time, while leaders, jobs, limits and truncations change it
    run      bookies 4, duration_s 2
    log      leaders 2, jobs 2, reapers 1, grace_ms 300, consumers 2, read_ms 200, truncate_ms 800, retainers 1,
             rollers 2, seekers 2, record_format envelope
    faults   gap_ms 200, crash bookie 2, cut connection 2, slow host 1, isolate from the store 1, metadata trouble 3,
             expire session 1, kill client 3, kill client at an await 4, pause client 3
    targeted update_probability 0.3, answer_probability 0.02, durations_s 0.001 0.01 0.1
    clients  IMPATIENT

turns: consumers of a log, locks and elections; processes are suspended for longer than their leases
    run      bookies 3, duration_s 10
    log      leaders 1, truncators 1, truncate_ms 500, followers 4, turn_takers 4, retainers 1
    faults   gap_ms 200, durations_s 0.05 0.3 1.0, pause client 6, isolate from the store 4, kill client 3,
             kill client at an await 2, metadata trouble 2, expire session 1, turn a client clock 1, slow host 1
    targeted update_probability 0.1, answer_probability 0.0, durations_s 0.01 0.1 1.0
    clients  IMPATIENT

numbers: producers whose numbered entries any leader may repeat, and appends that depend on the last entry of a log
    run      bookies 4, duration_s 6
    log      record_format envelope, turns 0.5, leaders 0, producers 3, deciders 2, retainers 1, retain_ms 1500
    faults   gap_ms 200, crash bookie 2, cut connection 2, pause client 3, isolate 1, isolate from the store 1,
             metadata trouble 2, expire session 1, kill client 3, kill client at an await 4
    targeted update_probability 0.2, answer_probability 0.02
    clients  IMPATIENT

databases: bookies whose index is in databases of two directories make checkpoints all the time, collect, and crash
    run      bookies 4, disks 2, duration_s 2, collects True
    plan     writers 3, recoverers 2, readers 1, deleters 2, replicators 1, quorums 3/3/2 3/2/2 2/2/2, entries_min 5,
             entries_max 30, pause_ms 10, recovery_ms 300, read_ms 60, delete_ms 300, ledgers_max 6
    faults   gap_ms 120, crash bookie 4, crash bookie in a disk call 6, fail disk calls 2, fill disk 1, slow disk 1,
             crash all bookies 1, kill client 1
    bookies  checkpoint_interval_ms 100, entry_log_size_max 4096, COLLECTING, gc_interval_ms 300, gc_quarantine_ms 150,
             major_compaction_interval_ms 400, major_compaction_threshold 95, scrub_period_ms 800, ledger_index rocksdb

collecting: ledgers are deleted all the time, and bookies release their space as fast as possible, and crash
    run      bookies 4, duration_s 1.2, collects True
    plan     writers 3, recoverers 1, readers 1, deleters 3, replicators 1, quorums 3/3/2 3/2/2 2/2/2, entries_min 5,
             entries_max 20, pause_ms 10, recovery_ms 400, read_ms 60, delete_ms 150, ledgers_max 6
    faults   gap_ms 120, crash bookie 3, crash bookie in a disk call 4, fail disk calls 1, metadata trouble 1,
             isolate from the store 1, slow disk 1, kill client 1
    bookies  checkpoint_interval_ms 100, entry_log_size_max 4096, COLLECTING, gc_interval_ms 150, gc_quarantine_ms 150,
             gc_surplus_ms 400, major_compaction_interval_ms 200, major_compaction_threshold 95, scrub_period_ms 400
    clients  HASTY

many-ledgers: clients that fill many ledgers in turn, so that nearly every add on a connection changes the ledger
    run      bookies 3, duration_s 1
    plan     writers 2, recoverers 1, readers 3, quorums 3/3/2, entries_min 20, entries_max 60, pause_ms 10,
             recovery_ms 500, read_ms 40, ledgers_max 1, ledgers_in_turn 24, deferred_probability 0, reads EVERY_WAY,
             reader_settings V2_AND_V3
    faults   gap_ms 250, crash bookie 1, crash bookie in a disk call 4, slow disk 1, kill client at an await 1
    clients  HASTY

offloading: ledgers are copied to files, deleted by the bookies and restored, by jobs that are killed
    run      bookies 5, duration_s 4, collects True
    plan     writers 2, recoverers 1, readers 1, deleters 1, replicators 1, offloaders 3,
             quorums 3/3/2 3/2/2 4/3/2 2/2/2, entries_min 1, entries_max 20, pause_ms 20, recovery_ms 300, read_ms 100
    faults   gap_ms 150, crash bookie 3, crash bookie in a disk call 2, metadata trouble 2, isolate from the store 1,
             expire session 1, slow disk 1, kill client 1, kill client at an await 4, pause client 2
    bookies  checkpoint_interval_ms 100, entry_log_size_max 4096, COLLECTING, gc_interval_ms 150, gc_quarantine_ms 150,
             gc_surplus_ms 400, major_compaction_interval_ms 400, major_compaction_threshold 95
    clients  HASTY

emptied: bookies are emptied and return under their ids, while writers are idle
    run      bookies 6, duration_s 8, lease_s 0.3
    plan     EMPTIED
    faults   gap_ms 400, EMPTYING
    clients  HASTY

emptied-writers: the same with bookies that do not check records, like Apache's
    run      bookies 6, duration_s 8, lease_s 0.3
    plan     EMPTIED, trusting b
    faults   gap_ms 400, EMPTYING
    clients  HASTY

emptied-bookies: the same with writers that do not check records, like Apache's
    run      bookies 6, duration_s 8, lease_s 0.3
    plan     EMPTIED, trusting writer
    faults   gap_ms 400, EMPTYING
    clients  HASTY

lost-disks: bookies lose single disks, or all, and fetch what they owe
    run      bookies 5, disks 3, duration_s 10, lease_s 0.3, fetches_owed True
    plan     writers 2, recoverers 3, readers 1, deleters 1, quorums 3/3/2 3/2/2 4/3/2 2/2/2, entries_min 10,
             entries_max 30, pause_ms 10, recovery_ms 150, recoveries_max 20, read_ms 200, ledgers_max 2,
             deferred_probability 0
    faults   gap_ms 150, durations_s 0.02 0.1 0.3, lose disk 8, crash bookie 1, crash bookie in a disk call 1,
             cut connection 1, metadata trouble 0.5, isolate from the store 0.5, kill client at an await 1
    bookies  checkpoint_interval_ms 100, entry_log_size_max 4096, COLLECTING
    clients  HASTY

traced: clients whose spans are sampled at random, so that the adds of one ledger travel over two connections
    run      duration_s 3, stall_probability 0.05, traced_probability 0.3
    plan     writers 3, recoverers 3, readers 2, entries_max 30, pause_ms 10, recovery_ms 200, read_ms 40,
             advanced_probability 0.2, deferred_probability 0.2, reads EVERY_WAY
    faults   gap_ms 150, crash bookie 2, crash bookie at an await 1, cut connection 4, refuse adds 2, slow host 1,
             kill client at an await 2, pause client 1
    targeted
    clients  IMPATIENT

hostile: one more bookie garbles, invents, repeats and withholds its answers
    run      bookies 3, duration_s 1.5
    plan     quorums 3/3/2 3/3/2 4/3/2 3/2/2 4/4/3 2/2/2, recovery_ms 300
    faults   gap_ms 200, crash bookie 2, cut connection 3, slow host 1, metadata trouble 1, kill client 1,
             kill client at an await 2, pause client 1
    clients  HASTY
    hostile  honesty 0.5

rot: durable data of one bookie is damaged
    plan     quorums 3/3/2 3/2/2 4/3/2 5/3/2
    faults   gap_ms 150, rot 5, crash bookie 2, kill client 1, cut connection 1
"""


# -- the table -----------------------------------------------------------------------------------------------------
_SEQUENCES = {"digests", "durations_s", "payload_sizes_min", "quorums"}
_FAULT_PLAN = set(FaultPlan.__struct_fields__)


def _value(word: str) -> Any:
    if word in NAMED:
        return NAMED[word]
    if "/" in word:
        return tuple(map(int, word.split("/")))
    try:
        return ast.literal_eval(word)
    except ValueError:
        return word  # such as "v3"


def _items(text: str) -> dict[str, Any]:
    """Parse a row. Items with several words before the value have the words as their name."""
    items: dict[str, Any] = {}
    for item in filter(None, (" ".join(item.split()) for item in text.split(","))):
        name, _, rest = item.partition(" ")
        if name in _SEQUENCES:
            items[name] = tuple(map(_value, rest.split()))
        elif item in NAMED:
            items |= NAMED[item]
        else:
            name, _, word = item.rpartition(" ")
            items[name] = _value(word)
    return items


def _faults(**items: Any) -> FaultPlan:
    settings = {name: items.pop(name) for name in _FAULT_PLAN & items.keys()}
    return FaultPlan(**settings, weights=items)


# Row -> the field of `Profile`, and the type made of its items.
_ROWS: dict[str, tuple[str, Any]] = {
    "plan": ("plan", Plan),
    "log": ("log", LogPlan),
    "faults": ("faults", _faults),
    "targeted": ("targeted_faults", TargetedFaultPlan),
    "bookies": ("bookie_settings", dict),
    "clients": ("client_settings", dict),
    "hostile": ("hostile", dict),
}


def parse_profile(text: str) -> Profile:
    """Return the profile of these rows. Raises `KeyError` or `TypeError` for unknown rows and items."""
    values: dict[str, Any] = {}
    for row in re.split(r"\n {4}(?=\w)", text)[1:]:
        part, _, items = row.partition(" ")
        if part == "run":
            values |= _items(items)
        else:
            name, make = _ROWS[part]
            values[name] = make(**_items(items))
    return Profile(**values)


for _row in re.split(r"\n(?=\w)", LISTS.strip()):
    NAMED[_row.partition(" ")[0]] = _items(_row.partition(" ")[2])
PROFILES = {block.partition(":")[0]: parse_profile(block) for block in TEXT.strip().split("\n\n")}

CONFIGURATIONS = ((3, 3, 2), (3, 2, 2), (6, 2, 2), (5, 3, 2), (4, 3, 2), (1, 1, 1))  # of the profile "small"


def small_profile(seed: int, quorums: tuple[int, int, int]) -> Profile:
    """Return a profile of small scope: one ledger of at most 20 entries, four in flight; at most two recoveries, two
    bookie faults, seven bookies.

    Random schedules of this scope find every known protocol mistake. Source: client-protocol 8.4.
    """
    random = Random(f"{seed}/scope")
    choose = random.choice
    return parse_profile(f"""
    run      bookies {min(7, quorums[0] + choose((0, 1, 2, 2)))}, duration_s 3, lease_s 0.5
    plan     writers 1, recoverers {random.randint(1, 2)}, readers {random.randint(0, 1)},
             deleters {int(random.random() < 0.1)}, delete_ms 60, quorums {"/".join(map(str, quorums))},
             entries_min {choose((0, 12))}, entries_max 20, pause_ms {choose((0.1, 5))},
             recovery_ms {choose((20, 100, 500))}, read_ms 20, in_flight_max 4, ledgers_max 1, recoveries_max 1,
             reads_max 1, is_replaced False
    faults   gap_ms 15, count_max {random.randint(0, 2)}, durations_s 0.005 0.05 0.2 1, crash bookie 3,
             crash bookie in a disk call 2, crash bookie at an await 2, pause bookie 2, cut connection 2
    targeted update_probability {choose((0.2, 0.6))}, answer_probability {choose((0.1, 0.3, 0.7))}
    run      stall_probability {choose((0.0, 0.0, 0.05, 0.2))}, stall_ms {choose((5.0, 50.0))}
    clients  add_timeout_ms 60, read_timeout_ms 60, connect_timeout_ms 100""")


SMALL = {f"small-{e}{w}{a}": (e, w, a) for e, w, a in CONFIGURATIONS}
PROFILE_NAMES = (*PROFILES, "small", *SMALL)


def profile_of(name: str, seed: int) -> tuple[str, Profile]:
    """Return the exact name and the profile of a run. "small" selects its configurations in turn, by seed."""
    if name == "small":
        name = list(SMALL)[seed % len(SMALL)]
    return (name, small_profile(seed, SMALL[name])) if name in SMALL else (name, PROFILES[name])
