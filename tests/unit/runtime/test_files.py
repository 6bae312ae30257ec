"""OsDisk beyond what the ports' conformance suite asks: short writes, errors with their path."""

from __future__ import annotations

import errno
import os
import pathlib
from collections.abc import Sequence

import pytest

from bookies.runtime.files import SYNC_MANY_MIN, OsDisk, OsFile


@pytest.fixture
def file(tmp_path: pathlib.Path) -> OsFile:
    file = OsDisk().open(str(tmp_path / "a"), "x+")
    yield file
    file.close()


def test_short_writes_are_completed(file: OsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may write less than it was given; `File` promises everything or an error."""
    real_pwrite = os.pwrite

    def stingy_pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        return real_pwrite(descriptor, data[:3], offset)

    def stingy_pwritev(descriptor: int, buffers: Sequence[bytes], offset: int) -> int:
        return real_pwrite(descriptor, b"".join(buffers)[:5], offset)

    monkeypatch.setattr(os, "pwrite", stingy_pwrite)
    monkeypatch.setattr(os, "pwritev", stingy_pwritev)
    file.pwrite(b"0123456789", 0)
    file.pwritev([b"abc", b"", bytearray(b"defgh"), memoryview(b"ij")], 10)
    assert file.pread(100, 0) == b"0123456789abcdefghij"


def test_short_reads_are_completed(file: OsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file.pwrite(b"0123456789", 0)
    real_pread = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, size, offset: real_pread(descriptor, min(size, 3), offset))
    assert file.pread(8, 1) == b"12345678"
    assert file.pread(100, 2) == b"23456789"


def test_what_is_in_memory_is_read_without_waiting(file: OsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file system can tell, and never less than there is."""
    content = os.urandom(20_000)
    file.pwrite(content, 0)
    assert file.pread_resident(10_000, 1) in (content[1:10_001], None)
    assert file.pread_resident(10_000, 15_000) in (content[15_000:], None)
    assert file.pread_resident(10, 20_000) in (b"", None)

    def partly(descriptor: int, buffers: Sequence[memoryview], offset: int, flags: int) -> int:
        buffers[0][:4096] = content[offset : offset + 4096]
        return 4096

    monkeypatch.setattr(os, "preadv", partly)
    assert file.pread_resident(10_000, 0) is None
    assert file.pread_resident(10_000, 20_000 - 4096) == content[-4096:]
    for number in (errno.EAGAIN, errno.EOPNOTSUPP, errno.EIO):

        def refused(*_: object, number: int = number) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "preadv", refused)
        assert file.pread_resident(1, 0) is None


def test_errors_name_the_file(file: OsFile) -> None:
    reader = OsDisk().open(file.path, "r")
    for call in (lambda: reader.pwrite(b"x", 0), lambda: reader.pwritev([b"x"], 0), lambda: reader.truncate(9)):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.filename == file.path
    reader.close()


