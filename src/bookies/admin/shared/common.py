"""Helpers of commands: the cluster's URI, common options, printing, progress, running a coroutine."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO, TypeVar

if TYPE_CHECKING:
    from bookies.client.client import Client
    from bookies.errors import MetadataCorrupt
    from bookies.metadata.interface import MetadataDriver
    from bookies.runtime.ports import Runtime

from bookies.admin.shared.contexts import Context, active
from bookies.admin.shared.usage import UsageError
from bookies.units import size_text as size_text

T = TypeVar("T")
DATA_DIRECTORY = "bk-data"
LIST_MAX = 1_000  # rows of a list, unless more are asked for
MORE = "more ledgers follow"  # the beginning of a remark


def find_data_directory() -> str | None:
    """Return the nearest `bk-data` directory from the current directory upwards."""
    directory = os.getcwd()
    while True:
        candidate = os.path.join(directory, DATA_DIRECTORY)
        if os.path.isdir(candidate):
            return candidate
        parent = os.path.dirname(directory)
        if parent == directory:
            return None
        directory = parent


def web_site() -> ModuleType:
    """Return the module of the HTTP server, which is imported only where a setting enables it. Raises `ConfigError`."""
    try:
        from bookies.web import site
    except ModuleNotFoundError as error:
        if error.name != "h11":
            raise
        from bookies.errors import ConfigError

        raise ConfigError("http_port needs the extra `http`: pip install 'bookies[http]'") from error
    return site


def metadata_uri(arguments: argparse.Namespace) -> str:
    """Return the URI that is named, else that of the nearest local cluster or of the context. Raises `UsageError`."""
    uri = named_metadata(arguments)
    if uri:
        return uri
    directory = find_data_directory()
    context = active(has_data_directory=directory is not None)
    if context is not None:
        name, cluster = context
        if not cluster.metadata:
            raise UsageError(
                f"context {name} is the HTTP server {cluster.server}, and this command needs the metadata store: name "
                "it with --metadata URI"
            )
        return cluster.metadata
    if directory is None:
        raise UsageError(
            "no cluster named, and no bk-data directory found from here upwards: start a cluster with `bk up`, or name "
            "one with --metadata URI, BK_METADATA or `bk context use`"
        )
    return _store_of(directory)


def named_metadata(arguments: argparse.Namespace) -> str:
    """Return the URI of `--metadata`, else of `BK_METADATA`, else of the file of `BK_CONFIG`; empty: none of them."""
    uri = getattr(arguments, "metadata", None) or os.environ.get("BK_METADATA")
    if not uri and os.environ.get("BK_CONFIG"):
        from bookies.config import MetadataConfig
        from bookies.configuration import configured

        uri = configured(MetadataConfig).uri
    return str(uri or "")


def active_context(arguments: argparse.Namespace) -> tuple[str, Context] | None:
    """Return the context that a command uses, with its name; None: something else names its cluster."""
    if named_metadata(arguments):
        return None
    return active(has_data_directory=find_data_directory() is not None)


def _store_of(directory: str) -> str:
    """Return the store of the local cluster in a directory: its own, unless `bk up` was given another one."""
    try:
        with open(os.path.join(directory, "cluster.json"), encoding="utf-8") as file:
            uri = json.load(file)["metadata"]
    except (OSError, ValueError, LookupError, TypeError):
        uri = ""  # No bookie was started here, or the file is damaged: the store may still be readable.
    own = f"file:{os.path.join(directory, 'metadata')}"
    return uri if isinstance(uri, str) and uri and not uri.startswith("file:") else own


def refuse_memory(uri: str) -> None:
    """Raise `UsageError` for a store that exists only as long as this process."""
    if uri.strip().lower().startswith("memory:"):
        raise UsageError(f"{uri} exists only until this command ends: name a persistent store, such as file:DIR")


def stop_signals() -> list[signal.Signals]:
    """Return the signals that ask a command to end. SIGHUP is not one of them if it is ignored (`nohup`)."""
    ignores_hangup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if ignores_hangup else [signal.SIGHUP])]


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt in the block on every signal of `stop_signals`, as SIGINT does."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_async(main: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine to its end. `stop_signals` cancel it; after its clean-up KeyboardInterrupt is raised."""
    import asyncio  # here: importing it takes half of the time budget of `bk --help`

    from bookies.runtime import aio

    async def guarded() -> T:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        for number in before:
            loop.add_signal_handler(number, task.cancel)
        return await main()

    before = {number: signal.getsignal(number) for number in stop_signals()}
    try:
        return aio.run(guarded())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        # A loop that ends leaves the system's default handlers, not the previous ones.
        for number, handler in before.items():
            signal.signal(number, handler)


