"""`bk config`: write a file with every setting, show what is in effect and why, check a file."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from typing import Any

from bookies.admin.shared import UsageError
from bookies.admin.shared.command_line import MACHINE, Option, verb
from bookies.admin.shared.report import Report, Table
from bookies.settings import (
    TABLES,
    Layer,
    Problem,
    SettingsFile,
    check_agreement,
    names_file,
    problem_of,
    template,
    toml_text,
)

DEFAULT_FILE = "bk.toml"


def _init(arguments: argparse.Namespace) -> Report:
    try:
        with open(arguments.file, "x", encoding="utf-8") as file:
            file.write(template())
    except FileExistsError:
        raise UsageError(f"{arguments.file} exists, and was not changed: name another file") from None
    except OSError as error:
        raise UsageError(
            f"{arguments.file} cannot be written: {error.strerror}. Create its directory, or name another file"
        ) from error
    return Report(
        {"file": arguments.file},
        [f"wrote {arguments.file} with every setting as a comment; `bk config check {arguments.file}` checks it"],
    )


def _show(arguments: argparse.Namespace) -> Report:
    from bookies.configuration import VARIABLE, settings_of
    from bookies.settings import Resolved, rows_of

    if wrong := [table for table in arguments.tables if table not in TABLES]:
        raise UsageError(f"{wrong[0]} is no table of settings; there are {', '.join(TABLES)}")
    facts: dict[str, list[dict[str, Any]]] = {}
    for table in arguments.tables or TABLES:
        rows: list[dict[str, Any]] = []
        for kind in TABLES[table][0]:
            resolved: Resolved[Any] = settings_of(kind)
            rows += rows_of(resolved.config, resolved.origins)
        facts[table] = [_shown(row) for row in rows if row["source"] != "default" or not arguments.changed]
    path = os.environ.get(VARIABLE)
    return Report({"file": path, "settings": facts}, _text(path, facts))


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of `rows_of` for display: what a change needs, and no password."""
    from bookies.metadata.uri import without_password

    change = "run time" if row.pop("changeable") else "restart"
    value = without_password(row["value"]) if isinstance(row["value"], str) else row["value"]
    return row | {"value": value, "change": change}


def _text(path: str | None, facts: dict[str, list[dict[str, Any]]]) -> Iterator[str | Table]:
    yield f"file: {path or 'none; name one with --config or BK_CONFIG'}"
    for table, rows in facts.items():
        cells = [
            (row["name"], toml_text(row["value"]), row["unit"], row["where"] or row["source"], row["change"])
            for row in rows
        ]
        if cells:
            yield ""
            yield f"[{table}]"
            yield Table(("setting", "value", "unit", "from", "change"), cells)


# -- check -------------------------------------------------------------------------------------------------------------


def _check(arguments: argparse.Namespace) -> Report:
    path = arguments.file or os.environ.get("BK_CONFIG")
    if not path:
        raise UsageError("name the file: bk config check FILE")
    problems, warnings, kind = _findings(path)
    facts = {
        "file": path,
        "problems": [{"line": problem.line, "text": problem.text} for problem in problems],
        "warnings": warnings,
    }
    text = [*map(str, problems), *(f"{path}: note: {warning}" for warning in warnings)]
    end = (
        f"{path}: {len(problems)} {'problem' if len(problems) == 1 else 'problems'}" if problems else f"{path} is right"
    )
    return Report(facts, [*text, f"{end} ({kind})"], status=int(bool(problems)))


def _findings(path: str) -> tuple[list[Problem], list[str], str]:
    """Return what is wrong with a file, what is only different here, and the file's kind. Raises `ConfigError`."""
    if path.endswith((".conf", ".properties")):
        return _check_apache(path)
    from bookies.configuration import read_settings

    file = read_settings(path)
    problems = [*file.problems, *check_agreement(file), *_check_start(file)]
    return sorted(problems, key=lambda problem: problem.line), [], "bk.toml"