def test_allocation_falls_back_to_a_sparse_file(file: OsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    file.pwrite(b"abc", 0)
    file.allocate(0, 1000)
    assert file.size() == 1000
    file.allocate(0, 10)
    assert file.size() == 1000
    assert file.pread(4, 0) == b"abc\0"


def test_a_file_in_the_way_of_a_directory(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(FileExistsError):
        OsDisk().make_directories(str(tmp_path / "a" / "b"))
    with pytest.raises(FileExistsError):
        OsDisk().make_directories(str(tmp_path / "a"))


def test_relative_directories(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    disk = OsDisk()
    disk.make_directories("data/journal/")
    disk.replace_bytes("data/journal/lastMark", b"x")
    disk.replace_bytes("mark", b"y")
    assert (tmp_path / "data" / "journal" / "lastMark").read_bytes() == b"x"
    assert (tmp_path / "mark").read_bytes() == b"y"


def test_repr(file: OsFile) -> None:
    assert repr(file) == f"<OsFile {file.path!r}>"
    file.close()
    assert repr(file) == f"<OsFile {file.path!r} closed>"


def test_durable_writes_reach_the_file_aligned_or_not(file: OsFile) -> None:
    """Directly where offset and size are multiples of a block, through the page cache otherwise; the same bytes."""
    file.pwrite(bytes(8192), 0)
    file.write_durably([b"a" * 500, bytearray(b"b" * 12), memoryview(b"c" * 512)], 512)
    file.write_durably([b"odd"], 3)
    file.write_durably([b"d" * 513], 2048)
    expected = bytearray(8192)
    expected[3:6] = b"odd"
    expected[512:1536] = b"a" * 500 + b"b" * 12 + b"c" * 512
    expected[2048:2561] = b"d" * 513
    assert file.pread(9000, 0) == expected


@pytest.mark.parametrize("refused", ["open", "pwrite"])
def test_durable_writes_do_without_direct_ones(file: OsFile, refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without them refuses the open, a device with larger blocks the write."""
    real_open, real_pwrite = os.open, os.pwrite
    direct: list[int] = []

    def picky_open(path: str, flags: int, mode: int = 0o777) -> int:
        is_direct = bool(flags & os.O_DSYNC)
        if is_direct and refused == "open":
            raise OSError(errno.EINVAL, "Invalid argument")
        descriptor = real_open(path, flags & ~os.O_DIRECT, mode)
        if is_direct:
            direct.append(descriptor)
        return descriptor

    def picky_pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        if descriptor in direct:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_pwrite(descriptor, data, offset)

    monkeypatch.setattr(os, "open", picky_open)
    monkeypatch.setattr(os, "pwrite", picky_pwrite)
    for block in range(3):
        file.write_durably([bytes([65 + block]) * 512], block * 512)
    assert file.pread(2000, 0) == b"A" * 512 + b"B" * 512 + b"C" * 512
    assert len(direct) == (1 if refused == "pwrite" else 0)


def test_a_device_error_of_a_durable_write_names_the_file(file: OsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(descriptor: int, data: memoryview, offset: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    file.write_durably([bytes(512)], 0)
    monkeypatch.setattr(os, "pwrite", broken)
    monkeypatch.setattr(os, "pwritev", lambda *arguments: broken(0, memoryview(b""), 0))
    with pytest.raises(OSError) as caught:
        file.write_durably([bytes(512)], 512)
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, file.path)


@pytest.fixture
def many(tmp_path: pathlib.Path) -> list[OsFile]:
    files = [OsDisk().open(str(tmp_path / f"{number}"), "x+") for number in range(SYNC_MANY_MIN)]
    yield files
    for file in files:
        file.close()


def test_many_files_are_synced_by_one_call_for_their_file_system(
    many: list[OsFile], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr("bookies.runtime.files._syncfs", lambda: lambda descriptor: calls.append(descriptor) or 0)
    monkeypatch.setattr(os, "fsync", lambda descriptor: pytest.fail("not one by one"))
    disk = OsDisk()
    (tmp_path / "other").mkdir()
    first, lock = disk.lock_directory(str(tmp_path / "other")), disk.lock_directory(str(tmp_path))
    disk.sync_many(many, [str(tmp_path)])
    first.release()
    disk.sync_many(many, [str(tmp_path)])
    lock.release()
    assert len(calls) == 2
    assert len(dict.fromkeys(calls)) == 2, "a descriptor that is open"


@pytest.mark.parametrize("state", ["no lock", "lock released", "no syncfs", "few"])
def test_otherwise_each_file_is_synced_by_itself(
    state: str, many: list[OsFile], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed write is told only to a descriptor that was open before it."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    if state == "no syncfs":
        monkeypatch.setattr("bookies.runtime.files._syncfs", lambda: None)
    disk = OsDisk()
    lock = disk.lock_directory(str(tmp_path)) if state != "no lock" else None
    if lock is not None and state == "lock released":
        lock.release()
    files = many[: SYNC_MANY_MIN // 2] if state == "few" else many
    disk.sync_many(files, [str(tmp_path)])
    assert len(synced) == len(files) + 1
    if lock is not None:
        lock.release()


def test_a_write_that_failed_anywhere_fails_the_call(
    many: list[OsFile], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookies.runtime.files._syncfs", lambda: lambda descriptor: errno.EIO)
    disk = OsDisk()
    lock = disk.lock_directory(str(tmp_path))
    with pytest.raises(OSError, match="Input/output error") as caught:
        disk.sync_many(many, [])
    assert caught.value.filename == str(tmp_path)
    lock.release()
