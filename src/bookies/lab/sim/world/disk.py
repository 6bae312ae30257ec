"""A file system in memory that records what would survive a power failure.

Every file has two images: the page cache, which the process reads, and the durable image. A write changes the page
cache and marks the 512-byte sectors it touched. A sync copies these sectors to the durable image. Likewise, creations,
renames and unlinks are pending until their directory is synced. At a crash the seeded random generator decides for
every pending sector, file length and directory change independently whether it survives. A sector is atomic. A file's
fresh area may hold garbage where real file systems allow it. New directories are durable at once, as the port promises.

Faults: a crash at a given system call; failures of calls that match a rule, optionally after a partial write; a
capacity; bit flips. All calls are counted and may be logged. A call takes no time: the workers simulate slow disks.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable, Mapping, Sequence
from random import Random

from msgspec import Struct, field

from bookies.errors import DirectoryInUse, DiskFull
from bookies.lab.sim.world.loop import Crashed
from bookies.runtime.ports import Buffer, File, ReadEnded, Submit, SubmitRead, Written

SECTOR = 512  # bytes that become durable together
UNLIMITED = 1 << 40  # bytes
FILE_SIZE_MAX = 1 << 28  # bytes; real file systems have a limit too, and holes are memory here


class Call(Struct, frozen=True):
    """One system call. `offset` and `size`: bytes, where they apply. `target`: of a rename or link."""

    number: int
    operation: str
    path: str
    offset: int = 0
    size: int = 0
    target: str = ""


class Fault(Struct):
    """A rule that makes calls fail.

    `operation`: the name of one call, several separated by |, or "" for any. `path`: part of the path. `count`: number
    of calls to fail, after `skip` matching calls have succeeded. `is_partial`: a write does a part of its work first.
    """

    operation: str
    path: str
    error: Callable[[], Exception]
    count: int = 1
    skip: int = 0
    is_partial: bool = False


class Loss(Struct):
    """The effect of a crash on pending changes.

    `survival`: probability that a pending change survives. `garbage`: probability that a lost fresh sector holds
    garbage. `keeps_cache`: only the process died, so everything written survives.
    """

    survival: float = 0.5
    garbage: float = 0.0
    garbage_suffixes: tuple[str, ...] = (".txn", ".log")
    keeps_cache: bool = False


NOTHING_SURVIVES = Loss(survival=0.0)
EVERYTHING_SURVIVES = Loss(survival=1.0)
PROCESS_DIES = Loss(keeps_cache=True)
LOSSES = (NOTHING_SURVIVES, Loss(0.5), EVERYTHING_SURVIVES, Loss(0.8, garbage=0.5))


class Inode:
    """A file's two images and the sectors in which they may differ."""

    __slots__ = ("data", "dirty", "durable", "durable_size")

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.durable = bytearray(data)
        self.durable_size = len(data)
        self.dirty: dict[int, None] = {}  # sectors, in the order of their first write

    def write(self, data: Buffer, offset: int) -> None:
        end = offset + len(data)
        if end > len(self.data):
            self.data.extend(bytes(end - len(self.data)))
        self.data[offset:end] = data
        self.dirty.update(dict.fromkeys(range(offset // SECTOR, -(-end // SECTOR))))

    def resize(self, size: int) -> None:
        if size < len(self.data):
            del self.data[size:]
            self.dirty.update(dict.fromkeys(range(size // SECTOR, -(-max(size, self.durable_size) // SECTOR))))
        else:
            self.data.extend(bytes(size - len(self.data)))

    def sync(self) -> None:
        for sector in self.dirty:
            self._keep(sector)
        self.dirty.clear()
        self.durable_size = len(self.data)
        _fit(self.durable, self.durable_size)

    def lose(self, random: Random, loss: Loss, path: str) -> None:
        """Reduce the file to what a power failure leaves."""
        may_hold_garbage = path.endswith(loss.garbage_suffixes)
        sizes = [self.durable_size]
        for sector in self.dirty:
            fresh = not any(self.durable[sector * SECTOR : (sector + 1) * SECTOR])
            if random.random() < loss.survival:
                self._keep(sector)
                sizes.append(min(len(self.data), (sector + 1) * SECTOR))
            elif fresh and may_hold_garbage and random.random() < loss.garbage:
                start = sector * SECTOR
                end = min(start + SECTOR, max(len(self.data), start))
                _fit(self.durable, max(len(self.durable), end))
                self.durable[start:end] = random.randbytes(end - start)
                sizes.append(end)
        size = max(sizes)
        if random.random() < loss.survival:
            size = len(self.data)
        _fit(self.durable, size)
        self.data = bytearray(self.durable)
        self.durable_size = size
        self.dirty.clear()

    def _keep(self, sector: int) -> None:
        start = sector * SECTOR
        piece = self.data[start : start + SECTOR]
        _fit(self.durable, max(len(self.durable), start + len(piece)))
        self.durable[start : start + len(piece)] = piece


def _fit(image: bytearray, size: int) -> None:
    if size < len(image):
        del image[size:]
    else:
        image.extend(bytes(size - len(image)))


class _Directory(Struct):
    """Names of files (inodes) and of sub-directories (None). `pending`: changes since the last sync, in order."""

    names: dict[str, Inode | None] = field(default_factory=dict)
    durable: dict[str, Inode | None] = field(default_factory=dict)
    pending: list[dict[str, Inode | bool]] = field(default_factory=list)  # False: the name was removed

    def change(self, changes: dict[str, Inode | bool]) -> None:
        self.pending.append(changes)
        _apply(self.names, changes)

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.pending.clear()

    def inodes(self) -> list[tuple[str, Inode]]:
        """Return every file that has, had or may have a name here, once, with one of its names."""
        inodes: dict[int, tuple[str, Inode]] = {}
        images: list[Mapping[str, Inode | bool | None]] = [self.names, self.durable, *self.pending]
        for image in images:
            for name, inode in image.items():
                if isinstance(inode, Inode):
                    inodes[id(inode)] = name, inode
        return list(inodes.values())

    def lose(self, random: Random, loss: Loss) -> None:
        for changes in self.pending:
            if random.random() < loss.survival:
                _apply(self.durable, changes)
        self.names = dict(self.durable)
        self.pending.clear()


def _apply(names: dict[str, Inode | None], changes: dict[str, Inode | bool]) -> None:
    for name, inode in changes.items():
        if isinstance(inode, Inode):
            names[name] = inode
        else:
            names.pop(name, None)


class _Life(Struct):
    """The time between two crashes; handles end with it. `failure_count`: calls that failed by a fault or a full disk.

    `is_resident`: whether the last `pread_resident` counted as a page cache hit.
    """

    is_resident: bool = False
    failure_count: int = 0


class SimFile:
    """`ports.File` on a `SimDisk`. Handles from before a crash raise `Crashed`."""

    def __init__(self, disk: SimDisk, path: str, inode: Inode) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._life = disk.life
        self._is_open = True
        disk.open_files[self] = None

    def pread(self, size: int, offset: int) -> bytes:
        self._enter("pread", offset, size)
        return bytes(self._inode.data[offset : offset + size])

    def pread_resident(self, size: int, offset: int) -> bytes | None:
        """Return the bytes at every second call, otherwise None; always None while faults are set."""
        if self._life is not self._disk.life or self._disk.is_down:
            raise Crashed(self.path)
        assert self._is_open, f"pread_resident on closed {self.path}"
        self._life.is_resident = not self._life.is_resident
        if self._disk.faults or not self._life.is_resident:
            return None
        return bytes(self._inode.data[offset : offset + size])

    def pwrite(self, data: Buffer, offset: int) -> None:
        self._write("pwrite", data, offset)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._write("pwritev", b"".join(buffers), offset)

    def write_durably(self, buffers: Sequence[Buffer], offset: int) -> None:
        self.pwritev(buffers, offset)
        self.fdatasync()

    def begin_read(self, submit: SubmitRead, size: int, offset: int, ended: ReadEnded) -> bool:
        return False  # `SimWorker` reads

    def begin_durable(self, submit: Submit, buffers: Sequence[Buffer], offset: int, done: Written) -> bool:
        return False

    def _write(self, operation: str, data: Buffer, offset: int) -> None:
        def partly(share: float) -> None:
            end = offset + int(len(data) * share)
            self._inode.write(data[: max(0, end - end % SECTOR - offset)], offset)

        self._enter(operation, offset, len(data), partly)
        if offset + len(data) > FILE_SIZE_MAX:
            raise OSError(errno.EFBIG, "File too large", self.path)
        self._disk.reserve(self.path, offset + len(data) - len(self._inode.data))
        self._inode.write(data, offset)

    def fdatasync(self) -> None:
        self._sync("fdatasync")

    def fsync(self) -> None:
        self._sync("fsync")

    def _sync(self, operation: str) -> None:
        """Sync the file. A failed sync may leave pages marked clean that are not durable, as on Linux."""
        try:
            self._enter(operation)
        except OSError:
            if self._disk.forgets_failed_syncs and self._disk.random.random() < 0.5:
                self._inode.dirty.clear()
            raise
        self._inode.sync()

    def truncate(self, size: int) -> None:
        self._enter("truncate", size)
        self._inode.resize(size)

    def allocate(self, offset: int, size: int) -> None:
        self._enter("allocate", offset, size)
        self._disk.reserve(self.path, offset + size - len(self._inode.data))
        self._inode.resize(max(len(self._inode.data), offset + size))

    def size(self) -> int:
        self._enter("size")
        return len(self._inode.data)

    def next_data(self, offset: int) -> int:
        self._enter("next_data", offset)
        return min(offset, len(self._inode.data))

    def drop_cache(self, offset: int, size: int) -> None:
        assert offset >= 0
        assert size >= 0

    def close(self) -> None:
        self._is_open = False
        self._disk.open_files.pop(self, None)

    def _enter(
        self, operation: str, offset: int = 0, size: int = 0, partly: Callable[[float], None] | None = None
    ) -> None:
        if self._life is not self._disk.life:
            raise Crashed(self.path)
        assert self._is_open, f"{operation} on closed {self.path}"
        self._disk.enter(operation, self.path, offset, size, partly=partly)


class _SimLock:
    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._life = disk.life

    def release(self) -> None:
        if self._life is self._disk.life:
            self._disk.locks.pop(self._path, None)


class SimDisk:
    """The file system of one simulated machine; implements `ports.Disk`.

    `crash_at`: number of the call at which the disk goes down. This call and all later ones raise `Crashed` until
    `crash` is called. `on_crash`, if set, is called once at that moment. `capacity`: bytes of all files together.
    """

    def __init__(self, random: Random | None = None, *, capacity: int = UNLIMITED, is_logging: bool = False) -> None:
        self.random = random or Random(0)
        self.capacity = capacity
        self.faults: list[Fault] = []
        self.log: list[Call] | None = [] if is_logging else None
        self.devices: dict[str, int] = {}  # mount point -> number; all other paths are on file system 0
        self.forgets_failed_syncs = False
        self.call_count = 0
        self.crash_at: int | None = None
        self.on_crash: Callable[[], None] | None = None
        self.is_down = False
        self.life = _Life()
        self.locks: dict[str, None] = {}
        self.open_files: dict[SimFile, None] = {}
        self._directories: dict[str, _Directory] = {"": _Directory(), "/": _Directory()}

    # -- faults --------------------------------------------------------------------------------------------------
    def crash(self, loss: Loss) -> None:
        """Apply a loss, drop every handle and lock, and prepare the disk for the next life."""
        if not loss.keeps_cache:
            for path, directory in self._directories.items():
                for name, inode in directory.inodes():
                    inode.lose(self.random, loss, posixpath.join(path, name))
                directory.lose(self.random, loss)
        self.locks.clear()
        self.open_files.clear()
        self.life = _Life(self.life.is_resident)
        self.is_down = False
        self.crash_at = None

    def fail(
        self,
        operation: str,
        path: str,
        error: Callable[[], Exception],
        *,
        count: int = 1,
        skip: int = 0,
        is_partial: bool = False,
    ) -> Fault:
        """Fail the next `count` matching calls, after `skip` of them have succeeded."""
        fault = Fault(operation, path, error, count, skip, is_partial)
        self.faults.append(fault)
        return fault

    def grow(self, capacity: int) -> None:
        """Raise the capacity to at least `capacity` bytes, which ends a full disk."""
        self.capacity = max(self.capacity, capacity)

    def flip_bit(self, path: str, offset: int, bit: int = 0) -> None:
        """Change one bit of a file, durably."""
        inode = self._inode(path)
        inode.sync()
        inode.data[offset] ^= 1 << bit
        inode.dirty[offset // SECTOR] = None
        inode.sync()

    def lose_directory(self, path: str, *, is_empty: bool) -> None:
        """Remove a directory with all files durably. `is_empty`: an empty one takes its place."""
        for name in [name for name in self._directories if name == path or name.startswith(f"{path}/")]:
            del self._directories[name]
        parent, name = posixpath.split(path)
        for names in (self._directories[parent].names, self._directories[parent].durable):
            names.pop(name, None)
        if is_empty:
            self._make(path)

    def enter(
        self,
        operation: str,
        path: str,
        offset: int = 0,
        size: int = 0,
        *,
        target: str = "",
        partly: Callable[[float], None] | None = None,
    ) -> None:
        """Count a call that is about to happen. Raises `Crashed`, or the error of a matching fault."""
        if self.is_down:
            raise Crashed(path)
        self.call_count += 1
        if self.crash_at is not None and self.call_count >= self.crash_at:
            if partly is not None:
                partly(self.random.random())
            self.is_down = True
            if self.on_crash is not None:
                self.on_crash()
            raise Crashed(path)
        if self.log is not None:
            self.log.append(Call(self.call_count, operation, path, offset, size, target))
        for fault in self.faults:
            if (not fault.operation or operation in fault.operation.split("|")) and fault.path in path:
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                fault.count -= 1
                if fault.count <= 0:
                    self.faults.remove(fault)
                if fault.is_partial and partly is not None:
                    partly(self.random.random())
                self.life.failure_count += 1
                error = fault.error()
                if isinstance(error, OSError) and error.filename is None:
                    error.filename = path
                raise error

    def reserve(self, path: str, growth: int) -> None:
        """Raise `DiskFull` if files would grow beyond the capacity. `growth`: bytes."""
        if self.capacity < UNLIMITED and growth > 0 and self.used() + growth > self.capacity:
            self.life.failure_count += 1
            raise DiskFull(f"{path}: no space left on device")

    def used(self) -> int:
        return sum(
            len(inode.data) for directory in self._directories.values() for inode in directory.names.values() if inode
        )

    # -- contents, for tests and tools ---------------------------------------------------------------------------
    def files(self, under: str = "", *, is_durable: bool = False) -> dict[str, bytes]:
        """Return path and contents of every file as the process reads them; `is_durable`: only the durable contents."""
        contents: dict[str, bytes] = {}
        for path, directory in self._directories.items():
            for name, inode in (directory.durable if is_durable else directory.names).items():
                if inode is not None:
                    data = inode.durable[: inode.durable_size] if is_durable else inode.data
                    contents[posixpath.join(path, name)] = bytes(data)
        return {path: contents[path] for path in sorted(contents) if path.startswith(under)}

    def put(self, path: str, data: bytes) -> None:
        """Create a durable file without counting a call."""
        parent, name = posixpath.split(path)
        self._make(parent)
        directory = self._directories[parent]
        inode = Inode(data)
        directory.names[name] = directory.durable[name] = inode

    # -- ports.Disk ----------------------------------------------------------------------------------------------
    def open(self, path: str, mode: str) -> SimFile:
        self.enter("open", path)
        parent, name = posixpath.split(path)
        directory = self._directories.get(parent)
        inode = directory.names.get(name) if directory else None
        if path in self._directories:
            raise IsADirectoryError(21, "Is a directory", path)
        if inode is not None and mode == "x+":
            raise FileExistsError(17, "File exists", path)
        if inode is None:
            if directory is None or mode in ("r", "r+"):
                raise FileNotFoundError(2, "No such file or directory", path)
            inode = Inode()
            directory.change({name: inode})
        return SimFile(self, path, inode)

    def _directory(self, path: str) -> _Directory:
        if path not in self._directories:
            raise FileNotFoundError(2, "No such file or directory", path)
        return self._directories[path]

    def list(self, path: str) -> list[str]:
        self.enter("list", path)
        return sorted(self._directory(path).names)

    def exists(self, path: str) -> bool:
        self.enter("exists", path)
        parent, name = posixpath.split(path)
        return path in self._directories or (parent in self._directories and name in self._directories[parent].names)

    def is_directory(self, path: str) -> bool:
        self.enter("is_directory", path)
        return path in self._directories

    def make_directories(self, *paths: str) -> None:
        for path in paths:
            self.enter("make_directories", path)
            self._make(path)

    def _make(self, path: str) -> None:
        if path in self._directories:
            return
        parent, name = posixpath.split(path)
        self._make(parent)
        directory = self._directories[parent]
        if directory.names.get(name) is not None:
            raise NotADirectoryError(20, "Not a directory", path)
        directory.names[name] = directory.durable[name] = None
        self._directories[path] = _Directory()

    def rename(self, source: str, target: str) -> None:
        self.enter("rename", source, target=target)
        inode = self._inode(source)
        source_parent, source_name = posixpath.split(source)
        target_parent, target_name = posixpath.split(target)
        if source_parent == target_parent:
            self._directories[source_parent].change({source_name: False, target_name: inode})
        else:
            self._directories[target_parent].change({target_name: inode})
            self._directories[source_parent].change({source_name: False})

    def link(self, source: str, target: str) -> None:
        self.enter("link", source, target=target)
        parent, name = posixpath.split(target)
        if name in self._directories[parent].names:
            raise FileExistsError(17, "File exists", target)
        self._directories[parent].change({name: self._inode(source)})

    def unlink(self, path: str) -> None:
        self.enter("unlink", path)
        self._inode(path)
        parent, name = posixpath.split(path)
        self._directories[parent].change({name: False})

    def remove_directory(self, path: str) -> None:
        self.enter("remove_directory", path)
        if self._directory(path).names:
            raise OSError(39, "Directory not empty", path)
        # As with new directories, the change is durable at once, including changes pending in the directory.
        parent, name = posixpath.split(path)
        del self._directories[path]
        del self._directories[parent].names[name], self._directories[parent].durable[name]

    def sync_directory(self, path: str) -> None:
        self.enter("sync_directory", path)
        self._directory(path).sync()

    def sync_many(self, files: Sequence[File], directories: Sequence[str]) -> None:
        for file in files:
            file.fsync()
        for path in directories:
            self.sync_directory(path)

    def is_private(self, path: str) -> bool:
        self.enter("is_private", path)
        return True  # the simulated disk has one user

    def read_bytes(self, path: str) -> bytes:
        self.enter("read_bytes", path)
        return bytes(self._inode(path).data)

    def replace_bytes(self, path: str, data: bytes, *, is_private: bool = False) -> None:
        parent, name = posixpath.split(path)
        temporary = posixpath.join(parent, f".{name}.tmp")
        file = self.open(temporary, "w+")
        try:
            file.truncate(0)
            file.pwrite(data, 0)
            file.fsync()
        finally:
            file.close()
        self.rename(temporary, path)
        self.sync_directory(parent)

    def usage(self, path: str) -> tuple[int, int]:
        self.enter("usage", path)
        return self.capacity, max(0, self.capacity - self.used())

    def device(self, path: str) -> int:
        self.enter("device", path)
        if path != ".":
            self._directory(path)
        mounts = [mount for mount in self.devices if path == mount or path.startswith(f"{mount}/")]
        return self.devices[max(mounts, key=len)] if mounts else 0

    def lock_directory(self, path: str) -> _SimLock:
        self.enter("lock_directory", path)
        self._directory(path)
        if path in self.locks:
            raise DirectoryInUse(f"{path} is in use by another process")
        self.locks[path] = None
        return _SimLock(self, path)

    def _inode(self, path: str) -> Inode:
        parent, name = posixpath.split(path)
        directory = self._directories.get(parent)
        inode = directory.names.get(name) if directory else None
        if inode is None:
            raise FileNotFoundError(2, "No such file or directory", path)
        return inode
