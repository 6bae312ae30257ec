"""What a fuzz target is, and the oracles that several targets share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Target:
    """A decoder under test.

    `run`: accepts any bytes, and raises only for a violation. `seeds`: valid inputs, from which the search begins.
    `size_max`: bytes of an input.
    """

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], Sequence[bytes]]
    size_max: int = 2048


class Violation(Exception):
    """A decoder broke a promise."""


def check(holds: bool, problem: str, *facts: object) -> None:
    """Raise `Violation` unless a promise holds."""
    if not holds:
        raise Violation(f"{problem}: {', '.join(map(repr, facts))}")


def equal(got: object, wanted: object, problem: str) -> None:
    check(got == wanted, problem, got, wanted)


def accepted(errors: type[Exception] | tuple[type[Exception], ...], call: Callable[..., T], *args: Any) -> T | None:
    """Return what the decoder returns; None if it refuses the input with one of the documented errors."""
    try:
        return call(*args)
    except errors:
        return None


def round_trip(
    parse: Callable[[bytes], T | None],
    pack: Callable[[T], bytes],
    errors: type[Exception] | tuple[type[Exception], ...],
    data: bytes,
) -> T | None:
    """Parse; whatever is accepted must survive packing and parsing. Return the value; None if the input is refused."""
    value = accepted(errors, parse, data)
    if value is not None:
        equal(parse(pack(value)), value, "parse(pack(x)) is not x")
    return value


def pread(data: bytes) -> Callable[[int, int], bytes]:
    """Return a `pread` of a file with these bytes."""
    return lambda size, offset: data[offset : offset + size]


def numbers(data: bytes, count: int) -> tuple[list[int], bytes]:
    """Take `count` unsigned 16-bit numbers from the input; missing bytes are zeros."""
    head, rest = data[: 2 * count].ljust(2 * count, b"\0"), data[2 * count :]
    return [int.from_bytes(head[at : at + 2], "big") for at in range(0, 2 * count, 2)], rest
