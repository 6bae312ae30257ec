"""Cluster of bookie processes on this machine: for tests, notebooks, `bk up`, the demo and the benchmarks.

    directory/cluster.json        running processes: {directory, metadata, bookies: [{id, pid, host, port, log}]}
    directory/metadata            the embedded metadata store, unless another store was named
    directory/<bookie>/journal, ledgers, bookie.log
    directory/.<bookie>.ready     the ready line of a running bookie, for processes that did not start it

The bookies run in `directory` and name their own directories relative to it. A stopped cluster can therefore be moved,
although cookies contain directory names.

Every bookie is a process group of its own, so that Ctrl-C reaches only the owner, which stops the bookies in order. A
cluster that is not detached ends with its owner, also after SIGKILL: each bookie's standard input is a pipe whose
other end the owner holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType, TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

from msgspec import Struct, field

from bookies.errors import BookieUnreachable, BookKeeperError, ConfigError

if TYPE_CHECKING:
    from bookies.client.blocking.blocking import Client as BlockingClient

STATE_FILE = "cluster.json"
LOCK_FILE = ".cluster.lock"
BOOKIES, BOOKIES_MAX = 3, 100
LEASE_MS = 10_000
START_S = 60.0
STOP_S = 10.0
POLL_S = 0.05  # interval of checks whether a bookie of another process serves


class LocalBookie(Struct):
    """One bookie of the cluster, running or not. `host` and `port` are None until it is ready.

    `settings`: fields of `BookieConfig` for this bookie alone. They are not stored in `cluster.json`. `prefix`: words
    before the command of its process, such as `nsenter`. `program`: another command than `bk bookie run`, which
    listens on `host` and `port` and prints no ready line; only for `begin_restart`. `disks`: ledger directories below
    its own one, not stored either.
    """

    id: str
    directory: pathlib.Path
    pid: int | None = None
    host: str | None = None
    port: int | None = None
    process: subprocess.Popen[bytes] | None = None
    settings: dict[str, object] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
    program: tuple[str, ...] = ()
    disks: tuple[str, ...] = ("ledgers",)

    @property
    def log(self) -> pathlib.Path:
        return self.directory / "bookie.log"

    @property
    def ready_file(self) -> pathlib.Path:
        return self.directory.parent / f".{self.id}.ready"

    def serves(self) -> bool:
        """Report whether the bookie was ready and accepts connections. For bookies that another process started."""
        try:
            if self.port is None:
                state = json.loads(self.ready_file.read_bytes())
                if state["pid"] != self.pid:
                    return False
                self.host, self.port = state["host"], state["port"]
            socket.create_connection((self.host or "", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def is_running(self) -> bool:
        """Report whether the recorded process is alive. A process that reused its pid does not count."""
        if self.process is not None:
            return self.process.poll() is None
        if self.pid is None:
            return False
        try:
            words = pathlib.Path(f"/proc/{self.pid}/cmdline").read_bytes().split(b"\0")
            state = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state != "Z" and self.id.encode() in words

    def send(self, number: int) -> None:
        """Send a signal to the process, if it runs."""
        if self.is_running():
            assert self.pid is not None
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the process has ended. Return False after `timeout_s`."""
        if self.process is not None:
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return False
            return True
        if not self.is_running():
            return True
        assert self.pid is not None
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            ended = bool(selector.select(timeout_s))
        os.close(descriptor)
        return ended


