"""The four ports between shells and world: Clock, Network, Disk, Random; and Workers, which run blocking calls.

Shells know only these. `runtime/aio.py` implements them on asyncio and the operating system, `lab/sim/` on virtual
time with faults, so the same shells run in both. The event loop itself is a port too: `loop.call_later`,
`loop.call_soon`, `loop.create_future`, `asyncio.sleep` and `asyncio.timeout` are allowed everywhere, because the
simulator's loop gives them virtual time. No other code may use time, sockets, files, threads or random numbers.

Disk calls block. Code in `storage/` is plain synchronous code over `Disk` and `File`; the bookie's shell runs it
through a `Worker` when it may wait for the device.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import Protocol, TypeVar

from msgspec import Struct

from bookies.encoding.gssapi import SecurityContext
from bookies.errors import ConfigError

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Return milliseconds since 1970. May jump in either direction."""

    def monotonic(self) -> float:
        """Return seconds since some start. Never goes back; the same scale as `loop.time()`. Stands still while the
        machine sleeps, on most systems.
        """

    def with_sleep(self) -> float:
        """Return seconds since some start, with those in which the machine slept. Never goes back."""


class Listener(Protocol):
    """A listening socket."""

    address: tuple[str, int]

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...


class TlsFiles(Struct, frozen=True):
    """Certificates of one side of TLS: paths of PEM files or key stores, empty where there is none.

    `checks_peer`: the other side has to present a certificate that an authority (the system's when none is named) has
    signed. `asks_peer`: it may present none, but no other. `checks_host_name`: and that names the host that was
    connected to. `version_min`: "1.2" or "1.3". `ciphers`: of TLS 1.2 in OpenSSL's notation. `reload_interval_s`: how
    often the files are checked for changes. `key_password`: of the key, if no file has it. `authority_password_file`:
    of a key store.
    """

    certificate: str
    key: str
    key_password_file: str
    authority: str
    checks_peer: bool
    checks_host_name: bool
    version_min: str
    ciphers: str
    reload_interval_s: float
    asks_peer: bool = False
    key_password: str = ""
    authority_password_file: str = ""


class Encryption(Protocol):
    """TLS on existing connections, from one side. Changed files apply to new connections; broken ones are ignored."""

    async def encrypt(
        self,
        transport: asyncio.Transport,
        protocol: asyncio.BaseProtocol,
        *,
        host_name: str | None = None,
        received: bytes = b"",
    ) -> asyncio.Transport:
        """Run the handshake and return the transport to use from here on; it may call the protocol before this returns.

        `host_name`: the name that the client connected to. `received`: bytes of the peer that were read already.
        `get_extra_info("peercert")` of the result has the subject of the peer's certificate, if it was checked.
        Raises `TlsFailed`: then the connection is closed, and the protocol is not called any more.
        """


class KerberosLogin(Struct, frozen=True):
    """Identity of a client. `principal`: empty: the default of the tickets or keytab. `keytab`: empty: the tickets of
    `kinit`. `service`: first part of the server's principal; its host is the second."""

    principal: str
    keytab: str
    service: str


class Kerberos(Protocol):
    """Contexts of Kerberos. Both calls raise `Unauthorized`, which names the reason and the way out."""

    def accept(self, keytab: str) -> SecurityContext:
        """Return a server's context for one client, with any key of the keytab."""

    async def initiate(self, login: KerberosLogin, host: str) -> tuple[SecurityContext, bytes]:
        """Return a client's context, and the first token, with a ticket that the KDC grants."""


def no_kerberos() -> Kerberos:
    """Raise `ConfigError`."""
    raise ConfigError("there is no Kerberos in this environment")


class Network(Protocol):
    """Stream connections. Addresses are (host, port); transports are asyncio's.

    Raises: OSError from both calls (ConnectionRefusedError, address in use, unresolvable host).
    """

    async def connect(
        self, host: str, port: int, protocol_factory: Callable[[], asyncio.BaseProtocol]
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]: ...

    async def listen(self, host: str, port: int, protocol_factory: Callable[[], asyncio.BaseProtocol]) -> Listener: ...


Submit = Callable[[int, int, int, int, Callable[[int], None]], bool]
"""Begins to write memory to a file: descriptor, address, size in bytes, offset. See `direct.DirectWrites`."""

Written = Callable[[bool | Exception], None]
"""True: it is durable. False: it has to be written another way; nothing is promised of the range. Or what failed."""


ReadEnded = Callable[[bytes | None], None]
"""Receives the bytes of a read, or None: it has to be done another way."""

SubmitRead = Callable[[int, int, int, ReadEnded], bool]
"""Begins to read from a file: descriptor, size in bytes, offset. See `ring.RingReads`."""

Ended = Callable[[BaseException | None], None]
"""Receives the outcome of a write: None if it is durable, or what failed."""


