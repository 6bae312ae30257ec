"""Mirrors: a log of one cluster is copied continuously to another one, ledger by ledger, with the same ids.

An entry has the same position in both, so copying it again does no harm: nothing is doubled or left out after a crash.
The open ledger is copied up to its last add confirmed, by writes that a replicator uses. The mirror's list follows the
source's, and so do cursors, points in time and writers' numbers. Until the switch-over it refuses appends.

* One process mirrors a log: it has the auto-recovery lock of the ledger that it copies. The lock also keeps
  auto-recovery from ending that ledger.
* Switch-over. The source is held for ever and its last ledger is ended; the rest is copied; the mirror is released.
* Loss of the source. The mirror's last ledger is recovered, and the mirror is released. Entries that only the source
  has stay there. They are named when the source can be read again, and before it becomes a mirror of this log.

`protocol/log/migration.py` decides about lists. Source: spark 5.4.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

from msgspec import Struct, convert, to_builtins
from msgspec.structs import replace

from bookies.client.base import EntryBatch
from bookies.client.base.segments import LOGS, LogStore
from bookies.client.client import Client
from bookies.client.log.base.cursor_store import CURSORS, HISTORY, MIRRORS, SEQUENCES, TIMES
from bookies.client.read import LedgerReader
from bookies.client.write.manifest import ManifestLoop
from bookies.encoding.documents import parse_json
from bookies.errors import (
    BookKeeperError,
    InvalidArgument,
    LedgerExists,
    LedgerLocked,
    LedgerNotFound,
    LogError,
    LogExists,
    LogFenced,
    LogNotFound,
    MetadataCorrupt,
    NotSupported,
    RecordExists,
    RecordNotFound,
)
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import GivenIds
from bookies.metadata.transfer import Filling, NamedRecord, carried, read_record
from bookies.model import LedgerMetadata
from bookies.protocol.ledger.backup import unwritten
from bookies.protocol.ledger.ledger import closed, with_ensemble
from bookies.protocol.ledger.read import NEGATIVE
from bookies.protocol.ledger.recover import EntryRead, Verdict
from bookies.protocol.log import Manifest
from bookies.protocol.log.log_model import MIRROR_OF, LedgerEnd, Position, check_log_name, ended, pack_manifest, swept
from bookies.protocol.log.migration import (
    FROM,
    MissingRange,
    check_may_follow,
    check_moved,
    end_of,
    held,
    is_mirror,
    mirrored,
    missing_in,
    origin_of,
    switched_over,
)
from bookies.protocol.log.sequences import parse_sequences

FOLLOWERS = (CURSORS, TIMES, HISTORY, SEQUENCES)  # records that are copied as they are
IDS_APART = 10_000  # ledger ids that one side may use before the other side learns of it
POLL_S = 0.2  # pause before the source is asked again
RETRY_S = 1.0  # pause after an error
SAVE_S = 1.0  # between two records of progress
WRITES_MAX = 60  # attempts to write a batch, while a bookie of the target is replaced
WRITE_PAUSE_S = 0.5
SWITCHES_MAX = 30  # attempts to copy the rest, while another process copies it


class MirrorState(Struct, frozen=True):
    """Progress of a mirror. `copied`, `seen`: ledger and entry after the last copied one, and after the last one that
    the source had confirmed; None: none. `rows_behind`: entries in between.

    `growing`: the ledger that is being copied, and the entry to copy next; recorded before the ledger is created.
    `behind_ms`: since when there are such entries, `at_ms`: of this state; wall time, ms. `next_id`: of the source.
    """

    source: str
    copied: tuple[int, int] | None
    seen: tuple[int, int] | None
    rows_behind: int
    behind_ms: int | None
    at_ms: int
    next_id: int = 0
    growing: tuple[int, int] | None = None

    def seconds_behind(self, now_ms: int) -> float:
        """Return the age of the oldest entry that was seen and not copied."""
        return 0.0 if self.behind_ms is None else max(0, now_ms - self.behind_ms) / 1000


class Growing(Struct):
    """Ledger that is being copied. `record`: in the target; `next`: entry to copy next."""

    source: LedgerMetadata
    record: LedgerMetadata
    reader: LedgerReader
    next: int = 0
    last: int = -1  # confirmed in the source


class Followers(Struct):
    """Records that follow the entries. `written`: those in the target; `late`: were ahead of the copy when read."""

    written: dict[str, bytes]
    late: list[NamedRecord]


async def whole_list(client: Client, name: str, *, with_unconfirmed: bool = False) -> Manifest:
    """Return a log's list with all ends, an open ledger's up to its last add confirmed. Raises `LogNotFound`.

    `with_unconfirmed`: an open ledger's up to the last entry that may be acknowledged. Its writer may have announced
    entries to too few bookies: two questions for the last add confirmed may differ by them.
    """
    parts = client.transactions()
    manifest = await ManifestLoop(parts.runtime, parts.driver, name).refresh()
    ends = {}
    for ledger_id in manifest.open_ledgers:
        record = await client.metadata(ledger_id)
        last = record.last_entry_id
        if not record.is_closed:
            async with await client.administration().open(ledger_id) as reader:
                last = await reader.read_last_add_confirmed()
                with suppress(*NEGATIVE):  # The ledger was ended meanwhile.
                    while with_unconfirmed and await _may_be_acknowledged(client, ledger_id, last + 1):
                        last = (await reader.read_batch(last + 1, unconfirmed=True)).last_entry_id
        ends[ledger_id] = LedgerEnd(last, record.length)
    return ended(manifest, ends) or manifest


async def _may_be_acknowledged(client: Client, ledger_id: int, entry_id: int) -> bool:
    """Report whether enough bookies may hold an entry for its writer to have acknowledged it.

    A bookie that does not answer matters only if the others cannot decide; then its error is raised.
    """
    record = await client.metadata(ledger_id)
    replicas, read = client.administration().access.replicas(record), EntryRead(record, entry_id)
    asked = {asyncio.ensure_future(replicas.first_bad(bookie, [entry_id])): bookie for bookie in iter(read.next, None)}
    try:
        while read.verdict is None:
            done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                bookie, bad = asked.pop(task), task.result()
                if bad is None:
                    read.found()
                else:
                    read.failed(bookie, bad[1])
    finally:
        for task in asked:
            task.cancel()
    if read.verdict is Verdict.UNDECIDED:
        raise read.error
    return read.verdict is Verdict.FOUND


async def final_ends(client: Client, manifest: Manifest) -> dict[int, LedgerEnd]:
    """Recover the ledgers that the list has as open, which stops their writers, and return their ends."""
    ends = {}
    for ledger_id in manifest.open_ledgers:
        record = await client.metadata(ledger_id)
        if not record.is_closed:
            record = await client.administration().recover(ledger_id)
        ends[ledger_id] = LedgerEnd(record.last_entry_id, record.length)
    return ends


async def stop_writing(client: Client, name: str, target: str, *, is_former: bool = False) -> Manifest:
    """Stop all appends to a log for ever, then end its open ledgers; return its list. `target`: where it goes.

    `is_former`: it may have gone elsewhere before. Raises `LogFenced` if another log or cluster continues it, and then
    ends no ledger: they may be copies that are being written.
    """
    parts = client.transactions()
    records = ManifestLoop(parts.runtime, parts.driver, name)
    await records.refresh()
    manifest = await records.update(lambda current: held(current, target))
    if not is_former:
        check_moved(manifest, name, target)
    ends = await final_ends(client, manifest)
    return await records.update(lambda current: ended(current, ends))


async def mirror_state(target: Client, name: str) -> MirrorState | None:
    """Return the last progress that a mirror has recorded; None: the log was never mirrored."""
    record = await read_record(target.transactions().driver, MIRRORS + name)
    return None if record is None else convert(parse_json(record.data), MirrorState)


async def promote(target: Client, name: str) -> Manifest:
    """Release a mirror whose source is lost; return its list. Raises `LogExists` if it is no mirror."""
    parts = target.transactions()
    records = ManifestLoop(parts.runtime, parts.driver, name)
    manifest = await records.refresh()
    if not is_mirror(manifest):
        raise LogExists(f"log {name} is no mirror, so it accepts appends already")
    state = await mirror_state(target, name)
    await parts.driver.restore_ids(GivenIds((state.next_id if state is not None else 0) + IDS_APART, ()))
    while is_mirror(manifest):
        for ledger_id in manifest.open_ledgers:
            await _bring_back(target, ledger_id, manifest)
        ends = await final_ends(target, manifest)

        def change(current: Manifest, ends: dict[int, LedgerEnd] = ends) -> Manifest | None:
            # A mirror that still runs may have listed another ledger.
            return switched_over(current, ends) if ends.keys() >= {*current.open_ledgers} else None

        manifest = await records.update(change)
    return manifest


async def _bring_back(target: Client, ledger_id: int, manifest: Manifest) -> None:
    """Create a listed ledger without entries, if the target has lost it: positions stay what they are.

    It gets the password of the log's other ledgers, with which the log's readers open it.
    """
    try:
        await target.metadata(ledger_id)
    except LedgerNotFound:
        password = b""
        for other in manifest.storages:
            with suppress(LedgerNotFound):
                password = (await target.metadata(other)).password or b""
                break
        await target.transactions().driver.unspend_id(ledger_id)
        labels = {FROM: origin_of(manifest.extra[MIRROR_OF].partition("/")[0], ledger_id)}
        with suppress(LedgerExists):  # A mirror that still runs has begun to copy it again.
            async with target.create(ensemble=1, password=password, ledger_id=ledger_id, labels=labels):
                pass


class LogMirror:
    """Copy of one log from a cluster to another one, by one process. Enter it, then call `step` again and again."""

    def __init__(self, source: Client, target: Client, name: str) -> None:
        self.name = check_log_name(name)
        self._source, self._target = source, target
        self._parts = source.transactions()
        self._list = ManifestLoop(self._parts.runtime, self._parts.driver, name)
        self._mirror = ManifestLoop(self._parts.runtime, target.transactions().driver, name)
        self._clusters = ("", "")
        self._complete: dict[int, LedgerEnd] = {}  # the source's list may not have the end of such a ledger yet
        self._source_list: Manifest
        self._growing: Growing | None = None
        self._held = AsyncExitStack()  # lock and reader of the growing ledger
        self._followers = Followers({}, [])
        self._state: MirrorState | None = None
        self._due_s = 0.0  # loop time of the next look at cursors and at the mirror's list

    @property
    def state(self) -> MirrorState | None:
        """Return the recorded progress; None: there is none yet."""
        return self._state

    @property
    def _there(self) -> MetadataDriver:
        return self._target.transactions().driver

    @property
    def origin(self) -> str:
        return f"{self._clusters[0]}/{self.name}"

    async def begin(self, *, drops: bool = False) -> None:
        """Create the mirror, or continue it, also as a mirror of what was once its own.

        `drops`: a former source may lose the entries that its mirror never got; they stay readable in their ledgers.
        Raises `LogExists` (no mirror of this log, or `drops` is needed), `LogFenced` (it was switched over; with
        `drops` it becomes a mirror again), `LogNotFound`, `InvalidArgument`.
        """
        ids = await self._source.administration().instance_id(), await self._target.administration().instance_id()
        if ids[0] == ids[1]:
            raise InvalidArgument("source and target are the same cluster: name another one with --to")
        self._clusters = ids
        driver = self._there
        source, target = await self._list.refresh(), None
        with suppress(RecordNotFound):
            target, _ = await LogStore(driver, self.name).read()
        self._source_list = source
        check_may_follow(source, target, self.origin)
        if target is not None and not is_mirror(target):
            await self._check_led(target, drops=drops)
            await self._give_up_lead(drops=drops)
        await self._part_ids()
        if target is None:
            new = mirrored(source, None, (), None, self.origin)
            assert new is not None
            with suppress(RecordExists):
                await driver.create_record(LOGS + self.name, pack_manifest(new))
        mirror = await self._mirror.refresh()
        listed = {(extent.seq, extent.storage): extent for extent in mirror.extents}
        for extent in source.extents:
            there = listed.get((extent.seq, extent.storage))
            if there is None or there.last is None or (extent.last is None and not is_mirror(mirror)):
                continue
            if extent.last is None or there.last >= extent.last:
                end = there.end if extent.last is None else extent.end
                assert end is not None
                self._complete[extent.storage] = end
        self._source_list = ended(source, self._complete) or source

        def change(current: Manifest) -> Manifest | None:
            if is_mirror(mirror):  # From here on a list that is no mirror was switched over.
                self._check_mirror(current)
            return mirrored(self._source_list, current, self._complete, None, self.origin)

        await self._mirror.update(change)
        self._state = await mirror_state(self._target, self.name)

    async def _check_led(self, target: Manifest, *, drops: bool) -> None:
        """Check that the target is not the log to which this source was switched over. Raises `LogFenced`.

        A process that mirrors the log may be started again after the switch-over, and must not undo it.
        """
        state = await mirror_state(self._target, self.name)
        if not drops and not target.held and state is not None and state.source == self.origin:
            raise LogFenced(
                f"the mirror of log {self.name} was switched over: it is a log of its own. --drop makes it a mirror of "
                "its former source again, without the entries that only it has"
            )

    async def _give_up_lead(self, *, drops: bool) -> None:
        """Stop the former source, which the target has, and refuse to lose entries silently. Raises `LogExists`."""
        for is_stopped in (False, True):  # A log that is refused must not be stopped.
            own = await (
                stop_writing(self._target, self.name, self.origin, is_former=True)
                if is_stopped
                else whole_list(self._target, self.name, with_unconfirmed=True)
            )
            missing = missing_in(own, await whole_list(self._source, self.name))
            if missing and not drops:
                raise LogExists(
                    f"the target was the source once, and only it has {ranges_text(missing)}. They stay readable in "
                    "their ledgers with `bk ledger read`; repeat with --drop to leave them out of the log"
                )
            if missing and is_stopped:  # It may have numbers of these entries.
                with suppress(RecordNotFound):
                    _, version = await self._there.read_record(SEQUENCES + self.name)
                    await self._there.delete_record(SEQUENCES + self.name, version)

    async def _part_ids(self) -> None:
        """Let the target create ledgers only under ids that the source does not use for a long time."""
        ids = await self._parts.driver.given_ids()
        await self._there.restore_ids(GivenIds(ids.next_id + IDS_APART, ()))

    async def close(self) -> None:
        """Release the lock. Idempotent."""
        self._growing = None
        await self._held.aclose()

    async def __aenter__(self) -> LogMirror:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def run(self, on_change: Callable[[BookKeeperError | None], None], *, is_once: bool = False) -> None:
        """Copy for ever, or until the mirror has all that the source has confirmed. Call `begin` first.

        `on_change`: called after a step that copied something, and with an error that is not the end: then the step is
        repeated. So a process waits while another one mirrors the log, and takes over when that has ended. Raises the
        others, see `step`.
        """
        while True:
            try:
                is_busy = await self.step()
            except (LogError, LedgerExists):
                raise
            except BookKeeperError as error:
                on_change(error)
                await self.close()
                await asyncio.sleep(RETRY_S)
                continue
            if is_busy:
                on_change(None)
            elif is_once:
                await self._save()
                return
            else:
                await asyncio.sleep(POLL_S)

    # -- copying -----------------------------------------------------------------------------------------------------
    async def step(self) -> bool:
        """Copy what the source has confirmed since the last step. Return True if there was something.

        Raises `LogFenced` (the mirror was switched over, or the source became one), `LogNotFound` (the source was
        deleted; the mirror stays), `LedgerLocked` (another process mirrors the log), and errors of both clusters. After
        an error call `close`; then `step` may be called again.
        """
        now_s = asyncio.get_running_loop().time()
        is_due = now_s >= self._due_s
        self._due_s = now_s + SAVE_S if is_due else self._due_s
        followers = await self._read_followers() if is_due else []  # first: a cursor must not be ahead of the copy
        source = await self._list.refresh()
        if is_mirror(source):
            raise LogFenced(f"log {self.name} follows {source.extra[MIRROR_OF]} now: stop this mirror")
        if source.is_deleting:
            raise LogNotFound(f"log {self.name} was deleted in the source; the mirror keeps what it has")
        if is_due:
            self._check_mirror(await self._mirror.refresh())
            if self._growing is not None and (await self._target.metadata(self._growing.record.ledger_id)).is_closed:
                await self.close()  # Others ended the copy: it is looked at like one that is found.
        count = 0
        self._source_list = ended(source, self._complete) or source
        for ledger_id in source.storages:
            if ledger_id in self._complete:
                continue
            copied, is_complete = await self._copy(ledger_id)
            count += copied
            # The list has the end of a ledger only after the next one was opened, or another one after that.
            self._source_list = ended(source, self._complete) or source
            await self._follow(None if is_complete else ledger_id)
            if not is_complete:
                break
        if is_due:
            await self._follow(None if self._growing is None else self._growing.record.ledger_id)
            for records in (followers, self._followers.late):
                if not self._is_ahead(records):
                    await self._put_followers(records)
                    break
            self._followers.late = followers
            if self._growing is None:
                await self._delete_leftover(None)
            await self._save()
        return count > 0

    def _check_mirror(self, mirror: Manifest) -> None:
        if not is_mirror(mirror):
            raise LogFenced(f"the mirror of log {self.name} was switched over: it is a log of its own now")

    async def _copy(self, ledger_id: int) -> tuple[int, bool]:
        """Copy new entries of a ledger. Return their number, and whether the copy is complete and closed."""
        is_new = self._growing is None or self._growing.record.ledger_id != ledger_id
        if is_new and await self._begin_ledger(ledger_id):
            return 0, True
        growing = self._growing
        assert growing is not None
        growing.source = await self._source.metadata(ledger_id)
        if growing.source.is_closed and not growing.reader.is_sealed:
            growing.reader = await self._held.enter_async_context(await self._source.administration().open(ledger_id))
        growing.last = (
            growing.source.last_entry_id if growing.source.is_closed else await growing.reader.read_last_add_confirmed()
        )
        first = growing.next
        if first <= growing.last:
            async for batch in growing.reader.read_batches(first, growing.last):
                await self._write(growing, batch)
                growing.next = batch.last_entry_id + 1
                if asyncio.get_running_loop().time() >= self._due_s:
                    self._due_s = asyncio.get_running_loop().time() + SAVE_S
                    await self._save()
        if growing.source.is_closed:
            end = growing.source.last_entry_id, growing.source.length
            record = await self._target.administration().change_record(
                ledger_id, lambda current: None if current.is_closed else closed(current, *end)
            )
            await self.close()
            if (record.last_entry_id, record.length) != end:
                raise ended_by_others(record)
            self._completed(growing.source)
            return growing.next - first, True
        return growing.next - first, False

    def _completed(self, source: LedgerMetadata) -> None:
        self._complete[source.ledger_id] = LedgerEnd(source.last_entry_id, source.length)

    async def _begin_ledger(self, ledger_id: int) -> bool:
        """Prepare the copy of a ledger; return True if the target has all of it. Raises `LedgerLocked`, `LogError`."""
        await self.close()
        self._held = AsyncExitStack()
        source = await self._source.metadata(ledger_id)
        administration = self._target.administration(owner=f"bk log mirror {self.name}")
        await self._held.enter_async_context(administration.locked(ledger_id))
        await self._delete_leftover(ledger_id)
        record = await self._record(source)
        if record.is_closed:
            await self.close()
            if source.is_closed and source.last_entry_id <= record.last_entry_id:
                self._completed(source)
                return True
            raise ended_by_others(record)
        reader = await self._held.enter_async_context(await self._source.administration().open(ledger_id))
        self._growing = Growing(source, record, reader)
        assert self._state is not None
        if self._state.growing is not None:
            self._growing.next = self._state.growing[1]  # It was recorded after these entries were durable.
        return False

    async def _delete_leftover(self, ledger_id: int | None) -> None:
        """Delete a ledger whose copy was begun and that left the source before the mirror listed it.

        `ledger_id`: the ledger that is copied next.
        """
        if self._state is None or self._state.growing is None or self._state.growing[0] == ledger_id:
            return
        former = self._state.growing[0]
        if former not in {*self._source_list.storages, *self._mirror.current.storages}:
            with suppress(LedgerNotFound):
                left = (await self._target.metadata(former)).custom_metadata.get(FROM)
                if left == origin_of(self._clusters[0], former).encode():
                    await self._target.delete(former)
            self._state = replace(self._state, growing=None)

    async def _record(self, source: LedgerMetadata) -> LedgerMetadata:
        """Return the ledger's record in the target, which is created if there is none. Raises `LedgerExists`."""
        ledger_id, (here, there) = source.ledger_id, self._clusters
        origin = origin_of(here, ledger_id).encode()
        driver = self._there
        with suppress(LedgerNotFound):
            existing = await self._target.metadata(ledger_id)
            is_ours = existing.custom_metadata.get(FROM) == origin
            # In a former source the ledger is the original.
            if not is_ours and source.custom_metadata.get(FROM) != origin_of(there, ledger_id).encode():
                raise LedgerExists(
                    "the target has another ledger of this id: mirror to a cluster that creates no ledgers of its own",
                    ledger_id=ledger_id,
                )
            if self._state is None or self._state.growing is None or self._state.growing[0] != ledger_id:
                await self._save((ledger_id, 0))
            return existing
        new = await self._target.administration().with_new_bookies(unwritten(source, {FROM: origin}))
        await driver.unspend_id(ledger_id)  # An operator may have deleted an earlier copy.
        await self._save((ledger_id, 0))
        return (await driver.create_ledger(carried(new))).metadata

    async def _write(self, growing: Growing, batch: EntryBatch) -> None:
        """Store entries durably; replace bookies of the target that fail."""
        administration = self._target.administration()
        for attempt in range(WRITES_MAX):
            try:
                await administration.write_entries(growing.record, batch)
                return
            except BookKeeperError:
                if attempt == WRITES_MAX - 1 or growing.record.last_fragment_first_entry > batch.first_entry_id:
                    raise
            await asyncio.sleep(WRITE_PAUSE_S)
            with suppress(BookKeeperError):  # Too few bookies are writable now.
                ensemble = (await administration.with_new_bookies(growing.record)).last_ensemble

                def change(current: LedgerMetadata, ensemble: Any = ensemble) -> LedgerMetadata | None:
                    if current.is_closed or current.last_ensemble == ensemble:
                        return None
                    return with_ensemble(current, batch.first_entry_id, ensemble)

                growing.record = await administration.change_record(batch.ledger_id, change)

    # -- what follows the entries ------------------------------------------------------------------------------------
    async def _follow(self, growing: int | None) -> None:
        """Change the mirror's list, and delete ledgers that left it."""
        source = self._source_list

        def change(current: Manifest) -> Manifest | None:
            self._check_mirror(current)
            return mirrored(source, current, self._complete, growing, self.origin)

        mirror = await self._mirror.update(change)
        if deleted := mirror.deleting:
            for ledger_id in deleted:
                await self._target.delete(ledger_id)
            self._complete = {one: end for one, end in self._complete.items() if one not in deleted}
            await self._mirror.update(lambda current: swept(current, deleted))

    async def _read_followers(self) -> list[NamedRecord]:
        records = [await read_record(self._parts.driver, prefix + self.name) for prefix in FOLLOWERS]
        written = self._followers.written
        return [record for record in records if record is not None and written.get(record.name) != record.data]

    def _is_ahead(self, records: Sequence[NamedRecord]) -> bool:
        """Report whether writers' numbers among followers may be of entries that are not copied.

        A leader stores the numbers of entries that it has not announced yet, and the source may be lost before it does.
        The source's list was read after them, so an entry that it lacks was truncated.
        """
        for record in records:
            if record.name == SEQUENCES + self.name:
                try:
                    snapshot = parse_sequences(self.name, self._source_list.token, record.data)
                except (MetadataCorrupt, NotSupported):
                    continue  # The next leader reports it.
                if snapshot is not None and not all(map(self._is_copied, (snapshot[1], *snapshot[0].ends()))):
                    return True
        return False

    def _is_copied(self, end: Position) -> bool:
        """Report whether the copy has all entries of a ledger before a position."""
        extent, growing = self._source_list.find(end), self._growing
        if extent is None or extent.storage in self._complete:
            return True
        return growing is not None and growing.record.ledger_id == extent.storage and end.entry_id <= growing.next

    async def _put_followers(self, records: Sequence[NamedRecord]) -> None:
        for record in reversed(records):  # The cursor that guards the numbers must not be ahead of them.
            await Filling(self._there, "", "").put([record])
            self._followers.written[record.name] = record.data

    async def _save(self, beginning: tuple[int, int] | None = None) -> None:
        """Record the progress in the target: what is left to copy, and since when.

        `beginning`: the ledger that is begun, and its first entry to copy.
        """
        growing, copied, seen, behind = self._growing, None, None, 0
        for extent in self._source_list.extents:
            if growing is not None and extent.ledger_id == growing.record.ledger_id:
                behind += growing.last + 1 - growing.next
                seen = extent.ledger_id, growing.last + 1
                copied = extent.ledger_id, growing.next
            elif extent.last is not None:
                seen = extent.ledger_id, extent.last + 1
                if extent.storage in self._complete:
                    copied = seen
                else:
                    behind += extent.rows or 0
        now_ms = self._parts.runtime.clock.wall_ms()
        since_ms = None if self._state is None else self._state.behind_ms
        next_id = (await self._parts.driver.given_ids()).next_id
        since_ms = None if not behind else since_ms or now_ms
        place = beginning
        if place is None and growing is not None:
            place = growing.record.ledger_id, growing.next
        if place is None and self._state is not None:
            place = self._state.growing
        self._state = MirrorState(self.origin, copied, seen, behind, since_ms, now_ms, next_id, place)
        data = json.dumps(to_builtins(self._state)).encode()
        await Filling(self._there, "", "").put([NamedRecord(MIRRORS + self.name, data)])

    # -- switch-over -------------------------------------------------------------------------------------------------
    async def switch_over(self, target_uri: str) -> Position | None:
        """Stop the source, copy the rest, and release the mirror; return its end. Every step can be repeated."""
        await self._part_ids()
        source = await stop_writing(self._source, self.name, target_uri)
        for attempt in range(SWITCHES_MAX):
            self._due_s = 0.0  # Cursors too.
            try:
                await self.step()
                break
            except LedgerLocked:  # A process that mirrors the log has it, and copies the rest too.
                if attempt == SWITCHES_MAX - 1:
                    raise
            await asyncio.sleep(RETRY_S)
        mirror = await self._mirror.refresh()
        if mirror.open_ledgers or missing_in(source, mirror):
            raise LogError(f"the mirror of log {self.name} lacks entries that the source has: repeat the switch-over")
        mirror = await self._mirror.update(lambda current: switched_over(current, {}))
        await self.close()
        return end_of(mirror)


def ended_by_others(copy: LedgerMetadata) -> LogError:
    """Return the error for the copy of a ledger that another client ended too early."""
    return LogError(
        f"ledger {copy.ledger_id} of the mirror was ended after entry {copy.last_entry_id}, and the source has "
        "more: delete it in the target with `bk ledger delete`; the mirror copies it again"
    )


def ranges_text(missing: Sequence[MissingRange]) -> str:
    """Return entries for a message, the first twenty ranges."""
    count = sum(one.last - one.first + 1 for one in missing)
    shown = ", ".join(map(str, missing[:20])) + (", ..." if len(missing) > 20 else "")
    return f"{count:,} {'entry' if count == 1 else 'entries'} ({shown})"
