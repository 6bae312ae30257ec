"""The replicas that a mark may stand for, looked at completely: before a mark goes, and for those who ask.

A check reads the first and the last entry of every replica, and of the others a sample. That finds a bookie that is
gone or has lost a ledger; but a mark may stand for a single entry in the middle, and cannot say for which. So of every
bookie that it names and that is registered all entries are asked for: by the bookie's own list, one request, if the
mark can only stand for its absence; otherwise, or if it cannot list them, by reading each, at the pace of copies.
Source: metadata 8.4, 8.6 and 8.7; client-protocol 7.5.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from bookies.client.repair import Administration
from bookies.model import INVALID_ENTRY_ID, BookieId, LedgerMetadata
from bookies.protocol.repair import Fragment, FragmentVerdict, RateLimit
from bookies.protocol.repair.fragments import ReplicaState, ReplicaVerdict, state_of


class FullReplicaCheck:
    """Of one ledger. What was found to be complete is not looked at again."""

    def __init__(self, administration: Administration, pace: RateLimit | None = None) -> None:
        self._administration = administration
        self._pace = pace
        self.bookies: dict[BookieId, None] = {}  # that were asked
        self._complete: dict[tuple[int, BookieId], None] = {}  # by the first entry of the fragment

    async def at(
        self, record: LedgerMetadata, verdicts: Sequence[FragmentVerdict], bookies: Mapping[BookieId, bool]
    ) -> list[FragmentVerdict]:
        """The verdicts of a check, with what a look at all entries of these registered bookies says.

        `bookies`: True: read every entry, which finds damage; False: their lists will do. Of fragments that may still
        grow what is confirmed is asked for: an entry of it that is missing may be on its way, but the mark that may
        stand for it must not go. Raises `ClientClosed`.
        """
        found = []
        for verdict in verdicts:
            replicas = list(verdict.replicas)
            for replica in verdict.replicas:
                if self._is_due(verdict.fragment, replica, bookies):
                    self.bookies[replica.bookie], is_read = None, bookies[replica.bookie]
                    replicas[replica.position] = await self._replica(record, verdict.fragment, replica, is_read=is_read)
            found.append(verdict._replace(replicas=tuple(replicas)))
        return found

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
        ask, ids = self._administration.scan_replica, fragment.stored(replica.position)
        scan = await ask(record, replica.bookie, ids, pace=self._pace, is_listing=not is_read)
        if not is_read and not scan.is_listed and scan.stopped is None:
            scan = await ask(record, replica.bookie, ids, pace=self._pace)
        for bad in sorted(scan.bad, key=lambda each: (state_of(each.error) is not ReplicaState.MISSING, each.first)):
            return replica._replace(state=state_of(bad.error), entry_id=bad.first, error=bad.error)
        if scan.stopped is not None:
            return replica._replace(state=state_of(scan.stopped), error=scan.stopped)
        self._complete[fragment.first, replica.bookie] = None
        return replica
