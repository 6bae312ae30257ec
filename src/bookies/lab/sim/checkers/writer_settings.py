"""Checker of the additional promises that a writer's settings make, from the outside.

    delay    with `delay_ensemble_change` bookies are replaced only when an entry cannot reach its ack quorum otherwise
    off      a client that must not change ensembles changes none
    stall    `add_quorum_timeout_ms` ends a writer whose oldest entry waits for that time: not before, not much later
    domains  an acknowledged entry is on bookies of `fault_domains_min` fault domains, or of as many as it has replicas
    rack     with `placement_rule` every committed ensemble has each entry on `racks_min` racks
    striping an ensemble is smaller than requested only with `opportunistic_striping`, and only when bookies are lacking

The checker assumes that every client knows the bookies that have never died. It makes no claim about other bookies.
Source: client-protocol 2.8, 2.9, 2.17.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, field

from bookies.config import ClientConfig
from bookies.errors import AckQuorumTimeout, BookKeeperError
from bookies.lab.sim.world import SimCluster
from bookies.lab.sim.world.sim_metadata import Commit
from bookies.model import Ensemble, LedgerMetadata, LedgerState
from bookies.protocol.placement.topology import parse_fault_domains
from bookies.protocol.quorums import write_set

LATE_SHARE = 1.25  # of the time-out: a writer checks its oldest entry four times within it
SLACK_S = 0.05


class _Writer(Struct):
    """The writer of one ledger. Times in seconds."""

    config: ClientConfig
    is_timed: bool  # its entries are confirmed one after the other, so the oldest one is known
    may_change: bool  # it may change ensembles at any time
    begun_s: dict[int, float] = field(default_factory=dict)
    progressed_s: float = 0.0  # time of the last confirmation
    confirmed: int = 0


class WriterSettingsChecker:
    """Checker of what a writer does against its settings. `report(promise, text)` receives broken promises."""

    def __init__(self, cluster: SimCluster, report: Callable[[str, str], None]) -> None:
        self._cluster = cluster
        self._report = report
        self._writers: dict[int, _Writer] = {}
        settings = ClientConfig(**cluster.client_settings)  # type: ignore[arg-type]
        self._rule = settings if settings.placement_rule else None

    def created(
        self, record: LedgerMetadata, config: ClientConfig, ensemble_size: int, *, is_timed: bool, may_change: bool
    ) -> None:
        """Record and check a ledger that a client with these settings has created.

        `ensemble_size`: the requested one. `is_timed`: its entries are confirmed in the order in which they begin.
        `may_change`: the client may change ensembles, by its settings or since `allow_ensemble_changes`.
        """
        size = record.ensemble_size
        self._writers[record.ledger_id] = _Writer(config, is_timed, may_change)
        spares = self._steady(record.last_ensemble)
        is_small = config.opportunistic_striping and record.write_quorum <= size < ensemble_size and not spares
        if size != ensemble_size and not is_small:
            others = f"while {', '.join(spares)} are there" if spares else "and that was not allowed"
            self._report("striping", f"{record!r} has {size} bookies, not {ensemble_size}, {others}")

    def switched(self, ledger_id: int) -> None:
        """Record that the ledger's writer may change its ensemble from now on."""
        self._writers[ledger_id].may_change = True

    def begins(self, ledger_id: int, entry_id: int) -> None:
        """Record the begin of an append."""
        if ledger_id in self._writers:
            self._writers[ledger_id].begun_s[entry_id] = self._cluster.loop.time()

    def check_acknowledgement(self, ledger_id: int, first: int, last: int) -> None:
        """Check entries first..last when they are acknowledged to the application."""
        writer = self._writers.get(ledger_id)
        if writer is None:
            return
        self._check_patience(ledger_id, writer, first, last - first + 1)
        writer.confirmed = max(writer.confirmed, last + 1)
        writer.progressed_s = self._cluster.loop.time()
        record, witness = self._cluster.store.record(ledger_id), self._cluster.witness
        if writer.config.fault_domains_min < 2 or record is None or witness is None:
            return
        domains = parse_fault_domains(writer.config.fault_domains)
        for entry_id in range(first, last + 1):
            holders = witness.acknowledged_by(ledger_id, entry_id)
            covered = dict.fromkeys(domains[bookie] for bookie in holders if bookie in domains)
            if len(covered) < min(writer.config.fault_domains_min, record.write_quorum):
                self._report(
                    "domains",
                    f"entry {entry_id} of ledger {ledger_id} is acknowledged, and only {', '.join(holders)} of "
                    f"{', '.join(covered)} have told the writer that they hold it",
                )

    def check_failure(self, ledger_id: int, entry_id: int, error: BaseException) -> None:
        """Check a failed append."""
        writer = self._writers.get(ledger_id)
        if writer is None or not isinstance(error, BookKeeperError):
            return  # A killed process receives no outcome.
        if isinstance(error, AckQuorumTimeout) and (error.entry_id or 0) > entry_id:
            return  # Entries of one batch have one outcome: this one had its quorum, but the batch failed.
        self._check_patience(ledger_id, writer, entry_id)
        limit_s = writer.config.add_quorum_timeout_ms / 1000
        if isinstance(error, AckQuorumTimeout) and writer.is_timed and entry_id == writer.confirmed:
            waited_s = self._waited_s(writer, entry_id)
            if waited_s < limit_s - SLACK_S:
                self._report("stall", f"entry {entry_id} of ledger {ledger_id} was given up after {waited_s:.3f} s")

    def _waited_s(self, writer: _Writer, entry_id: int) -> float:
        return self._cluster.loop.time() - max(writer.progressed_s, writer.begun_s.get(entry_id, 0.0))

    def _check_patience(self, ledger_id: int, writer: _Writer, entry_id: int, count: int = 1) -> None:
        """Check how long the oldest entry has waited. Its batch has `count` entries; each may have made it wait."""
        limit_s = writer.config.add_quorum_timeout_ms / 1000
        if not limit_s or not writer.is_timed or entry_id != writer.confirmed:
            return
        waited_s = self._waited_s(writer, entry_id)
        if waited_s > LATE_SHARE * limit_s * count + SLACK_S:
            self._report(
                "stall",
                f"entry {entry_id} of ledger {ledger_id} has waited for {waited_s:.3f} s, though its writer gives up "
                f"after {limit_s:g} s",
            )

    def check_commit(self, commit: Commit) -> None:
        """Check the ensembles that a commit adds, and a commit with which a writer changes its ledger's ensembles."""
        before, after = commit.before, commit.after
        if self._rule is not None and after is not None:
            self._check_racks(self._rule, commit.author, after, before)
        if before is None or after is None or not commit.author.startswith("writer"):
            return
        writer = self._writers.get(after.ledger_id)
        if writer is None or after.state is not LedgerState.OPEN or before.ensembles == after.ensembles:
            return
        if not writer.may_change:
            self._report("off", f"{commit.author} commits {after!r}, and must not change ensembles")
        is_first_round = after.last_fragment_first_entry != before.last_fragment_first_entry
        if writer.config.delay_ensemble_change and is_first_round:
            self._check_delay(commit.author, before, after)

    def _check_racks(
        self, rule: ClientConfig, author: str, after: LedgerMetadata, before: LedgerMetadata | None
    ) -> None:
        known = [ensemble for _, ensemble in before.ensembles] if before is not None else []
        racks = parse_fault_domains(rule.fault_domains)
        for _, ensemble in after.ensembles:
            for entry_id in range(len(ensemble)) if ensemble not in known else ():
                members = [ensemble[at] for at in write_set(entry_id, len(ensemble), after.write_quorum)]
                if len({racks[bookie] for bookie in members}) < min(rule.racks_min, after.write_quorum):
                    text = f"{author} commits {', '.join(ensemble)} for ledger {after.ledger_id}"
                    self._report("rack", f"{text}: {', '.join(members)} are too few racks")

    def _check_delay(self, author: str, before: LedgerMetadata, after: LedgerMetadata) -> None:
        """Check "delay": only several failures break a quorum, and the writer replaces all failed bookies at once
        if enough other bookies are available.
        """
        least = after.write_quorum - after.ack_quorum + 1
        old, new = before.last_ensemble, after.last_ensemble
        replaced = [bookie for bookie in old if bookie not in new]
        if len(replaced) < least <= len(self._steady(old)):
            self._report(
                "delay",
                f"{author} replaces {', '.join(replaced)} in ledger {after.ledger_id}, although an entry that only "
                f"{len(replaced)} have failed still gets its ack quorum",
            )

    def _steady(self, ensemble: Ensemble) -> list[str]:
        """Return the bookies outside an ensemble that have been up all the time."""
        cluster = self._cluster
        return [
            name
            for name, bookie in cluster.bookies.items()
            if bookie.is_up and bookie.lives == 1 and bookie.server is not None and name not in ensemble
        ]
