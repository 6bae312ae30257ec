"""What commands share: finding the cluster, printing, progress, running a coroutine."""

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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from bookies.client.client import Client
    from bookies.errors import MetadataCorrupt
    from bookies.metadata.interface import MetadataDriver
    from bookies.runtime.ports import Runtime

from bookies.admin.shared.usage import UsageError

T = TypeVar("T")
DATA_DIRECTORY = "bk-data"


def add_common(parser: argparse.ArgumentParser, *, metadata: bool = True) -> None:
    """The options every command has."""
    if metadata:
        parser.add_argument(
            "--metadata",
            metavar="URI",
            help="the cluster: file:DIR, zk://HOST:2181/PATH, etcd://HOST:2379/PATH (default: BK_METADATA, bk-data)",
        )
    parser.add_argument("--json", action="store_true", help="one JSON document (or line per row) on stdout")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def add_rate(parser: argparse.ArgumentParser) -> None:
    """The budget of a command that copies; see `check_rate`."""
    parser.add_argument("--rate", type=float, default=None, metavar="BYTES", help="copy at most so many bytes a second")


def check_rate(arguments: argparse.Namespace) -> None:
    """Raises `UsageError`."""
    if arguments.rate is not None and arguments.rate <= 0:
        raise UsageError(f"--rate {arguments.rate:g}: must be above 0; without it copies are as fast as they go")


def find_data_directory() -> str | None:
    """The nearest `bk-data` from the current directory upwards."""
    here = os.getcwd()
    while True:
        candidate = os.path.join(here, DATA_DIRECTORY)
        if os.path.isdir(candidate):
            return candidate
        parent = os.path.dirname(here)
        if parent == here:
            return None
        here = parent


def metadata_uri(arguments: argparse.Namespace) -> str:
    """The URI that was given, or the environment's, or the nearest local cluster's. Raises `UsageError`."""
    uri = getattr(arguments, "metadata", None) or os.environ.get("BK_METADATA")
    if uri:
        return str(uri)
    directory = find_data_directory()
    if directory is None:
        raise UsageError("no cluster here: start one with `bk up`, or name one with --metadata URI or BK_METADATA")
    return _store_of(directory)


def _store_of(directory: str) -> str:
    """Of the local cluster in a directory: its own, unless `bk up` was told of another one."""
    try:
        with open(os.path.join(directory, "cluster.json"), encoding="utf-8") as file:
            uri = json.load(file)["metadata"]
    except (OSError, ValueError, LookupError, TypeError):
        uri = ""  # Nothing was started here, or the file is damaged: the store may still be read.
    own = f"file:{os.path.join(directory, 'metadata')}"
    return uri if isinstance(uri, str) and uri and not uri.startswith("file:") else own


def refuse_memory(uri: str) -> None:
    """Raises UsageError for a store that would be gone with this command."""
    if uri.strip().lower().startswith("memory:"):
        raise UsageError(f"{uri} would be gone when this command ends: name a store that stays, as file:DIR")


def stop_signals() -> list[signal.Signals]:
    """The signals that ask a command to end; not SIGHUP when it is to be ignored (`nohup`)."""
    is_deaf = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if is_deaf else [signal.SIGHUP])]


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Every one of `stop_signals` raises KeyboardInterrupt in the block, as SIGINT does."""

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
    import asyncio  # here, because it takes half of the time that `bk --help` may take

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
        # A loop that ends leaves the system's handlers behind, not those that it found.
        for number, handler in before.items():
            signal.signal(number, handler)


def with_client(arguments: argparse.Namespace, body: Callable[[Client], Awaitable[T]]) -> T:
    """Connect to the command's cluster and run `body` with the client."""

    async def main() -> T:
        from bookies.client.connect import connect

        async with connect(metadata_uri(arguments)) as client:
            return await body(client)

    return run_async(main)


@dataclass(frozen=True, slots=True)
class Session:
    """A client and the driver that it uses, for commands that need both."""

    runtime: Runtime
    client: Client
    driver: MetadataDriver


