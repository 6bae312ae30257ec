"""Group commit: records are queued on the loop, and written, synced and answered a group at a time.

While one group is on its way to the device the next one gathers; as soon as the device is free everything queued goes
as one write and one sync. There is nothing to tune: the slower the device, the larger the groups.

Invariants
- Nobody is answered before a sync of that file returned which began after the last byte of the group was written
  (R-14). A group lies in one file and is synced before the next group is written, so no batch spans a roll (F-8).
- The mark moves only after a sync, and to the end of the group that was synced.
- Before the first group of a file is written, its header is durable and so is its name (F-6).
- After a failed write or sync nothing is tried again and nobody is answered: what the device holds is unknown.
- Files at or behind the persisted mark are never deleted, nor made into spares (`journal_spare`).

Source: storage 2.1, 2.5, 2.7, 2.8.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from bookies.config import BookieConfig
from bookies.errors import DiskFull
from bookies.runtime.events import Events
from bookies.runtime.ports import Buffer, Disk, File, Runtime
from bookies.storage.disks.durable_files import run_last, sync_directory
from bookies.storage.journal import journal_format, preallocated_journal
from bookies.storage.journal.log_mark_format import LogMark
from bookies.storage.journal.page_cache import ForgottenPart

Done = Callable[[BaseException | None], None]

KEPT_IN_CACHE = 8 << 20  # bytes behind the writing position that the page cache may keep
DROP_STEP = 1 << 20  # bytes after which the page cache is told again
# Preparing costs as much bandwidth as the journal itself. It pays where a group is small and its sync is what somebody
# waits for; large groups spread the price of an unprepared sync over many entries, and a small one now and then between
# them is not worth a file.
SMALL_GROUP = 64 << 10  # bytes
SHARE_SIZE = 16 << 20  # bytes of groups that count as lately
SLOW_S = 1.0  # a group that takes longer is worth a word
SLOW_OVER_S = 60.0  # without another such group, and the device counts as quick again
FIRST_PREPARED = 4 << 20  # bytes of zeros in the first file of a process, which has to be there at once


def journal_ids(disk: Disk, directory: str) -> list[int]:
    """Ids of the journal files in a directory, ascending."""
    found = (journal_format.parse_file_name(name) for name in disk.list(directory))
    return sorted(number for number in found if number is not None)


class JournalWriter:
    """The files of one journal. Blocks; confined to the journal's worker.

    But for `begin` and `ended`, which do not block: they are the loop's, while the worker has no group.
    """

    def __init__(self, disk: Disk, directory: str, config: BookieConfig) -> None:
        self._disk = disk
        self._directory = directory
        self._alignment = config.journal_alignment
        self._size_max = config.journal_size_max
        self._step = max(config.journal_preallocate_size, self._alignment)
        self._new_path = posixpath.join(directory, f"new{preallocated_journal.SUFFIX}")
        self._file: File | None = None
        self._journal_id = 0
        self._position = 0
        self._allocated = 0
        self._prepared = 0  # bytes whose blocks were written before: a sync of them is quick
        self.is_short = False  # the disk could not reserve what was asked for; the next groups use what is left
        self._forgotten = ForgottenPart(DROP_STEP)

    def open(self, journal_id: int) -> LogMark:
        """Begin the first file of this process, durably; its first position. Raises DiskFull: nothing is left."""
        preallocated_journal.remove_spares(self._disk, self._directory)
        zeros = min(self._step, FIRST_PREPARED)
        try:
            prepared = self._make(zeros, lambda file: file.pwrite(bytes(zeros), 0))
            return self._adopt(self._new_path, journal_id, prepared)
        except DiskFull:
            preallocated_journal.remove_spares(self._disk, self._directory)
            raise

    def _make(self, size: int, fill: Callable[[File], None]) -> int:
        """A file that is not a journal yet: it becomes one when its header is durable. Its size.

        On a full disk it is as small as it can be: there may be room for what is really written.
        """
        file = self._disk.open(self._new_path, "w+")
        try:
            try:
                fill(file)
            except DiskFull:
                self.is_short = True
                file.truncate(0)
                size = journal_format.HEADER_SIZE
                file.pwrite(bytes(size), 0)
            file.fsync()
        finally:
            file.close()
        return size

    def _adopt(self, path: str, journal_id: int, prepared: int) -> LogMark:
        self._file = preallocated_journal.adopt(self._disk, path, self._directory, journal_id)
        self._note(journal_id)
        self._journal_id = journal_id
        self._position = journal_format.HEADER_SIZE
        self._allocated = self._prepared = prepared
        self._forgotten = ForgottenPart(DROP_STEP)
        return LogMark(journal_id, self._position)

    def _note(self, journal_id: int) -> None:
        """Say which file is the newest, durably, before anything in it is acknowledged."""
        older = [
            name for name in self._disk.list(self._directory) if journal_format.parse_newest_name(name) is not None
        ]
        self._disk.open(posixpath.join(self._directory, journal_format.newest_name(journal_id)), "w+").close()
        for name in older:
            self._disk.unlink(posixpath.join(self._directory, name))
        sync_directory(self._disk, self._directory)

    def begin(self, buffers: list[Buffer], size: int) -> tuple[File, int, int] | None:
        """Make a small group of `size` bytes ready, of which nothing is left to do but to write it durably.

        Returns the file, where the group begins and where it ends; when it is written, tell `ended`. None: it takes
        more than that, and is for `commit`.
        """
        start, file = self._position, self._file
        if size > SMALL_GROUP or start >= self._size_max or file is None:
            return None
        if start + size + 2 * self._alignment > self._prepared or self._forgotten.is_due(start - KEPT_IN_CACHE):
            return None
        padding = journal_format.pack_group_end(self._journal_id, start, buffers, size, self._alignment)
        buffers.append(padding)
        return file, start, start + size + len(padding)

    def ended(self, end: int) -> LogMark:
        """The group that `begin` made ready is durable: the position behind it."""
        self._position = end
        return LogMark(self._journal_id, end)

    def commit(self, buffers: list[Buffer], size: int, spare: str | None) -> tuple[LogMark, bool, bool]:
        """Write and sync one group of `size` bytes. Any exception is final.

        `spare`: a prepared file to go on to when this one's prepared part is used up. Returns the position behind
        the group, whether the spare was taken, and whether the disk is short of room.
        """
        self.is_short = False
        takes_spare = spare is not None and self._position + size > self._prepared
        if takes_spare or self._position >= self._size_max:
            self._roll(spare if takes_spare else None)
        assert self._file is not None
        padding = journal_format.pack_group_end(self._journal_id, self._position, buffers, size, self._alignment)
        buffers.append(padding)
        end = self._position + size + len(padding)
        if end > self._allocated:
            self._reserve(end)
        if end <= self._prepared and end - self._position <= SMALL_GROUP:
            self._file.write_durably(buffers, self._position)
        else:
            self._file.pwritev(buffers, self._position)
            self._file.fdatasync()
        self._position = end
        self._forgotten.grow(self._file, end - KEPT_IN_CACHE)
        return LogMark(self._journal_id, end), takes_spare, self.is_short

    def _reserve(self, end: int) -> None:
        """Reserve blocks up to `end` or beyond, as far as the disk has them. Only the write itself has to succeed."""
        assert self._file is not None
        for step in (self._step, self._alignment):
            growth = -(-(end - self._allocated) // step) * step
            try:
                self._file.allocate(self._allocated, growth)
            except DiskFull:
                self.is_short = True
                continue
            self._allocated += growth
            return

    def _roll(self, spare: str | None) -> None:
        """The full file is closed, every byte of it synced by the commit that wrote it."""
        assert self._file is not None
        self._file.close()
        self._file = None
        if spare is not None:
            self._adopt(spare, self._journal_id + 1, self._step)
            return
        allocated = self._make(self._step, lambda file: file.allocate(0, self._step))
        self._adopt(self._new_path, self._journal_id + 1, 0)
        self._allocated = allocated  # reserved, not written

    def retired(self, journal_id: int, backups_max: int) -> list[int]:
        """Ids of files older than `journal_id`, but for the newest `backups_max` of them."""
        old = [number for number in journal_ids(self._disk, self._directory) if number < journal_id]
        return old[: max(0, len(old) - backups_max)]

    def retire(self, journal_id: int, spare: str | None) -> None:
        """Delete a file that `retired` named, or give it the name under which it becomes a spare."""
        path = posixpath.join(self._directory, journal_format.file_name(journal_id))
        if spare is None:
            self._disk.unlink(path)
        else:
            self._disk.rename(path, spare)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class Slowness:
    """Groups that took long to become durable: one event when that begins, one when it has ended; gauges.

    `group_count`: of slow groups. `last_ms`, `max_ms`: of the last group, and of the slowest of the present or last
    episode.
    """

    def __init__(self, runtime: Runtime, directory: str) -> None:
        self.group_count = 0
        self.last_ms = 0
        self.max_ms = 0
        self._directory = directory
        self._clock = runtime.clock
        self._events = Events("storage.journal", runtime.clock)
        self._since_s: float | None = None  # the last slow group of the present episode
        self._count = 0

    def took(self, start_s: float) -> None:
        """A group that began then is durable now."""
        now = self._clock.monotonic()
        seconds = now - start_s
        self.last_ms = int(seconds * 1000)
        if seconds >= SLOW_S:
            if self._since_s is None:
                self._count = self.max_ms = 0
                self._events.warning(
                    "journal.slow",
                    path=self._directory,
                    ms=self.last_ms,
                    consequence="adds wait for the device; nothing fails",
                )
            self._since_s = now
            self._count += 1
            self.group_count += 1
            self.max_ms = max(self.max_ms, self.last_ms)
        elif self._since_s is not None and now - self._since_s >= SLOW_OVER_S:
            self._since_s = None
            self._events.info("journal.quick_again", path=self._directory, slow_groups=self._count, max_ms=self.max_ms)


class Journal:
    """One journal: the queue and those who wait. Owned by the loop's thread; the writer by its worker.

    `mark`: everything before it is durable. `size`: bytes committed in this process. `on_fatal` is called once.
    `on_short`: the disk is about to be full, and there is still room for what is on its way.
    """

    def __init__(
        self,
        runtime: Runtime,
        directory: str,
        name: str,
        config: BookieConfig,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self.mark = LogMark()
        self.on_short: Callable[[], None] = lambda: None
        self.directory = directory
        self.size = 0
        self.group_count = 0
        self.queued_size = 0
        self.slowness = Slowness(runtime, directory)
        self._clock = runtime.clock
        self._group_size_max = config.journal_group_size_max
        self._backups_max = config.journal_backups_max
        # An idle bookie prepares nothing: only a journal that is about to use up its first file does.
        self._prepare_from = min(config.journal_preallocate_size, FIRST_PREPARED) // 2
        self._small_share = 1.0  # of the bytes that were written lately were in small groups
        self._on_fatal = on_fatal
        self._worker = runtime.workers.start(name)
        self._writer = JournalWriter(runtime.disk, directory, config)
        self._spares = preallocated_journal.Spares(runtime, directory, f"{name}-spare", config)
        self._queue: deque[tuple[Sequence[Buffer], int, Done | None]] = deque()
        self._is_scheduled = False
        self._is_open = False
        self._has_failed = False
        self._idle: list[asyncio.Future[None]] = []

    async def open(self, journal_id: int) -> None:
        """Begin the first file of this process, and serve. Raises: DiskFull, then it may be tried again; OSError."""
        self.mark = await self._worker.run(self._writer.open, journal_id)
        self._is_open = True

    @property
    def is_open(self) -> bool:
        """Whether it takes records. A disk without room for the first file keeps it from that."""
        return self._is_open

    def append(self, buffers: Sequence[Buffer], size: int, done: Done | None) -> None:
        """Queue complete records of `size` bytes in all; `done(None)` is called on the loop when they are durable.

        Without buffers: when everything queued before is. After a failure `done` is never called.
        """
        self._queue.append((buffers, size, done))
        self.queued_size += size
        if not self._is_scheduled and self._is_open:
            self._is_scheduled = True
            # Not at once: whatever else arrives in this turn of the loop belongs to the same group.
            asyncio.get_running_loop().call_soon(self._commit)

    def _commit(self) -> None:
        """Send everything queued, up to the size limit of a group."""
        queue = self._queue
        if self._has_failed or not queue:
            self._rest()
            return
        buffers: list[Buffer] = []
        waiters: list[Done] = []
        size = 0
        while queue and (size == 0 or size + queue[0][1] <= self._group_size_max):
            some, some_size, done = queue.popleft()
            buffers.extend(some)
            size += some_size
            if done is not None:
                waiters.append(done)
        if not buffers:  # nothing but waiters, for what earlier groups have made durable
            self._answer(waiters)
            asyncio.get_running_loop().call_soon(self._commit)
            return
        start_s = self._clock.monotonic()
        try:
            begun = self._writer.begin(buffers, size)
            if begun is not None:
                file, start, end = begun
                written = self._worker.write_durably(file, buffers, start)
        except Exception as error:  # noqa: BLE001  (a mistake of ours: nobody must wait for this group)
            self._fail(error)
            return
        if begun is not None:
            written.add_done_callback(lambda future: self._written(future, end, size, waiters, start_s))
            return
        committed = self._worker.run(self._writer.commit, buffers, size, self._spares.ready)
        committed.add_done_callback(lambda future: self._committed(future, size, waiters, start_s))

    def _written(self, future: asyncio.Future[None], end: int, size: int, waiters: list[Done], start_s: float) -> None:
        if not self._has_succeeded(future):
            return
        self.mark = self._writer.ended(end)
        self._is_durable(size, waiters, start_s)

    def _committed(
        self, future: asyncio.Future[tuple[LogMark, bool, bool]], size: int, waiters: list[Done], start_s: float
    ) -> None:
        if not self._has_succeeded(future):
            return
        self.mark, took_spare, is_short = future.result()
        if is_short:
            self.on_short()
        if took_spare:
            self._spares.take()
        self._is_durable(size, waiters, start_s)

    def _has_succeeded(self, future: asyncio.Future[Any]) -> bool:
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if error is not None:
            self._fail(error)
        return error is None

    def _is_durable(self, size: int, waiters: list[Done], start_s: float) -> None:
        self.slowness.took(start_s)
        self.size += size
        self.group_count += 1
        self.queued_size -= size
        self._prepare_for(size)
        # The device first: those who are answered add the group after the next.
        self._commit()
        self._answer(waiters)

    def _prepare_for(self, size: int) -> None:
        """A group of `size` bytes was written: prepare a file if small ones are most of what is written."""
        is_small = size < SMALL_GROUP
        self._small_share += (is_small - self._small_share) * min(1.0, size / SHARE_SIZE)
        if is_small and self._small_share > 0.5 and self.size > self._prepare_from:
            self._spares.prepare()

    def _answer(self, waiters: list[Done]) -> None:
        for done in waiters:
            try:
                done(None)
            except Exception as error:  # noqa: BLE001  (the bug of one must not leave the others without an answer)
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._on_fatal(error)
        self._rest()

    def _rest(self) -> None:
        self._is_scheduled = False
        for future in self._idle:
            if not future.done():
                future.set_result(None)
        self._idle.clear()

    async def wait_idle(self) -> None:
        """Return when everything queued so far is durable, or never will be."""
        if self._is_scheduled:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(future)
            await future

    async def make_room(self, journal_id: int) -> None:
        """Delete all files older than `journal_id`, backups too. The mark must be durable."""
        for number in await self._worker.run(self._writer.retired, journal_id, 0):
            await self._worker.run(self._writer.retire, number, None)

    async def delete_before(self, journal_id: int) -> list[int]:
        """Delete files older than `journal_id`, or keep them as spares; their ids. The mark must be durable.

        Runs between groups, a file at a time, as a deletion may take as long as a group.
        """
        doomed = await self._worker.run(self._writer.retired, journal_id, self._backups_max)
        for number in doomed:
            spare = self._spares.next_path() if self._spares.wants_retired else None
            await self._worker.run(self._writer.retire, number, spare)
            if spare is not None:
                self._spares.add_retired(spare)
        return doomed

    async def discard_spares(self) -> None:
        """Leave no prepared file behind; before an orderly `close`, when the journal is idle."""
        await self._spares.discard()

    def close(self) -> None:
        """Let go of file and worker. What is queued is not written."""
        self._is_open = False
        self._has_failed = True
        self._spares.close()
        run_last(self._worker, self._writer.close)
