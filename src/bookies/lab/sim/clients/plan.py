"""How much a run asks of its cluster, and of what kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Settings = Mapping[str, object]  # of a `ClientConfig`, beside those of all clients of the run


def ways_of_reading() -> Mapping[str, float]:
    return {"all": 4, "tail": 4, "end": 2, "unconfirmed": 1}


@dataclass(frozen=True)
class Plan:
    """How much is asked. `quorums`: (ensemble, write quorum, ack quorum) to choose from.

    `digests`: without one ("dummy") nobody can tell a replica that a power failure tore from a good one.
    `is_replaced`: a client that is killed, or has done its work, is followed by another in its role.
    `ledgers_max`, `recoveries_max`, `reads_max`: how many each client does at most.
    `payload_sizes_min`: of all payloads of a ledger, to choose from; none: mostly small ones.
    `writer_settings`, `reader_settings`: each client in the role takes one of them; none: those of the run.
    `reads`: how often each way of reading is chosen, by name (`lab/sim/clients/reading.py`).
    """

    writers: int = 2
    recoverers: int = 2
    readers: int = 2
    quorums: tuple[tuple[int, int, int], ...] = ((3, 3, 2), (3, 2, 2), (4, 3, 2), (3, 2, 1), (1, 1, 1), (2, 2, 2))
    digests: tuple[str, ...] = ("crc32c", "crc32", "hmac")
    entries_min: int = 0  # per ledger
    entries_max: int = 50
    payload_sizes_min: tuple[int, ...] = ()  # bytes
    pause_ms: float = 100.0  # mean, between two actions of a writer
    spread_ms: float = 1.0  # mean, between appends that overlap
    recovery_ms: float = 400.0  # mean, before a recovery
    read_ms: float = 200.0  # mean, before a read
    in_flight_max: int = 8  # appends that a writer has begun and that are not done
    ledgers_max: int = 3
    recoveries_max: int = 4
    reads_max: int = 4
    deleters: int = 0
    delete_ms: float = 1_500.0  # mean, before a deletion
    deferred_probability: float = 0.1  # of a ledger whose entries are on disk only when they are forced
    overlap_probability: float = 0.0  # of an append that is under way while the writer forces
    unforced_probability: float = 0.0  # of a seal that leaves out what is not forced
    advanced_probability: float = 0.0  # of a ledger whose writer chooses the ids of its entries
    switch_probability: float = 0.0  # of a writer that allows or forbids ensemble changes, before each action
    writer_settings: tuple[Settings, ...] = ()
    reader_settings: tuple[Settings, ...] = ()
    reads: Mapping[str, float] = field(default_factory=ways_of_reading)
    replicators: int = 0
    fragment_probability: float = 0.0  # of a replicator that moves one fragment, not all that a bookie holds
    veterans: int = 0  # writers that live through everything, and in the end have to trust every bookie again
    intruders: int = 0  # who have a wrong password
    foreigners: int = 0  # who leave entries behind the ends of ledgers
    healers: int = 0  # processes with an auditor and a replication worker
    operators: int = 0  # who announce maintenance, empty bookies and have data moved
    operate_ms: float = 800.0  # mean, before each of these
    healer_settings: Settings = field(default_factory=dict)  # of a `RecoveryConfig`
    is_replaced: bool = True


@dataclass(frozen=True)
class LogPlan:
    """How much is asked of one log. `quorums`: of its ledgers."""

    quorums: tuple[int, int, int] = (3, 3, 2)
    leaders: int = 2
    readers: int = 1
    tails: int = 1
    truncators: int = 1
    read_ms: float = 400.0  # mean, before a reading
    truncate_ms: float = 1_000.0  # mean, before a truncation
