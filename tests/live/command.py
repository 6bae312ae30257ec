"""`bk` as its users meet it: in this process where that is enough, as a process where signals or limits matter."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import io
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

import bookies
from bookies.admin import cli

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2
PATIENCE_S = 120  # for what takes a second on a quiet machine


@dataclass(frozen=True)
class Done:
    status: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def rows(self) -> list[Any]:
        return [json.loads(row) for row in self.out.splitlines()]

    @property
    def sentence(self) -> str:
        """The one line that a failed command says."""
        lines = self.err.strip().splitlines()
        assert len(lines) == 1, f"one sentence was expected: {self.err!r}"
        return lines[0]


def bk(*words: object, metadata: str | None = None) -> Done:
    """Run a command here. `metadata`: the cluster."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    arguments = [str(word) for word in words]
    if metadata is not None:
        arguments += ["--metadata", metadata]
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = cli.main(arguments)
        except SystemExit as end:  # from argparse
            status = int(end.code or 0)
    out.flush()
    text = out.buffer.getvalue().decode("utf-8", "surrogateescape")  # type: ignore[attr-defined]
    assert "Traceback" not in err.getvalue(), err.getvalue()
    return Done(status, text, err.getvalue())


def drop_root() -> None:
    """In a child before it executes: even root obeys the permissions of files from here on."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None)
        for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
            assert libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0


class Family:
    """Every process that inherits one mark: what a command has started, whoever its parent is by now."""

    def __init__(self) -> None:
        self._mark = f"BOOKIES_TEST_FAMILY={uuid.uuid4().hex}"

    def environment(self) -> dict[str, str]:
        name, _, value = self._mark.partition("=")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("BK_")}
        return {**kept, name: value}

    def members(self) -> dict[int, str]:
        """Those alive now: process id and command line."""
        found = {}
        for name in os.listdir("/proc"):
            try:
                if name.isdigit() and self._mark.encode() in pathlib.Path("/proc", name, "environ").read_bytes():
                    words = pathlib.Path("/proc", name, "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(name)] = words.decode(errors="replace")
            except OSError:
                continue  # It has ended meanwhile.
        return found

    def wait_gone(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until nobody is left; then kill whoever still is, and say so."""
        deadline = time.monotonic() + timeout_s
        while members := self.members():
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    descriptor = os.pidfd_open(pid)
                    ended = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]
                    os.close(descriptor)
                    if not ended:
                        break
            else:
                continue
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"left behind: {members}")


@contextmanager
def started(
    *words: object, cwd: pathlib.Path | None = None, family: Family | None = None, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """A command as a process in a session of its own, killed when the block is left."""
    command = [sys.executable, "-m", "bookies.admin.cli", *(str(word) for word in words)]
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=(family or Family()).environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def finish(process: subprocess.Popen[str], number: int | None = None, timeout_s: float = PATIENCE_S) -> Done:
    """Wait for the end, after a signal if one is given."""
    if number is not None:
        process.send_signal(number)
    out, err = process.communicate(timeout=timeout_s)
    assert "Traceback" not in err, err
    return Done(process.returncode, out, err)


def bk_process(*words: object, cwd: pathlib.Path | None = None, stdin: str = "", **options: Any) -> Done:
    """Run a command as a process to its end."""
    with started(*words, cwd=cwd, **options) as process:
        out, err = process.communicate(stdin, timeout=PATIENCE_S)
    assert "Traceback" not in err, err
    return Done(process.returncode, out, err)


def run(family: Family, directory: pathlib.Path, *words: object, stdin: str = "", status: int = 0) -> Done:
    """Run a command in a directory, as a process, to its end."""
    with started(*words, cwd=directory, family=family) as process:
        assert process.stdin is not None
        process.stdin.write(stdin)
        done = finish(process)
    assert done.status == status, done.err
    return done


def commands_of(uri: str) -> Callable[..., Done]:
    """Return a function that runs a command on the cluster here and checks its `status`, 0 unless given."""

    def done(*words: object, status: int = 0) -> Done:
        done = bk(*words, metadata=uri)
        assert done.status == status, (done.out, done.err)
        return done

    return done


@contextmanager
def up(family: Family, directory: pathlib.Path, bookies: int) -> Iterator[tuple[str, dict[str, int]]]:
    """Run a cluster with `bk up` in a directory. Yields its metadata URI and the process ids of its bookies."""
    started = run(family, directory, "up", "--bookies", bookies, "--json").json()
    try:
        yield started["metadata"], {bookie["id"]: bookie["pid"] for bookie in started["bookies"]}
    finally:
        run(family, directory, "down")


async def wait_stopped(uri: str, bookie: str) -> None:
    """Wait until the bookie is no longer registered."""
    async with bookies.connect(uri) as store:
        gone = asyncio.Event()
        watch = store.administration().watch_bookies(
            bookies.BookieMode.WRITABLE, lambda bookies: gone.set() if bookie not in bookies.bookies else None
        )
        async with asyncio.timeout(PATIENCE_S):
            await gone.wait()
        watch.cancel()


def write_state(directory: pathlib.Path, lease_ms: int) -> None:
    """Write the state of a stopped cluster of three bookies into `bk-data`. `bk up` there continues it."""
    (directory / "bk-data").mkdir(parents=True)
    members = [{"id": f"b{number}", "pid": None, "host": None, "port": None} for number in (1, 2, 3)]
    settings = {"journal_preallocate_size": 1 << 20, "index_cache_size": 1 << 20}
    state = {"metadata": "", "lease_ms": lease_ms, "settings": settings, "bookies": members}
    (directory / "bk-data" / "cluster.json").write_text(json.dumps(state))