class File(Protocol):
    """An open file. All offsets are explicit; there is no position.

    Raises: OSError; ENOSPC becomes `errors.DiskFull`. A write either writes everything or raises; after an error,
    or after a failed sync, what the file holds behind the last synced byte is unknown.
    """

    path: str

    def pread(self, size: int, offset: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""

    def pread_resident(self, size: int, offset: int) -> bytes | None:
        """Read like `pread`, without waiting for the device; None if that is impossible. For the loop's thread."""

    def begin_read(self, submit: SubmitRead, size: int, offset: int, ended: ReadEnded) -> bool:
        """Begin `pread` through `submit`; for the loop's thread. The file may be closed meanwhile.

        False: it is impossible, and no read was begun.
        """

    def pwrite(self, data: Buffer, offset: int) -> None: ...

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all buffers one after the other, in as few system calls as possible. Any number of buffers."""

    def write_durably(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Do `pwritev` and `fdatasync`, by the shortest path to the device for a small write into blocks that exist."""

    def begin_durable(self, submit: Submit, buffers: Sequence[Buffer], offset: int, done: Written) -> bool:
        """Begin `write_durably` through `submit`; on the loop's thread, and no other call until it is done.

        False: it is impossible, and no write was begun. Files without this path always return False.
        """

    def fdatasync(self) -> None:
        """Sync the data, and the file's length if it is needed to read them."""

    def fsync(self) -> None: ...

    def truncate(self, size: int) -> None: ...

    def allocate(self, offset: int, size: int) -> None:
        """Reserve blocks that read as zeros, extending the file; falls back to extending it sparsely."""

    def size(self) -> int: ...

    def next_data(self, offset: int) -> int:
        """Return the first offset from `offset` on that may hold something else than zeros; at most the file's size.

        Holes are skipped where the file system reports them.
        """

    def drop_cache(self, offset: int, size: int) -> None:
        """Advise that the range will not be read soon. Never raises."""

    def close(self) -> None: ...


class Lock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    """A file system. Paths are absolute or relative to the process's directory; text, never bytes.

    A new name, a rename or an unlink is durable only after `sync_directory` of its directory.
    """

    def open(self, path: str, mode: str) -> File:
        """Open a file. `mode`: "r" and "r+" (must exist), "x+" (must not exist), "w+" (created if missing, not
        truncated)."""

    def list(self, path: str) -> list[str]:
        """Return the names in a directory, sorted. Raises FileNotFoundError."""

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool: ...

    def is_private(self, path: str) -> bool:
        """Report whether only this user, and readers of its group, may open the file. Raises: OSError."""

    def make_directories(self, *paths: str) -> None:
        """Create a directory with its parents; existing ones are fine. The new directories' own entries are made
        durable."""

    def rename(self, source: str, target: str) -> None: ...

    def link(self, source: str, target: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory. Durable like an unlink. Raises OSError when it is not empty."""

    def sync_directory(self, path: str) -> None: ...

    def sync_many(self, files: Sequence[File], directories: Sequence[str]) -> None:
        """Do `fsync` of each of these files and `sync_directory` of each directory, in the cheapest order.

        Other files may become durable too. After a failure it is unknown which files are durable.
        """

    def read_bytes(self, path: str) -> bytes: ...

    def replace_bytes(self, path: str, data: bytes, *, is_private: bool = False) -> None:
        """Replace a file atomically and durably: temporary name `.<name>.tmp` beside it, fsync, rename, fsync of the
        directory.

        `is_private`: only this user can read the file.
        """

    def usage(self, path: str) -> tuple[int, int]:
        """Return (total, usable) bytes of the file system."""

    def device(self, path: str) -> int:
        """Return a number for the file system of an existing file or directory, the same for all on one file system."""

    def lock_directory(self, path: str) -> Lock:
        """Take an exclusive advisory lock, held until released or the process ends. Raises `errors.DirectoryInUse`."""


class Worker(Protocol):
    """One thread of control that runs calls in order (in the simulator: the loop itself, after virtual delays)."""

    def run(self, call: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        """Queue a call. The future is resolved on the loop, in order, many at a time where possible.

        An exception of the call becomes the future's exception. Cancelling the future does not stop the call.
        """

    def write_durably(self, file: File, buffers: Sequence[Buffer], offset: int, done: Ended) -> None:
        """Do `run(file.write_durably, ...)`, without the thread where the system allows it.

        `done` is called on the loop with the outcome, never before this returns; `close` may call it. No other call
        may use the file until then. It is a callback because a future would cost one more iteration of the event loop
        for every group of the journal. An exception of this call is final: `done` is not called.
        """

    def begin_read(self, file: File, size: int, offset: int, ended: ReadEnded) -> bool:
        """Begin `file.pread` without a thread; False: the system does not allow it, and no read was begun.

        `ended` is called on the loop, never before this returns; `close` may call it. The file may be closed meanwhile.
        """

    def close(self) -> None:
        """Run the queued calls, then end. Idempotent; blocks until the thread has ended."""


class Workers(Protocol):
    def start(self, name: str) -> Worker: ...


class Program(Protocol):
    """A program that runs beside this process. It notices the end of this process as that of its standard input."""

    def lines(self) -> AsyncIterator[str]:
        """Yield the lines of its error output, each one shortened, until that ends."""

    async def wait(self) -> int:
        """Wait for its end. Return its exit status, or minus the number of the signal that ended it."""

    def interrupt(self) -> None:
        """Send SIGINT."""

    def kill(self) -> None:
        """End it and the programs that it has started, at once."""


StartProgram = Callable[[Sequence[str], Mapping[str, str]], Awaitable[Program]]
"""Starts a program with its arguments, and variables beside those of this process. Raises OSError."""


class Runtime(Struct, frozen=True):
    """The ports that a shell is given.

    `tls`: creates one side's encryption from its files, with a flag for the server's side. Raises `ConfigError`.
    `kerberos`: loads Kerberos. Raises `ConfigError` when there is none.
    `output_of`: runs a program with arguments to its end and returns its output. Raises OSError when the program does
    not exist, fails or takes too long. `start_program`: starts one that runs on. None: not available, as in the
    simulator. `host_names`: names and addresses of this machine.
    """

    clock: Clock
    network: Network
    disk: Disk
    workers: Workers
    random: Random
    tls: Callable[[TlsFiles, bool], Encryption] | None = None
    output_of: Callable[[Sequence[str]], Awaitable[str]] | None = None
    host_names: tuple[str, ...] = ()
    kerberos: Callable[[], Kerberos] = no_kerberos
    start_program: StartProgram | None = None
