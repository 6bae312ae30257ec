"""Write the pages that come from the code, nearly all into docs/reference.

* `cli.md`: from `--help`.
* `settings.md`: from the dataclasses.
* `api.md` and `errors.md`: from the docstrings.
* `events.md`: from the calls that log events.
* `apache-config.md`: from the tables in `bookies.apache`.
* `metrics.md` and the tables of `http.md`: from the tables in `bookies.metrics` and `bookies.web`.
* `public-dashboards.md`: from `dashboards.json`: what public dashboards ask for, and why a name is not answered.
* `../observe/` and `../howto/alerts.md`: alerts for Prometheus, dashboards for Grafana, and what to do; see `observe.py`.
* `spec/rules.md`: from the chapters of the specification.
* `../explanation/state-machines.md`: its tables, from the tables in the code.

`python docs/generate.py --check` lists the pages that are not current and changes none.
"""

from __future__ import annotations

import argparse
import ast
import enum
import importlib
import inspect
import os
import pathlib
import re
import sys
import textwrap
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ForwardRef

if TYPE_CHECKING:
    from bookies.apache.table import Mapped

WIDTH = 100  # of prose, and of a signature on one line
PLUMBING = {
    "check_open",
    "client_closed",
    "enter",
    "fail",
    "last_pushed",
    "numbered",
    "learn",
    "transactions",
    "usage",
}  # what handles are to each other, and to Spark
LIST_ITEM = re.compile(r"\s*(?:[*+-] |\d+\. )?")
HERE = pathlib.Path(__file__).parent
UNITS = {
    "mebibytes": "MiB",
    "milliseconds": "ms; less than 0: never",
    "percent": "a fraction",
    "names": "separated by commas",
    "switch": "true or false",
    "positive": "at least 1",
    "natural": "at least 0",
}  # by conversion
APACHE_HEAD = """# Apache's configuration and commands

Made from the code by `make docs`: `src/bookies/apache/`.

A bookie takes Apache's file as it is:

```console
$ bk bookie run --conf /etc/bookkeeper/bk_server.conf --dry-run
$ bk bookie run --conf /etc/bookkeeper/bk_server.conf
```

`--dry-run` prints what it would run with, and ends. Options of the command come first, then `--set`, `BK_...`
variables, the file, our defaults. Only keys that stand in the file count: Apache's defaults for the others are not
taken over, but for the bookie's identity and address, which are those that Apache's bookie would have on this
machine, because the cookies in its directories have them. It refuses an address that no other machine can reach, as
Apache does (`allowLoopback`).

Every key gets an answer, on standard error, once, at the start: what is done in another way with the way out, first
and with `WARNING` what concerns the safety of data; a key that is unknown with its nearest neighbour; the names of
all keys that have no meaning here in one line. A bookie does not start with keys which it would be dangerous to
ignore (*refused* below). Nothing is ignored in silence.

A client takes a properties file, or its keys and values:

```python
import bookies

options = bookies.apache.client_options("/etc/bookkeeper/bk_client.conf")
for notice in options.notices:
    print(notice)
async with bookies.connect(options.uri, config=options.config) as store:
    ...
```
"""


def cli_page() -> str:
    """Every noun and verb with its help."""
    from bookies.admin import cli

    os.environ["COLUMNS"] = "110"
    parts = ["# The command `bk`\n\nMade from `--help` by `make docs`.\n", f"```\n{cli._overview()}\n```\n"]
    for noun in cli.COMMANDS:
        parser = cli.parser_of(noun)
        parts.append(f"## bk {noun}\n\n```\n{parser.format_help()}```\n")
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for verb, each in action.choices.items():
                    parts.append(f"### bk {noun} {verb}\n\n```\n{each.format_help()}```\n")
    return "\n".join(parts)


