"""The nouns of `bk`: the module of each, which is imported when a command names it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from bookies.admin.shared.command_line import Verb

# noun -> (module with the rows of its verbs, `VERBS`; one line of help)
COMMANDS = {
    "up": ("bookies.admin.commands.cluster", "start a local cluster"),
    "down": ("bookies.admin.commands.cluster", "stop a local cluster"),
    "status": (
        "bookies.admin.commands.cluster",
        "show the state of the cluster: bookies, disk space, ledgers by state",
    ),
    "top": ("bookies.admin.commands.cluster", "watch the cluster live: bookies, load, latency, disks, repairs"),
    "config": ("bookies.admin.commands.config", "the file of settings: init, show, check"),
    "service": ("bookies.admin.commands.service", "units of systemd: install, check"),
    "context": ("bookies.admin.commands.context", "names for clusters: add, use, list, remove"),
    "completion": ("bookies.admin.commands.completion", "print the script that completes `bk` in a shell"),
    "demo": ("bookies.lab.commands.demo", "run a guided tour: real data, a killed bookie, a killed writer, proof"),
    "doctor": (
        "bookies.admin.commands.doctor",
        "check the machine, its disks and the cluster; print a remedy per finding",
    ),
    "ledger": (
        "bookies.admin.commands.ledger",
        "create, append, read, tail, show, explain, list, verify, repair, recover, seal, delete",
    ),
    "log": (
        "bookies.admin.commands.log",
        "unbounded logs: create, append, read, tail, truncate, cursors, retention, history, compact, roll-up, "
        "mirror, recover, reap, show, list, delete",
    ),
    "lock": ("bookies.admin.verbs.lock", "run a command while this process has a lock"),
    "bookie": (
        "bookies.admin.commands.bookie",
        "run, init, list, show, test, drain, maintenance, balance, state, settings, disks, owed, read-only, "
        "read-write, space, gc, compact, orphans, undelete, why-not-deleted, scrub, recover, rename, repair, convert, "
        "encryption, new-key, format",
    ),
    "recovery": (
        "bookies.admin.commands.recovery",
        "auto-recovery: run, status, list, why, repair, enable, disable, audit, delay",
    ),
    "gateway": ("bookies.admin.commands.gateway", "data over HTTP: run"),
    "metadata": (
        "bookies.admin.commands.metadata",
        "the cluster's metadata: init, show, dump, diff, apply, changes, load, check, orphans, nuke, migrate",
    ),
    "token": (
        "bookies.admin.commands.token",
        "users of the HTTP server: add, list, revoke",
    ),
    "cookie": ("bookies.admin.commands.cookie", "cookies of bookies: list, get, create, update, delete, generate"),
    "cluster": (
        "bookies.admin.commands.cluster",
        "info: print instance id, layout, number of bookies; health: report what is wrong, and what to do",
    ),
    "inspect": (
        "bookies.admin.commands.inspect",
        "print the contents of files of a bookie, or of Apache's, offline: journal, entrylog, index, lastmark, cookie, "
        "directory",
    ),
    "why": ("bookies.admin.commands.why", "slow: explain why requests were slow, the most likely cause first"),
    "bench": ("bookies.lab.commands.bench", "measure: append, read, fill, storage, placement, recovery, disk, suite"),
    "chaos": (
        "bookies.lab.commands.chaos",
        "test a cluster of real processes under faults: kills, stops, cut connections",
    ),
    "spark": (
        "bookies.admin.verbs.spark_command",
        "jobs over a whole cluster on Spark: scrub, repair, reconcile, usage, import, export, offload, restore, "
        "migrate, compact, backup, verify, restore-cluster, whatif, package",
    ),
    "sim": ("bookies.lab.commands.sim", "simulate a cluster on virtual time with faults"),
}


def verb_of(words: str) -> Verb:
    """Return the row of a verb, such as `bookie gc`."""
    module = importlib.import_module(COMMANDS[words.partition(" ")[0]][0])
    verb: Verb = next(row for row in module.VERBS if row.name == words)
    return verb


def parser_of(noun: str) -> argparse.ArgumentParser:
    """Return the parser of a command or of a group of verbs. It sets `run`, the function of the verb."""
    from bookies.admin.shared.command_line import build_parser, new_parser

    module_name, text = COMMANDS[noun]
    module = importlib.import_module(module_name)
    if not hasattr(module, "VERBS"):
        parser = new_parser(noun, text)
        module.configure(parser)
        parser.set_defaults(run=module.run)
        return parser
    return build_parser(noun, text, module.VERBS)
