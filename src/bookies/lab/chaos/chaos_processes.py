"""The processes of `bk chaos` besides the bookies: the proxy and the clients, each in a session of its own.

Their standard input is a pipe whose other end the conductor holds: when it closes, for whatever reason, they end.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from bookies.errors import BookKeeperError
from bookies.lab.chaos.chaos_history import HistoryReader


class ChaosProcess:
    """One process and its log. `stderr` and what is not read of its output go to `log`."""

    def __init__(self, module: str, arguments: list[str], log: pathlib.Path, *, has_output: bool = False) -> None:
        self.log = log
        environment = {name: value for name, value in os.environ.items() if not name.startswith("BK_")}
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if has_output else file,
                stderr=file,
                env=environment,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def end_input(self) -> None:
        """Ask it to end."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def wait(self, timeout_s: float) -> bool:
        try:
            self.process.wait(max(0.0, timeout_s))
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End it at once, stopped or not."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self.end_input()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def last_words(self) -> str:
        return last_line(self.log)


class ProxyProcess(ChaosProcess):
    """See `chaos_proxy`. `ports`: where clients reach each bookie. Raises `BookKeeperError` when it does not start."""

    def __init__(self, bookies: list[str], log: pathlib.Path) -> None:
        super().__init__("bookies.lab.chaos.chaos_proxy", bookies, log, has_output=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.kill()
            raise BookKeeperError(f"the proxy did not start: {self.last_words()}")
        self.ports: dict[str, int] = json.loads(line)["ports"]

    def tell(self, what: str, **order: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": what, **order}).encode() + b"\n")
        self.process.stdin.flush()

    def finish(self) -> dict[str, int]:
        """Stop it; its statistics."""
        self.end_input()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found: dict[str, int] = json.loads(line) if line else {}
        self.kill()
        return found


class ClientProcess(ChaosProcess):
    """See `chaos_client`. `name`: its role and number, and which of those that follow each other it is."""

    def __init__(
        self,
        role: str,
        number: int,
        life: int,
        directory: pathlib.Path,
        metadata_uri: str,
        seed: str,
        bookies: int,
        least_ack_quorum: int,
    ) -> None:
        self.role, self.number, self.life = role, number, life
        self.name = f"{role}{number}.{life}"
        self.is_stopped = False
        history = directory / f"{self.name}.history"
        arguments = [role, "--metadata", metadata_uri, "--history", str(history)]
        arguments += ["--seed", f"{seed}/{self.name}", "--bookies", str(bookies)]
        arguments += ["--least-ack-quorum", str(least_ack_quorum)]
        super().__init__("bookies.lab.chaos.chaos_client", arguments, directory / f"{self.name}.log")
        self._history = HistoryReader(str(history))

    def read_new(self) -> Iterator[dict[str, Any]]:
        return self._history.read_new()

    def close(self) -> None:
        """After its end."""
        self._history.close()

    def print_tasks(self) -> None:
        """Into its log: what it waits for."""
        self.process.send_signal(signal.SIGUSR1)


def last_line(log: pathlib.Path) -> str:
    """What a process said last."""
    lines = log.read_text(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "nothing")
