"""Selection of logs and ledgers, and of the positions to start and end at, by a query's options. Pure functions.

The start is kept as text because the first offset of a streaming query is text: see `offsets.symbolic`.
Source: spark 3.3.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from bookies.distributedlog.formats.log_names import check_name
from bookies.encoding.documents import parse_json
from bookies.errors import InvalidArgument
from bookies.protocol.log.log_model import check_log_name, parse_position
from bookies.spark.base.extents import Extents
from bookies.spark.base.offsets import At, Key, whole
from bookies.spark.base.options import json_object

SELECTIONS = ("subscribe", "subscribePattern", "assign", "ledger", "ledgers", "label", "path", "paths")
EARLIEST, LATEST = "earliest", "latest"
TIMESTAMP, TIMESTAMPS, OFFSETS = "timestamp:", "timestamps:", "offsets:"
ASSIGN_EXAMPLE = '{"logs": {"orders": [0, 99]}, "ledgers": {"17": [0, null]}}'
OFFSETS_EXAMPLE = '{"orders": 3400} (row numbers), {"orders": "earliest"}, or the offset of a query, {"logs": {...}}'


class Selection(Struct, frozen=True):
    """Logs and ledgers by name, a pattern of log names, or a label of ledgers.

    `bounds`: first and last row of those that are read in part; a last row of None: no end.
    """

    keys: tuple[Key, ...] = ()
    pattern: str | None = None
    label: tuple[str, str] | None = None
    bounds: Mapping[Key, tuple[int, int | None]] = field(default_factory=dict)


def selection(options: Mapping[str, str]) -> Selection:
    """Return the selection that the options name. Raises `InvalidArgument`."""
    named = [name for name in SELECTIONS if name in options]
    if len(named) != 1:
        given = f"got {' and '.join(named)}" if named else "got none"
        raise InvalidArgument(
            "choose what to read with exactly one of subscribe, subscribePattern, assign, ledger, ledgers, label, "
            f"load(...): {given}"
        )
    [name] = named
    value = options[name]
    if name == "subscribe":
        check = check_name if "namespace" in options else check_log_name
        return Selection(tuple(dict.fromkeys(check(log_name.strip()) for log_name in value.split(","))))
    if name == "subscribePattern":
        try:
            re.compile(value)
        except re.error as error:
            raise InvalidArgument(f"option subscribePattern={value!r} is not a regular expression: {error}") from error
        return Selection(pattern=value)
    if name == "label":
        label, equals, wanted = value.partition("=")
        if not equals:
            raise InvalidArgument(f"option label={value!r}: expected NAME=VALUE")
        return Selection(label=(label, wanted))
    return _assigned(options) if name == "assign" else Selection(_ledgers(name, value))


def _ledgers(name: str, value: str) -> tuple[Key, ...]:
    try:
        numbers = parse_json(value) if name == "paths" else value.split(",")
        return tuple(dict.fromkeys(whole(int(number)) for number in numbers))
    except (ValueError, TypeError) as error:
        given = f"load({value!r})" if name in ("path", "paths") else f"{name}={value!r}"
        raise InvalidArgument(
            f'ledgers are named by number: ledgers="17,18" or load("17"); logs by option subscribe; got {given}'
        ) from error


def _assigned(options: Mapping[str, str]) -> Selection:
    content = json_object(options, "assign", ASSIGN_EXAMPLE)
    bounds: dict[Key, tuple[int, int | None]] = {}
    try:
        if not content or not set(content) <= {"logs", "ledgers"}:
            raise ValueError(f"keys {', '.join(content) or 'none'}")
        for name, rows in content.get("logs", {}).items():
            bounds[check_log_name(name)] = _bounds(rows)
        for ledger, entries in content.get("ledgers", {}).items():
            bounds[whole(int(ledger))] = _bounds(entries)
    except InvalidArgument:
        raise
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidArgument(
            f"option assign={options['assign']!r}: expected the first and last row of each log, and the first and "
            f"last entry of each ledger, such as {ASSIGN_EXAMPLE}; null is the end ({error})"
        ) from error
    for key, (first, last) in bounds.items():
        if last is not None and last < first:
            labels = ("rows", f"log {key}") if isinstance(key, str) else ("entries", f"ledger {key}")
            raise InvalidArgument(
                f"option assign: {labels[0]} {first} to {last} of {labels[1]} are not a range: exchange them"
            )
    return Selection(tuple(bounds), bounds=bounds)


def _bounds(pair: Any) -> tuple[int, int | None]:
    if pair is None:
        return 0, None
    first, last = pair
    return whole(first), None if last is None else whole(last)


# -- starting and ending positions -----------------------------------------------------------------------------------


def where(options: Mapping[str, str], side: str, default: str) -> str:
    """Return where to start or end as text: a constant of this module, or a prefix and its value.

    `side`: starting or ending. Raises `InvalidArgument`.
    """
    names = [f"{side}Offsets", f"{side}Timestamp", f"{side}OffsetsByTimestamp"]
    given = [name for name in names if name in options]
    if len(given) > 1:
        raise InvalidArgument(f"options {' and '.join(given)} contradict each other: give one of them")
    if not given:
        return default
    [name] = given
    if name == names[1]:
        text = options[name].strip() or "0"
        if not (text.isascii() and text.isdigit()):
            raise InvalidArgument(f"option {name}={text!r}: expected a whole number")
        return f"{TIMESTAMP}{int(text)}"
    if name == names[2]:
        content = json_object(options, name, '{"orders": 1795284255562} (milliseconds since 1970)')
        return TIMESTAMPS + json.dumps(content, sort_keys=True)
    text = options[name].strip()
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    content = json_object(options, name, f"{EARLIEST}, {LATEST}, {OFFSETS_EXAMPLE}")
    return OFFSETS + json.dumps(content, sort_keys=True)


def check_named(at: str, chosen: Selection, side: str) -> None:
    """Check that the query reads every log and ledger that `at` names. Raises `InvalidArgument`.

    A query by label is not checked: its ledgers are not known yet.
    """
    prefix = next((candidate for candidate in (TIMESTAMPS, OFFSETS) if at.startswith(candidate)), None)
    if prefix is None or chosen.label is not None:
        return
    content = parse_json(at.removeprefix(prefix))
    option = f"{side}Offsets{'ByTimestamp' if prefix == TIMESTAMPS else ''}"
    parts = [content[part] for part in ("logs", "ledgers") if isinstance(content.get(part), dict)]
    read = {str(key) for key in chosen.keys}
    for name in (name for part in parts or [content] for name in part):
        if name not in read and (chosen.pattern is None or re.fullmatch(chosen.pattern, name) is None):
            raise InvalidArgument(
                f"option {option} names {name}, which is not read: remove it, or add it to the selection"
            )


def time_of(at: str, key: Key) -> int | None:
    """Return milliseconds since 1970 if `at` is a time, else None.

    Raises `InvalidArgument` if it has no time for this log.
    """
    if at.startswith(TIMESTAMP):
        return int(at.removeprefix(TIMESTAMP))
    if not at.startswith(TIMESTAMPS):
        return None
    try:
        return whole(parse_json(at.removeprefix(TIMESTAMPS))[str(key)])
    except (KeyError, ValueError) as error:
        raise InvalidArgument(f"by timestamp: milliseconds since 1970 are missing for {key} ({error})") from error


def at_of(at: str, extents: Extents) -> At:
    """Return the position in one log or ledger that `at`, which is not a time, names. Raises `InvalidArgument`."""
    if at == EARLIEST:
        return extents.beginning
    if at == LATEST:
        return extents.end
    content = parse_json(at.removeprefix(OFFSETS))
    named = content.get("logs" if extents.is_log else "ledgers", content)
    value = named.get(str(extents.key)) if isinstance(named, dict) else None
    try:
        if value in (EARLIEST, -2):
            return extents.beginning
        if value in (LATEST, -1):
            return extents.end
        if isinstance(value, str):
            return extents.at_position(parse_position(value))
        if isinstance(value, list):
            seq, entry_id = value
            return extents.placed((whole(seq), whole(entry_id)))
        if not extents.has_numbers:
            raise ValueError("its rows have no numbers: give [SEGMENT, ENTRY]")
        return extents.at_row(whole(value)) if extents.is_log else extents.placed((0, whole(value)))
    except (ValueError, TypeError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(
            f"offsets: {extents} is given {value!r}, which is not a position; expected {OFFSETS_EXAMPLE}"
        ) from error
