"""Processes of `bk chaos` besides the bookies: network, store and clients, each in a session of its own.

Their standard input is a pipe whose other end the conductor holds: when it closes, also by the conductor's death, they
end.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bookies.errors import BookKeeperError
from bookies.lab.chaos.chaos_history import HistoryReader

CLIENT = (sys.executable, "-P", "-m", "bookies.lab.chaos.chaos_client")
APACHE = "a-"  # begins the roles of Apache's clients; an interface has 15 characters


class Program:
    """Process of any program. `log` receives stderr, and stdout unless `has_output`."""

    def __init__(self, command: Sequence[str], log: pathlib.Path, *, has_output: bool = False) -> None:
        self.log = log
        environment = {name: value for name, value in os.environ.items() if not name.startswith("BK_")}
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                command,
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

    def send(self, number: int) -> None:
        """Send a signal to the process."""
        self.process.send_signal(number)

    def read_line(self) -> bytes:
        """Return the next line of its output; b"" if it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end_input(self) -> None:
        """Ask the process to end."""
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
        """Kill the process, stopped or not, and release its pipes."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self.end_input()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def last_words(self) -> str:
        return last_line(self.log)


class ChaosProcess(Program):
    """Process of a module of `lab/chaos`.

    `parameters`: what its main program receives, see `chaos_child`. `prefix`: words before its command.
    """

    def __init__(
        self,
        module: str,
        log: pathlib.Path,
        parameters: Mapping[str, object],
        *,
        prefix: Sequence[str] = (),
        has_output: bool = False,
    ) -> None:
        command = [*prefix, sys.executable, "-P", "-m", module, json.dumps(parameters)]
        super().__init__(command, log, has_output=has_output)


class OrderedProcess(ChaosProcess):
    """Process that receives orders, see `chaos_proxy` and `chaos_switch`. `first`: the line that it printed at first.

    Raises `BookKeeperError` if it does not start.
    """

    def __init__(self, module: str, log: pathlib.Path, parameters: Mapping[str, object]) -> None:
        super().__init__(module, log, parameters, has_output=True)
        line = self.read_line()
        if not line:
            self.kill()
            raise BookKeeperError(f"{module.rpartition('_')[2]} did not start: {self.last_words()}")
        self.first: dict[str, Any] = json.loads(line)

    def order(self, action: str, **parameters: object) -> None:
        """Send an order."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": action, **parameters}).encode() + b"\n")
        self.process.stdin.flush()

    def finish(self) -> dict[str, int]:
        """Stop the process and return its statistics."""
        self.end_input()
        line = self.read_line()
        statistics: dict[str, int] = json.loads(line) if line else {}
        self.kill()
        return statistics


class ClientProcess(Program):
    """Client process, see `chaos_client`, or Apache's. `name`: role, number, and the count of its restarts, from 1.

    `command`: without its parameters, which are `metadata`, `bookies`, `least_ack_quorum` and what is known here.
    """

    def __init__(
        self,
        role: str,
        number: int,
        life: int,
        directory: pathlib.Path,
        seed: int,
        command: Sequence[str],
        **parameters: object,
    ) -> None:
        self.role, self.number, self.life = role, number, life
        self.is_apache = role.startswith(APACHE)
        self.name = f"{role}{number}.{life}"
        self.is_stopped = False
        history = str(directory / f"{self.name}.history")
        parameters |= {"role": role, "history": history, "seed": f"{seed}/{self.name}"}
        super().__init__([*command, json.dumps(parameters)], directory / f"{self.name}.log")
        self._history = HistoryReader(history)

    def read_new(self) -> Iterator[dict[str, Any]]:
        return self._history.read_new()

    def close(self) -> None:
        """Close the history. Call it after the end of the process."""
        self._history.close()

    def print_tasks(self) -> None:
        """Make the process print to its log what each of its tasks, or of its threads, waits for."""
        self.send(signal.SIGQUIT if self.is_apache else signal.SIGUSR1)


def last_line(log: pathlib.Path) -> str:
    """Return the last line of a process's log."""
    lines = log.read_text(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "its log is empty")
