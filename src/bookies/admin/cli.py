"""`bk`: one program, nouns and verbs. Only the module of the requested noun is imported.

Data goes to stdout, everything else to stderr. Exit status: 0 done, 1 failed, 2 used wrongly, 130 interrupted.
`bk bookie run` has those of `bookie/main.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bookies.admin.shared.nouns import COMMANDS, parser_of

if TYPE_CHECKING:
    import argparse

    from bookies.admin.shared.contexts import Context

# options before the noun -> variables that set them
SERVER_OPTIONS = {"--server": "BK_SERVER", "--token-file": "BK_TOKEN_FILE", "--authority": "BK_SERVER_AUTHORITY"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. Installed as `bk`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["help"] and len(arguments) > 1:
        arguments = [*arguments[1:], "--help"] if arguments[1] != "apache" else arguments
    if not arguments or arguments in (["-h"], ["--help"], ["help"]):
        _to_reader(lambda: print(_overview()))
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        print(_version())
        return 0
    server = _server_options(arguments)
    if isinstance(server, str):
        print(f"bk: {server}", file=sys.stderr)
        return 2
    if arguments[0] == "help":
        from bookies.admin.shared.apache_help import print_counterparts

        return _to_reader(lambda: print_counterparts(arguments[2:])) or 0
    noun = arguments[0]
    if noun not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(noun, COMMANDS, 1)
        hint = f"; did you mean `bk {near[0]}`?" if near else ""
        print(f"bk: no command named {noun!r}{hint} (bk --help lists them)", file=sys.stderr)
        return 2
    try:
        return _run(noun, arguments[1:], server)
    except SystemExit:  # argparse has printed a help text
        _to_reader(lambda: None)
        raise
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130


def _to_reader(show: Callable[[], int | None]) -> int | None:
    """Return what `show` returns. A reader of its output that closes the pipe is not an error."""
    try:
        status = show()
        sys.stdout.flush()
    except BrokenPipeError:
        _end_quietly()
        return None
    return status


def _end_quietly() -> None:
    """Discard the rest of the output: its reader has closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _server_options(arguments: list[str]) -> dict[str, str] | str:
    """Remove `--server URL` and its companions from the beginning; return them, or a problem."""
    options = {name: os.environ.get(variable, "") for name, variable in SERVER_OPTIONS.items()}
    while arguments and arguments[0].partition("=")[0] in SERVER_OPTIONS:
        name, equals, value = arguments.pop(0).partition("=")
        if not equals and not arguments:
            return f"{name} needs a value"
        options[name] = value if equals else arguments.pop(0)
    if not arguments:
        return "name a command after --server URL, such as `bk --server https://b1:8080 bookie list`"
    return options


def _run(noun: str, arguments: list[str], server: dict[str, str]) -> int:
    """Run one command; report its exception as one sentence and an exit status."""
    parsed = parser_of(noun).parse_args(arguments)

    from bookies.admin.shared import UsageError
    from bookies.admin.shared.common import active_context
    from bookies.errors import BookKeeperError, ConfigError, InvalidArgument

    before = os.environ.get("BK_CONFIG")
    if getattr(parsed, "config", None):
        os.environ["BK_CONFIG"] = parsed.config  # for every reader of settings in this process and its children
    try:
        context = active_context(parsed) if hasattr(parsed, "metadata") and not server["--server"] else None
        if context is not None and context[1].server:
            server = _of_context(context[1], parsed) or server
        if server["--server"]:
            from bookies.admin.remote.remote_client import call

            result = call(server["--server"], server["--token-file"], server["--authority"], parsed)
        else:
            result = parsed.run(parsed)
        if not isinstance(result, int):
            from bookies.admin.shared.report import print_report

            if noun == "status" and context is not None:
                result = result._replace(text=[f"context   {context[0]}", *result.text])
            result = print_report(result, as_json=parsed.json)
        sys.stdout.flush()
        return result
    except BrokenPipeError:
        # The reader of the output has exited (`bk ledger read 7 | head`): this is not an error.
        _end_quietly()
        return 0
    except (UsageError, ConfigError, InvalidArgument) as error:
        print(f"bk {noun}: {error}", file=sys.stderr)
        is_bookie = (noun, getattr(parsed, "verb", "")) == ("bookie", "run")
        return 1 if is_bookie and isinstance(error, ConfigError) else 2  # 1: systemd does not start it again
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
    finally:
        os.environ.pop("BK_CONFIG", None)
        if before is not None:
            os.environ["BK_CONFIG"] = before


def _of_context(context: Context, arguments: argparse.Namespace) -> dict[str, str] | None:
    """Return the server's options for a verb that works by a server; None for another one. Raises `UsageError`."""
    from bookies.admin.remote.exposed import EXPOSED
    from bookies.admin.shared.contexts import check_private

    words = " ".join(filter(None, (arguments.noun, getattr(arguments, "verb", None))))
    if not any(row.words == words for row in EXPOSED):
        return None
    token_file = check_private(context.token_file) if context.token_file else ""
    return {"--server": context.server, "--token-file": token_file, "--authority": context.authority}


def _overview() -> str:
    lines = ["usage: bk NOUN [VERB] [OPTIONS]    (`bk NOUN --help` lists its verbs and options)", ""]
    lines += [f"  {noun:10} {text}" for noun, (_, text) in COMMANDS.items()]
    lines += [
        "",
        "Every command accepts --json. Commands that work on a cluster accept --metadata URI. The default is the first",
        "of BK_METADATA, the file of --config or BK_CONFIG, the context of BK_CONTEXT, the cluster of the nearest",
        "`bk-data` directory (from the current directory upwards), and the context in use.",
        "`bk --server https://b1:8080 --token-file FILE NOUN ...` works through an HTTP server; also BK_SERVER,",
        "BK_TOKEN_FILE or BK_TOKEN, and BK_SERVER_AUTHORITY (--authority) for a PEM file of authorities.",
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
