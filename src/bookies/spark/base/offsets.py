"""Positions of a streaming query as JSON, with one spelling per position. Pure functions, no Spark.

Spark compares offsets as text, so keys are sorted and values are integers and strings. Version 1:

    {"logs": {"orders": [12, 3400]}, "v": 1}      the extent's number in the log, and the next entry in it
    {"ledgers": {"17": 250}, "v": 1}              the next entry of each ledger
    {"at": "latest", "v": 1}                      before the first batch: where to begin, not resolved yet
    {"from": {...}, "logs": {...}, "v": 1}        the end of a batch that also records where it began
    {"gone": {...}, "logs": {...}, "v": 1}        the end of a batch that also records deletions

The end of an extent is spelled as the beginning of the next one. `from` records where logs begin that the previous
offset lacks: all of them in the first batch; later a new log of a pattern, or a recreated log. `gone` names logs and
ledgers that no longer exist, and where each ended when it was last seen: the rows up to there are missing. `tokens`,
which older versions did not write, identifies each log among others of its name.

Source: spark 3.6.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from bookies.errors import InvalidArgument

VERSION = 1
At = tuple[int, int]  # number of an extent, and an entry id in its ledger
Key = str | int  # a log by its name, or a ledger by its id


class Offset(Struct, frozen=True):
    """Position of a query in everything it reads. `origin`: beginnings of logs that the previous offset lacks.

    `tokens`: those known of the logs. `gone`: ends of logs and ledgers deleted since the previous offset.
    """

    positions: Mapping[Key, At]
    origin: Mapping[Key, At] = field(default_factory=dict)
    tokens: Mapping[Key, str] = field(default_factory=dict)
    gone: Mapping[Key, At] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        content = _spelled(self.positions)
        if self.origin:
            content["from"] = _spelled(self.origin)
        if self.gone:
            content["gone"] = _spelled(self.gone)
        if self.tokens:
            content["tokens"] = {
                str(key): token for key, token in sorted(self.tokens.items(), key=lambda item: str(item[0]))
            }
        content["v"] = VERSION
        return dict(sorted(content.items()))


def symbolic(at: str) -> dict[str, Any]:
    """Return the offset of a query that has not begun. `at`: where it will begin, as the options spell it."""
    return {"at": at, "v": VERSION}


def symbol(data: Mapping[str, Any]) -> str | None:
    """Return where to begin if the offset is symbolic, else None."""
    at = data.get("at")
    return None if at is None else str(at)


def parse(data: Mapping[str, Any]) -> Offset:
    """Parse an offset. Raises `InvalidArgument` for a malformed offset and for one of a later version."""
    if data.get("v") != VERSION:
        raise InvalidArgument(f'offset {json.dumps(data)}: this version of bookies reads those with "v": {VERSION}')
    tokens = data.get("tokens", {})
    if not isinstance(tokens, Mapping):
        raise InvalidArgument(f'offset {json.dumps(data)}: "tokens" is not an object')
    tokens = {str(name): str(token) for name, token in tokens.items()}
    return Offset(_parsed(data), _parsed(data.get("from", {})), tokens, _parsed(data.get("gone", {})))


def text(data: Mapping[str, Any]) -> str:
    """Return the text that Spark keeps in its checkpoint."""
    return json.dumps(data)


def _spelled(positions: Mapping[Key, At]) -> dict[str, Any]:
    logs = {key: list(at) for key, at in sorted((k, at) for k, at in positions.items() if isinstance(k, str))}
    ledgers = sorted((k, at) for k, at in positions.items() if isinstance(k, int))
    content: dict[str, Any] = {}
    if ledgers:
        content["ledgers"] = dict(sorted((str(key), at[1]) for key, at in ledgers))
    if logs or not ledgers:
        content["logs"] = logs
    return content


def _parsed(data: Mapping[str, Any]) -> dict[Key, At]:
    positions: dict[Key, At] = {}
    try:
        for name, (seq, entry_id) in data.get("logs", {}).items():
            positions[str(name)] = whole(seq), whole(entry_id)
        for ledger, entry_id in data.get("ledgers", {}).items():
            positions[int(ledger)] = 0, whole(entry_id)
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidArgument(
            f"offset {json.dumps(data)}: expected "
            '{"logs": {"NAME": [EXTENT, ENTRY]}, "v": 1} or {"ledgers": {"ID": ENTRY}, "v": 1}'
        ) from error
    return positions


def whole(number: Any) -> int:
    """Return the number if it is a whole number of 0 or more. Raises `ValueError`."""
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError(f"{number!r} is not a whole number of 0 or more")
    return number


# -- admission -------------------------------------------------------------------------------------------------------


def shares(backlogs: Mapping[Key, int], limit: int) -> dict[Key, int]:
    """Divide a limit in proportion to the backlogs. Each share is at most the backlog, and at least one.

    The shares add up to the limit, unless the backlogs are smaller in total or more keys have one than the limit.
    """
    pending = {key: backlog for key, backlog in backlogs.items() if backlog > 0}
    total = sum(pending.values())
    if total <= limit:
        return dict(pending)
    share_of = {key: max(1, limit * backlog // total) for key, backlog in pending.items()}
    left = limit - sum(share_of.values())
    for key in sorted(share_of, key=lambda candidate: (-pending[candidate], str(candidate))):
        more = max(0, min(left, pending[key] - share_of[key]))
        share_of[key] += more
        left -= more
    while left < 0 and any(share > 1 for share in share_of.values()):
        largest = max(share_of, key=lambda candidate: (share_of[candidate], str(candidate)))
        less = min(share_of[largest] - 1, -left)
        share_of[largest] -= less
        left += less
    return share_of
