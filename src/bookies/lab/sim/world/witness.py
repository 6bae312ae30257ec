"""Record of each bookie's promises, taken at its storage: the entries it acknowledged and the ledgers it fenced.

The witness stands between a bookie's request handlers and its storage and does not change any call. Together with the
committed records it checks promises at the moment they are made, not only when data is lost later:

    B-1    a restarted bookie has every entry that it acknowledged, every fence, and every explicit LAC; if it has lost
           a disk, it denies none of them
    I-5    when a recovery commits the end, no write set can still confirm the entry after it
    I-8    a fragment that the writer commits starts after every acknowledged entry
    I-9    an entry is acknowledged to the application only when an ack quorum of the bookies in the record holds it
    I-18   a bookie that replaces another in a finished fragment holds all that its position stores
    I-25   an ack quorum has synced every entry that a force confirmed
    I-28   no bookie acknowledges an ordinary add of a ledger that it has fenced
    I-29   no bookie deletes a ledger that exists, unless it is closed and no ensemble lists the bookie, or its entries
           are in files and the record allows it; after it has deleted a ledger without a record, the bookie
           acknowledges no further add of that ledger

Source: client-protocol 8.2.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from bookies.bookie.server import BookieServer
from bookies.bookie.storage_port import Storage
from bookies.errors import DataUnknown, EntryNotFound, LedgerUnknownToBookie
from bookies.kernels import Adds
from bookies.lab.sim.world.sim_metadata import Commit, SimStore, write_set_of
from bookies.lab.sim.world.storage_wrapper import StorageWrapper
from bookies.model import LAST_ENTRY, BookieId, LedgerMetadata, LedgerState
from bookies.protocol.ledger.offload import may_be_forgotten
from bookies.protocol.quorums.quorum import stored_ids
from bookies.storage.engine.store_writes import AddsDone, RefusedAdds
from bookies.storage.journal.journal import Done
from bookies.storage.store import LedgerStore


class Witness:
    """Recorder and checker of what bookies promise. `report(invariant, text)` receives broken promises."""

    def __init__(self, store: SimStore, report: Callable[[str, str], None]) -> None:
        self._store = store
        self.report = report
        self.mixed_count = 0  # entries acknowledged that arrived in turn with entries of other ledgers
        self._held: dict[tuple[str, int], set[int]] = {}  # bookie, ledger -> entries acknowledged as durable
        self._promised: dict[tuple[str, int], set[int]] = {}  # the same, only those confirmed to the writer
        self._unsynced: dict[tuple[str, int], set[int]] = {}  # acknowledged with deferred sync, and not forced
        self._fenced: dict[tuple[str, int], None] = {}
        self._deleted: dict[tuple[str, int], None] = {}  # by this bookie, because the ledger had no record
        # Explicit LACs that were sent to a bookie, from the last acknowledged one on; the latest counts.
        self._explicit_lacs: dict[tuple[str, int], list[bytes]] = {}
        self._acknowledged_lacs: dict[tuple[str, int], None] = {}  # ledgers with an acknowledged explicit LAC
        self.lost_disks: dict[str, None] = {}  # bookies that may not know what they hold
        self.may_deny: dict[tuple[str, int], None] = {}  # ledgers that a test has removed from a bookie

    def watch(self, bookie: str, storage: Storage) -> Storage:
        """Return the storage of this life of a bookie, whose requests and responses are recorded from now on.

        Entries that were never synced may be lost.
        """
        for key in [key for key in self._unsynced if key[0] == bookie]:
            del self._unsynced[key]
        return _WitnessedStorage(storage, bookie, self)

    # -- calls of the storages -----------------------------------------------------------------------------------
    def fenced(self, bookie: str, ledger_id: int) -> None:
        """Record the promise of a fence."""
        self._fenced[bookie, ledger_id] = None

    def forcing(self, bookie: str, ledger_id: int) -> Callable[[], None]:
        """Return the function to call when the bookie confirms a force that begins now."""
        covered = set(self._unsynced.get((bookie, ledger_id), ()))

        def forced() -> None:
            self._held.setdefault((bookie, ledger_id), set()).update(covered)
            self._promised.setdefault((bookie, ledger_id), set()).update(covered)

        return forced

    def sending_lac(self, bookie: str, ledger_id: int, body: bytes) -> Callable[[], None]:
        """Return the function to call when the bookie acknowledges an explicit LAC that is sent now."""

        def acknowledged() -> None:
            sent = self._explicit_lacs.get((bookie, ledger_id), [])
            if body in sent:
                del sent[: sent.index(body)]
                self._acknowledged_lacs[bookie, ledger_id] = None

        self._explicit_lacs.setdefault((bookie, ledger_id), []).append(body)
        return acknowledged

    def adding(
        self, bookie: str, ledger_id: int, *, is_recovery: bool, is_deferred_sync: bool = False
    ) -> Callable[[Sequence[int]], None]:
        """Return the function to call with the entries that the bookie acknowledges of an add that begins now."""
        was_fenced = (bookie, ledger_id) in self._fenced
        was_deleted = (bookie, ledger_id) in self._deleted

        def acknowledged(entry_ids: Sequence[int]) -> None:
            known = self._unsynced if is_deferred_sync else self._held
            known.setdefault((bookie, ledger_id), set()).update(entry_ids)
            if not is_recovery and not is_deferred_sync:
                self._promised.setdefault((bookie, ledger_id), set()).update(entry_ids)
            if was_fenced and not is_recovery:
                self.report("I-28", f"{bookie} fenced ledger {ledger_id}, then acknowledged {[*entry_ids]}")
            if was_deleted:
                self.report("I-29", f"{bookie} deleted ledger {ledger_id}, then acknowledged {[*entry_ids]}")

        return acknowledged

    async def check_memory(self, bookie: str, server: BookieServer) -> None:
        """Check B-1: a bookie that has just started has everything that it promised in its earlier lives."""
        for (name, ledger_id), entry_ids in list(self._held.items()):
            if name != bookie:
                continue
            # Before the listing, which may lack entries that this life acknowledges meanwhile.
            promised = self._kept(bookie, ledger_id, entry_ids)
            try:
                runs = await server.storage.list_entries(ledger_id)
            except LedgerUnknownToBookie:
                runs = []
            except DataUnknown:
                if bookie not in self.lost_disks:
                    raise
                continue  # It denies nothing.
            lost = [entry_id for entry_id in promised if not any(entry_id in run for run in runs)]
            if lost and not self._must_keep(bookie, ledger_id):
                self._forget(bookie, ledger_id)  # This start finished a deletion that a crash had interrupted.
            elif lost:
                self.report("B-1", f"{bookie} acknowledged entries {lost} of ledger {ledger_id} and has forgotten them")
            self._check_explicit_lac(bookie, server.store, ledger_id)
        for name, ledger_id in list(self._fenced):
            if name != bookie or await _is_fenced(server.store, ledger_id):
                continue
            if self._must_keep(bookie, ledger_id):
                self.report("B-1", f"{bookie} fenced ledger {ledger_id} and has forgotten it")

    def _check_explicit_lac(self, bookie: str, store: LedgerStore, ledger_id: int) -> None:
        """Check B-1 for the explicit LAC of a ledger. The ledger is in memory: it has just been listed."""
        header = store.resident_header(ledger_id)
        if header is None or (bookie, ledger_id) not in self._acknowledged_lacs or bookie in self.lost_disks:
            return
        if header.explicit_lac not in self._explicit_lacs[bookie, ledger_id]:
            self.report("B-1", f"{bookie} was told what is confirmed of ledger {ledger_id} and has forgotten it")

    def check_deletions(self, bookie: str, ledger_ids: Sequence[int]) -> None:
        """Check I-29: a bookie is about to delete these ledgers."""
        for ledger_id in ledger_ids:
            if self._must_keep(bookie, ledger_id):
                self.report("I-29", f"{bookie} deletes ledger {ledger_id}: {self._store.record(ledger_id)!r}")
            if self._store.record(ledger_id) is None:
                self._deleted[bookie, ledger_id] = None
            self._forget(bookie, ledger_id)

    def _must_keep(self, bookie: str, ledger_id: int) -> bool:
        """Report whether the bookie must keep the ledger: it is open, or its committed record lists the bookie and does
        not let bookies delete it.
        """
        record = self._store.record(ledger_id)
        if record is None or may_be_forgotten(record):
            return False
        return not (record.is_closed and all(bookie not in ensemble for _, ensemble in record.ensembles))

    def lost_disk(self, bookie: str) -> None:
        """Note that a bookie loses a disk: it may report what it held as unknown, and must not deny it."""
        self.lost_disks[bookie] = None

    def must_have(self, bookie: str, ledger_id: int) -> list[int]:
        """Return the entries of a ledger that the bookie must not deny."""
        held = self._held.get((bookie, ledger_id))
        return self._kept(bookie, ledger_id, held) if held and self._must_keep(bookie, ledger_id) else []

    def _kept(self, bookie: str, ledger_id: int, entry_ids: Collection[int]) -> list[int]:
        """Return the entries that the bookie must still have. One that has lost a disk fetches only those that the
        record of the closed ledger places on it."""
        record = self._store.record(ledger_id)
        if bookie in self.lost_disks and record is not None and record.is_closed:
            last = record.last_entry_id
            return sorted(entry for entry in entry_ids if entry <= last and bookie in write_set_of(record, entry))
        return sorted(entry_ids)

    def check_denial(self, bookie: str, ledger_id: int, denied: Sequence[int]) -> None:
        """Check B-1 for entries that a read did not find, of those that the bookie must have had before it."""
        kept = [] if (bookie, ledger_id) in self.may_deny else self.must_have(bookie, ledger_id)
        if lost := [entry_id for entry_id in denied if entry_id in kept]:
            self.report("B-1", f"{bookie} acknowledged entries {lost} of ledger {ledger_id}, and denies them")

    def emptied(self, bookie: str) -> None:
        """Forget what a bookie held that was emptied: no record names it."""
        for key in [key for known in (self._held, self._fenced, self._explicit_lacs) for key in known]:
            if key[0] == bookie:
                self._forget(*key)

    def _forget(self, bookie: str, ledger_id: int) -> None:
        known: tuple[dict[tuple[str, int], Any], ...] = (self._held, self._promised, self._unsynced, self._fenced)
        for promises in (*known, self._acknowledged_lacs, self._explicit_lacs):
            promises.pop((bookie, ledger_id), None)

    def holds(self, bookie: BookieId, ledger_id: int, entry_id: int) -> bool:
        """Report whether the bookie has acknowledged the entry as durable."""
        return entry_id in self._held.get((bookie, ledger_id), ())

    def has_any(self, bookie: BookieId, ledger_id: int) -> bool:
        """Report whether the bookie has ever acknowledged an entry of the ledger as durable."""
        return bool(self._held.get((bookie, ledger_id)))

    def has_fenced(self, bookie: BookieId, ledger_id: int) -> bool:
        """Report whether the bookie's storage has promised to refuse ordinary adds of the ledger."""
        return (bookie, ledger_id) in self._fenced

    def is_on_quorum(self, ledger_id: int, entry_id: int, *, by_writer: bool = False) -> bool:
        """Report whether an ack quorum of the bookies that the writer's record lists for an entry holds it.

        `by_writer`: count only replicas acknowledged to the writer, not those that a recovery wrote back.
        """
        held = self._promised if by_writer else self._held
        record = self._writers_record(ledger_id)
        if record is None:
            return False
        members = write_set_of(record, entry_id)
        return sum(entry_id in held.get((bookie, ledger_id), ()) for bookie in members) >= record.ack_quorum

    def acknowledged_by(self, ledger_id: int, entry_id: int) -> list[BookieId]:
        """Return the bookies that have acknowledged an entry to the writer, of those that its record lists for it."""
        record = self._writers_record(ledger_id)
        if record is None:
            return []
        members = write_set_of(record, entry_id)
        return [bookie for bookie in members if entry_id in self._promised.get((bookie, ledger_id), ())]

    def _writers_record(self, ledger_id: int) -> LedgerMetadata | None:
        """Return the last committed record before any recovery."""
        commits = reversed(self._store.commits.get(ledger_id, []))
        return next(
            (commit.after for commit in commits if commit.after and commit.after.state is LedgerState.OPEN), None
        )

    def check_acknowledgement(self, ledger_id: int, first: int, last: int) -> None:
        """Check I-9 and I-25: entries first..last are about to be acknowledged to an application as durable."""
        record = self._writers_record(ledger_id)
        if record is None:
            return  # The reply to its creation was lost.
        for entry_id in range(first, last + 1):
            holders = [name for name in write_set_of(record, entry_id) if self.holds(name, ledger_id, entry_id)]
            if len(holders) < record.ack_quorum:
                text = f"entry {entry_id} of ledger {ledger_id} is acknowledged, but only {holders} hold it, of "
                self.report("I-9", f"{text}{record.ensemble_at(entry_id)}; the ack quorum is {record.ack_quorum}")

    def check_commit(self, commit: Commit, confirmed: int) -> None:
        """Check I-5, I-8 and I-18. `confirmed`: number of acknowledged entries of the ledger."""
        before, after = commit.before, commit.after
        if before is None or after is None:
            return
        is_replicator = commit.author.startswith("replicator")
        if after.state is LedgerState.OPEN and not is_replicator and confirmed > after.last_fragment_first_entry:
            self.report(
                "I-8",
                f"ledger {after.ledger_id}: a fragment begins at {after.last_fragment_first_entry}, but entry "
                f"{confirmed - 1} was acknowledged",
            )
        is_writer = commit.author == self._store.commits[after.ledger_id][0].author  # it closes at its own LAC
        if after.is_closed and before.state is LedgerState.IN_RECOVERY and not is_writer:
            self._check_end(after)
        if is_replicator and before.state is after.state:
            self._check_replacements(before, after)

    def _check_replacements(self, before: LedgerMetadata, after: LedgerMetadata) -> None:
        """Check I-18: every entry is on the new bookie before the record lists the bookie."""
        for (first, old), (_, new) in zip(before.ensembles, after.ensembles, strict=True):
            later = [start for start, _ in after.ensembles if start > first]
            last = later[0] - 1 if later else after.last_entry_id
            for position, bookie in enumerate(new):
                if bookie == old[position]:
                    continue
                ids = stored_ids(position, first, last, len(new), after.write_quorum)
                lacking = [entry_id for entry_id in ids if not self.holds(bookie, after.ledger_id, entry_id)]
                # A copied entry counts like an acknowledgement of the bookie that was replaced.
                copied = [entry_id for entry_id in ids if self.holds(bookie, after.ledger_id, entry_id)]
                self._promised.setdefault((bookie, after.ledger_id), set()).update(copied)
                if lacking or (not later and not after.is_closed):
                    self.report(
                        "I-18",
                        f"ledger {after.ledger_id}: {bookie} takes the place of {old[position]} for entries {first} to "
                        f"{last}, but lacks {lacking}",
                    )

    def _check_end(self, closed: LedgerMetadata) -> None:
        """Check I-5: the bookies that may still acknowledge the next entry, or already did, are no ack quorum."""
        record = self._writers_record(closed.ledger_id)
        assert record is not None
        ledger_id, entry_id = closed.ledger_id, closed.last_entry_id + 1
        able = [
            bookie
            for bookie in write_set_of(record, entry_id)
            if not self.has_fenced(bookie, ledger_id) or entry_id in self._promised.get((bookie, ledger_id), ())
        ]
        if len(able) >= record.ack_quorum:
            self.report("I-5", f"ledger {ledger_id} is closed at {entry_id - 1}, but {able} may confirm {entry_id}")