def with_client(arguments: argparse.Namespace, body: Callable[[Client], Awaitable[T]]) -> T:
    """Connect to the command's cluster and run `body` with the client."""

    async def main() -> T:
        from bookies.client.connect import connect

        async with connect(metadata_uri(arguments)) as client:
            return await body(client)

    return run_async(main)


class Session(NamedTuple):
    """A client and the driver that it uses, for commands that need both."""

    runtime: Runtime
    client: Client
    driver: MetadataDriver


def with_session(arguments: argparse.Namespace, body: Callable[[Session], Awaitable[T]]) -> T:
    """Connect to the command's cluster and run `body` with the client and its driver."""

    async def main() -> T:
        from bookies.client.client import Client
        from bookies.config import ClientConfig
        from bookies.configuration import configured
        from bookies.metadata.uri import connect
        from bookies.runtime import aio

        runtime = aio.runtime()
        driver = connect(metadata_uri(arguments), runtime, may_create=False)
        async with Client(runtime, driver, configured(ClientConfig)) as client:
            return await body(Session(runtime, client, driver))

    return run_async(main)


class OnCluster:
    """Function of a verb that works on a cluster. `run`: connects first. `within`: uses an existing session."""

    def __init__(
        self,
        run: Callable[[argparse.Namespace], Any],
        within: Callable[[Session, argparse.Namespace], Awaitable[Any]],
    ) -> None:
        self.run = run
        self.within = within

    def __call__(self, arguments: argparse.Namespace) -> Any:
        """Run the verb as a command."""
        return self.run(arguments)


class OnBookie:
    """Function of a verb that calls running bookies. `run`: those of this machine. `lines`: of an answer, as text.

    `calls`: names and arguments of the calls to the bookie, of which the last has the answer.
    """

    def __init__(
        self,
        run: Callable[[argparse.Namespace], Any],
        calls: Callable[[argparse.Namespace], Sequence[tuple[str, dict[str, object]]]],
        lines: Callable[[Any], list[str]],
    ) -> None:
        self.run = run
        self.calls = calls
        self.lines = lines

    def __call__(self, arguments: argparse.Namespace) -> Any:
        """Run the verb as a command."""
        return self.run(arguments)


def on_client(body: Callable[[Client, argparse.Namespace], Awaitable[Any]]) -> OnCluster:
    """Return the function of a verb that works with a client of the command's cluster."""
    return OnCluster(
        lambda arguments: with_client(arguments, lambda client: body(client, arguments)),
        lambda session, arguments: body(session.client, arguments),
    )


def on_session(body: Callable[[Session, argparse.Namespace], Awaitable[Any]]) -> OnCluster:
    """Return the function of a verb that works with a client and its driver."""
    return OnCluster(lambda arguments: with_session(arguments, lambda session: body(session, arguments)), body)


async def with_driver(
    uri: str, body: Callable[[MetadataDriver], Awaitable[T]], *, may_create: bool = False, must_be_cluster: bool = True
) -> T:
    """Open the store and run `body` with its driver.

    Raises `MetadataError` with `must_be_cluster` if the store holds no cluster.
    """
    from bookies.errors import MetadataError
    from bookies.metadata.uri import connect
    from bookies.runtime import aio

    driver = connect(uri, aio.runtime(), may_create=may_create)
    if may_create and uri.startswith("file:"):
        directory = uri.removeprefix("file:")
        os.makedirs(f"/{directory.lstrip('/')}" if directory.startswith("/") else directory, exist_ok=True)
    await driver.open()
    try:
        if must_be_cluster and await driver.instance_id() is None:
            raise MetadataError(
                f"there is no cluster at {uri}: create one with `bk metadata init`, or start its first bookie"
            )
        return await body(driver)
    finally:
        await driver.close()


def on_driver(body: Callable[[MetadataDriver, argparse.Namespace], Awaitable[Any]]) -> OnCluster:
    """Return the function of a verb that works with the metadata store of the command's cluster."""
    return OnCluster(
        lambda arguments: run_async(
            lambda: with_driver(metadata_uri(arguments), lambda driver: body(driver, arguments))
        ),
        lambda session, arguments: body(session.driver, arguments),
    )


