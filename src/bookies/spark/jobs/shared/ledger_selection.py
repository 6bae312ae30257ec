"""Selection of a job's ledgers: by number, by log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from bookies.errors import InvalidArgument
from bookies.spark.jobs.shared.common import Option
from bookies.units import parse_duration

if TYPE_CHECKING:
    from bookies.client.client import Client
    from bookies.model import LedgerMetadata
    from bookies.protocol.log import Manifest

OPTIONS = (
    Option("ledgers", None, "only these ledgers, by id: 17,18,20-29", metavar="LIST"),
    Option("log", None, "only ledgers of these logs: orders,returns", metavar="NAMES"),
)


def seconds_of(name: str, text: str) -> float:
    """Return the seconds of `90s`, `15m`, `24h`, `7d`. Raises `InvalidArgument`."""
    seconds = parse_duration(str(text))
    if seconds is None:
        raise InvalidArgument(f"{name}={text!r}: expected a whole number and s, m, h or d, such as 7d")
    return seconds


def numbers_of(text: str) -> list[int]:
    """Return the numbers of `17,18,20-29`. Raises `InvalidArgument`."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not all(bound.isascii() and bound.isdigit() for bound in ([first, last] if dash else [first])):
            raise InvalidArgument(f"ledgers={text!r}: expected numbers, such as 17,18,20-29")
        if dash and int(last) < int(first):
            raise InvalidArgument(
                f"ledgers={text!r}: {part.strip()} ends before it begins; did you mean {last}-{first}?"
            )
        numbers += range(int(first), int(last if dash else first) + 1)
    return list(dict.fromkeys(numbers))


def logs_of(text: str | None) -> list[str]:
    """Return the names of logs. Raises `InvalidArgument` for an invalid name."""
    from bookies.protocol.log.log_model import check_log_name

    return [check_log_name(name.strip()) for name in text.split(",")] if text else []


class Selected(Struct, frozen=True):
    """The selected ledgers. `records`: in the order in which they were named, or by id. `manifests`: of named logs."""

    records: tuple[LedgerMetadata, ...]
    manifests: Mapping[str, Manifest]


async def select(client: Client, options: Mapping[str, Any]) -> Selected:
    """Return the ledgers that `OPTIONS` select; without options all of them.

    Raises `LedgerNotFound`, `LogNotFound`, `InvalidArgument`.
    """
    numbers, names = options.get("ledgers"), logs_of(options.get("log"))
    if numbers and names:
        raise InvalidArgument("ledgers and log contradict each other: give one of them")
    manifests = {name: await client.log(name).manifest() for name in names}
    if names:
        ids = list(dict.fromkeys(ledger_id for manifest in manifests.values() for ledger_id in manifest.storages))
    elif numbers:
        ids = numbers_of(numbers)
    else:
        return Selected(tuple([record async for record in client.ledgers()]), {})
    return Selected(tuple([await client.metadata(ledger_id) for ledger_id in ids]), manifests)
