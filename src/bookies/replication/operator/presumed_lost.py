"""Bookies that an operator's command may count as lost, although it has just begun to watch.

Its own view cannot show how long a bookie has been away. Three sources know more. The operator *declares* a bookie
lost. *Witnesses*, processes that run auto-recovery and have watched all the time, report it. Or the ledger's *mark*
names it: it was lost, had lost entries, or was to be emptied when the mark was written.

Neither witness nor mark proves that the bookie is not starting at this moment: a mark stays until a repair, and a
report may be some seconds old. So a repair waits (`settle`) until they have stayed away for the time that workers
require too (`Membership.long_away`). A diagnosis, which changes nothing, does not. Source: metadata 8.3 and 8.12.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from bookies.metadata.interface.recovery_store import Mark
from bookies.model import BookieId
from bookies.protocol.repair.repair_work import Circumstances
from bookies.replication.base import Membership
from bookies.replication.operator.status import ProcessStatus, taken_for_lost


class PresumedLost(Struct, frozen=True):
    """Bookies presumed lost: declared by the operator, else reported by witnesses, else named by the mark alone."""

    declared: Sequence[BookieId]
    reported: Sequence[BookieId]
    marked: Sequence[BookieId]

    @classmethod
    def of(cls, mark: Mark | None, witnesses: Sequence[ProcessStatus], declared: Sequence[BookieId]) -> PresumedLost:
        reported = [bookie for bookie in taken_for_lost(None, witnesses) if bookie not in declared]
        marked = [bookie for bookie in taken_for_lost(mark, ()) if bookie not in (*declared, *reported)]
        return cls(declared, reported, marked)

    async def settle(self, membership: Membership) -> None:
        """Wait some seconds until those that are not declared lost have either returned or stayed away."""
        await membership.settle([*self.reported, *self.marked])

    def circumstances(self, membership: Membership) -> Circumstances:
        """Return the present states of bookies, for a repair."""
        away = membership.long_away
        return membership.circumstances(away(self.reported), away(self.marked), declared=self.declared)
