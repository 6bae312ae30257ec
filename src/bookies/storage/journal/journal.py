"""Group commit: the loop queues records; a worker writes and syncs them, and the loop answers them, group by group.

While one group is being written the next one gathers. When the device is free, everything queued becomes one write and
one sync. This needs no tuning: the slower the device, the larger the groups.

Invariants
- R-14: acknowledge only after a completed sync of that file that started after the last byte of the group was written.
- F-8: a group lies in one file and is synced before the next group is written, so no batch spans a roll.
- The mark moves only after a sync, and to the end of the group that was synced.
- F-6: before the first group of a file is written, the file's header and name are durable.
- After a failed write or sync there are no retries and no answers: the content of the device is unknown.
- Files at or after the persisted mark are never deleted, nor made into spares (`preallocated_journal`).

Source: storage 2.1, 2.5, 2.7, 2.8.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from bookies.config import BookieConfig
from bookies.errors import DiskFull
from bookies.runtime.events import Events
from bookies.runtime.histogram import Distribution
from bookies.runtime.ports import Buffer, Disk, File, Runtime
from bookies.storage.disks.durable_files import run_last, sync_directory
from bookies.storage.journal import journal_format, preallocated_journal
from bookies.storage.journal.log_mark_format import LogMark
from bookies.storage.journal.page_cache import DroppedPrefix

Done = Callable[[BaseException | None], None]

KEPT_IN_CACHE = 8 << 20  # bytes before the writing position that the page cache may keep
DROP_STEP = 1 << 20  # bytes dropped from the page cache by one call
# Preparing a file costs as much bandwidth as the journal itself. It pays where groups are small and clients wait for
# their syncs. Large groups spread the cost of an unprepared sync over many entries; an occasional small group between
# them is not worth a prepared file.
SMALL_GROUP = 64 << 10  # bytes
SHARE_SIZE = 16 << 20  # bytes of recent groups over which the share of small groups is averaged
SLOW_S = 1.0  # a group that takes longer is slow
SLOW_OVER_S = 60.0  # a slow episode ends after this time without another slow group
PATIENCE_S = 0.1  # a record that may wait for others is written alone after this time
FIRST_PREPARED = 4 << 20  # bytes of zeros in the first file of a process, which must be ready at once


def journal_ids(disk: Disk, directory: str) -> list[int]:
    """Return the ids of the journal files in a directory, ascending."""
    numbers = (journal_format.parse_file_name(name) for name in disk.list(directory))
    return sorted(number for number in numbers if number is not None)


class JournalWriter:
    """The files of one journal. Blocks; confined to the journal's worker.

    Exceptions: `begin` and `ended` do not block; the loop calls them while the worker has no group.
    """

    def __init__(self, disk: Disk, directory: str, config: BookieConfig, version: int = journal_format.VERSION) -> None:
        self._disk = disk
        self._version = version
        self._directory = directory
        self._alignment = config.journal_alignment
        self._size_max = config.journal_size_max
        self._step = max(config.journal_preallocate_size, self._alignment)
        self._new_path = posixpath.join(directory, f"new{preallocated_journal.SUFFIX}")
        self._file: File | None = None
        self._journal_id = 0
        self._position = 0
        self._allocated = 0
        self._prepared = 0  # bytes whose blocks were written before, so that a sync of them is fast
        self.is_short = False  # the disk could not reserve the requested blocks; the next groups use what is left
        self._dropped = DroppedPrefix(DROP_STEP)

    def open(self, journal_id: int) -> LogMark:
        """Create the first file of this process durably and return its first position.

        Raises DiskFull, leaving no file.
        """
        preallocated_journal.remove_spares(self._disk, self._directory)
        zeros = min(self._step, FIRST_PREPARED)
        try:
            prepared = self._make(zeros, lambda file: file.pwrite(bytes(zeros), 0))
            return self._adopt(self._new_path, journal_id, prepared)
        except DiskFull:
            preallocated_journal.remove_spares(self._disk, self._directory)
            raise

    def _make(self, size: int, fill: Callable[[File], None]) -> int:
        """Create a file that `_adopt` turns into a journal, and return its size.

        On a full disk the file has the minimum size, because there may still be space for the groups themselves.
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
        self._file = preallocated_journal.adopt(self._disk, path, self._directory, journal_id, self._version)
        self._note(journal_id)
        self._journal_id = journal_id
        self._position = journal_format.HEADER_SIZE
        self._allocated = self._prepared = prepared
        self._dropped = DroppedPrefix(DROP_STEP)
        return LogMark(journal_id, self._position)

    def _note(self, journal_id: int) -> None:
        """Record durably which file is the newest, before an entry in it is acknowledged."""
        older = [
            name for name in self._disk.list(self._directory) if journal_format.parse_newest_name(name) is not None
        ]
        self._disk.open(posixpath.join(self._directory, journal_format.newest_name(journal_id)), "w+").close()
        for name in older:
            self._disk.unlink(posixpath.join(self._directory, name))
        sync_directory(self._disk, self._directory)

    def begin(self, buffers: list[Buffer], size: int) -> tuple[File, int, int] | None:
        """Prepare a small group of `size` bytes that needs only one durable write.

        Returns the file and the offsets where the group begins and ends; call `ended` when it is written. None: the
        group needs more than one durable write; use `commit`.
        """
        start, file = self._position, self._file
        if size > SMALL_GROUP or start >= self._size_max or file is None:
            return None
        if start + size + 2 * self._alignment > self._prepared or self._dropped.is_due(start - KEPT_IN_CACHE):
            return None
        padding = journal_format.pack_group_end(self._journal_id, start, buffers, size, self._alignment)
        buffers.append(padding)
        return file, start, start + size + len(padding)

    def ended(self, end: int) -> LogMark:
        """Advance past the group of `begin`, which is durable now, and return the position after it."""
        self._position = end
        return LogMark(self._journal_id, end)

    def commit(self, buffers: list[Buffer], size: int, spare: str | None) -> tuple[LogMark, bool, bool]:
        """Write and sync one group of `size` bytes. Any exception is final.

        `spare`: a prepared file to continue in when this one's prepared part is used up. Returns the position after
        the group, whether the spare was used, and whether the disk is short of free space.
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
        self._dropped.grow(self._file, end - KEPT_IN_CACHE)
        return LogMark(self._journal_id, end), takes_spare, self.is_short

    def _reserve(self, end: int) -> None:
        """Reserve blocks up to `end` or beyond if the disk has them. Only the write itself has to succeed."""
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
        """Close the full file and begin the next one. Every commit has synced the bytes that it wrote."""
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
        """Return the ids of files older than `journal_id`, without the newest `backups_max` of them."""
        old = [number for number in journal_ids(self._disk, self._directory) if number < journal_id]
        return old[: max(0, len(old) - backups_max)]

    def retire(self, journal_id: int, spare: str | None) -> None:
        """Delete a file that `retired` returned, or rename it to `spare` for re-use."""
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
    """Detection of slow groups: one event when an episode begins, one when it ends, and gauges.

    `group_count`: slow groups in total. `last_ms`: duration of the last group. `max_ms`: duration of the slowest group
    of the current or last episode.
    """

    def __init__(self, runtime: Runtime, directory: str) -> None:
        self.group_count = 0
        self.last_ms = 0
        self.max_ms = 0
        self._directory = directory
        self._clock = runtime.clock
        self._events = Events("storage.journal", runtime.clock)
        self._since_s: float | None = None  # time of the last slow group of the current episode
        self._count = 0

    def took(self, start_s: float) -> float:
        """Record that a group that began at `start_s` is durable now; return the seconds that it took."""
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
                    consequence="adds wait for the device; none fails",
                )
            self._since_s = now
            self._count += 1
            self.group_count += 1
            self.max_ms = max(self.max_ms, self.last_ms)
        elif self._since_s is not None and now - self._since_s >= SLOW_OVER_S:
            self._since_s = None
            self._events.info("journal.quick_again", path=self._directory, slow_groups=self._count, max_ms=self.max_ms)
        return seconds


class JournalTimes:
    """Durations of group commits in seconds, for metrics.

    `adds`: of records, from their queueing to their durability. `syncs`: of groups, write and sync. `waited_s`: sum of
    the times of records in the queue. `record_count`: records made durable.
    """

    def __init__(self) -> None:
        self.adds, self.syncs = Distribution(), Distribution()
        self.waited_s = 0.0
        self.record_count = 0

    def durable(self, wait_s: float, sync_s: float, count: int) -> None:
        """Note that a group of `count` records is durable. `wait_s`: mean time of its records in the queue."""
        self.syncs.record(sync_s)
        self.adds.record(wait_s + sync_s, count)
        self.waited_s += wait_s * count
        self.record_count += count


class Journal:
    """The queue of one journal. Owned by the loop's thread; its writer is owned by the worker.

    `mark`: everything before it is durable. `size`: bytes committed in this process. `on_fatal`: called once.
    `on_short`: called when the disk is about to be full; records in flight still fit. `on_durable`: called before the
    records of a group are answered, with its beginning and end in seconds and its bytes. `version`: of its files.
    """

    def __init__(
        self,
        runtime: Runtime,
        directory: str,
        name: str,
        config: BookieConfig,
        on_fatal: Callable[[BaseException], None],
        version: int = journal_format.VERSION,
    ) -> None:
        self.mark = LogMark()
        self.on_short: Callable[[], None] = lambda: None
        self.on_durable: Callable[[float, float, int], None] | None = None
        self.directory = directory
        self.size = 0
        self.group_count = 0
        self.queued_size = 0
        self.times = JournalTimes()
        self.slowness = Slowness(runtime, directory)
        self._clock = runtime.clock
        self._loop = asyncio.get_running_loop()  # kept, because the function makes a system call
        self._group_size_max = config.journal_group_size_max
        self._backups_max = config.journal_backups_max
        # An idle bookie prepares no file; a journal begins to when it has used half of its first file's zeros. Padding
        # uses them too, and is most of a group that has one small record.
        self._prepare_from = LogMark(0, min(config.journal_preallocate_size, FIRST_PREPARED) // 2)
        self._small_share = 1.0  # share of the recently written bytes that were in small groups, 0 to 1
        self._on_fatal = on_fatal
        self._worker = runtime.workers.start(name)
        self._writer = JournalWriter(runtime.disk, directory, config, version)
        self._spares = preallocated_journal.Spares(runtime, directory, f"{name}-spare", config)
        self._queue: deque[tuple[Sequence[Buffer], int, Done | None]] = deque()
        self._oldest_s = 0.0  # when the first of the queue was queued
        self._started_s: float | None = None  # when the group in progress began
        self._wait_s = 0.0  # mean time in the queue of the group that is being written
        self._patient: list[tuple[Sequence[Buffer], int, Done | None]] = []  # records that wait for others
        self._patience: asyncio.TimerHandle | None = None  # until they are written alone
        self._is_scheduled = False
        self._is_open = False
        self._has_failed = False
        self._idle: list[asyncio.Future[None]] = []

    async def open(self, journal_id: int) -> None:
        """Create the first file of this process and accept records. Raises: DiskFull (may be retried), OSError."""
        self.mark = await self._worker.run(self._writer.open, journal_id)
        self._prepare_from = self._prepare_from._replace(journal_id=journal_id)
        self._is_open = True

    @property
    def queued_count(self) -> int:
        """Return the number of records that wait for the next group."""
        return len(self._queue)

    def waiting_s(self) -> float:
        """Return the seconds for which records have waited for the group in progress or the next one; 0: none waits."""
        if not self._is_scheduled:
            return 0.0
        return self._clock.monotonic() - (self._started_s if self._started_s is not None else self._oldest_s)

    @property
    def is_writing(self) -> bool:
        """Report whether a group is being written or about to be."""
        return self._is_scheduled

    @property
    def is_open(self) -> bool:
        """Report whether the journal writes records. It cannot while the disk has no space for the first file."""
        return self._is_open

    def append(self, buffers: Sequence[Buffer], size: int, done: Done | None) -> None:
        """Queue complete records of `size` bytes in all; `done(None)` is called on the loop when they are durable.

        Without buffers: when everything queued before is durable. After a failure `done` is never called.
        """
        if not self._queue:
            self._oldest_s = self._clock.monotonic()
        if self._patient:
            self._take_patient()
        self._queue.append((buffers, size, done))
        self.queued_size += size
        self._schedule()

    def append_patiently(self, buffers: Sequence[Buffer], size: int, done: Done) -> None:
        """Queue records as `append` does, to be written with those of its next call, or alone after `PATIENCE_S`.

        So they cost no group of their own while others come.
        """
        self._patient.append((buffers, size, done))
        self.queued_size += size
        if self._patience is None:
            self._patience = self._loop.call_later(PATIENCE_S, self._end_patience)

    def _take_patient(self) -> None:
        """Move the records that wait for others to the queue, in front of the one that comes."""
        assert self._patience is not None
        self._patience.cancel()
        self._patience = None
        self._queue.extend(self._patient)
        self._patient.clear()

    def _end_patience(self) -> None:
        if not self._queue:
            self._oldest_s = self._clock.monotonic()
        self._take_patient()
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled and self._is_open:
            self._is_scheduled = True
            # Deferred, so that records of the same iteration of the event loop join the group.
            self._loop.call_soon(self._commit)

    def _commit(self) -> None:
        """Write everything queued, up to the size limit of a group."""
        queue = self._queue
        if self._has_failed or not queue:
            self._go_idle()
            return
        buffers: list[Buffer] = []
        waiters: list[Done] = []
        size = 0
        while queue and (size == 0 or size + queue[0][1] <= self._group_size_max):
            record_buffers, record_size, done = queue.popleft()
            buffers.extend(record_buffers)
            size += record_size
            if done is not None:
                waiters.append(done)
        if not buffers:  # only waiters for records that earlier groups have made durable
            self._answer(waiters)
            self._loop.call_soon(self._commit)
            return
        start_s = self._clock.monotonic()
        self._started_s = start_s
        self._wait_s = (start_s - self._oldest_s) / 2  # mean of the group: its newest record has not waited
        try:
            begun = self._writer.begin(buffers, size)
            if begun is not None:
                file, start, end = begun
                self._worker.write_durably(file, buffers, start, partial(self._written, end, size, waiters, start_s))
                return
        except Exception as error:  # noqa: BLE001  (a programming error: the callers of this group must not wait for ever)
            self._fail(error)
            return
        committed = self._worker.run(self._writer.commit, buffers, size, self._spares.ready)
        committed.add_done_callback(lambda future: self._committed(future, size, waiters, start_s))

    def _written(self, end: int, size: int, waiters: list[Done], start_s: float, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error)
            return
        self.mark = self._writer.ended(end)
        if self._queue:
            # Deferred as in `append`: records of this iteration of the event loop join those that wait.
            self._loop.call_soon(self._finish_group, size, waiters, start_s)
        else:
            self._finish_group(size, waiters, start_s)

    def _committed(
        self, future: asyncio.Future[tuple[LogMark, bool, bool]], size: int, waiters: list[Done], start_s: float
    ) -> None:
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if error is not None:
            self._fail(error)
            return
        self.mark, took_spare, is_short = future.result()
        if is_short:
            self.on_short()
        if took_spare:
            self._spares.take()
        self._finish_group(size, waiters, start_s)

    def _finish_group(self, size: int, waiters: list[Done], start_s: float) -> None:
        self._started_s = None
        wait_s, sync_s = self._wait_s, self.slowness.took(start_s)
        self.size += size
        self.group_count += 1
        self.queued_size -= size
        self._prepare_for(size)
        # Start the next group first: the device is the bottleneck, and answered clients add to the group after it.
        if self._queue:
            self._commit()
        else:
            self._go_idle()
        if self.on_durable is not None:
            self.on_durable(start_s, start_s + sync_s, size)
        self._answer(waiters)
        self.times.durable(wait_s, sync_s, len(waiters))

    def _prepare_for(self, size: int) -> None:
        """Prepare a file after a group of `size` bytes if small groups have most of the recent bytes."""
        is_small = size < SMALL_GROUP
        self._small_share += (is_small - self._small_share) * min(1.0, size / SHARE_SIZE)
        if is_small and self.mark > self._prepare_from and self._small_share > 0.5:
            self._spares.prepare()

    def _answer(self, waiters: list[Done]) -> None:
        for done in waiters:
            try:
                done(None)
            except Exception as error:  # noqa: BLE001  (a bug in one callback must not leave the others unanswered)
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._on_fatal(error)
        self._go_idle()

    def _go_idle(self) -> None:
        self._is_scheduled = False
        for future in self._idle:
            if not future.done():
                future.set_result(None)
        self._idle.clear()

    async def wait_idle(self) -> None:
        """Wait until everything queued so far is durable or has failed."""
        if self._patient:
            self._end_patience()
        if self._is_scheduled:
            future: asyncio.Future[None] = self._loop.create_future()
            self._idle.append(future)
            await future

    async def make_room(self, journal_id: int) -> None:
        """Delete all files older than `journal_id`, backups too. The mark must be durable."""
        for number in await self._worker.run(self._writer.retired, journal_id, 0):
            await self._worker.run(self._writer.retire, number, None)

    async def delete_before(self, journal_id: int) -> list[int]:
        """Delete files older than `journal_id`, or keep them as spares; return their ids. The mark must be durable.

        Runs between groups, one file at a time, because a deletion may take as long as a group.
        """
        doomed = await self._worker.run(self._writer.retired, journal_id, self._backups_max)
        for number in doomed:
            spare = self._spares.next_path() if self._spares.wants_retired else None
            await self._worker.run(self._writer.retire, number, spare)
            if spare is not None:
                self._spares.add_retired(spare)
        return doomed

    async def discard_spares(self) -> None:
        """Remove all prepared files. Call before an orderly `close`, when the journal is idle."""
        await self._spares.discard()

    def close(self) -> None:
        """Release the file and the worker. Queued records are not written."""
        self._is_open = False
        self._has_failed = True
        if self._patience is not None:
            self._patience.cancel()
        self._spares.close()
        run_last(self._worker, self._writer.close)
