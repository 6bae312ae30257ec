"""Pages of the documentation: their fenced blocks, the commands in them, and the comparison of outputs.

In an expected output `...` alone on a line matches any number of lines, and elsewhere any part of a line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

FENCE = re.compile(r'^( *)```(\w*)(?: title="([^"\n]*)")?\n(.*?)^ *```$', re.DOTALL | re.MULTILINE)
ANY = "..."


@dataclass(frozen=True)
class Command:
    """One command of a block. `shown`: the lines below it, without line ends, which are its expected output."""

    line: str
    shown: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """One fenced block. `title`: the terminal of a console, the file of a program. `indent`: that of its lines."""

    language: str
    title: str
    text: str
    line: int
    indent: str

    def commands(self) -> list[Command]:
        """Split a block into the commands after `$ ` and their outputs.

        A console block that begins with output continues the command of the block before; its line is then empty.
        """
        commands: list[Command] = []
        lines = iter(line.removeprefix(self.indent).rstrip() for line in self.text.splitlines())
        for line in lines:
            if line.startswith("$ "):
                command = line.removeprefix("$ ")
                while command.endswith("\\"):
                    command = command[:-1] + next(lines).strip()
                commands.append(Command(command, ()))
            elif commands or self.language == "console":
                last = commands.pop() if commands else Command("", ())
                commands.append(Command(last.line, (*last.shown, line)))
        return commands


def blocks_of(text: str) -> list[Block]:
    """List the fenced blocks of a page."""
    return [
        Block(match[2], match[3] or "", match[4], text.count("\n", 0, match.start()) + 1, match[1])
        for match in FENCE.finditer(text)
    ]


def is_shown(shown: tuple[str, ...], lines: tuple[str, ...], shape: Callable[[str], str] = str) -> bool:
    """Report whether an output is what the page shows, when `shape` is applied to the lines of both.

    Empty lines at the end do not count.
    """
    pattern = "".join(
        r"(?:.*\n)*" if line.strip() == ANY else ".*".join(re.escape(shape(part)) for part in line.split(ANY)) + "\n"
        for line in without_empty_end(shown)
    )
    return re.fullmatch(pattern, "".join(f"{shape(line)}\n" for line in without_empty_end(lines))) is not None


def without_empty_end(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Return the lines without empty ones at the end."""
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    return lines
