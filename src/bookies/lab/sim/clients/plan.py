"""Plans: the amount and the mix of work that a run's clients do."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

Settings = Mapping[str, object]  # of a `ClientConfig`, in addition to those of all clients of the run


def ways_of_reading() -> Mapping[str, float]:
    return {"all": 4, "tail": 4, "end": 2, "unconfirmed": 1}


class Plan(Struct, frozen=True):
    """The work on ledgers in one run.

    `quorums`: (ensemble, write quorum, ack quorum) to choose from.
    `digests`: with "dummy", a reader cannot distinguish a replica torn by a power failure from a good one.
    `is_replaced`: after a client was killed or has done its work, another one starts in its role.
    `ledgers_max`, `recoveries_max`, `reads_max`: maximum number of each, per client.
    `payload_sizes_min`: minimum sizes of a ledger's payloads to choose from; none: mostly small payloads.
    `writer_settings`, `reader_settings`: each client in the role takes one of them; none: those of the run.
    `reads`: weight of each way of reading, by name (`lab/sim/clients/reading.py`).
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
    ledgers_in_turn: int = 1  # that a writer fills at the same time, entry by entry
    recoveries_max: int = 4
    reads_max: int = 4
    deleters: int = 0
    delete_ms: float = 1_500.0  # mean, before a deletion
    deferred_probability: float = 0.1  # of a ledger with deferred sync: its entries are durable only after a force
    overlap_probability: float = 0.0  # of appends in flight while the writer forces
    unforced_probability: float = 0.0  # of a seal that leaves out entries that were not forced
    advanced_probability: float = 0.0  # of a ledger whose writer chooses the ids of its entries
    switch_probability: float = 0.0  # of a writer that allows or disallows ensemble changes, before each action
    writer_settings: tuple[Settings, ...] = ()
    reader_settings: tuple[Settings, ...] = ()
    reads: Mapping[str, float] = field(default_factory=ways_of_reading)
    replicators: int = 0
    fragment_probability: float = 0.0  # of a replicator that moves one fragment, not all data of a bookie
    veterans: int = 0  # writers that live during the whole run, and at its end must trust every bookie again
    intruders: int = 0  # clients with a wrong password
    foreigners: int = 0  # clients that leave entries after the ends of ledgers
    healers: int = 0  # processes with an auditor and a replication worker
    operators: int = 0  # they announce maintenance, drain bookies and balance data
    operate_ms: float = 800.0  # mean, before each of these actions
    repairs: bool = False  # operators also repair ledgers and renew entries
    emptiers: int = 0  # operators that empty bookies, which return under their ids
    empty_ms: float = 500.0  # mean, before each of these actions
    offloaders: int = 0  # jobs that offload ledgers, let the bookies delete them, and restore them
    offload_ms: float = 100.0  # mean, before each of these actions
    trusting: str = ""  # prefix of the hosts that, like Apache's, do not check records before adds
    healer_settings: Settings = field(default_factory=dict)  # of a `RecoveryConfig`
    is_replaced: bool = True


class LogPlan(Struct, frozen=True):
    """The work on one log in a run. `quorums`: of its ledgers. `record_format`: of its entries.

    `turns`: probability that a process waits for its turn before it leads.
    """

    quorums: tuple[int, int, int] = (3, 3, 2)
    leaders: int = 2
    readers: int = 1
    tails: int = 1
    truncators: int = 1
    read_ms: float = 400.0  # mean, before a reading
    truncate_ms: float = 1_000.0  # mean, before a truncation
    jobs: int = 0  # processes that commit transactions; two have the same application
    reapers: int = 0
    grace_ms: int = 1_500  # after which reapers give transactions up
    consumers: int = 0  # processes that read from a cursor and move it
    record_format: str = "raw"
    turns: float = 0.0
    producers: int = 0  # processes that number their entries
    deciders: int = 0  # processes that append only after the entry that they know as the last one
    followers: int = 0  # consumers with a lease; several have one name
    turn_takers: int = 0  # processes with a lock or an election
    retainers: int = 0  # processes that set limits, and remove what these allow to go
    retain_ms: float = 300.0  # mean, before each of these actions
    rollers: int = 0  # processes that merge its small ledgers
    seekers: int = 0  # processes that search for times
    seek_ms: float = 200.0  # mean, before each search
    skew: float = 1.0  # of the usual difference between clocks
