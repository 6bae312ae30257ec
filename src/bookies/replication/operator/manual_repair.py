"""Manual diagnosis and repair of one ledger: what auto-recovery would do, and why it has not done it yet.

Both judge with the same functions as the auditor and the workers. In addition the operator may declare bookies lost
before the delay is over.

Which bookies count as lost for a process that has just begun to watch: `presumed_lost.py`.
Source: metadata 8.3, 8.6, 8.7 and 8.12.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from bookies.client.base.ledger_lock import ledger_locked
from bookies.client.repair import Administration
from bookies.client.repair.full_check import FullReplicaCheck
from bookies.client.repair.ledger_repair import UNLIMITED_S, LedgerRepair, Outcome, RepairRules
from bookies.client.repair.replication import Account, Totals
from bookies.errors import BookKeeperError, ClientClosed, InvalidArgument, LedgerLocked, LedgerNotFound, MetadataError
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import Versioned
from bookies.metadata.interface.recovery_store import Mark
from bookies.model import BookieId, LedgerMetadata
from bookies.protocol.pacing import RateLimit
from bookies.protocol.repair import FragmentVerdict
from bookies.protocol.repair.repair_work import Assessment, Cause, Circumstances, RepairState, Wait, assess
from bookies.replication.base import Membership
from bookies.replication.operator.presumed_lost import PresumedLost
from bookies.replication.operator.status import ProcessStatus, reports_on, witnesses

SEALING = "a lost bookie is among those that it writes to; sealing the ledger (--seal-open) ends the writer"
TRIES = 3  # of a ledger that is marked again meanwhile
UNSEEN = "it is not registered, and no auto-recovery process is running that knows since when"


class LedgerDiagnosis(Struct, frozen=True):
    """Present state of a ledger.

    reports: reports of auto-recovery processes on it, the latest first.
    is_enabled: whether auto-recovery is switched on.
    trouble: why its replicas could not be checked; then their state is unknown.
    percentage: as given to `diagnose`.
    listed: bookies whose own lists of entries were checked.
    """

    record: LedgerMetadata
    mark: Mark | None
    locked_by: str | None
    reports: Sequence[tuple[ProcessStatus, Mapping[str, Any]]]
    verdicts: Sequence[FragmentVerdict]
    assessment: Assessment
    circumstances: Circumstances
    is_enabled: bool = True
    trouble: str | None = None
    percentage: float = 0
    listed: Sequence[BookieId] = ()

    @property
    def depth(self) -> str:
        """Return the depth of the check as text."""
        text = f"the first and the last entry of each replica and {self.percentage:g} % of the others"
        if not self.percentage:
            text = "the first and the last entry of each replica"
        elif self.percentage >= 100:
            text = "every entry of each replica"
        if self.listed:
            text += f", and the list of all that {', '.join(self.listed)} has, which the mark names"
        return text


class ManualRepair:
    """Diagnosis and repair of single ledgers.

    membership: started; the caller stops it.
    on_trouble: as of `MetadataLoop`.
    """

    def __init__(
        self,
        driver: MetadataDriver,
        administration: Administration,
        membership: Membership,
        on_trouble: Callable[[MetadataError], None] | None = None,
    ) -> None:
        self._driver = driver
        self._on_trouble = on_trouble
        self._administration = administration
        self._membership = membership

    async def diagnose(
        self, ledger_id: int, *, lost: Sequence[BookieId] = (), percentage: float = 0
    ) -> LedgerDiagnosis:
        """Diagnose a ledger from the store and its bookies, without a change.

        lost: as in `repair`.
        percentage: share of the entries of each replica to read beside its first and last.
        Raises `LedgerNotFound`, `MetadataError`, `InvalidArgument`.
        """
        self._check_lost(lost)
        store = self._driver.recovery
        ledger = await self._administration.record(ledger_id)
        mark = await store.mark_of(ledger_id)
        seen = await witnesses(self._driver)
        presumed = PresumedLost.of(mark, seen, lost)
        circumstances = self._membership.circumstances(presumed.reported, presumed.marked, declared=lost)
        verdicts: Sequence[FragmentVerdict] = ()
        assessment, trouble = Assessment(), None
        listed: list[BookieId] = []
        try:
            check = await self._administration.check_record(ledger, circumstances.registered, percentage=percentage)
        except (ClientClosed, LedgerNotFound, MetadataError):
            raise
        except BookKeeperError as error:
            trouble = str(error)
        else:
            named = self._membership.may_lack(() if mark is None else mark.replicas, None)
            full_check = FullReplicaCheck(self._administration)
            verdicts = await full_check.run(ledger.metadata, check.fragments, dict.fromkeys(named, False))
            listed = list(full_check.bookies)
            assessment = assess(ledger.metadata, verdicts, circumstances)
            assessment.waits = _advised(ledger_id, assessment.waits, bool(seen))
        return LedgerDiagnosis(
            ledger.metadata,
            mark,
            (await store.locks()).get(ledger_id),
            await reports_on(self._driver, ledger_id),
            verdicts,
            assessment,
            circumstances,
            await store.is_enabled(),
            trouble,
            percentage,
            tuple(listed),
        )

    async def repair(
        self,
        ledger_id: int,
        owner: str,
        *,
        lost: Sequence[BookieId] = (),
        seals: bool = False,
        pace: RateLimit | None = None,
        percentage: int = 0,
    ) -> tuple[Outcome, Totals]:
        """Repair a ledger under its lock, even with auto-recovery switched off; remove its mark when it is whole.

        lost: absent bookies that count as lost by the operator's declaration. For bookies that other processes report
            as lost, the repair first waits some seconds whether they stay away.
        seals: seal an open ledger whose last ensemble has a lost bookie, which ends its writer.
        Raises `LedgerNotFound`, `LedgerLocked`, `MetadataError`, `InvalidArgument` (a bookie in `lost` is registered).
        """
        self._check_lost(lost)
        await self._administration.record(ledger_id)
        store, account = self._driver.recovery, Account(pace)

        def grace(ledger: Versioned) -> float:
            return 0.0 if seals else UNLIMITED_S

        for _ in range(TRIES):
            await self._membership.refresh()
            mark = await store.mark_of(ledger_id)
            seen = await witnesses(self._driver)
            presumed = PresumedLost.of(mark, seen, lost)
            await presumed.settle(self._membership)
            async with ledger_locked(self._driver, ledger_id, owner, mark) as lock:
                rules = RepairRules(
                    circumstances=partial(presumed.circumstances, self._membership),
                    grace=grace,
                    lock=lock,
                    on_trouble=self._on_trouble,
                    percentage=percentage,
                    # A mark that names no bookie is one for the placement.
                    repairs_placement=mark is not None and not mark.replicas,
                    may_lack=partial(self._membership.may_lack, () if mark is None else mark.replicas, None),
                )
                outcome = await LedgerRepair(self._administration, rules, account).run(ledger_id)
                if outcome.state is not RepairState.HEALTHY:
                    break
                # It may be marked meanwhile, or marked again, for something that this repair did not look for.
                if mark is None:
                    is_unmarked = await store.mark_of(ledger_id) is None
                else:
                    is_unmarked = not await self._membership.knows_new_drains() and await store.done(lock)
                if is_unmarked:
                    break
        else:
            raise LedgerLocked("other processes keep marking the ledger; repeat the repair later", ledger_id=ledger_id)
        outcome.waits = _advised(ledger_id, outcome.waits, bool(seen))
        return outcome, account.totals

    def _check_lost(self, lost: Collection[BookieId]) -> None:
        for bookie in lost:
            if bookie in self._membership.registered:
                text = f"bookie {bookie} is registered, so it is not lost; to empty a running bookie, use"
                raise InvalidArgument(f"{text} bk bookie drain {bookie}")


def _advised(ledger_id: int, waits: Sequence[Wait], has_witness: bool) -> list[Wait]:
    """Return the waits with reasons and advice for the operator."""
    advised = []
    for wait in waits:
        if wait.cause is Cause.GRACE:
            wait = wait._replace(reason=SEALING)
        elif wait.cause is Cause.BOOKIE and wait.bookie is not None:
            reason = wait.reason if has_witness else UNSEEN
            wait = wait._replace(reason=f"{reason}; {_way_out(ledger_id, wait.bookie)}")
        elif wait.cause is Cause.MAINTENANCE and wait.bookie is not None:
            wait = wait._replace(reason=f"{wait.reason}; {_way_out(ledger_id, wait.bookie)}")
        advised.append(wait)
    return advised


def _way_out(ledger_id: int, bookie: BookieId) -> str:
    return f"if it will not come back: bk recovery repair {ledger_id} --lost {bookie}"
