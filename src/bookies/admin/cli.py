"""`bk`: one program, nouns and verbs. Only the module of the requested noun is imported.

Data goes to stdout, everything else to stderr. Exit status: 0 done, 1 failed, 2 used wrongly, 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

# noun -> (module with the rows of its verbs, `VERBS`; one line of help)
COMMANDS = {
    "up": ("bookies.admin.commands.cluster", "start a local cluster"),
    "down": ("bookies.admin.commands.cluster", "stop a local cluster"),
    "status": (
        "bookies.admin.commands.cluster",
        "show the state of the cluster: bookies, disk space, ledgers by state",
    ),
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
        "unbounded logs: create, append, read, tail, truncate, cursors, reap, show, list, delete",
    ),
    "bookie": (
        "bookies.admin.commands.bookie",
        "run, list, show, drain, maintenance, balance, state, disks, read-only, read-write, space, gc, compact, "
        "undelete, why-not-deleted, scrub, recover, repair, convert, format",
    ),
    "recovery": (
        "bookies.admin.commands.recovery",
        "auto-recovery: run, status, list, why, repair, enable, disable, audit, delay",
    ),
    "metadata": (
        "bookies.admin.commands.metadata",
        "the cluster's metadata: init, show, dump, load, check, migrate",
    ),
    "cookie": ("bookies.admin.commands.cookie", "cookies of bookies: list, get, create, update, delete, generate"),
    "cluster": (
        "bookies.admin.commands.cluster",
        "info: print the cluster's instance id, layout and number of bookies",
    ),
    "inspect": (
        "bookies.admin.commands.inspect",
        "print the contents of the files of a bookie, or of Apache's, offline",
    ),
    "why": ("bookies.admin.commands.why", "slow: explain why requests were slow, the most likely cause first"),
    "bench": ("bookies.lab.commands.bench", "measure appends and reads"),
    "chaos": (
        "bookies.lab.commands.chaos",
        "test a cluster of real processes under faults: kills, stops, cut connections",
    ),
    "spark": (
        "bookies.admin.verbs.spark_command",
        "jobs over a whole cluster on Spark: scrub, repair, reconcile, usage, import, export, offload, restore, "
        "migrate, whatif, package",
    ),
    "sim": ("bookies.lab.commands.sim", "simulate a cluster on virtual time with faults"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. Installed as `bk`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["help"] and len(arguments) > 1:
        arguments = [*arguments[1:], "--help"] if arguments[1] != "apache" else arguments
    if not arguments or arguments in (["-h"], ["--help"], ["help"]):
        try:
            print(_overview(), flush=True)
        except BrokenPipeError:
            _end_quietly()
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        print(_version())
        return 0
    if arguments[0] == "help":
        from bookies.admin.shared.apache_help import print_counterparts

        return print_counterparts(arguments[2:])
    noun = arguments[0]
    if noun not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(noun, COMMANDS, 1)
        hint = f"; did you mean `bk {near[0]}`?" if near else ""
        print(f"bk: no command named {noun!r}{hint} (bk --help lists them)", file=sys.stderr)
        return 2
    try:
        return _run(noun, arguments[1:])
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130


def _end_quietly() -> None:
    """Discard the rest of the output: its reader has closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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


def _run(noun: str, arguments: list[str]) -> int:
    """Run one command; report its exception as one sentence and an exit status."""
    parsed = parser_of(noun).parse_args(arguments)

    from bookies.admin.shared import UsageError
    from bookies.errors import BookKeeperError, ConfigError, InvalidArgument

    try:
        result = parsed.run(parsed)
        if not isinstance(result, int):
            from bookies.admin.shared.report import print_report

            result = print_report(result, as_json=parsed.json)
        sys.stdout.flush()
        return result
    except BrokenPipeError:
        # The reader of the output has exited (`bk ledger read 7 | head`): this is not an error.
        _end_quietly()
        return 0
    except (UsageError, ConfigError, InvalidArgument) as error:
        print(f"bk {noun}: {error}", file=sys.stderr)
        return 2
    except (BookKeeperError, OSError) as error:
        if parsed.debug:
            raise
        print(f"bk {noun}: {error or type(error).__name__}", file=sys.stderr)
        return 1
    except Exception as error:
        if parsed.debug:
            raise
        print(f"bk {noun}: internal error, {error!r}; this is a bug (--debug prints the traceback)", file=sys.stderr)
        return 1


def _overview() -> str:
    lines = ["usage: bk NOUN [VERB] [OPTIONS]    (`bk NOUN --help` lists its verbs and options)", ""]
    lines += [f"  {noun:9} {text}" for noun, (_, text) in COMMANDS.items()]
    lines += [
        "",
        "Every command accepts --json, and --metadata URI (or BK_METADATA) to name the cluster. The default is the",
        "cluster of the nearest `bk-data` directory, from the current directory upwards.",
        "`bk help apache` lists the counterpart of each of Apache's commands.",
        "",
        "example:  bk up && id=$(seq 1000 | bk ledger append --new) && bk ledger read $id | wc -l",
    ]
    return "\n".join(lines)


def _version() -> str:
    from importlib.metadata import version

    from bookies import kernels

    python = ".".join(map(str, sys.version_info[:3]))
    return f"bookies {version('bookies')} (kernels: {'native' if kernels.NATIVE else 'python'}, Python {python})"


if __name__ == "__main__":
    sys.exit(main())