def settings_page() -> str:
    """Every setting with unit, default, range."""
    from bookies.config import BookieConfig, ClientConfig, GatewayConfig, MetadataConfig, RecoveryConfig
    from bookies.settings import LIVE

    parts = [
        "# Settings\n\nMade from the code by `make docs`. They are in the tables of [`bk.toml`](../howto/configure.md), "
        "in `--set NAME=VALUE` of a bookie or a gateway, in the variables `BK_NAME`, and in the keyword arguments of "
        "`connect`. Durations and sizes are numbers, in the unit of the name, or text such as `10m` and `64m`. A "
        "setting with *run time* may change while a bookie runs, with `bk bookie settings`.\n"
    ]
    for title, table, kind in (
        ("Bookie", "bookie", BookieConfig),
        ("Client", "client", ClientConfig),
        ("Auto-recovery", "recovery", RecoveryConfig),
        ("Gateway", "gateway", GatewayConfig),
        ("Metadata store", "metadata", MetadataConfig),
    ):
        parts.append(f"## {title}\n\nTable `[{table}]`.\n\n| setting | default | range | meaning |\n|---|---|---|---|")
        for each in fields(kind):
            low, high = each.metadata["low"], each.metadata["high"]
            bounds = f"{'' if low is None else f'{low:,}'} .. {'' if high is None else f'{high:,}'}".strip()
            is_number = isinstance(each.default, int) and not isinstance(each.default, bool)
            default = f"{each.default:,}" if is_number else f"`{each.default!r}`"
            parts.append(
                f"| `{each.name}` | {default} | {'' if bounds == '..' else bounds} | {each.metadata['help']}"
                f"{' *run time*' if kind is BookieConfig and each.name in LIVE else ''} |"
            )
        parts.append("")
    return "\n".join(parts)


def api_page() -> str:
    """Every public name with its signature and docstring."""
    import bookies

    parts = [
        "# Python interface\n\nMade from the docstrings by `make docs`. Everything here is in `import bookies`. "
        "Methods are coroutines where they say `async`; `bookies.blocking` has the same words without `await`.\n"
    ]
    found = {name: getattr(bookies, name) for name in bookies.__all__}
    kinds = [each for each in found.values() if inspect.isclass(each)]
    errors = [each for each in kinds if issubclass(each, BaseException)]
    enums = [each for each in kinds if issubclass(each, enum.Enum)]
    functions = ("connect", "dataset", "local", "run")
    parts += ["## Functions\n", *(_function(name, found[name], "###") for name in functions)]
    parts.append(_function("blocking.connect", bookies.blocking.connect, "###"))
    parts.append(_function("metrics.register", bookies.metrics.register, "###"))
    parts.append(_function("metrics.trace", bookies.metrics.trace, "###"))
    parts.append(_function("apache.client_options", bookies.apache.client_options, "###"))
    parts.append(_class(bookies.apache.ClientOptions).replace("## ClientOptions", "### apache.ClientOptions", 1))
    for kind in kinds:
        if (
            kind not in errors
            and kind not in enums
            and kind.__name__ not in ("BookieConfig", "ClientConfig", "BookieId")
        ):
            parts.append(_class(kind))
    parts.append("## Enumerations\n")
    parts += [f"* `{kind.__name__}`: {', '.join(each.name for each in kind)}. {_doc(kind)}" for kind in enums]
    parts.append("\n## Errors\n\n| error | is a | code | retriable | meaning |\n|---|---|---:|---|---|")
    for kind in sorted(errors, key=lambda each: ([base.__name__ for base in each.__mro__[::-1]])):
        code = kind.__dict__.get("code", "")
        parts.append(
            f"| `{kind.__name__}` | `{kind.__mro__[1].__name__}` | {code} | {'yes' if kind.retriable else ''} | "
            f"{' '.join((kind.__doc__ or '').split())} |"
        )
    return "\n".join(parts) + "\n"


