"""The table of verbs that the HTTP server carries: path, method, role. Both sides and the documentation use it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from bookies.admin.shared.command_line import OneOf, Option, Verb
from bookies.admin.shared.usage import UsageError
from bookies.protocol.rights import Role
from bookies.web.apache_bookie import API

REPORT = "application/vnd.bookies.report+json"  # facts and text of a report, for `bk --server`
THIS_BOOKIE = "-"  # the bookie that answers
PAGE_SIZE, PAGE_SIZE_MAX = 100, 1000  # rows of a page
PAGED = {"ledger list": "ledger", "bookie list": "bookie", "log list": ""}  # with the field that orders their rows


class Exposed(Struct, frozen=True):
    """One verb at one path. `options`: the fields that a call may set, besides the placeholders of the path.

    `watched`: a verb that reads, whose facts before and after a change are in the audit line. `is_list`: may be long,
    so few run at a time.
    """

    method: str
    path: str
    words: str
    options: tuple[str, ...] = ()
    role: Role = Role.VIEWER
    watched: str = ""
    is_list: bool = False

    @property
    def full_path(self) -> str:
        return f"{API}{self.path}"


def _change(
    path: str,
    words: str,
    options: str = "",
    *,
    watched: str = "",
    method: str = "POST",
    role: Role = Role.OPERATOR,
) -> Exposed:
    return Exposed(method, path, words, tuple(options.split()), role, watched)


LISTED = ("label", "bookie", "state", "under_replicated", "after", "limit")
_BOOKIE, _LEDGER = "/bookies/{bookie}", "/ledgers/{ledger}"
EXPOSED = (
    Exposed("GET", "/status", "status", ("count",), is_list=True),
    Exposed("GET", "/health", "cluster health", is_list=True),
    Exposed("GET", "/cluster", "cluster info"),
    Exposed("GET", "/bookies", "bookie list", ("mode", "space", "after", "limit"), is_list=True),
    Exposed("GET", "/balance", "bookie balance", ("why", "tolerance"), is_list=True),
    Exposed("GET", _BOOKIE, "bookie show"),
    Exposed("GET", f"{_BOOKIE}/state", "bookie state"),
    Exposed("GET", f"{_BOOKIE}/disks", "bookie disks"),
    Exposed("GET", f"{_BOOKIE}/owed", "bookie owed"),
    Exposed("GET", f"{_BOOKIE}/space", "bookie space"),
    Exposed("GET", f"{_BOOKIE}/orphans", "bookie orphans"),
    Exposed("GET", f"{_BOOKIE}/settings", "bookie settings"),
    _change(f"{_BOOKIE}/settings", "bookie settings", "set dry_run", method="PATCH"),
    Exposed("GET", f"{_BOOKIE}/scrub", "bookie scrub"),
    _change(f"{_BOOKIE}/scrub", "bookie scrub", "now suspend resume", watched="bookie scrub"),
    _change(f"{_BOOKIE}/gc", "bookie gc", "force surplus suspend resume", watched="bookie space"),
    _change(f"{_BOOKIE}/compact", "bookie compact", "minor major", watched="bookie space"),
    _change(f"{_BOOKIE}/read-only", "bookie read-only", watched="bookie state"),
    _change(f"{_BOOKIE}/read-write", "bookie read-write", watched="bookie state"),
    _change(f"{_BOOKIE}/undelete/{{ledger}}", "bookie undelete"),
    Exposed("GET", f"{_BOOKIE}/entry-logs/{{log}}/why", "bookie why-not-deleted"),
    Exposed("GET", f"{_BOOKIE}/slow", "why slow", ("since",)),
    Exposed("GET", "/drains", "bookie drain", is_list=True),
    _change(f"{_BOOKIE}/drain", "bookie drain", "seal_open cancel dry_run", watched="bookie drain"),
    Exposed("GET", "/maintenance", "bookie maintenance"),
    _change(
        f"{_BOOKIE}/maintenance",
        "bookie maintenance",
        "duration end reason force dry_run",
        watched="bookie maintenance",
    ),
    Exposed("GET", "/ledgers", "ledger list", LISTED, is_list=True),
    Exposed("GET", _LEDGER, "ledger show"),
    Exposed("GET", f"{_LEDGER}/explain", "ledger explain"),
    Exposed("GET", f"{_LEDGER}/entries/{{entry}}/explain", "ledger explain"),
    _change(_LEDGER, "ledger delete", "dry_run yes", watched="ledger show", method="DELETE", role=Role.ADMINISTRATOR),
    Exposed("GET", "/logs", "log list", ("prefix", "after", "limit"), is_list=True),
    Exposed("GET", "/logs/{log}", "log show"),
    Exposed("GET", "/logs/{log}/cursors", "log cursors"),
    Exposed("GET", "/metadata/changes", "metadata changes"),
    Exposed("GET", "/metadata/orphans", "metadata orphans", is_list=True),
    Exposed("GET", "/recovery", "recovery status"),
    Exposed("GET", "/recovery/ledgers", "recovery list", ("missing", "not_missing", "limit"), is_list=True),
    Exposed("GET", "/recovery/ledgers/{ledger}", "recovery why"),
    _change("/recovery/enable", "recovery enable"),
    _change("/recovery/disable", "recovery disable"),
    _change("/recovery/audit", "recovery audit", "checks"),
    Exposed("GET", "/recovery/delay", "recovery delay"),
    _change("/recovery/delay", "recovery delay", "seconds", watched="recovery delay", method="PUT"),
)


def options_of(verb: Verb) -> Iterator[tuple[str, Option]]:
    """Yield the options of a verb with their fields in the namespace."""
    for option in verb.options:
        for single in option.options if isinstance(option, OneOf) else (option,):
            yield single.field or single.name.partition(" ")[0].lstrip("-").replace("-", "_"), single


def unset(option: Option) -> Any:
    """Return the value of an option that is not given."""
    return [] if option.may_repeat else False if option.kind is bool else option.default


def namespace(verb: Verb, values: Mapping[str, object]) -> argparse.Namespace:
    """Return the arguments of a verb. `values`: text, or what JSON has. Raises `UsageError`."""
    noun, _, word = verb.name.partition(" ")
    arguments = argparse.Namespace(noun=noun, verb=word, metadata=None)
    for field, option in options_of(verb):
        value = values.get(field)
        try:
            setattr(arguments, field, unset(option) if value is None else _converted(option, value))
        except (ValueError, TypeError, argparse.ArgumentTypeError) as error:
            raise UsageError(f"{field}={value}: {error}") from error
    arguments.json = True  # the verb returns its result, and prints nothing
    _check_exclusive(verb, arguments)
    return arguments


def _converted(option: Option, value: object) -> object:
    if option.may_repeat:
        if not isinstance(value, list):
            raise ValueError("a list is needed")
        return [option.kind(str(item)) for item in value]
    if option.kind is bool:
        text = str(value).lower()
        if text not in ("true", "false", "1", "0"):
            raise ValueError("true or false is needed")
        return text in ("true", "1")
    if option.choices is not None and value not in option.choices:
        raise ValueError(f"must be one of {', '.join(option.choices)}")
    return option.kind(str(value))


def _check_exclusive(verb: Verb, arguments: argparse.Namespace) -> None:
    fields = {option.name: field for field, option in options_of(verb)}
    for group in verb.options:
        if isinstance(group, OneOf):
            given = [
                option.name.partition(" ")[0]
                for option in group.options
                if getattr(arguments, fields[option.name]) not in (None, False)
            ]
            if len(given) > 1:
                raise UsageError(f"{' and '.join(given)} exclude each other")