def unreadable_lines(noun: str, errors: Sequence[MetadataCorrupt]) -> list[str]:
    """Return lines about ledgers whose records cannot be read."""
    return [f"bk {noun}: {error}; `bk metadata check` lists all unreadable records" for error in errors]


def report_unreadable(noun: str, errors: Sequence[MetadataCorrupt]) -> int:
    """Print the ledgers whose records cannot be read. Return the exit status: 1 if there is one."""
    for line in unreadable_lines(noun, errors):
        print(line, file=sys.stderr)
    return int(bool(errors))


def print_json(value: Any, file: TextIO | None = None) -> None:
    """Print one line of JSON, to stdout unless a file is given."""
    file = sys.stdout if file is None else file
    json.dump(value, file, default=_jsonable)
    file.write("\n")


def _jsonable(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, range | Iterator):
        return list(value)
    return str(value)


def print_table(rows: Sequence[Sequence[object]], headers: Sequence[str], *, right: Sequence[int] = ()) -> None:
    """Print aligned columns: see `table_lines`."""
    for line in table_lines(rows, headers, right=right):
        print(line)


def table_lines(
    rows: Sequence[Sequence[object]], headers: Sequence[str], *, right: Sequence[int] = ()
) -> Iterator[str]:
    """Yield aligned columns. `right`: indexes of right-aligned columns. Control characters in cells are escaped."""
    texts = [[visible(str(cell)) for cell in row] for row in rows]
    widths = [
        max(len(header), *(len(row[i]) for row in texts)) if texts else len(header) for i, header in enumerate(headers)
    ]
    for line in [list(headers), *texts]:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def visible(text: str) -> str:
    """Return the text with line breaks and control characters escaped as in Python, such as `\\n`."""
    if text.isprintable():
        return text
    import unicodedata

    from bookies.metadata.shared.bookie_notes import UNSEEN_CATEGORIES

    return "".join(
        repr(character)[1:-1] if unicodedata.category(character) in UNSEEN_CATEGORIES else character
        for character in text
    )


def time_text(wall_ms: float) -> str:
    """Return a wall clock's milliseconds as local time, to the second."""
    return datetime.datetime.fromtimestamp(wall_ms / 1000).isoformat(" ", "seconds")


class Progress:
    """Progress line of a long operation, on stderr. Silent when stderr is not a terminal.

    `note` adds a permanent line above it.
    """

    def __init__(self, unit: str, total: int | None, *, quiet: bool = False) -> None:
        """Begin. `unit`: what is counted, such as "ledgers"; `total`: their number if it is known."""
        self._unit, self._total = unit, total
        self._shown = sys.stderr.isatty() and not quiet
        self._begin = self._last = time.monotonic()
        self._width = 0

    def update(self, done: int, extra: str = "") -> None:
        """Rewrite the line, at most ten times a second."""
        now = time.monotonic()
        if not self._shown or now - self._last < 0.1:
            return
        self._last = now
        rate = done / max(now - self._begin, 1e-6)
        text = f"  {self._unit} {done:,}"
        if self._total:
            filled = min(24, 24 * done // self._total)
            remaining = max(0, self._total - done) / rate if rate else 0
            bar = "#" * filled + "." * (24 - filled)
            text = f"  {self._unit} [{bar}] {done:,}/{self._total:,}  {remaining:3.0f} s left"
        text += f"  {rate:,.0f}/s  {extra}"
        sys.stderr.write("\r" + text.ljust(self._width))
        sys.stderr.flush()
        self._width = len(text)

    def clear(self) -> None:
        """Remove the line from the terminal."""
        if self._shown and self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0

    def note(self, text: str) -> None:
        """Print a permanent line, also when stderr is not a terminal."""
        self.clear()
        print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def quiet_logs(level: int) -> Iterator[None]:
    """Suppress events below this level in the block."""
    logger = logging.getLogger("bookies")
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextlib.contextmanager
def opened_input(path: str | None, consequence: str) -> Iterator[int]:
    """Open a file, or standard input, and yield its descriptor.

    `consequence`: the end of the message of `UsageError` if it cannot be read, such as "no entry was appended".
    """
    if path is None:
        if sys.stdin is None:
            raise UsageError(f"standard input is closed; {consequence}")
        yield sys.stdin.fileno()
        return
    try:
        source = open(path, "rb", buffering=0)  # noqa: SIM115 - closed below
    except OSError as error:
        raise UsageError(f"cannot read {path}: {(error.strerror or '').lower()}; {consequence}") from error
    with source:
        yield source.fileno()