async def _is_fenced(store: LedgerStore, ledger_id: int) -> bool:
    """Report whether the ledger is fenced, or may be: then ordinary adds are refused, too."""
    try:
        return (await store.header(ledger_id)).is_fenced
    except LedgerUnknownToBookie:
        return ledger_id in store.former_ledgers  # Its record is checked before an add.
    except DataUnknown:
        return True


class _WitnessedStorage(StorageWrapper):
    """Storage of one life of a bookie that tells the witness of every write."""

    def __init__(self, inner: Storage, bookie: str, witness: Witness) -> None:
        super().__init__(inner)
        self._bookie = bookie
        self._witness = witness

    def add(
        self,
        adds: Adds,
        master_key: bytes,
        *,
        is_recovery: bool,
        is_deferred_sync: bool,
        accepted: Callable[[int], None],
        done: AddsDone,
    ) -> list[RefusedAdds]:
        acknowledged = {
            ledger_id: self._witness.adding(
                self._bookie, ledger_id, is_recovery=is_recovery, is_deferred_sync=is_deferred_sync
            )
            for ledger_id in adds.ledger_ids
        }

        def watched_done(part: Adds, error: BaseException | None) -> None:
            for ledger_id, entry_ids, _ in part.stretches() if error is None else ():
                acknowledged[ledger_id](entry_ids)
            if error is None and part.stretch_count > 1:
                self._witness.mixed_count += len(part)
            done(part, error)

        return self.inner.add(
            adds,
            master_key,
            is_recovery=is_recovery,
            is_deferred_sync=is_deferred_sync,
            accepted=accepted,
            done=watched_done,
        )

    async def read(self, ledger_id: int, entry_id: int) -> bytes:
        had = self._witness.must_have(self._bookie, ledger_id)
        try:
            return await self.inner.read(ledger_id, entry_id)
        except (EntryNotFound, LedgerUnknownToBookie):
            denied = had[-1:] if entry_id == LAST_ENTRY else [entry_id]
            self._witness.check_denial(self._bookie, ledger_id, [number for number in denied if number in had])
            raise

    async def read_batch(self, ledger_id: int, first_entry_id: int, count_max: int, size_max: int) -> bytes:
        had = self._witness.must_have(self._bookie, ledger_id)
        try:
            return await self.inner.read_batch(ledger_id, first_entry_id, count_max, size_max)
        except (EntryNotFound, LedgerUnknownToBookie):
            self._witness.check_denial(self._bookie, ledger_id, [first_entry_id] if first_entry_id in had else [])
            raise

    async def list_entries(self, ledger_id: int) -> list[range]:
        had = self._witness.must_have(self._bookie, ledger_id)
        runs = await self.inner.list_entries(ledger_id)
        denied = [entry_id for entry_id in had if not any(entry_id in run for run in runs)]
        self._witness.check_denial(self._bookie, ledger_id, denied)
        return runs

    def fence(self, ledger_id: int, master_key: bytes, done: Done) -> None:
        self.inner.fence(ledger_id, master_key, _after(lambda: self._witness.fenced(self._bookie, ledger_id), done))

    def write_lac(self, ledger_id: int, master_key: bytes, last_add_confirmed: int, body: bytes, done: Done) -> None:
        acknowledged = self._witness.sending_lac(self._bookie, ledger_id, body)
        self.inner.write_lac(ledger_id, master_key, last_add_confirmed, body, _after(acknowledged, done))

    def force(self, ledger_id: int, done: Done) -> None:
        self.inner.force(ledger_id, _after(self._witness.forcing(self._bookie, ledger_id), done))


def _after(succeeded: Callable[[], None], done: Done) -> Done:
    """Return a callback that calls `succeeded` first if there is no error."""

    def watched_done(error: BaseException | None) -> None:
        if error is None:
            succeeded()
        done(error)

    return watched_done
