"""Runs the code blocks of a tutorial page in order, and compares their output with the page.

    ```console                            commands after `$ `, each followed by its output
    ```console title="second terminal"    the same in another shell, which may still run a command
    ```python title="write.py"            a file
    ```python                             code, executed in this process
    ```text                               what the code before it printed

Commands that only query the cluster are repeated until they print what the page shows, as a reader would repeat them.
"""

from __future__ import annotations

import io
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from tests.live.command import Family, bk_process, write_state
from tests.live.page import Block, Command, blocks_of, is_shown

TUTORIALS = pathlib.Path(__file__).parents[2] / "docs" / "tutorial"
QUERY = re.compile(
    r"bk (status|bookie list|ledger (show|explain|read)|log (show|read|cursors)|recovery (status|list))\b"
    r"|python read\.py$"
)
FIRST_TERMINAL = ""
OUTPUT_TIMEOUT_S = 60.0
QUERY_INTERVAL_S = 0.5


def matches(shown: tuple[str, ...], printed: str) -> bool:
    """Report whether an output is what the page shows."""
    return is_shown(shown, tuple(printed.splitlines()))


def text_of(shown: tuple[str, ...]) -> str:
    return "\n".join(shown)


class Terminal:
    """A shell whose standard output and standard error are one text, as on a screen."""

    def __init__(self, directory: pathlib.Path, environment: dict[str, str]) -> None:
        self._end = f"end-of-command-{uuid.uuid4().hex}"
        self._text = ""
        self._changed = threading.Condition()
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def begin(self, command: str) -> None:
        """Start a command. Output from here on belongs to it."""
        assert self._shell.stdin is not None
        with self._changed:
            self._text = ""
        self._shell.stdin.write(f"{command}\necho {self._end}\n".encode())
        self._shell.stdin.flush()

    def output(self, timeout_s: float) -> str:
        """Return the whole output of the command, or the part that it has printed when the time is up."""
        with self._changed:
            self._changed.wait_for(self._has_ended, timeout_s)
            return self._printed()

    def expect(self, shown: tuple[str, ...], timeout_s: float) -> None:
        """Wait until a command that may still run has printed this, and forget the output."""
        with self._changed:
            is_printed = self._changed.wait_for(lambda: matches(shown, self._lines()), timeout_s)
            assert is_printed, f"expected:\n{text_of(shown)}\nprinted:\n{self._text}"
            self._text = self._text[len(self._lines()) :]

    def close(self) -> None:
        """Kill the shell and what runs in it, but not what `bk up` has started."""
        os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait()
        self._reader.join()
        for stream in (self._shell.stdin, self._shell.stdout):
            assert stream is not None
            stream.close()

    def _has_ended(self) -> bool:
        return self._end in self._text

    def _printed(self) -> str:
        return self._text.partition(self._end)[0]

    def _lines(self) -> str:
        """Return the complete lines: an unbuffered Python writes a line and its end separately."""
        printed = self._printed()
        return printed[: printed.rfind("\n") + 1]

    def _read(self) -> None:
        assert self._shell.stdout is not None
        while data := os.read(self._shell.stdout.fileno(), 65536):
            with self._changed:
                self._text += data.decode()
                self._changed.notify_all()


class Page:
    """A tutorial page and the terminals that its reader has open. Use as a context manager."""

    def __init__(self, path: pathlib.Path, directory: pathlib.Path, environment: dict[str, str]) -> None:
        self._path = path
        self._directory = directory
        bin_directory = os.path.dirname(sys.executable)
        self._environment = {**environment, "PATH": f"{bin_directory}{os.pathsep}{environment['PATH']}"}
        self._terminals: dict[str, Terminal] = {}
        self._names: dict[str, Any] = {"__name__": "tutorial"}
        self._printed = ""

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        for terminal in self._terminals.values():
            terminal.close()

    def run(self) -> None:
        """Run every block. Raise `AssertionError` with the line of the block that fails."""
        for block in blocks_of(self._path.read_text()):
            try:
                self._run_block(block)
            except AssertionError as error:
                raise AssertionError(f"{self._path.name}, line {block.line}: {error}") from None

    def _run_block(self, block: Block) -> None:
        if block.language == "console":
            for command in block.commands():
                self._run_command(block.title, command)
        elif block.language == "python" and block.title:
            (self._directory / block.title).write_text(block.text)
        elif block.language == "python":
            printed = io.StringIO()
            with redirect_stdout(printed):
                exec(compile(block.text, f"{self._path.name}, line {block.line}", "exec"), self._names)
            self._printed = printed.getvalue()
        elif block.language == "text":
            assert matches(tuple(block.text.splitlines()), self._printed), f"printed:\n{self._printed}"

    def _run_command(self, title: str, command: Command) -> None:
        if title not in self._terminals:
            self._terminals[title] = Terminal(self._directory, self._environment)
        terminal = self._terminals[title]
        if command.line:
            terminal.begin(command.line)
        if title != FIRST_TERMINAL:
            terminal.expect(command.shown, OUTPUT_TIMEOUT_S)
            return
        deadline = time.monotonic() + OUTPUT_TIMEOUT_S
        while not matches(command.shown, printed := terminal.output(OUTPUT_TIMEOUT_S)):
            problem = f"$ {command.line}\nexpected:\n{text_of(command.shown)}\nprinted:\n{printed}"
            assert QUERY.match(command.line), problem
            assert time.monotonic() < deadline, problem
            time.sleep(QUERY_INTERVAL_S)
            terminal.begin(command.line)


@contextmanager
def tutorial(name: str, directory: pathlib.Path) -> Iterator[Page]:
    """Open a page below docs/tutorial in a directory of its own. End every process that it starts."""
    family = Family()
    write_state(directory, lease_ms=2000)  # so that the commands notice a lost bookie soon
    try:
        with Page(TUTORIALS / name, directory, family.environment()) as opened:
            yield opened
    finally:
        bk_process("down", "--directory", directory / "bk-data", family=family)
        family.wait_gone()