def distributedlog_page() -> str:
    """Every public name of `bookies.distributedlog`."""
    from bookies import distributedlog

    parts = [
        "# DistributedLog in Python\n\nMade from the docstrings by `make docs`. Everything here is in "
        "`import bookies.distributedlog`. Methods are coroutines where they say `async`; "
        "`bookies.distributedlog.blocking` has the same words without `await`. [DistributedLog](distributedlog.md) "
        "describes formats and behaviour.\n\n## Functions\n"
    ]
    found = [getattr(distributedlog, name) for name in distributedlog.__all__]
    parts += [_function(each.__name__, each, "###") for each in found if inspect.isfunction(each)]
    parts += [_class(each) for each in found if inspect.isclass(each)]
    return "\n".join(parts) + "\n"


def _doc(thing: object) -> str:
    return inspect.getdoc(thing) or ""


def _function(name: str, function: object, level: str) -> str:
    word = "async " if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function) else ""
    signature = _signature(function)
    if len(signature) > WIDTH:
        signature = _one_per_line(signature)
    return f"{level} {name}\n\n```python\n{word}{name}{signature}\n```\n\n{_doc(function)}\n"


class _Verbatim(str):
    """An annotation, which shows as it was written: not in quotes, as text would."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _signature(function: object) -> str:
    found = inspect.signature(function)  # type: ignore[arg-type]
    parameters = [
        each if each.annotation is each.empty else each.replace(annotation=_Verbatim(each.annotation))
        for each in found.parameters.values()
    ]
    result = found.return_annotation
    result = result if result is found.empty else _Verbatim(result)
    return str(found.replace(parameters=parameters, return_annotation=result))


def _one_per_line(signature: str) -> str:
    """A signature with each parameter on a line of its own."""
    depth, out = 0, ""
    for letter in signature:
        depth += (letter in "([") - (letter in ")]")
        out += "\n    " if letter == " " and depth == 1 and out.endswith(",") else letter
        if letter == "(" and depth == 1:
            out += "\n    "
    head, _, result = out.rpartition(") ->")
    return f"{head},\n) ->{result}"


def public_members(kind: type) -> dict[str, object]:
    """What is there for users, in the order of the source: neither private nor for the other parts of the client."""
    from bookies.client.repair.replica_tools import ReplicaTools
    from bookies.client.write.adds import AddOwner
    from bookies.client.write.lac_announcer import LacSource
    from bookies.client.write.send_scheduler import ScheduledWriter

    inner = {name for port in (AddOwner, LacSource, ScheduledWriter) for name in port.__dict__} | PLUMBING
    # Methods of a base that is no public class itself belong to the class.
    bases = [base for base in reversed(kind.__mro__) if base.__module__ == ReplicaTools.__module__]
    members = {name: each for part in (*bases, kind) for name, each in part.__dict__.items()}
    return {name: each for name, each in members.items() if not name.startswith("_") and name not in inner}


def fields_of(kind: type) -> dict[str, str]:
    """The fields of a value, struct or named tuple, with their types as they were written."""
    if not hasattr(kind, "__struct_fields__") and not hasattr(kind, "_fields"):
        return {}
    found = inspect.get_annotations(kind)
    # A named tuple turns its annotations into references.
    written = {name: each.__forward_arg__ if isinstance(each, ForwardRef) else each for name, each in found.items()}
    return {name: str(text) for name, text in written.items() if not name.startswith("_")}


def _class(kind: type) -> str:
    parts = [f"## {kind.__name__}\n\n{_doc(kind)}\n"]
    parts += [f"* `{name}`: `{annotation}`" for name, annotation in fields_of(kind).items()]
    for name, member in public_members(kind).items():
        if isinstance(member, property):
            result = inspect.signature(member.fget).return_annotation  # type: ignore[arg-type]
            parts.append(f"* `{name}`: `{result}`. {' '.join(_doc(member).split())}".rstrip())
        elif inspect.isfunction(member):
            parts.append("\n" + _function(name, member, "###"))
    return "\n".join(parts) + "\n"


def apache_page() -> str:
    """What becomes of every key of Apache's configuration, and of every command."""
    from bookies.apache.client_keys import CLIENT
    from bookies.apache.commands import HTTP, NOT_DUE, SHELL
    from bookies.apache.server_keys import SERVER
    from bookies.apache.table import Different, Level, Mapped, Unused

    parts = [APACHE_HEAD]
    for title, rows in (("Keys of a bookie", SERVER), ("Keys of a client", CLIENT)):
        parts.append(f"## {title}\n\n| Apache's key | setting of ours | |\n|---|---|---|")
        parts += [
            f"| `{each.key}` | {_settings(each.setting)} | {each.note or _unit(each)} |"
            for each in rows
            if isinstance(each, Mapped)
        ]
        parts.append("\nDone in another way. *Refused*: the bookie or client does not start with such a value.\n")
        parts.append("| Apache's key | said unless it is | |\n|---|---|---|")
        for each in rows:
            if isinstance(each, Different):
                word = "**refused**: " if each.is_refused else "**danger**: " if each.level is Level.DANGER else ""
                values = ", ".join(f"`{value}`" for value in each.harmless if value) or "empty"
                parts.append(f"| `{each.key}` | {values} | {word}{each.text} |")
        parts.append("\nWithout a meaning here:\n")
        for each in rows:
            if isinstance(each, Unused):
                parts.append(f"* {each.reason}: {', '.join(f'`{key}`' for key in each.keys.split())}.")
        parts.append("")
    parts.append("## Commands\n\n`bk help apache` prints the same.\n\n| `bookkeeper shell` | `bk` | |\n|---|---|---|")
    parts += [f"| `{each.theirs}` | {f'`{each.ours}`' if each.ours else NOT_DUE} | {each.note} |" for each in SHELL]
    parts.append("\n| HTTP | `bk` | |\n|---|---|---|")
    parts += [f"| `{each.theirs}` | {f'`{each.ours}`' if each.ours else NOT_DUE} | {each.note} |" for each in HTTP]
    return "\n".join(parts) + "\n"