def _check_start(file: SettingsFile) -> Iterator[Problem]:
    """Yield what a bookie would refuse at its start: its name and address, its files, the metadata URI."""
    from bookies.bookie.identity import check_identity
    from bookies.bookie.transport.security import Security
    from bookies.config import BookieConfig, MetadataConfig
    from bookies.errors import ConfigError
    from bookies.metadata.uri import connect
    from bookies.runtime import aio
    from bookies.runtime.events import Events
    from bookies.settings import resolve

    runtime = aio.runtime()
    layer = file.tables.get("bookie", {})
    if layer:
        try:
            config = resolve(BookieConfig, layer).config
        except ConfigError:
            return  # `check_agreement` has reported it.
        try:
            check_identity(config)
            Security(runtime, config, Events("bookie", runtime.clock))
        except ConfigError as error:
            yield problem_of(error, file.path, layer)
    for table, others in file.tables.items():
        for name, given in others.items():
            is_open = table == "bookie" and (
                name != "users_file" or "authentication" in layer
            )  # `Security` has read it
            if given.value and names_file(name) and not is_open:
                try:
                    runtime.disk.read_bytes(given.value)
                except OSError as error:
                    yield problem_of(
                        ConfigError(f"{name}: {given.value} cannot be read: {error.strerror}"), file.path, others
                    )
    store: Layer = file.tables.get("metadata", {})
    if uri := resolve(MetadataConfig, store).config.uri:
        try:
            connect(uri, runtime)
        except ConfigError as error:
            yield problem_of(ConfigError(f"uri: {error.message}"), file.path, store)


def _check_apache(path: str) -> tuple[list[Problem], list[str], str]:
    """Check a file of Apache's bookie, or of its client if more of its keys are those of a client."""
    from bookies.admin.shared.apache_conf import ThisHost
    from bookies.apache.client import client_options, read_properties
    from bookies.apache.client_keys import CLIENT
    from bookies.apache.properties import key_lines
    from bookies.apache.server import bookie_options
    from bookies.apache.server_keys import SERVER
    from bookies.apache.table import Level, index
    from bookies.bookie.identity import check_identity
    from bookies.config import BookieConfig
    from bookies.errors import ConfigError
    from bookies.settings import resolve

    properties = dict(read_properties(path))
    with open(path, encoding="utf-8-sig") as file:
        lines = key_lines(file.read())
    known = {kind: len(properties.keys() & index(rows)) for kind, rows in (("server", SERVER), ("client", CLIENT))}
    problems: list[Problem] = []
    notices = []
    while True:
        try:
            if known["client"] > known["server"]:
                notices = list(client_options(properties).notices)
            else:
                options = bookie_options(properties, ThisHost())
                notices = options.notices
                check_identity(resolve(BookieConfig, options.layer(path)).config)
            break
        except ConfigError as error:
            key = next((word for word in re.findall(r"\w+", error.message) if word in lines), "")
            if not problems or key in properties:  # else a consequence of a key that was left out
                problems.append(Problem(path, lines.get(key, 0), error.message))
            if properties.pop(key, None) is None:
                break
    unknown = [notice for notice in notices if notice.level is Level.UNKNOWN]
    problems += [Problem(path, lines.get(notice.key, 0), str(notice)) for notice in unknown]
    kind = "a client's file of Apache" if known["client"] > known["server"] else "a bookie's file of Apache"
    return problems, [str(notice) for notice in notices if notice not in unknown], kind


VERBS = (
    verb(
        "config init",
        "write a file with every setting as a comment: help, unit, range and default",
        "bk config init /etc/bookies/bk.toml",
        _init,
        Option("file FILE", f"file to create (default: {DEFAULT_FILE})", values="?", default=DEFAULT_FILE),
        description="An existing file is never changed.",
        shared=MACHINE,
    ),
    verb(
        "config show",
        "print each setting in effect and where it comes from: default, file and line, variable",
        "bk config show bookie --config bk.toml --changed",
        _show,
        Option("tables TABLE", f"tables to print: {', '.join(TABLES)} (default: all)", values="*"),
        Option("--changed", "print only settings that are not the default", bool),
        description="Variables override the file, options of a command override both. `bk bookie settings` prints what "
        "a running bookie uses, and changes what may change at run time. JSON also has defaults and help.",
        shared=MACHINE,
    ),
    verb(
        "config check",
        "check a file of settings, bk.toml or Apache's *.conf and *.properties, as a bookie does at its start",
        "bk config check bk.toml",
        _check,
        Option("file FILE", "file to check (default: BK_CONFIG)", values="?"),
        description="Prints each unknown name with the nearest one, each wrong type and value, and contradictions, "
        "with their lines. Exit status: 0 right, 1 wrong, 2 not readable.",
        shared=MACHINE,
    ),
)
