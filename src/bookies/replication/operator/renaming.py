"""Renaming: puts another name for a bookie into all ledgers' records, when the bookie's id has changed.

The state is in the records alone, so a renaming can be aborted at any time, and repeated. Each record is changed by
compare-and-swap under the ledger's lock. A repair that has read the old name finds the change by its own swap.
A replica is renamed only if the bookie of the new name lists its entries, unless the operator waives this. A record
that names a bookie without the entries would make their copies under the old name surplus. In a fragment that may grow
an entry may be acknowledged that no bookie knows to be confirmed: if the new bookie denied it, a recovery could end the
ledger before it. So there the new bookie must list every entry up to the last one that any other bookie of the fragment
lists, and all of them must answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from bookies.errors import BookKeeperError, ClientClosed, LedgerNotFound, LedgerUnknownToBookie, MetadataError
from bookies.metadata.interface.driver import Versioned
from bookies.model import BookieId, LedgerMetadata
from bookies.protocol.ledger.operator_change import renamed, stays_named
from bookies.protocol.pacing import RateLimit
from bookies.protocol.repair import Fragment
from bookies.protocol.repair.fragments import missing_runs
from bookies.replication.base.operator_parts import Operator
from bookies.replication.base.replication_records import Coverage, records
from bookies.runtime.tasks import all_of


class RenamingRules(Struct, frozen=True):
    """Limits of a renaming. `with_growing`: change last fragments of ledgers that are not closed. `is_verified`: ask
    the bookie of the new name for its entries first. `is_dry`: change nothing.
    """

    with_growing: bool = False
    is_verified: bool = True
    is_dry: bool = False


class RenamingResult(Struct):
    """Result of a renaming. `changed`: records, or those that would be. `kept`: ledgers that name the old bookie still,
    and why. `coverage`: the records read.
    """

    changed: int = 0
    kept: dict[int, str] = field(default_factory=dict)
    coverage: Coverage = field(default_factory=Coverage)


class Renaming:
    """Renaming of the bookie `old` to `new`. `pace`: records per second."""

    def __init__(
        self, operator: Operator, old: BookieId, new: BookieId, rules: RenamingRules, pace: RateLimit | None = None
    ) -> None:
        self._driver = operator.driver
        self._administration = operator.client.administration(owner=operator.owner)
        self._old, self._new, self._rules = old, new, rules
        self._pace = pace or RateLimit(None)

    async def run(self, report: Callable[[RenamingResult], None] = lambda result: None) -> RenamingResult:
        """Rename the bookie in all records. Raises `MetadataError`, `ClientClosed`."""
        result = RenamingResult()
        async for page in records(self._driver, self._pace, result.coverage):
            await all_of(self._rename(ledger, result) for ledger in page if ledger.metadata.names(self._old))
            report(result)
        return result

    async def _rename(self, ledger: Versioned, result: RenamingResult) -> None:
        record, ledger_id = ledger.metadata, ledger.metadata.ledger_id
        try:
            why = await self._lacking(ledger) if self._rules.is_verified else ""
            if not why and self._changed(record) is not None:
                if not self._rules.is_dry:
                    verified = record
                    async with self._administration.locked(ledger_id) as lock:
                        record = await self._administration.change_record(
                            ledger_id,
                            lambda stored: self._changed(stored) if _are_alike(stored, verified) else None,
                            lock=lock,
                        )
                    if self._changed(record) is not None:
                        why = "its record changed meanwhile; repeat the command"
                result.changed += not why
        except LedgerNotFound:
            return  # It was deleted meanwhile.
        except (ClientClosed, MetadataError):
            raise
        except BookKeeperError as error:
            why = str(error)
        why = why or self._staying(record)
        if why:
            result.kept[ledger_id] = why

    def _changed(self, record: LedgerMetadata) -> LedgerMetadata | None:
        return renamed(record, self._old, self._new, with_growing=self._rules.with_growing)

    def _staying(self, record: LedgerMetadata) -> str:
        """Return why fragments keep the old name; empty: none does."""
        for first, ensemble in record.ensembles:
            if self._old not in ensemble or not stays_named(
                record, first, self._old, self._new, with_growing=self._rules.with_growing
            ):
                continue
            if self._new in ensemble:
                return f"the fragment from entry {first} has {self._new} in another position; repair it with --lost"
            return "it is not closed, and its writer may add to the last fragment; close it with bk ledger recover"
        return ""

    async def _lacking(self, ledger: Versioned) -> str:
        """Return which entries the bookie of the new name lacks; empty: none."""
        record, rules = ledger.metadata, self._rules
        fragments = [
            fragment
            for fragment in await self._administration.fragments_of(ledger)
            if self._old in fragment.ensemble
            and not stays_named(record, fragment.first, self._old, self._new, with_growing=rules.with_growing)
        ]
        if not fragments:
            return ""
        if not record.is_closed and fragments[-1].first == record.last_fragment_first_entry:
            fragments[-1] = await self._grown(fragments[-1])
        held = await self._listed(self._new, record.ledger_id)
        for fragment in fragments:
            missing = missing_runs(fragment.stored(fragment.ensemble.index(self._old)), held)
            if missing:
                return f"{self._new} does not list entries {missing[0].start} to {missing[0].stop - 1}"
        return ""

    async def _grown(self, fragment: Fragment) -> Fragment:
        """Return a fragment that may grow, up to the last entry that one of its other bookies lists.

        Raises the error of a bookie that does not answer.
        """
        others = [bookie for bookie in fragment.ensemble if bookie != self._old]
        lists = await all_of(self._listed(bookie, fragment.ledger_id) for bookie in others)
        ends = [runs[-1].stop - 1 for runs in lists if runs]
        return replace(fragment, last=max([*ends, fragment.first - 1 if fragment.is_doubtful else fragment.last]))

    async def _listed(self, bookie: BookieId, ledger_id: int) -> Sequence[range]:
        try:
            return await self._administration.list_entries(bookie, ledger_id)
        except LedgerUnknownToBookie:
            return ()


def _are_alike(record: LedgerMetadata, verified: LedgerMetadata) -> bool:
    """Report whether a record has the fragments that were verified: another client may have added to them since."""
    return (record.ensembles, record.state, record.last_entry_id) == (
        verified.ensembles,
        verified.state,
        verified.last_entry_id,
    )