def _unit(row: Mapped) -> str:
    return UNITS.get(getattr(row.convert, "__name__", ""), "")


def _settings(text: str) -> str:
    """Names of settings as code, other words as they are."""
    return ", ".join(f"`{each}`" if " " not in each else each for each in text.split(", "))


def errors_page() -> str:
    """Every exception: what it is, its code on the wire, whether a repetition may succeed."""
    from bookies import errors

    kinds = [
        kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.BookKeeperError)
    ]
    parts = [
        "# Errors\n\nMade from the code by `make docs`. Every error is a `BookKeeperError`. Its attributes "
        "(`ledger_id`, `entry_id`, `bookie`, ...) name what failed. A call that raised a *retriable* error may succeed "
        "when it is repeated. [The Python interface](api.md) lists the errors of each call.\n"
        "\n| error | is a | code | retriable | meaning |\n|---|---|---:|---|---|"
    ]
    for kind in sorted(kinds, key=lambda kind: [base.__name__ for base in kind.__mro__[::-1]]):
        parent = kind.__mro__[1].__name__
        meaning = " ".join(_doc(kind).split("\n\n")[0].split()).replace("|", "\\|")
        code, retriable = kind.__dict__.get("code", ""), "yes" if kind.retriable else ""
        parts.append(f"| `{kind.__name__}` | `{parent}` | {code} | {retriable} | {meaning} |")
    return "\n".join(parts) + "\n"


