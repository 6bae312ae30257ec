"""`bk` as its users meet it: in this process where that is enough, as a process where signals or limits matter."""

from __future__ import annotations

import ctypes
import io
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

from bookies.admin import cli

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2


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
    text = out.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert "Traceback" not in err.getvalue(), err.getvalue()
    return Done(status, text, err.getvalue())


def drop_root() -> None:
    """In a child before it executes: even root obeys the permissions of files from here on."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None)
        for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
            assert libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0


@contextmanager
def started(
    *words: object, cwd: pathlib.Path | None = None, stdin: int | None = subprocess.PIPE, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """A command as a process in a session of its own, killed when the block is left."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BK_")}
    command = [sys.executable, "-m", "bookies.admin.cli", *(str(word) for word in words)]
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdin=stdin,
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


def finish(process: subprocess.Popen[str], number: int | None = None, timeout_s: float = 60) -> Done:
    """Wait for the end, after a signal if one is given."""
    if number is not None:
        process.send_signal(number)
    out, err = process.communicate(timeout=timeout_s)
    assert "Traceback" not in err, err
    return Done(process.returncode, out, err)


def bk_process(*words: object, cwd: pathlib.Path | None = None, stdin: str = "", **options: Any) -> Done:
    """Run a command as a process to its end."""
    with started(*words, cwd=cwd, **options) as process:
        out, err = process.communicate(stdin, timeout=60)
    assert "Traceback" not in err, err
    return Done(process.returncode, out, err)


def descendants(pid: int) -> list[int]:
    """Processes below this one now, at any depth."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                text = pathlib.Path("/proc", name, "stat").read_text()
            except OSError:
                continue
            fields = text.rpartition(")")[2].split()
            if fields[0] != "Z":
                parents.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    below: Sequence[int] = [pid]
    while below:
        below = [child for each in below for child in parents.get(each, ())]
        found += below
    return found
