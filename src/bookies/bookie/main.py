"""A bookie as a process: signals, the ready line, exit status, and one sentence for each error that prevents a start.

The ready line on stdout reports that the bookie serves and is registered: a sentence on a terminal, otherwise one
JSON object `{"ready": true, "bookie": ..., "host": ..., "port": ..., "pid": ...}`. The log goes to stderr.

With `BK_PARENT_PIPE=1` the bookie also stops when its standard input ends. Its parent holds the other end of the
pipe, and the system closes that however the parent dies.

Exit status (storage 9.6): 0 stopped as asked, 1 configuration, 2 port or an internal error, 4 metadata store or
registration, 5 directories or storage.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

from bookies.bookie.identity import ANY_BOOKIE, check_identity, identity
from bookies.bookie.server import BookieServer
from bookies.config import BookieConfig, validate
from bookies.errors import (
    BookKeeperError,
    ConfigError,
    CookieMismatch,
    DirectoryInUse,
    MetadataError,
    StorageError,
)
from bookies.metadata.uri import connect
from bookies.runtime import aio
from bookies.runtime.events import Events, JournalFormatter, JsonFormatter, is_journal, prioritized
from bookies.runtime.open_files import OpenFiles
from bookies.runtime.ports import Runtime
from bookies.runtime.service_manager import ServiceManager, service_manager
from bookies.settings import Layer

TIDY_AFTER_S = 1.0  # serving; the import takes some 20 ms, which a start need not wait for
OPEN_FILES = 65_536
STDERR = 2
BESIDE_S = 10.0  # for tasks beside a bookie, to end
EXIT_OK, EXIT_CONFIG, EXIT_INTERNAL, EXIT_METADATA, EXIT_STORAGE = 0, 1, 2, 4, 5

_PORT_ERRORS = (errno.EADDRINUSE, errno.EADDRNOTAVAIL)


Beside = Callable[[BookieServer, Runtime], Awaitable[None]]
Around = Callable[[BookieServer, Runtime], contextlib.AbstractAsyncContextManager[None]]


def run(
    config: BookieConfig,
    metadata_uri: str,
    *,
    ready: Callable[[BookieServer], None] | None = None,
    beside: Beside | None = None,
    around: Around | None = None,
    origins: Layer | None = None,
) -> int:
    """Run a bookie until SIGTERM or SIGINT and return the exit status. `ready`: called once instead of the ready line.

    `beside`: runs for as long as the bookie serves, then it is cancelled; its failure does not stop the bookie.
    `around`: entered before the bookie starts, left after it has stopped. `origins`: the places of the settings.
    """
    configure_logging()
    raise_open_files()
    try:
        validate(config)
        check_identity(config)
    except ConfigError as error:
        return _refuse(config, error)
    return aio.run(_main(config, metadata_uri, ready or print_ready, beside, around, origins or {}))


def raise_open_files() -> None:
    """Raise the soft limit of open files to the hard one, at most `OPEN_FILES`. Containers often start with 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


async def _main(
    config: BookieConfig,
    metadata_uri: str,
    ready: Callable[[BookieServer], None],
    beside: Beside | None,
    around: Around | None,
    origins: Layer,
) -> int:
    stop_asked = asyncio.Event()
    _stop_on_signals(stop_asked)
    runtime = aio.runtime()
    manager = service_manager(os.environ)
    surroundings = contextlib.AsyncExitStack()
    await surroundings.enter_async_context(manager.alive())
    try:
        driver = connect(metadata_uri, runtime, lease_ms=config.lease_ms, may_create=ANY_BOOKIE in config.new_bookies)
        await driver.open()
    except (BookKeeperError, OSError) as error:
        await surroundings.aclose()
        return _refuse(config, error, EXIT_METADATA)
    server = BookieServer(runtime, config, driver)
    server.settings.origins = origins
    try:
        try:
            if around is not None:
                await surroundings.enter_async_context(around(server, runtime))
            if not await _start_unless(stop_asked, server):
                return EXIT_OK
        except Exception as error:  # noqa: BLE001  (becomes a sentence and the exit status)
            return _refuse(config, error)
        ready(server)
        asyncio.get_running_loop().call_later(TIDY_AFTER_S, _leave_to_the_end)
        watch = asyncio.create_task(OpenFiles(Events("process", runtime.clock)).watch())
        surroundings.callback(watch.cancel)
        async with _running_beside(beside, server, runtime):
            return await _serve(server, stop_asked, manager)
    finally:
        await surroundings.aclose()
        await driver.close()


def _leave_to_the_end() -> None:
    """Exempt everything allocated so far from garbage collection: it lives as long as the process."""
    gc.collect()
    gc.freeze()


@contextlib.asynccontextmanager
async def _running_beside(beside: Beside | None, server: BookieServer, runtime: Runtime) -> AsyncIterator[None]:
    """Run a task during the block. The bookie stops in the block and waits for the task's end for a limited time."""
    if beside is None:
        yield
        return
    task = asyncio.ensure_future(beside(server, runtime))

    def ended(task: asyncio.Future[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logging.getLogger("bookies.bookie").error("the task that runs beside the bookie has failed", exc_info=error)

    task.add_done_callback(ended)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,), timeout=BESIDE_S)


