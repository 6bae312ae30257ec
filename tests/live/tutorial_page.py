"""Runs the code blocks of a tutorial page in order, and compares their output with the page.

    ```console                            commands after `$ `, each followed by its output
    ```console title="second terminal"    the same in another shell, which may still run a command
    ```python title="write.py"            a file
    ```python                             code, executed in this process
    ```text                               what the code before it printed

In an expected output `...` alone on a line matches any number of lines, and elsewhere any part of a line. Commands
that only query the cluster are repeated until they print what the page shows, as a reader would repeat them.
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
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

FENCE = re.compile(r'^```(\w+)(?: title="([^"\n]*)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
QUERY = re.compile(
    r"bk (status|bookie list|ledger (show|explain|read)|log (show|read|cursors)|recovery (status|list))\b"
)
FIRST_TERMINAL = ""
OUTPUT_TIMEOUT_S = 60.0
QUERY_INTERVAL_S = 0.5


@dataclass(frozen=True)
class Block:
    """One fenced block. `title`: of a console its terminal, of Python its file."""

    language: str
    title: str
    code: str
    line: int


def blocks_of(text: str) -> list[Block]:
    """List the fenced blocks of a page."""
    return [
        Block(match[1], match[2] or "", match[3], text.count("\n", 0, match.start()) + 1)
        for match in FENCE.finditer(text)
    ]


def matches(expected: str, printed: str) -> bool:
    """Report whether an output is what the page shows."""
    pattern = "".join(
        r"(?:.*\n)*" if line == "...\n" else ".*".join(map(re.escape, line.split("...")))
        for line in expected.splitlines(keepends=True)
    )
    return re.fullmatch(pattern, printed) is not None


def commands_of(code: str) -> list[tuple[str, str]]:
    """Split a console block into commands and their outputs. The command \"\" stands for the one that still runs."""
    found: list[tuple[str, str]] = []
    for line in code.splitlines(keepends=True):
        if line.startswith("$ "):
            found.append((line[2:].rstrip("\n"), ""))
        else:
            command, expected = found.pop() if found else ("", "")
            found.append((command, expected + line))
    return found


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

    def expect(self, expected: str, timeout_s: float) -> None:
        """Wait until a command that may still run has printed this, and forget the output."""
        with self._changed:
            is_printed = self._changed.wait_for(lambda: matches(expected, self._printed()), timeout_s)
            assert is_printed, f"expected:\n{expected}\nprinted:\n{self._text}"
            self._text = self._text[len(self._printed()) :]

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
            for command, expected in commands_of(block.code):
                self._run_command(block.title, command, expected)
        elif block.language == "python" and block.title:
            (self._directory / block.title).write_text(block.code)
        elif block.language == "python":
            printed = io.StringIO()
            with redirect_stdout(printed):
                exec(compile(block.code, f"{self._path.name}, line {block.line}", "exec"), self._names)
            self._printed = printed.getvalue()
        elif block.language == "text":
            assert matches(block.code, self._printed.rstrip("\n") + "\n"), f"printed:\n{self._printed}"

    def _run_command(self, title: str, command: str, expected: str) -> None:
        if title not in self._terminals:
            self._terminals[title] = Terminal(self._directory, self._environment)
        terminal = self._terminals[title]
        if command:
            terminal.begin(command)
        if title != FIRST_TERMINAL:
            terminal.expect(expected, OUTPUT_TIMEOUT_S)
            return
        deadline = time.monotonic() + OUTPUT_TIMEOUT_S
        while not matches(expected, printed := terminal.output(OUTPUT_TIMEOUT_S)):
            assert QUERY.match(command), f"$ {command}\nexpected:\n{expected}\nprinted:\n{printed}"
            assert time.monotonic() < deadline, f"$ {command}\nexpected:\n{expected}\nprinted at last:\n{printed}"
            time.sleep(QUERY_INTERVAL_S)
            terminal.begin(command)
