"""Recovery of bookies: copies all replicas that they hold, by the records, to others, ledger after ledger.

Without a check: the operator names the bookies, and the records show what these hold. What is copied, and how, is up to
`ledger_repair.py`. Source: client-protocol 7.4.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from bookies.client.base.ledger_lock import in_rounds, ledger_locked
from bookies.client.repair.ledger_access import LedgerAccess
from bookies.client.repair.ledger_repair import LedgerRepair, RepairRules
from bookies.client.repair.replica_tools import ReplicaTools
from bookies.client.repair.replication import Account, Move, Obstacle
from bookies.errors import BookKeeperError, ClientClosed, LedgerLocked, LedgerNotFound, MetadataError, NotEnoughBookies
from bookies.metadata.interface.driver import Versioned
from bookies.metadata.interface.recovery_store import LedgerLock
from bookies.model import BookieId, BookieMode, LedgerMetadata, LedgerState
from bookies.protocol.repair import Fragment
from bookies.protocol.repair.fragments import fragments_to_check, fragments_without_entries
from bookies.protocol.repair.repair_work import Circumstances, jobs_without
from bookies.runtime.tasks import all_of

LEDGERS_AT_ONCE = 8  # most are small, so each copy mostly waits


class RecoveryOptions(Struct, frozen=True):
    """Options of `recover_bookies`. `owner`: name in the ledgers' locks."""

    owner: str
    is_dry: bool = False
    skips_open: bool = False
    skips_unrecoverable: bool = False


class BookieRecovery:
    """One run of `recover_bookies`.

    `bookies`: in order of urgency, for fragments whose replicas cannot all be placed. `registered`: those that answer.
    """

    def __init__(
        self,
        tools: ReplicaTools,
        bookies: Sequence[BookieId],
        registered: Sequence[BookieId],
        options: RecoveryOptions,
        account: Account,
    ) -> None:
        self._tools = tools
        self._bookies = bookies
        self._options = options
        self._account = account
        self._circumstances = Circumstances(
            registered,
            lost=[bookie for bookie in bookies if bookie not in registered],
            leaving=bookies,
            unwanted=dict.fromkeys(bookies, "it is being recovered"),
        )
        self.moves: list[Move] = []
        self.skipped: list[int] = []
        self.obstacles: list[Obstacle] = []

    async def ledgers(self, ledger_ids: Sequence[int]) -> None:
        """Recover all of these ledgers; locked ones are retried at the end. Failures are collected, not raised."""
        await in_rounds(ledger_ids, self._round)

    async def _round(self, ledger_ids: Sequence[int], is_last: bool) -> list[int]:
        """Process the ledgers; return those that another process has locked, except in the last round."""
        waiting, locked = iter(ledger_ids), list[int]()
        account, options, driver = self._account, self._options, self._tools.access.driver

        async def work() -> None:
            for ledger_id in waiting:
                try:
                    if options.is_dry:
                        await self._ledger(ledger_id, None)
                    else:
                        async with ledger_locked(driver, ledger_id, options.owner) as lock:
                            await self._ledger(ledger_id, lock)
                except LedgerLocked as error:
                    if not is_last:
                        account.locked[ledger_id] = error.owner or "another process"
                        locked.append(ledger_id)
                        account.report(ledger_id)
                        continue
                    self.obstacles.append(Obstacle(ledger_id, None, None, error))
                except MetadataError as error:
                    self._not_begun(ledger_id, error)
                account.locked.pop(ledger_id, None)
                account.ledgers_done += 1
                account.report(ledger_id)

        await all_of(work() for _ in range(min(LEDGERS_AT_ONCE, len(ledger_ids))))
        return locked

    def _not_begun(self, ledger_id: int, error: BookKeeperError) -> None:
        if self._options.skips_unrecoverable:
            self.skipped.append(ledger_id)
        else:
            self.obstacles.append(Obstacle(ledger_id, None, None, error))

    async def _ledger(self, ledger_id: int, lock: LedgerLock | None) -> None:
        """Copy all replicas that the bookies hold of one ledger, or plan to. Failures are collected, not raised."""
        access = self._tools.access
        try:
            versioned = await self._prepared(ledger_id)
            if versioned is None:
                return
            needs_sealing = self._needs_sealing(versioned.metadata)
            confirmed = -1 if needs_sealing else await access.last_add_confirmed(versioned)
        except ClientClosed:
            raise
        except LedgerNotFound:
            return  # Deleted meanwhile.
        except BookKeeperError as error:
            self._not_begun(ledger_id, error)
            return
        record = versioned.metadata
        fragments = [*fragments_to_check(record, confirmed), *fragments_without_entries(record)]
        jobs = jobs_without(fragments, self._bookies, self._circumstances.lost)
        rules = RepairRules(
            circumstances=lambda: self._circumstances,
            lock=lock,
            on_trouble=partial(self._account.store_failed, ledger_id),
            is_dry=self._options.is_dry,
            at_once=1,
        )
        repair = LedgerRepair(self._tools, rules, self._account)
        with contextlib.suppress(LedgerNotFound):  # Deleted meanwhile.
            await repair.work(jobs, repair.updating(versioned))
        for job in jobs:
            fragment, failure = job.fragment, repair.failures.get(job.fragment.first)
            if failure is not None:
                await add_excluded_bookies(access, fragment, failure)
                self.obstacles.append(Obstacle(ledger_id, fragment.first, fragment.last, failure))
        self.moves += [replace(move, needs_sealing=needs_sealing) for move in repair.moves]

    async def _prepared(self, ledger_id: int) -> Versioned | None:
        """Return the record once its writer cannot be using any of the bookies; None: leave the ledger alone."""
        versioned = await self._tools.access.read(ledger_id)
        if self._options.skips_open and versioned.metadata.state is LedgerState.OPEN:
            self.skipped.append(ledger_id)
            return None
        if not self._options.is_dry and self._needs_sealing(versioned.metadata):
            # The writer has not replaced the bookie yet: its next change must not race with the copy of the tail.
            return await self._tools.access.sealed(ledger_id)
        return versioned

    def _needs_sealing(self, record: LedgerMetadata) -> bool:
        return not record.is_closed and any(bookie in record.last_ensemble for bookie in self._bookies)


async def add_excluded_bookies(access: LedgerAccess, fragment: Fragment, error: BookKeeperError) -> None:
    """Extend the error of a copy without a target by the bookies that were excluded: read-only, or announced."""
    is_refused = error.bookie is not None and error.bookie not in fragment.ensemble
    if isinstance(error, NotEnoughBookies) or is_refused:
        with contextlib.suppress(MetadataError):
            modes = await access.driver.modes()
            read_only = [bookie for bookie, mode in modes.items() if mode is BookieMode.READ_ONLY]
            exclusions = Circumstances(list(modes), unwanted=access.avoided(), read_only=read_only)
            error.args = (f"{error.message}{exclusions.left_out(fragment.ensemble)}",)
