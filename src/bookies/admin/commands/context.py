"""`bk context`: names for clusters, and which of them commands use."""

from __future__ import annotations

import argparse
import os
import re
import sys

from bookies.admin.shared import UsageError, contexts
from bookies.admin.shared.command_line import MACHINE, OneOf, Option, verb
from bookies.admin.shared.common import find_data_directory
from bookies.admin.shared.contexts import Context
from bookies.admin.shared.report import Report, Table

_FORM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _add(arguments: argparse.Namespace) -> Report:
    name = arguments.name
    if not _FORM.fullmatch(name):
        raise UsageError(f"{name!r} is no name of a context: 1 to 64 letters, digits, - . _ , the first no mark")
    if arguments.metadata and (arguments.authority or arguments.token_file or arguments.token):
        raise UsageError("--authority, --token-file and --token are for --server")
    if arguments.metadata:
        from bookies.metadata.uri import connect
        from bookies.runtime import aio

        connect(arguments.metadata, aio.runtime(), may_create=False)  # checks the URI; the store is not opened
    else:
        from bookies.admin.remote.remote_client import Server

        Server(arguments.server, "", "")
    known = contexts.load()
    if name in known.by_name:
        raise UsageError(f"there is a context {name} already: `bk context remove {name}` first, or choose another name")
    token_file = os.path.abspath(arguments.token_file) if arguments.token_file else ""
    if token_file:
        contexts.check_private(token_file)
    if arguments.token:
        token = sys.stdin.readline().strip()
        if not token:
            raise UsageError("--token: standard input has no token")
        token_file = contexts.save_token(name, token)
    authority = os.path.abspath(arguments.authority) if arguments.authority else ""
    context = Context(arguments.metadata or "", arguments.server or "", authority, token_file)
    known.by_name[name] = context
    is_first = len(known.by_name) == 1
    known.used = name if is_first else known.used
    contexts.save(known)
    text = f"added {name}, {context.place}" + (", and it is in use" if is_first else f"; `bk context use {name}`")
    return Report({"name": name, **context._asdict(), "used": known.used == name}, [text])


def _use(arguments: argparse.Namespace) -> Report:
    known = contexts.load()
    context = known.find(arguments.name) if arguments.name else Context()
    if bool(arguments.name) == arguments.none:
        raise UsageError("name one context, or give --none")
    known.used = arguments.name or ""
    contexts.save(known)
    remarks = []
    if arguments.name and os.environ.get("BK_CONTEXT", arguments.name) != arguments.name:
        remarks.append(f"BK_CONTEXT={os.environ['BK_CONTEXT']} has precedence in this shell")
    elif arguments.name and (directory := find_data_directory()):
        remarks.append(f"{directory} has precedence in this directory; BK_CONTEXT={arguments.name} overrules it")
    text = f"{arguments.name}, {context.place}, is in use" if arguments.name else "no context is in use"
    return Report({"used": known.used}, [text], remarks=remarks)


def _list(arguments: argparse.Namespace) -> Report:
    known = contexts.load()
    rows = [
        {"name": name, **context._asdict(), "used": name == known.used}
        for name, context in sorted(known.by_name.items())
    ]
    cells = [("*" if row["used"] else "", row["name"], row["metadata"] or row["server"]) for row in rows]
    return Report(rows, [Table(("", "name", "cluster"), cells)])


def _remove(arguments: argparse.Namespace) -> Report:
    contexts.remove(arguments.name)
    return Report({"removed": arguments.name}, [f"removed {arguments.name}"])


_NAME = Option("name NAME", "name of the context")
VERBS = (
    verb(
        "context add",
        "give a cluster a name; the first one is in use at once",
        "bk context add prod --metadata zk://zk1:2181/ledgers",
        _add,
        _NAME,
        OneOf(
            Option("--metadata URI", "metadata store of the cluster"),
            Option("--server URL", "HTTP server of the cluster, as for `bk --server`"),
            is_required=True,
        ),
        Option("--authority FILE", "server: PEM file of authorities (default: the system's)"),
        OneOf(
            Option("--token-file FILE", "server: file with the token, which only its owner may read"),
            Option("--token", "server: read the token from standard input, and store it readable for its owner", bool),
        ),
        shared=MACHINE,
    ),
    verb(
        "context use",
        "let commands work on this cluster where nothing else names one",
        "bk context use prod",
        _use,
        Option("name NAME", "name of the context", values="?"),
        Option("--none", "use no context", bool),
        description="Options, BK_METADATA, BK_SERVER, BK_CONTEXT and the nearest bk-data directory have precedence, in "
        "this order. `bk status` shows the context that it uses.",
        shared=MACHINE,
    ),
    verb("context list", "list the contexts; * marks the one in use", "bk context list", _list, shared=MACHINE),
    verb("context remove", "forget a context and its token", "bk context remove prod", _remove, _NAME, shared=MACHINE),
)
