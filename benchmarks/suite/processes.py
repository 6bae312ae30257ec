"""Processes that end with this one, what they cost, and the pages of files that the kernel holds."""

from __future__ import annotations

import ctypes
import os
import pathlib
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PR_SET_PDEATHSIG = 1
STOP_S = 15.0
SECTOR = 512  # bytes, of the kernel's counters, whatever the device has
TICKS = os.sysconf("SC_CLK_TCK")
_libc = ctypes.CDLL(None, use_errno=True)


def _end_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def spawn(
    command: Sequence[str],
    *,
    log: pathlib.Path,
    environment: Mapping[str, str] | None = None,
    directory: pathlib.Path | None = None,
    pipes: bool = False,
) -> subprocess.Popen[str]:
    """Start a process that an interrupt of this one does not reach and that the kernel kills when this one is gone.

    Its errors go to `log`; with `pipes` its standard input and output are pipes, else nothing and `log`.
    """
    with open(log, "ab") as errors:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipes else errors,
            stderr=errors,
            text=True,
            env=environment,
            cwd=directory,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )


def stop(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> None:
    """Send the signal, wait, and kill it when it stays."""
    if process.poll() is None:
        process.send_signal(number)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


@dataclass(frozen=True, slots=True)
class Usage:
    """Of a process: CPU seconds so far; resident memory now, MB."""

    cpu_s: float
    resident_mb: float


def usage(pid: int) -> Usage:
    """Raises `OSError` when there is no such process, or it has ended and nobody has waited for it."""
    root = pathlib.Path("/proc", str(pid))
    fields = (root / "stat").read_text().rpartition(")")[2].split()
    status = dict(line.split(":", 1) for line in (root / "status").read_text().splitlines() if ":" in line)
    if "VmRSS" not in status:
        raise ProcessLookupError(f"process {pid} has ended")
    return Usage((int(fields[11]) + int(fields[12])) / TICKS, int(status["VmRSS"].split()[0]) * 1024 / 1e6)


def device_written(directory: pathlib.Path) -> int | None:
    """Bytes written so far to the device that a directory is on, by anybody; None where that has no counter (tmpfs,
    btrfs, overlay).

    What the kernel counts for a process (`write_bytes`) are pages that it made dirty, and with folios of many pages all
    pages of a folio for each of them: four times what a journal writes.
    """
    device = directory.stat().st_dev
    counters = pathlib.Path("/sys/dev/block", f"{os.major(device)}:{os.minor(device)}", "stat")
    try:
        return int(counters.read_text().split()[6]) * SECTOR
    except FileNotFoundError:
        return None


def written_between(before: int | None, after: int | None) -> int | None:
    """Of two answers of `device_written`, bytes; None where the device has no counter."""
    return None if before is None or after is None else after - before


def filed_bytes(pid: int) -> int:
    """Bytes that threads of a bookie of ours have given the kernel to write into files: all but its first thread, which
    writes to sockets."""
    found = 0
    for thread in pathlib.Path("/proc", str(pid), "task").iterdir():
        if thread.name != str(pid):
            counters = dict(line.split(": ", 1) for line in (thread / "io").read_text().splitlines())
            found += int(counters["wchar"])
    return found


def drop_pages(directories: Sequence[pathlib.Path]) -> None:
    """Have the kernel forget the pages of every file below, after they were written back."""
    for root in directories:
        for path in sorted(each for each in root.rglob("*") if each.is_file()):
            try:
                file = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                continue  # A server has removed it meanwhile.
            try:
                os.fdatasync(file)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