def events_page() -> str:
    """Every event of the log with its level, fields and consequence, read from the calls in the code."""
    rows: dict[str, tuple[set[str], dict[str, None], list[str]]] = {}
    for path in sorted((HERE.parent / "src/bookies").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            owner = ast.unparse(node.func.value).rpartition(".")[2].lstrip("_")
            name = node.args[0]
            if node.func.attr not in ("info", "warning", "error") or owner != "events":
                continue
            if not (isinstance(name, ast.Constant) and isinstance(name.value, str)):
                continue
            levels, names, texts = rows.setdefault(name.value, (set(), {}, []))
            levels.add(node.func.attr)
            for keyword in node.keywords:
                if keyword.arg == "error":
                    names.update({"error": None, "reason": None})
                elif keyword.arg:
                    names[keyword.arg] = None
                if keyword.arg in ("consequence", "remedy") and isinstance(keyword.value, ast.Constant):
                    texts.append(f"{keyword.arg}: {keyword.value.value}")
    parts = [
        "# Events\n\nMade from the code by `make docs`. Bookies, auto-recovery and clients log events through Python's "
        "`logging`, on loggers named `bookies.COMPONENT`: a name and fields, `bookie.ready port=3181`. "
        "`BK_LOG_FORMAT=json` writes one JSON object a line. Names and fields are stable; texts may change. A line "
        "that repeats often is limited to five in ten seconds, and the field `suppressed` counts the rest.\n"
    ]
    component = ""
    for event, (levels, names, texts) in sorted(rows.items()):
        prefix = event.partition(".")[0]
        if prefix != component:
            component = prefix
            parts.append(f"\n## {component}\n\n| event | level | fields | fixed text |\n|---|---|---|---|")
        fields_text = ", ".join(f"`{name}`" for name in names)
        says = "; ".join(dict.fromkeys(texts)).replace("|", "\\|")
        parts.append(f"| `{event}` | {', '.join(sorted(levels))} | {fields_text} | {says} |")
    return "\n".join(parts) + "\n"


def rules_page() -> str:
    """Every rule code of the specification with the section that defines it."""
    folder = HERE / "reference/spec"
    found: dict[tuple[str, int], tuple[str, str, str]] = {}
    for chapter in ("client-protocol", "wire-protocol", "storage", "metadata", "spark", "pains"):
        heading = anchor = ""
        for line in (folder / f"{chapter}.md").read_text().splitlines():
            if line.startswith("#"):
                heading = line.lstrip("# ").replace("*", "").replace("`", "")
                anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            for match in re.finditer(r"\*\*([A-Z])-(\d+)\*\*(.*)", line):
                found[match[1], int(match[2])] = (chapter, heading, anchor)
    parts = [
        "# Rule codes\n\nMade from the chapters by `make docs`. Comments in the code and tests name rules by these "
        "codes.\n"
        "\n| codes | chapter | section |\n|---|---|---|"
    ]
    groups: list[tuple[str, list[int], tuple[str, str, str]]] = []
    for (letter, number), place in sorted(found.items()):
        if groups and groups[-1][0] == letter and groups[-1][2] == place and groups[-1][1][-1] == number - 1:
            groups[-1][1].append(number)
        else:
            groups.append((letter, [number], place))
    for letter, numbers, (chapter, heading, anchor) in groups:
        codes = f"{letter}-{numbers[0]}" + (f" to {letter}-{numbers[-1]}" if len(numbers) > 1 else "")
        parts.append(f"| {codes} | {chapter} | [{heading}]({chapter}.md#{anchor}) |")
    return "\n".join(parts) + "\n"


def wrapped(page: str) -> str:
    """Wrap the paragraphs and list items with a line above WIDTH. Code, tables and headings stay as they are."""
    lines: list[str] = []
    block: list[str] = []
    is_code = False

    def end_block() -> None:
        if any(len(line) > WIDTH for line in block):
            lead = LIST_ITEM.match(block[0])[0]  # type: ignore[index]  # it matches any line
            text = " ".join(line.strip() for line in block)[len(lead.lstrip()) :]
            lines.extend(
                textwrap.wrap(
                    text,
                    WIDTH,
                    initial_indent=lead,
                    subsequent_indent=" " * len(lead),
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            )
        else:
            lines.extend(block)
        block.clear()

    for line in page.split("\n"):
        is_fence = line.lstrip().startswith("```")
        is_indented_code = not block and line.startswith("    ")
        if is_fence or is_code or is_indented_code or not line.strip() or line.lstrip().startswith(("|", "#", "<")):
            end_block()
            lines.append(line)
            is_code ^= is_fence
            continue
        if LIST_ITEM.match(line)[0].strip():  # type: ignore[index]
            end_block()
        block.append(line)
    end_block()
    return "\n".join(lines)


METRICS_HEAD = """# Metrics

Made from the code by `make docs`: `src/bookies/metrics/`.

A bookie, and a process of auto-recovery, export these at `/metrics` of their [HTTP server](http.md). A client adds
its own to the application's registry (`bookies.metrics.register`). [Scrape a bookie with
Prometheus](../howto/scrape-with-prometheus.md) has the steps.

* Names that begin with `bookie_`, `bookkeeper_`, `auditor_` and `replication_` are Apache's, of 4.16 and later, and
  have Apache's meaning. Dashboards and alerts for BookKeeper and Pulsar ask for them.
* Names that begin with `bookies_` exist here only. They follow Prometheus's rules: base units, `_total` for counters.
* A *summary* has the quantiles 0.5, 0.75, 0.95, 0.99, 0.999, 0.9999 and 1.0 of the last one to two minutes, and
  `_count` and `_sum` since the start. Durations are in milliseconds, as Apache writes them. The label `success` is true or false.
* A *histogram* is in seconds, with buckets from 100 us to 60 s. Histograms of several bookies can be added up.
* A metric of a part that does not exist is left out: for example the storage while the bookie starts, or a disabled scrub.

Counting is per batch of requests and per group of the journal, never per entry. A bookie without an HTTP server times
no requests.
"""


def metrics_page() -> str:
    """Every metric, from the tables, and the names that public dashboards ask for."""
    from bookies.metrics.every_table import TABLES

    parts = [METRICS_HEAD]
    for title, table in TABLES.items():
        parts.append(f"## {title}\n\n| metric | type | unit | labels | meaning |\n|---|---|---|---|---|")
        parts += [
            f"| `{each.name}` | {each.kind.value} | {each.unit} | {', '.join(f'`{label}`' for label in each.labels)} | "
            f"{each.help} |"
            for each in table
        ]
        parts.append("")
    parts.append("[What public dashboards ask for](public-dashboards.md) has their queries.")
    return "\n".join(parts) + "\n"


def fill_tables(page: str, kind: str, rows_of: Callable[[str], list[str]]) -> str:
    """Return a page with its tables made from the code; the rest is kept.

    A table of `kind` stands between `<!-- KIND of NAME -->` and `<!-- end of KIND -->`. `rows_of`: the lines of the
    table with a name, two of them its head.
    """

    def table(match: re.Match[str]) -> str:
        lines = rows_of(match[2])
        assert len(lines) > 2, f"{page}: the table {match[2]} has no rows"
        return match[1] + "\n".join(lines) + "\n\n" + match[3]

    text = (HERE / page).read_text()
    begin, end = f"<!-- {kind} of ", f"<!-- end of {kind} -->"
    filled, count = re.subn(rf"({begin}(\S+) -->\n\n).*?({end})", table, text, flags=re.DOTALL)
    assert count == text.count(begin) == text.count(end) > 0, f"{page}: {count} tables, but other numbers of markers"
    return filled


def http_page() -> str:
    """The page of the HTTP server: its tables of endpoints are made from the routes, the rest is kept."""

    def table(group: str) -> list[str]:
        from bookies.admin.remote import remote_api
        from bookies.web.apache_bookie import BookieEndpoints
        from bookies.web.apache_changes import BookieChanges, ClusterChanges
        from bookies.web.apache_cluster import ClusterEndpoints
        from bookies.web.console.pages import Console
        from bookies.web.data.ledger_endpoints import LedgerEndpoints
        from bookies.web.data.log_endpoints import LogEndpoints
        from bookies.web.probes import Probes
        from bookies.web.site import Process
        from bookies.web.spark_jobs import SparkJobs

        nothing: Any = None  # the routes are listed, and none is called
        groups = {
            "probes": Probes(nothing, nothing, nothing).routes,
            "bookie": BookieEndpoints(nothing, nothing).routes,
            "cluster": ClusterEndpoints(nothing, nothing, nothing).routes,
            "changes": (*BookieChanges(nothing, nothing).routes, *ClusterChanges(nothing, nothing).routes),
            "logs": LogEndpoints(nothing, nothing, nothing).routes,
            "ledgers": LedgerEndpoints(nothing, nothing, nothing).routes,
            "verbs": remote_api.verb_routes(Process(nothing, object())),  # type: ignore[arg-type]
            "console": Console(nothing).routes,
            "spark": SparkJobs(Process(nothing, None)).routes,
        }
        rows = [
            f"| {each.method} `{each.path}` | {each.role.word} | "
            f"{', '.join(f'`{part}`' for part in (each.parameters, each.body) if part)} | {each.help} |"
            for each in groups[group]
        ]
        return ["| endpoint | role | query, or body | answer |", "|---|---|---|---|", *rows]

    return fill_tables("reference/http.md", "endpoints", table)


def option_tables(name: str) -> Callable[[], str]:
    """A page of the Spark source or sink: its tables of options are made from the code, the rest is kept."""

    def table(settings: str) -> list[str]:
        from bookies.spark.base.options import options_of

        module, _, kind = settings.rpartition(".")
        rows = [
            f"| `{each.name}` | {'' if each.default is None else f'`{each.default}`'} | {each.help} |"
            for each in options_of(getattr(importlib.import_module(module), kind)).values()
            if each.help
        ]
        return ["| option | default | meaning |", "|---|---|---|", *rows]

    return lambda: fill_tables(name, "options", table)


def transition_tables() -> str:
    """The page of state machines: its tables are the tables `TRANSITIONS` of the modules, the rest is kept."""

    def table(module: str) -> list[str]:
        transitions = importlib.import_module(module).TRANSITIONS
        states, events = (list(type(kind)) for kind in next(iter(transitions)))
        rows = [
            f"| `{event.name}`: {event.value} | "
            + " | ".join(
                f"`{transitions[state, event].name}`" if (state, event) in transitions else "" for state in states
            )
            + " |"
            for event in events
        ]
        head = "| event | " + " | ".join(f"in `{state.name}`" for state in states) + " |"
        return [head, "|---" * (len(states) + 1) + "|", *rows]

    return fill_tables("explanation/state-machines.md", "transitions", table)


PAGES = {
    "explanation/state-machines.md": transition_tables,
    "reference/apache-config.md": apache_page,
    "reference/api.md": api_page,
    "reference/cli.md": cli_page,
    "reference/errors.md": errors_page,
    "reference/events.md": events_page,
    "reference/http.md": http_page,
    "reference/metrics.md": metrics_page,
    "reference/settings.md": settings_page,
    "reference/spark.md": option_tables("reference/spark.md"),
    "reference/spark-writing.md": option_tables("reference/spark-writing.md"),
    "reference/distributedlog-api.md": distributedlog_page,
    "reference/spec/rules.md": rules_page,
}


def main() -> int:
    import observe  # beside this file

    pages = PAGES | {
        "howto/alerts.md": observe.alerts_page,
        "reference/http-apache.md": observe.apache_page,
        "reference/public-dashboards.md": observe.public_page,
    }
    texts = {name: wrapped(page()) for name, page in pages.items()} | observe.files()
    (HERE / "observe").mkdir(exist_ok=True)
    stale = [name for name, text in texts.items() if not (HERE / name).exists() or (HERE / name).read_text() != text]
    if "--check" in sys.argv:
        print("\n".join(f"docs/{name} is not current: make docs" for name in stale))
        return int(bool(stale))
    for name in stale:
        (HERE / name).write_text(texts[name])
        print(f"wrote docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
