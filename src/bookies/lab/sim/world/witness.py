"""What each bookie promised, seen at its storage: which entries it acknowledged, which ledgers it fenced.

The witness stands between a bookie's request handlers and its storage and changes nothing. With what it knows, and
the committed records, promises can be checked at the moment they are made, not only when something is lost later:

    B-1    a bookie that starts again has every entry that it acknowledged, every fence, and what writers announced
    I-5    when a recovery commits the end, no write set could still confirm the entry behind it
    I-8    a fragment that the writer commits starts at or behind everything acknowledged
    I-9    an entry is acknowledged to the application only when an ack quorum of the bookies in the record holds it
    I-18   a bookie that replaces another in a finished fragment holds all that its position stores
    I-25   what a force confirmed, an ack quorum has synced
    I-28   no bookie acknowledges an ordinary add of a ledger that it has fenced
    I-29   no bookie deletes a ledger that exists, unless it is closed and lists the bookie in no ensemble; of one that
           it has deleted because there is no such ledger it acknowledges nothing more

Source: client-protocol 8.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bookies.errors import LedgerUnknownToBookie
from bookies.lab.sim.world.sim_metadata import Commit, SimStore
from bookies.model import BookieId, LedgerMetadata, LedgerState
from bookies.protocol.quorums import write_set
from bookies.protocol.quorums.quorum import stored_ids
from bookies.storage.store import LedgerStore

Done = Callable[[BaseException | None], None]


class Witness:
    """`report(invariant, text)` is told of broken promises."""

    def __init__(self, store: SimStore, report: Callable[[str, str], None]) -> None:
        self._store = store
        self.report = report
        self._held: dict[tuple[str, int], set[int]] = {}  # bookie, ledger -> entries acknowledged as durable
        self._promised: dict[tuple[str, int], set[int]] = {}  # the same, only those confirmed to the writer
        self._unsynced: dict[tuple[str, int], set[int]] = {}  # acknowledged with deferred sync, and not forced
        self._fenced: dict[tuple[str, int], None] = {}
        self._deleted: dict[tuple[str, int], None] = {}  # by this bookie, because its record was gone
        # What a bookie was asked to tell readers (explicit LACs), from the last acknowledged on; the latest counts.
        self._told: dict[tuple[str, int], list[bytes]] = {}
        self._kept: dict[tuple[str, int], None] = {}  # those of which one was acknowledged

    def watch(self, bookie: str, storage: LedgerStore) -> None:
        """Look at what this life of a bookie is asked and answers. What it had not synced before may be lost."""
        for each in [each for each in self._unsynced if each[0] == bookie]:
            del self._unsynced[each]
        fence, force, write_lac = storage.fence, storage.force, storage.write_lac
        self._watch_adds(bookie, storage)

        def watched_fence(ledger_id: int, master_key: bytes, done: Done) -> None:
            def watched_done(error: BaseException | None) -> None:
                if error is None:
                    self._fenced[bookie, ledger_id] = None
                done(error)

            fence(ledger_id, master_key, watched_done)

        def watched_force(ledger_id: int, done: Done) -> None:
            covered = set(self._unsynced.get((bookie, ledger_id), ()))

            def watched_done(error: BaseException | None) -> None:
                if error is None:
                    self._held.setdefault((bookie, ledger_id), set()).update(covered)
                    self._promised.setdefault((bookie, ledger_id), set()).update(covered)
                done(error)

            force(ledger_id, watched_done)

        def watched_write_lac(
            ledger_id: int, master_key: bytes, last_add_confirmed: int, body: bytes, done: Done
        ) -> None:
            def watched_done(error: BaseException | None) -> None:
                told = self._told.get((bookie, ledger_id), [])
                if error is None and body in told:
                    del told[: told.index(body)]
                    self._kept[bookie, ledger_id] = None
                done(error)

            self._told.setdefault((bookie, ledger_id), []).append(body)
            write_lac(ledger_id, master_key, last_add_confirmed, body, watched_done)

        collect = storage.collect

        def watched_collect(*arguments: Any) -> None:
            checkpointer = storage._open().checkpointer
            drop_ledgers = checkpointer.drop_ledgers

            async def watched_drop(ledger_ids: Sequence[int]) -> None:
                for ledger_id in ledger_ids:
                    self._check_deletion(bookie, ledger_id)
                await drop_ledgers(ledger_ids)

            checkpointer.drop_ledgers = watched_drop  # type: ignore[method-assign]
            collect(*arguments)

        storage.collect = watched_collect  # type: ignore[assignment,method-assign]
        storage.write_lac = watched_write_lac  # type: ignore[method-assign]
        storage.force = watched_force  # type: ignore[method-assign]
        storage.fence = watched_fence  # type: ignore[method-assign]

    def _watch_adds(self, bookie: str, storage: LedgerStore) -> None:
        add, add_many = storage.add, storage.add_many

        def watched_add(
            ledger_id: int, master_key: bytes, entry_ids: Sequence[int], *rest: Any, done: Done, **flags: Any
        ) -> None:
            watched = self._watch_add(bookie, ledger_id, **flags)

            def watched_done(error: BaseException | None) -> None:
                if error is None:
                    watched(entry_ids)
                done(error)

            add(ledger_id, master_key, entry_ids, *rest, done=watched_done, **flags)

        def watched_add_many(
            master_key: bytes, batches: Sequence[Any], *, is_recovery: bool, done: Callable[..., None], **rest: Any
        ) -> list[Any]:
            watched = {
                each.ledger_id: self._watch_add(bookie, each.ledger_id, is_recovery=is_recovery) for each in batches
            }

            def watched_done(stored: Sequence[Any], size: int, error: BaseException | None) -> None:
                for each in stored if error is None else ():
                    watched[each.ledger_id](each.entry_ids)
                done(stored, size, error)

            return add_many(master_key, batches, is_recovery=is_recovery, done=watched_done, **rest)

        storage.add = watched_add  # type: ignore[method-assign]
        storage.add_many = watched_add_many  # type: ignore[method-assign]

    def _watch_add(
        self, bookie: str, ledger_id: int, *, is_recovery: bool, is_deferred_sync: bool = False
    ) -> Callable[[Sequence[int]], None]:
        """An add of a ledger comes in: to be called with the entries that the bookie acknowledges of it."""
        was_fenced = (bookie, ledger_id) in self._fenced
        was_deleted = (bookie, ledger_id) in self._deleted

        def acknowledged(entry_ids: Sequence[int]) -> None:
            known = self._unsynced if is_deferred_sync else self._held
            known.setdefault((bookie, ledger_id), set()).update(entry_ids)
            if not is_recovery and not is_deferred_sync:
                self._promised.setdefault((bookie, ledger_id), set()).update(entry_ids)
            if was_fenced and not is_recovery:
                self.report("I-28", f"{bookie} fenced ledger {ledger_id}, then acknowledged {entry_ids}")
            if was_deleted:
                self.report("I-29", f"{bookie} deleted ledger {ledger_id}, then acknowledged {entry_ids}")

        return acknowledged

    async def check_memory(self, bookie: str, storage: LedgerStore) -> None:
        """B-1: a bookie that has just started has everything that it promised in its earlier lives."""
        for (name, ledger_id), entry_ids in list(self._held.items()):
            if name != bookie:
                continue
            promised = sorted(entry_ids)  # what this life acknowledges meanwhile may be missing in its answer
            try:
                runs = await storage.list_entries(ledger_id)
            except LedgerUnknownToBookie:
                runs = []
            lost = [each for each in promised if not any(each in run for run in runs)]
            if lost and not self._is_wanted(bookie, ledger_id):
                self._forget(bookie, ledger_id)  # A deletion that a crash interrupted was finished by this start.
            elif lost:
                self.report("B-1", f"{bookie} acknowledged entries {lost} of ledger {ledger_id} and has forgotten them")
            self._check_told(bookie, storage, ledger_id)
        for name, ledger_id in list(self._fenced):
            if name != bookie or await _is_fenced(storage, ledger_id):
                continue
            if self._is_wanted(bookie, ledger_id):
                self.report("B-1", f"{bookie} fenced ledger {ledger_id} and has forgotten it")

    def _check_told(self, bookie: str, storage: LedgerStore, ledger_id: int) -> None:
        """B-1: the last add confirmed that its writer announced, of a ledger that has just been looked at."""
        parts = storage._parts
        ledger = parts.index.get(ledger_id) if parts is not None else None
        if ledger is None or (bookie, ledger_id) not in self._kept:
            return
        if ledger.header.explicit_lac not in self._told[bookie, ledger_id]:
            self.report("B-1", f"{bookie} was told what is confirmed of ledger {ledger_id} and has forgotten it")

    def _check_deletion(self, bookie: str, ledger_id: int) -> None:
        """I-29: a bookie is about to delete a ledger."""
        if self._is_wanted(bookie, ledger_id):
            self.report("I-29", f"{bookie} deletes ledger {ledger_id}: {self._store.record(ledger_id)!r}")
        if self._store.record(ledger_id) is None:
            self._deleted[bookie, ledger_id] = None
        self._forget(bookie, ledger_id)

    def _is_wanted(self, bookie: str, ledger_id: int) -> bool:
        """Whether the committed record of a ledger leaves room for this bookie."""
        record = self._store.record(ledger_id)
        return record is not None and not (
            record.is_closed and all(bookie not in ensemble for _, ensemble in record.ensembles)
        )

    def _forget(self, bookie: str, ledger_id: int) -> None:
        for kept in (self._held, self._promised, self._unsynced):
            kept.pop((bookie, ledger_id), None)
        self._fenced.pop((bookie, ledger_id), None)
        self._kept.pop((bookie, ledger_id), None)
        self._told.pop((bookie, ledger_id), None)

    def _holds(self, bookie: BookieId, ledger_id: int, entry_id: int) -> bool:
        return entry_id in self._held.get((bookie, ledger_id), ())

    def has_any(self, bookie: BookieId, ledger_id: int) -> bool:
        """Whether the bookie has ever acknowledged an entry of the ledger as durable."""
        return bool(self._held.get((bookie, ledger_id)))

    def has_fenced(self, bookie: BookieId, ledger_id: int) -> bool:
        """Whether the bookie's storage has promised to take no ordinary adds of the ledger any more."""
        return (bookie, ledger_id) in self._fenced

    def is_on_quorum(self, ledger_id: int, entry_id: int, *, by_writer: bool = False) -> bool:
        """Whether an ack quorum of the bookies that the writer's record lists for an entry holds it.

        `by_writer`: and has told the writer so; what a recovery wrote back does not count.
        """
        held = self._promised if by_writer else self._held
        record = self._writers_record(ledger_id)
        if record is None:
            return False
        ensemble = record.ensemble_at(entry_id)
        positions = write_set(entry_id, record.ensemble_size, record.write_quorum)
        return sum(entry_id in held.get((ensemble[each], ledger_id), ()) for each in positions) >= record.ack_quorum

    def acknowledged_by(self, ledger_id: int, entry_id: int) -> list[BookieId]:
        """Which of the bookies that the writer's record lists for an entry have told the writer that they hold it."""
        record = self._writers_record(ledger_id)
        if record is None:
            return []
        ensemble = record.ensemble_at(entry_id)
        members = [ensemble[each] for each in write_set(entry_id, record.ensemble_size, record.write_quorum)]
        return [each for each in members if entry_id in self._promised.get((each, ledger_id), ())]

    def _writers_record(self, ledger_id: int) -> LedgerMetadata | None:
        """The last record before any recovery."""
        for commit in reversed(self._store.commits.get(ledger_id, [])):
            if commit.after is not None and commit.after.state is LedgerState.OPEN:
                return commit.after
        return None

    def check_acknowledgement(self, ledger_id: int, first: int, last: int) -> None:
        """I-9 and I-25: entries first..last are about to be acknowledged to an application, as durable."""
        record = self._writers_record(ledger_id)
        if record is None:
            return  # The reply to its creation was lost.
        for entry_id in range(first, last + 1):
            ensemble = record.ensemble_at(entry_id)
            positions = write_set(entry_id, record.ensemble_size, record.write_quorum)
            holders = [ensemble[each] for each in positions if self._holds(ensemble[each], ledger_id, entry_id)]
            if len(holders) < record.ack_quorum:
                self.report(
                    "I-9",
                    f"entry {entry_id} of ledger {ledger_id} is acknowledged, but of {', '.join(ensemble)} only "
                    f"{holders} hold it; the ack quorum is {record.ack_quorum}",
                )

    def check_commit(self, commit: Commit, confirmed: int) -> None:
        """I-5, I-8 and I-18; `confirmed`: entries of the ledger acknowledged so far."""
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
        is_writer = commit.author == self._store.commits[after.ledger_id][0].author  # who ends what it has confirmed
        if after.is_closed and before.state is LedgerState.IN_RECOVERY and not is_writer:
            self._check_end(after)
        if is_replicator and before.state is after.state:
            self._check_replacements(before, after)

    def _check_replacements(self, before: LedgerMetadata, after: LedgerMetadata) -> None:
        """I-18: every entry is on the new bookie before the record says so."""
        for (first, old), (_, new) in zip(before.ensembles, after.ensembles, strict=True):
            later = [start for start, _ in after.ensembles if start > first]
            last = later[0] - 1 if later else after.last_entry_id
            for position, bookie in enumerate(new):
                if bookie == old[position]:
                    continue
                ids = stored_ids(position, first, last, len(new), after.write_quorum)
                lacking = [each for each in ids if not self._holds(bookie, after.ledger_id, each)]
                # What it has now counts like the acknowledgement of the one whose place it takes.
                copied = [each for each in ids if self._holds(bookie, after.ledger_id, each)]
                self._promised.setdefault((bookie, after.ledger_id), set()).update(copied)
                if lacking or (not later and not after.is_closed):
                    self.report(
                        "I-18",
                        f"ledger {after.ledger_id}: {bookie} takes the place of {old[position]} for entries {first} to "
                        f"{last}, but lacks {lacking}",
                    )

    def _check_end(self, closed: LedgerMetadata) -> None:
        """I-5: whoever still may acknowledge the next entry to the writer, or did already, is no ack quorum."""
        record = self._writers_record(closed.ledger_id)
        assert record is not None
        ledger_id, entry_id = closed.ledger_id, closed.last_entry_id + 1
        ensemble = record.ensemble_at(entry_id)
        able = [
            ensemble[position]
            for position in write_set(entry_id, record.ensemble_size, record.write_quorum)
            if (ensemble[position], ledger_id) not in self._fenced
            or entry_id in self._promised.get((ensemble[position], ledger_id), ())
        ]
        if len(able) >= record.ack_quorum:
            self.report("I-5", f"ledger {ledger_id} is closed at {entry_id - 1}, but {able} may confirm {entry_id}")


async def _is_fenced(storage: LedgerStore, ledger_id: int) -> bool:
    try:
        _, ledger = await storage._ledger(ledger_id)
    except LedgerUnknownToBookie:
        return False
    return ledger.header.is_fenced
