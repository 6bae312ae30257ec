"""Commands as rows: name, help, example, function, options. `build_parser` makes a group's parser from its rows."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from bookies.admin.shared.usage import UsageError

if TYPE_CHECKING:
    from bookies.admin.shared.report import Report

Run = Callable[[argparse.Namespace], "Report | int"]


class Option(NamedTuple):
    """Option of a verb if the name begins with `--`, else a positional argument.

    `name`: followed by the word for its value in the help, if it is another: `--rate BYTES`, `bookie ID`. `kind`:
    conversion of the text; `bool`: a flag. `values`: their number, in argparse's notation: `?`, `*` or `+`. `bare`:
    value of an option that is given without one. `field`: name in the namespace, if it is another.
    """

    name: str
    help: str
    kind: Callable[[str], object] = str
    default: object = None
    choices: tuple[str, ...] | None = None
    values: str | None = None
    may_repeat: bool = False
    is_required: bool = False
    bare: object = None
    field: str | None = None


class OneOf:
    """Options of which a command accepts at most one, or exactly one."""

    def __init__(self, *options: Option, is_required: bool = False) -> None:
        self.options = options
        self.is_required = is_required


METADATA = Option(
    "--metadata URI",
    "metadata store of the cluster: file:DIR, zk://HOST:2181/PATH or etcd://HOST:2379/PATH (default: the first of "
    "BK_METADATA, --config, BK_CONTEXT, the nearest bk-data directory and the context in use)",
)
CONFIG = Option("--config FILE", "file with settings, see `bk config init` (default: BK_CONFIG); variables override it")
JSON = Option("--json", "print one JSON document (or one line per row) on stdout", bool)
DEBUG = Option("--debug", "print the traceback of an error", bool)
MACHINE = (CONFIG, JSON, DEBUG)  # of commands that work on this machine's files and processes
CLUSTER = (METADATA, *MACHINE)  # of commands that work on a cluster

BOOKIE = Option("bookie ID", "id of the bookie")
JOURNAL_DIR = Option("--journal-dir DIR", "directory of journals; may be repeated", may_repeat=True)
LEDGER_DIR = Option("--ledger-dir DIR", "directory of entry logs; may be repeated", may_repeat=True)
RATE = Option("--rate BYTES", "bytes to copy per second, at most (default: no limit)", float)
LOST = Option("--lost ID", "bookie to treat as lost without delay; may be repeated", may_repeat=True)
WRITE_QUORUM = Option("--write-quorum", "number of replicas of each entry (default: ensemble)", int)
ACK_QUORUM = Option(
    "--ack-quorum", "number of replicas on disk before an add is confirmed (default: majority of the write quorum)", int
)
DIGEST = Option(
    "--digest",
    "checksum of each entry (default crc32c)",
    default="crc32c",
    choices=("crc32c", "crc32", "hmac", "dummy"),
)


class Verb(NamedTuple):
    """Command: its words (`ledger create`), help, epilog of the help, function and options.

    `run` returns the report to print, or the exit status if it has printed its results meanwhile.
    """

    name: str
    help: str
    epilog: str
    run: Run
    options: tuple[Option | OneOf, ...]
    description: str | None


def verb(
    name: str,
    help: str,
    example: str,
    run: Run,
    *options: Option | OneOf,
    description: str | None = None,
    shared: tuple[Option, ...] = CLUSTER,
) -> Verb:
    """Return a row of the table of verbs. `shared`: options that come before the verb's own."""
    epilog = example if example.startswith("example") else f"example:  {example}"
    return Verb(name, help, epilog, run, (*shared, *options), description)


def build_parser(noun: str, text: str, verbs: Sequence[Verb]) -> argparse.ArgumentParser:
    """Return the parser of a command or of a group. `verbs`: may include those of other groups."""
    parser = new_parser(noun, text)
    own = {verb.name: verb for verb in verbs if verb.name.partition(" ")[0] == noun}
    if noun in own:
        _configure(parser, own[noun])
        return parser
    group = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, verb in own.items():
        word = name.partition(" ")[2]
        _configure(group.add_parser(word, help=verb.help, description=verb.description), verb)
    return parser


def new_parser(noun: str, text: str) -> argparse.ArgumentParser:
    """Return a parser without options."""
    parser = argparse.ArgumentParser(
        prog=f"bk {noun}", description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(noun=noun, debug=False)
    return parser


def _configure(parser: argparse.ArgumentParser, verb: Verb) -> None:
    parser.epilog = verb.epilog
    parser.set_defaults(run=verb.run)
    add_options(parser, verb.options)


def add_options(parser: argparse._ActionsContainer, options: Sequence[Option | OneOf]) -> None:
    """Add options to a parser or to a group of one."""
    for option in options:
        if isinstance(option, OneOf):
            add_options(parser.add_mutually_exclusive_group(required=option.is_required), option.options)
        else:
            name, _, value_word = option.name.partition(" ")
            parser.add_argument(name, **_keywords(option, value_word or None))


def _keywords(option: Option, value_word: str | None) -> dict[str, Any]:
    """Return the option as keywords of argparse's `add_argument`."""
    if option.kind is bool:
        return {"help": option.help, "action": "store_true"}
    keywords = {
        "help": option.help,
        "type": option.kind,
        "metavar": value_word,
        "dest": option.field,
        "required": option.is_required or None,
    }
    if option.may_repeat:
        keywords |= {"action": "append", "default": []}
    else:
        keywords |= {
            "default": option.default,
            "choices": option.choices,
            "nargs": option.values,
            "const": option.bare,
        }
    return {name: value for name, value in keywords.items() if value is not None}  # argparse refuses some that are None


def check_rate(arguments: argparse.Namespace) -> None:
    """Check `--rate`. Raises `UsageError`."""
    if arguments.rate is not None and arguments.rate <= 0:
        raise UsageError(f"--rate {arguments.rate:g}: must be above 0; omit it to copy without a limit")