def with_session(arguments: argparse.Namespace, body: Callable[[Session], Awaitable[T]]) -> T:
    """Connect to the command's cluster and run `body` with the client and its driver."""

    async def main() -> T:
        from bookies.client.client import Client
        from bookies.config import ClientConfig, from_environment
        from bookies.metadata.uri import connect
        from bookies.runtime import aio

        runtime = aio.runtime()
        driver = connect(metadata_uri(arguments), runtime, may_create=False)
        async with Client(runtime, driver, from_environment(ClientConfig)) as client:
            return await body(Session(runtime, client, driver))

    return run_async(main)


async def with_driver(
    uri: str, body: Callable[[MetadataDriver], Awaitable[T]], *, may_create: bool = False, must_be_cluster: bool = True
) -> T:
    """Open the store and run `body` with its driver. Raises `MetadataError` where there is no cluster and must be."""
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
            raise MetadataError(f"there is no cluster at {uri}: `bk metadata init` or its first bookie makes one")
        return await body(driver)
    finally:
        await driver.close()


def say_unreadable(noun: str, errors: Sequence[MetadataCorrupt]) -> int:
    """Name ledgers whose records cannot be read; the exit status that follows."""
    for error in errors:
        print(f"bk {noun}: {error}; `bk metadata check` names all such", file=sys.stderr)
    return int(bool(errors))


def print_json(value: Any) -> None:
    json.dump(value, sys.stdout, default=_jsonable)
    sys.stdout.write("\n")


def _jsonable(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, range | Mapping):
        return list(value) if isinstance(value, range) else dict(value)
    return str(value)


def say(arguments: argparse.Namespace, facts: object, text: str) -> int:
    """What was done: for JSON, or in words. Exit status 0."""
    if arguments.json:
        print_json(facts)
    else:
        print(text)
    return 0


def print_table(rows: Sequence[Sequence[object]], headers: Sequence[str], *, right: Sequence[int] = ()) -> None:
    """Aligned columns; `right`: indexes of columns of numbers. Nothing in a cell breaks a line or moves the cursor."""
    texts = [[visible(str(cell)) for cell in row] for row in rows]
    widths = [
        max(len(header), *(len(row[i]) for row in texts)) if texts else len(header) for i, header in enumerate(headers)
    ]
    for line in [list(headers), *texts]:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def visible(text: str) -> str:
    """With line breaks and control characters as Python writes them, such as `\\n`."""
    if text.isprintable():
        return text
    import unicodedata

    from bookies.metadata.shared.bookie_notes import UNSEEN_CATEGORIES

    return "".join(repr(each)[1:-1] if unicodedata.category(each) in UNSEEN_CATEGORIES else each for each in text)


def time_text(wall_ms: float) -> str:
    """A wall clock's milliseconds, as local time."""
    return datetime.datetime.fromtimestamp(wall_ms / 1000).isoformat(" ", "seconds")


def size_text(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


class Progress:
    """A line on stderr that says how far a long operation is; nothing when stderr is not a terminal.

    `note` adds a permanent line above it.
    """

    def __init__(self, what: str, total: int | None, *, quiet: bool = False) -> None:
        self._what, self._total = what, total
        self._shown = sys.stderr.isatty() and not quiet
        self._begin = self._last = time.monotonic()
        self._width = 0

    def update(self, done: int, extra: str = "") -> None:
        now = time.monotonic()
        if not self._shown or now - self._last < 0.1:
            return
        self._last = now
        rate = done / max(now - self._begin, 1e-6)
        text = f"  {self._what} {done:,}"
        if self._total:
            filled = min(24, 24 * done // self._total)
            remaining = max(0, self._total - done) / rate if rate else 0
            bar = "#" * filled + "." * (24 - filled)
            text = f"  {self._what} [{bar}] {done:,}/{self._total:,}  {remaining:3.0f} s left"
        text += f"  {rate:,.0f}/s  {extra}"
        sys.stderr.write("\r" + text.ljust(self._width))
        sys.stderr.flush()
        self._width = len(text)

    def clear(self) -> None:
        if self._shown and self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0

    def note(self, text: str) -> None:
        self.clear()
        print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def quiet_logs(level: int) -> Iterator[None]:
    """Events below this level are not worth a line meanwhile."""
    logger = logging.getLogger("bookies")
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextlib.contextmanager
def opened_input(path: str | None, consequence: str) -> Iterator[int]:
    """The descriptor to read from: of a file, or standard input. `consequence`: what to say was not done without it."""
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
