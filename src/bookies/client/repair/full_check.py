"""Full check of every replica that a mark may stand for. Runs before the mark is removed, and on request.

An ordinary check reads the first and the last entry of every replica, and a sample of the others. That detects a bookie
that is unavailable or has lost a ledger. But a mark may stand for a single entry in the middle, which it does not name.
So this check covers all entries of every registered bookie that the mark names. If the mark can only stand for the
bookie's absence, one request for the bookie's own list of entries suffices. Otherwise, or if the bookie cannot list
them, it reads every entry at the rate of copies. Source: metadata 8.4, 8.6 and 8.7; client-protocol 7.5.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from bookies.client.repair.replica_tools import ReplicaTools
from bookies.model import INVALID_ENTRY_ID, BookieId, LedgerMetadata
from bookies.protocol.pacing import RateLimit
from bookies.protocol.repair import Fragment, FragmentVerdict
from bookies.protocol.repair.fragments import ReplicaState, ReplicaVerdict, state_of


class FullReplicaCheck:
    """Full check of one ledger. Replicas found to be complete are not checked again."""

    def __init__(self, tools: ReplicaTools, pace: RateLimit | None = None) -> None:
        self._tools = tools
        self._pace = pace
        self.bookies: dict[BookieId, None] = {}  # bookies that were asked
        self._complete: dict[tuple[int, BookieId], None] = {}  # by the first entry of the fragment

    async def run(
        self, record: LedgerMetadata, verdicts: Sequence[FragmentVerdict], bookies: Mapping[BookieId, bool]
    ) -> list[FragmentVerdict]:
        """Return the verdicts of a check, updated by a check of all entries of these registered bookies.

        `bookies`: True: read every entry, which detects damage; False: the bookie's list suffices. In fragments that
        may still grow, check the confirmed entries: a missing one may be in flight, but the mark that may stand for it
        must stay. Raises `ClientClosed`.
        """
        updated = []
        for verdict in verdicts:
            replicas = list(verdict.replicas)
            for replica in verdict.replicas:
                if self._is_due(verdict.fragment, replica, bookies):
                    self.bookies[replica.bookie], is_read = None, bookies[replica.bookie]
                    replicas[replica.position] = await self._replica(record, verdict.fragment, replica, is_read=is_read)
            updated.append(verdict._replace(replicas=tuple(replicas)))
        return updated

    def _is_due(self, fragment: Fragment, replica: ReplicaVerdict, bookies: Collection[BookieId]) -> bool:
        return (
            not fragment.is_doubtful
            and replica.bookie in bookies
            and replica.state is ReplicaState.OK
            and fragment.first_stored(replica.position) != INVALID_ENTRY_ID
            and (fragment.first, replica.bookie) not in self._complete
        )

    async def _replica(
        self, record: LedgerMetadata, fragment: Fragment, replica: ReplicaVerdict, *, is_read: bool
    ) -> ReplicaVerdict:
        ask, ids = self._tools.scan_replica, fragment.stored(replica.position)
        scan = await ask(record, replica.bookie, ids, pace=self._pace, is_listing=not is_read)
        if not is_read and not scan.is_listed and scan.stopped is None:
            scan = await ask(record, replica.bookie, ids, pace=self._pace)
        for bad in sorted(scan.bad, key=lambda run: (state_of(run.error) is not ReplicaState.MISSING, run.first)):
            return replica._replace(state=state_of(bad.error), entry_id=bad.first, error=bad.error)
        if scan.stopped is not None:
            return replica._replace(state=state_of(scan.stopped), error=scan.stopped)
        self._complete[fragment.first, replica.bookie] = None
        return replica
