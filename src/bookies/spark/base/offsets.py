"""Positions of a streaming query as JSON: one spelling for one position. Pure functions, no Spark.

Spark compares offsets as text, so keys are sorted and there are only integers and strings in it. Version 1:

    {"logs": {"orders": [12, 3400]}, "v": 1}      the extent's number in the log, and the next entry in it
    {"ledgers": {"17": 250}, "v": 1}              the next entry of each ledger
    {"at": "latest", "v": 1}                      before the first batch: where to begin, not resolved yet
    {"from": {...}, "logs": {...}, "v": 1}        the end of a batch that also says where it began
    {"gone": {...}, "logs": {...}, "v": 1}        the end of a batch that also tells what was deleted

An extent that was read to its end is spelled as the beginning of the next one. `from` says where those logs begin that
the offset before did not have: all of them in the first batch, a new one of a pattern in a later one, one that was
made again. `gone` says which do not exist any more, and where each ended when it was last seen: that far its rows are
missing. `tokens`, which older versions did not write, tells each log from others of its name.

Source: spark 3.6.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bookies.errors import InvalidArgument

VERSION = 1
At = tuple[int, int]  # number of an extent, and an entry id in its ledger
Key = str | int  # a log by its name, or a ledger by its id


@dataclass(frozen=True, slots=True)
class Offset:
    """Where a query is in everything it reads. `origin`: where those began that the offset before did not have.

    `tokens`: of the logs, those that are known. `gone`: where those ended that were deleted since the offset before.
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
                str(key): token for key, token in sorted(self.tokens.items(), key=lambda each: str(each[0]))
            }
        content["v"] = VERSION
        return dict(sorted(content.items()))


def symbolic(at: str) -> dict[str, Any]:
    """The offset of a query that has not begun: `at` says where it will, in the words of the options."""
    return {"at": at, "v": VERSION}


def symbol(data: Mapping[str, Any]) -> str | None:
    """Where to begin, if that is all the offset says."""
    at = data.get("at")
    return None if at is None else str(at)


def parse(data: Mapping[str, Any]) -> Offset:
    """Raises `InvalidArgument` for what no version wrote, and for what a later one did."""
    if data.get("v") != VERSION:
        raise InvalidArgument(f'offset {json.dumps(data)}: this version of bookies reads those with "v": {VERSION}')
    tokens = data.get("tokens", {})
    if not isinstance(tokens, Mapping):
        raise InvalidArgument(f"offset {json.dumps(data)}: tokens are no object")
    tokens = {str(name): str(token) for name, token in tokens.items()}
    return Offset(_parsed(data), _parsed(data.get("from", {})), tokens, _parsed(data.get("gone", {})))


def text(data: Mapping[str, Any]) -> str:
    """As Spark keeps it in its checkpoint."""
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
    found: dict[Key, At] = {}
    try:
        for name, (seq, entry_id) in data.get("logs", {}).items():
            found[str(name)] = whole(seq), whole(entry_id)
        for ledger, entry_id in data.get("ledgers", {}).items():
            found[int(ledger)] = 0, whole(entry_id)
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidArgument(
            f"offset {json.dumps(data)}: expected "
            '{"logs": {"NAME": [EXTENT, ENTRY]}, "v": 1} or {"ledgers": {"ID": ENTRY}, "v": 1}'
        ) from error
    return found


def whole(number: Any) -> int:
    """A whole number of 0 or more. Raises `ValueError`."""
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError(f"{number!r} is no whole number of 0 or more")
    return number


# -- admission -------------------------------------------------------------------------------------------------------


def shares(backlogs: Mapping[Key, int], limit: int) -> dict[Key, int]:
    """What each may have of a limit: in proportion to its backlog, never more than that, and at least one.

    The sum is the limit, unless there is less to share out or there are more that have something than that.
    """
    having = {key: backlog for key, backlog in backlogs.items() if backlog > 0}
    total = sum(having.values())
    if total <= limit:
        return dict(having)
    found = {key: max(1, limit * backlog // total) for key, backlog in having.items()}
    left = limit - sum(found.values())
    for key in sorted(found, key=lambda each: (-having[each], str(each))):
        more = max(0, min(left, having[key] - found[key]))
        found[key] += more
        left -= more
    while left < 0 and any(share > 1 for share in found.values()):
        largest = max(found, key=lambda each: (found[each], str(each)))
        less = min(found[largest] - 1, -left)
        found[largest] -= less
        left += less
    return found