async def _start_unless(stop_asked: asyncio.Event, server: BookieServer) -> bool:
    """Start, or give up when a stop is requested: a long journal replay must not delay the stop."""
    start = asyncio.create_task(server.start())
    wish = asyncio.create_task(stop_asked.wait())
    await asyncio.wait((start, wish), return_when=asyncio.FIRST_COMPLETED)
    if not start.done():
        start.cancel()
        await asyncio.wait((start,))
    wish.cancel()
    if start.cancelled():
        return False
    start.result()
    return True


async def _serve(server: BookieServer, stop_asked: asyncio.Event, manager: ServiceManager) -> int:
    failure = asyncio.create_task(server.wait_failed())
    wish = asyncio.create_task(stop_asked.wait())
    host, port = server.address
    with manager.serving(f"bookie {server.bookie_id} serves on {host}:{port}"):
        await asyncio.wait((failure, wish), return_when=asyncio.FIRST_COMPLETED)
    wish.cancel()
    if not failure.done():
        failure.cancel()
        await server.stop()
        return EXIT_OK
    await server.abort()
    cause = failure.result()
    status = EXIT_STORAGE if isinstance(cause, StorageError | OSError) else EXIT_INTERNAL
    _print_failure(
        f"bookie {server.bookie_id} failed: {_reason(cause)}. Entries it had not yet confirmed may or may "
        "not be stored; confirmed ones are in its journal and are restored when it is started again"
    )
    return status


def _stop_on_signals(stop_asked: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_asked.set)
    if os.environ.get("BK_PARENT_PIPE") == "1":

        def parent_wrote_or_died() -> None:
            if not os.read(0, 4096):
                loop.remove_reader(0)
                stop_asked.set()

        with contextlib.suppress(PermissionError):  # a file or /dev/null, whose end says nothing about the parent
            loop.add_reader(0, parent_wrote_or_died)


def print_ready(server: BookieServer) -> None:
    """Print that the bookie serves. A closed stdout does not stop the bookie."""
    host, port = server.address
    text = (
        f"bookie {server.bookie_id} serves on {host}:{port} ({server.state.mode.value}); Ctrl-C stops it"
        if sys.stdout.isatty()
        else ready_line(server)
    )
    try:
        print(text, flush=True)
    except OSError:
        # The rest of the buffer must not fail again at the end: the line goes to the log.
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


def ready_line(server: BookieServer) -> str:
    """Return the ready line as JSON."""
    host, port = server.address
    facts = {"ready": True, "bookie": server.bookie_id, "host": host, "port": port, "pid": os.getpid()}
    return json.dumps(facts | ({"http": list(server.http_address)} if server.http_address is not None else {}))


def _refuse(config: BookieConfig, error: Exception, status: int | None = None) -> int:
    """Print in one sentence why the bookie does not start: object, cause, consequence, remedy."""
    name = identity(config)
    start = f"cannot start bookie {name}: "
    unchanged = "Nothing was changed."
    if isinstance(error, CookieMismatch):
        text, exit_status = str(error), EXIT_STORAGE
    elif isinstance(error, ConfigError):
        text, exit_status = f"{start}{error}", EXIT_CONFIG
    elif isinstance(error, DirectoryInUse):
        text = f"{start}{error}. {unchanged} Stop that bookie, or name other directories: --journal-dir, --ledger-dir"
        exit_status = EXIT_STORAGE
    elif isinstance(error, StorageError):
        text, exit_status = f"{start}{error}", EXIT_STORAGE
    elif isinstance(error, MetadataError) or status == EXIT_METADATA:
        text, exit_status = f"{start}{_reason(error)}", EXIT_METADATA
    elif isinstance(error, OSError) and (error.errno in _PORT_ERRORS or error.filename is None):
        problem = (
            "is in use by another process"
            if error.errno == errno.EADDRINUSE
            else f"cannot be listened on: {_reason(error)}"
        )
        remedy = (
            "Stop that process or choose another port" if error.errno == errno.EADDRINUSE else "Choose another address"
        )
        text = f"{start}port {config.port} of {config.host} {problem}. {unchanged} {remedy}: --host, --port"
        exit_status = EXIT_INTERNAL
    elif isinstance(error, OSError):
        text = (
            f"{start}cannot use {error.filename}: {os.strerror(error.errno or 0).lower()}. Make it a directory that "
            "this user can write, or name another one: --journal-dir, --ledger-dir"
        )
        exit_status = EXIT_STORAGE
    else:
        logging.getLogger("bookies.bookie").error("bookie.broken", exc_info=error)
        text, exit_status = f"{start}internal error, {_reason(error)}; this is a bug", EXIT_INTERNAL
    _print_failure(text)
    return exit_status if status is None else status


def _print_failure(text: str) -> None:
    print(prioritized(logging.ERROR, text) if is_journal(STDERR) else text, file=sys.stderr)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{error}" if isinstance(error, BookKeeperError) else f"{type(error).__name__}: {error}"


def configure_logging() -> None:
    """Log events to stderr, as JSON with `BK_LOG_FORMAT=json`. Handlers that the process has configured itself stay.

    For systemd's journal, which adds the time itself, each line has its priority.
    """
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler()
    to_journal = is_journal(STDERR)
    time = "" if to_journal else "%(asctime)s "
    is_json = os.environ.get("BK_LOG_FORMAT") == "json"
    formatter = JsonFormatter() if is_json else logging.Formatter(f"{time}%(levelname)-7s %(message)s")
    handler.setFormatter(JournalFormatter(formatter) if to_journal else formatter)
    root.addHandler(handler)
    logging.getLogger("bookies").setLevel(os.environ.get("BK_LOG_LEVEL", "INFO").upper())