class LocalCluster:
    """`bookies` bookie processes and their metadata store, in `directory`.

    A directory that was used before continues with its data: the defaults of `bookies`, `lease_ms`, `metadata_uri` and
    `settings` (fields of `BookieConfig`, for every bookie) are then the previous values. `metadata_uri`: a ZooKeeper
    or an etcd instead of the directory's own store. `detach`: the bookies outlive this process, and another
    `LocalCluster` of the directory finds them running.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        bookies: int | None = None,
        *,
        lease_ms: int | None = None,
        metadata_uri: str | None = None,
        settings: Mapping[str, object] | None = None,
        detach: bool = False,
    ) -> None:
        if bookies is not None and not 1 <= bookies <= BOOKIES_MAX:
            raise ConfigError(f"bookies = {bookies}: a local cluster has 1 to {BOOKIES_MAX}")
        self.directory = os.path.abspath(directory)
        self.is_detached = detach
        state = self._load_state()
        self.metadata_uri = self._store(metadata_uri, state.get("metadata", ""))
        self._lease_ms = lease_ms or state.get("lease_ms", LEASE_MS)
        self._settings = dict(state.get("settings", {}) if settings is None else settings)
        self._defaults: dict[str, str] = {}  # variables for bookies, unless this process has them
        self._is_temporary = False
        self.bookies = [self._new_bookie(known["id"], known) for known in state.get("bookies", ())]
        wanted = bookies or len(self.bookies) or BOOKIES
        while len(self.bookies) < wanted:
            self.bookies.append(self._new_bookie(f"b{len(self.bookies) + 1}"))

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> Self:
        """Load the cluster of `directory`. Raises `ConfigError` if there is none."""
        if not os.path.exists(os.path.join(directory, STATE_FILE)):
            raise ConfigError(f"{os.path.abspath(directory)} holds no local cluster; create one with `bk up`")
        return cls(directory, detach=True)

    def connect(self) -> BlockingClient:
        """Return a blocking client of this cluster. `bookies.connect(cluster.metadata_uri)` is the asyncio client."""
        from bookies.client.blocking import blocking

        return blocking.connect(self.metadata_uri)

    def enable_http(self) -> None:
        """Give the bookies that start from now on an HTTP server on any free port, unless the settings name one."""
        self._settings.setdefault("http_port", 0)

    def enable_log_housekeeping(self) -> None:
        """Let the bookies that start from now on apply the retention of logs, unless the settings decide about it."""
        self._defaults["BK_LOG_HOUSEKEEPING"] = "true"

    def pids(self) -> list[int]:
        """Return the process ids of the running bookies."""
        return [bookie.pid for bookie in self.bookies if bookie.pid is not None and bookie.is_running()]

    def describe(self) -> dict[str, Any]:
        """Return the contents of `cluster.json`."""
        return {
            "directory": self.directory,
            "metadata": self.metadata_uri,
            "lease_ms": self._lease_ms,
            "settings": {name: str(value) for name, value in self._settings.items()},
            "bookies": [
                {"id": bookie.id, "pid": bookie.pid, "host": bookie.host, "port": bookie.port, "log": str(bookie.log)}
                for bookie in self.bookies
            ],
        }

    def _store(self, wanted: str | None, known: str) -> str:
        """Return the metadata store's URI. An embedded store is in the cluster's present directory.

        Raises `ConfigError` for another store than the one the bookies belong to.
        """
        own = f"file:{os.path.join(self.directory, 'metadata')}"
        if not wanted:
            return own if known.startswith("file:") else known or own
        if wanted.startswith(("file:", "memory:")):
            raise ConfigError(
                f"{wanted}: a local cluster uses the embedded store in its own directory, or a ZooKeeper or etcd server"
            )
        if known and known != wanted:
            raise ConfigError(f"the bookies in {self.directory} belong to the cluster {known}, not to {wanted}")
        return wanted

    # -- life ----------------------------------------------------------------------------------------------------
    def start(self, timeout_s: float = START_S, *, failures: dict[str, BookKeeperError] | None = None) -> list[str]:
        """Start every bookie that does not run, all at once, and wait until each serves. Return their ids.

        Raises `BookKeeperError` with the bookie's own message if one does not serve; the started ones are then stopped.
        With `failures` the bookies that serve keep running, if there are any, and the dictionary receives the errors of
        the others by id.
        """
        is_own = self.metadata_uri.startswith("file:")
        os.makedirs(os.path.join(self.directory, "metadata") if is_own else self.directory, exist_ok=True)
        with self._locked():
            errors = self._wait_serving(timeout_s)
            starting = [bookie for bookie in self.bookies if not bookie.is_running()]
            try:
                for bookie in starting:
                    try:
                        self._spawn(bookie)
                    except OSError as error:
                        errors[bookie.id] = BookKeeperError(
                            f"cannot start bookie {bookie.id}: {error.filename}: {(error.strerror or '').lower()}"
                        )
                self._save()
                errors |= self._wait_ready([bookie for bookie in starting if bookie.process], timeout_s)
                if errors and (failures is None or len(errors) == len(self.bookies)):
                    raise next(iter(errors.values()))
            except BaseException:
                self._find_unrecorded()
                self._stop(starting, STOP_S)
                raise
            self._stop([bookie for bookie in starting if bookie.id in errors], STOP_S)
        if failures is not None:
            failures |= errors
        return [bookie.id for bookie in starting if bookie.id not in errors]

    def stop(self, timeout_s: float = STOP_S) -> list[str]:
        """Send SIGTERM to all bookies, and SIGKILL after `timeout_s`. Return the ids of those that ran. Idempotent."""
        with self._locked():
            running = [bookie for bookie in self.bookies if bookie.is_running()]
            self._stop(self.bookies, timeout_s)
        if self._is_temporary:
            shutil.rmtree(os.path.dirname(self.directory), ignore_errors=True)
        return [bookie.id for bookie in running]

    def _stop(self, bookies: list[LocalBookie], timeout_s: float) -> None:
        for bookie in bookies:
            bookie.send(signal.SIGTERM)
            bookie.send(signal.SIGCONT)
        deadline = time.monotonic() + timeout_s
        for bookie in bookies:
            if not bookie.wait(max(0.0, deadline - time.monotonic())):
                bookie.send(signal.SIGKILL)
                bookie.wait(STOP_S)
            self._ended(bookie)
        if os.path.isdir(self.directory):
            self._save()

    def kill(self, bookie_id: str | int, number: int = signal.SIGKILL) -> None:
        """Send a signal to one bookie, by id or index. After SIGKILL, wait until the process has ended."""
        bookie = self._bookie(bookie_id)
        bookie.send(number)
        if number == signal.SIGKILL:
            bookie.wait(STOP_S)
            self._ended(bookie)
            self._save()

    def begin_restart(self, bookie_id: str | int) -> LocalBookie:
        """Start one bookie that does not run and return it without waiting until it serves. Raises OSError."""
        bookie = self._bookie(bookie_id)
        assert not bookie.is_running(), f"{bookie.id} runs"
        self._spawn(bookie)
        self._save()
        return bookie

    def restart(self, bookie_id: str | int, timeout_s: float = START_S) -> None:
        """Start one bookie that does not run, by id or index, and wait until it serves. Raises like `start`."""
        bookie = self._bookie(bookie_id)
        assert not bookie.is_running(), f"{bookie.id} runs"
        try:
            self._spawn(bookie)
            for error in self._wait_ready([bookie], timeout_s).values():
                raise error
        except BaseException:
            self._stop([bookie], 0.0)
            raise
        self._save()

    def add_bookie(self, timeout_s: float = START_S) -> str:
        """Start one more bookie and return its id."""
        bookie = self._new_bookie(f"b{len(self.bookies) + 1}")
        self.bookies.append(bookie)
        self.restart(bookie.id, timeout_s)
        return bookie.id

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        running = [bookie.id for bookie in self.bookies if bookie.is_running()]
        return f"<LocalCluster {self.directory}, {len(running)} of {len(self.bookies)} bookies run>"

    # -- processes -----------------------------------------------------------------------------------------------
    def _new_bookie(self, name: str, known: Mapping[str, Any] = MappingProxyType({})) -> LocalBookie:
        directory = pathlib.Path(self.directory, name)
        return LocalBookie(name, directory, known.get("pid"), known.get("host"), known.get("port"))

    def _bookie(self, bookie_id: str | int) -> LocalBookie:
        if isinstance(bookie_id, int):
            return self.bookies[bookie_id]
        return next(bookie for bookie in self.bookies if bookie.id == bookie_id)

    def _spawn(self, bookie: LocalBookie) -> None:
        self._ended(bookie)
        if not bookie.program:
            bookie.host = bookie.port = None
        bookie.directory.mkdir(parents=True, exist_ok=True)
        command = [
            *(sys.executable, "-P", "-m", "bookies.admin.cli", "bookie", "run"),
            *("--bookie-id", bookie.id, "--port", "0", "--ready-file", bookie.ready_file.name),
            *("--journal-dir", f"{bookie.id}/journal"),
            *(f"--ledger-dir={bookie.id}/{name}" for name in bookie.disks),
            *("--metadata", self.metadata_uri, "--lease-ms", str(self._lease_ms)),
            *(f"--set={name}={value}" for name, value in (self._settings | bookie.settings).items()),
        ]
        environment = self._defaults | dict(os.environ)
        environment.pop("BK_PARENT_PIPE", None)
        environment.pop("BK_CONFIG", None)  # The file's identity and directories are those of one bookie.
        environment.pop("BK_NEW_BOOKIES", None)  # Of containers: empty there, while this cluster's bookies are new.
        if not self.is_detached:
            environment["BK_PARENT_PIPE"] = "1"
        with bookie.log.open("ab") as log:
            bookie.process = subprocess.Popen(
                [*bookie.prefix, *(bookie.program or command)],
                stdin=subprocess.DEVNULL if self.is_detached else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self.directory,
                env=environment,
                start_new_session=True,
            )
        bookie.pid = bookie.process.pid

    def _wait_ready(self, starting: list[LocalBookie], timeout_s: float) -> dict[str, BookKeeperError]:
        """Read the ready line of each bookie. Return the errors of those that do not serve, by id."""
        deadline = time.monotonic() + timeout_s
        lines: dict[str, bytes] = {}
        errors: dict[str, BookKeeperError] = {}
        with selectors.DefaultSelector() as selector:
            for bookie in starting:
                selector.register(_output_of(bookie), selectors.EVENT_READ, bookie)
            while selector.get_map():
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    for key in selector.get_map().values():
                        text = f"bookie {key.data.id} did not serve within {timeout_s:.0f} s"
                        errors[key.data.id] = BookieUnreachable(text)
                    break
                for key, _ in ready:
                    bookie = key.data
                    data = os.read(key.fd, 65536)
                    lines[bookie.id] = lines.get(bookie.id, b"") + data
                    if not data:
                        selector.unregister(key.fileobj)
                        errors[bookie.id] = BookKeeperError(_last_words(bookie))
                    elif b"\n" in data:
                        selector.unregister(key.fileobj)
                        ready_line = json.loads(lines[bookie.id].splitlines()[0])
                        bookie.host, bookie.port = ready_line["host"], ready_line["port"]
        return errors

    def _wait_serving(self, timeout_s: float) -> dict[str, BookKeeperError]:
        """Wait until each bookie of another process serves or has ended. Return the errors of the others, by id."""
        deadline = time.monotonic() + timeout_s
        errors: dict[str, BookKeeperError] = {}
        for bookie in self.bookies:
            while bookie.process is None and bookie.is_running() and not bookie.serves():
                if time.monotonic() > deadline:
                    errors[bookie.id] = BookieUnreachable(
                        f"bookie {bookie.id} runs (process {bookie.pid}) but does not serve; `bk down` stops it"
                    )
                    break
                bookie.wait(POLL_S)
        return errors

    def _find_unrecorded(self) -> None:
        """Find bookies that run in this directory although their process ids are not in `cluster.json`."""
        stopped = {bookie.id.encode(): bookie for bookie in self.bookies if not bookie.is_running()}
        directory = os.path.realpath(self.directory)
        for name in os.listdir("/proc") if stopped else ():
            if not name.isdigit():
                continue
            try:
                words = pathlib.Path("/proc", name, "cmdline").read_bytes().split(b"\0")
                if b"bookies.admin.cli" not in words or b"--bookie-id" not in words:
                    continue
                bookie = stopped.get(words[words.index(b"--bookie-id") + 1])
                if bookie is not None and os.readlink(f"/proc/{name}/cwd") == directory:
                    self._ended(bookie, keep_ready_file=True)
                    bookie.pid, bookie.host, bookie.port = int(name), None, None
            except OSError:
                continue  # The process has ended meanwhile, or belongs to another user.

    @staticmethod
    def _ended(bookie: LocalBookie, *, keep_ready_file: bool = False) -> None:
        """Release the resources of a process that has ended."""
        if not keep_ready_file:
            with contextlib.suppress(OSError):
                bookie.ready_file.unlink()
        if bookie.process is not None:
            for stream in (bookie.process.stdin, bookie.process.stdout):
                if stream is not None:
                    stream.close()
        bookie.process = bookie.pid = None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the cluster's lock: processes start and stop bookies one at a time. Reload the recorded processes."""
        if not os.path.isdir(self.directory):
            yield
            return
        with open(os.path.join(self.directory, LOCK_FILE), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = {record["id"]: record for record in self._load_state().get("bookies", ())}
            for bookie in self.bookies:
                if bookie.process is None and (recorded := known.get(bookie.id)):
                    bookie.pid, bookie.host, bookie.port = (
                        recorded.get("pid"),
                        recorded.get("host"),
                        recorded.get("port"),
                    )
            self._find_unrecorded()
            yield

    def _load_state(self) -> dict[str, Any]:
        """Read `cluster.json`; return {} if it does not exist. Raises `ConfigError` if it is damaged."""
        path = os.path.join(self.directory, STATE_FILE)
        try:
            with open(path, encoding="utf-8") as file:
                state = json.load(file)
        except FileNotFoundError:
            return {}
        except ValueError:
            state = None
        if not _is_state(state):
            raise ConfigError(
                f"{path} is damaged: the list of bookies cannot be read. Nothing was changed. Restore the file, or "
                "remove it and run `bk up --bookies N` with the previous number of bookies; it contains no ledger data"
            )
        known: dict[str, Any] = state
        return known

    def _save(self) -> None:
        """Write `cluster.json` atomically."""
        temporary = os.path.join(self.directory, f".{STATE_FILE}.tmp")
        try:
            with open(temporary, "w") as file:
                json.dump(self.describe(), file, indent=2)
                file.write("\n")
        except OSError as error:
            error.filename = temporary  # a write to a full disk does not name its file
            raise
        os.replace(temporary, os.path.join(self.directory, STATE_FILE))


def local(bookies: int = 3, *, settings: Mapping[str, object] | None = None) -> LocalCluster:
    """Return a cluster for tests and notebooks. The end of its `with` block stops it and deletes its data.

    with bookies.local(bookies=3) as cluster, cluster.connect() as store: ...
    """
    directory = tempfile.mkdtemp(prefix="bookies-")
    cluster = LocalCluster(os.path.join(directory, "bk-data"), bookies, settings=settings)
    cluster._is_temporary = True
    return cluster


def _is_state(state: object) -> bool:
    """Report whether the fields of `describe` that are used are present and valid."""
    if not isinstance(state, dict):
        return False
    bookies, lease_ms, settings = state.get("bookies"), state.get("lease_ms", LEASE_MS), state.get("settings", {})
    return (
        isinstance(bookies, list)
        and 0 < len(bookies) <= BOOKIES_MAX
        and all(isinstance(bookie, dict) and _is_bookie(bookie) for bookie in bookies)
        and len({bookie["id"] for bookie in bookies}) == len(bookies)
        and isinstance(lease_ms, int)
        and isinstance(settings, dict)
        and isinstance(state.get("metadata", ""), str)
    )


def _is_bookie(known: Mapping[str, object]) -> bool:
    name, pid, host, port = (known.get(key) for key in ("id", "pid", "host", "port"))
    return (
        isinstance(name, str)
        and name not in ("", ".", "..")
        and "/" not in name
        and isinstance(pid, int | None)
        and isinstance(host, str | None)
        and isinstance(port, int | None)
    )


def _output_of(bookie: LocalBookie) -> IO[bytes]:
    assert bookie.process is not None
    assert bookie.process.stdout is not None
    return bookie.process.stdout


def _last_words(bookie: LocalBookie) -> str:
    """Return the last line that a bookie logged before it ended without being ready."""
    assert bookie.process is not None
    status = bookie.process.wait(STOP_S)
    lines = [line for line in bookie.log.read_text(errors="replace").splitlines() if line.strip()]
    words = lines[-1] if lines else f"bookie {bookie.id} ended with status {status} and logged nothing"
    return words if "cannot start" in words else f"bookie {bookie.id} ended with status {status}: {words}"
