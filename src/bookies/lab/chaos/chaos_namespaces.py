"""Surroundings of `bk chaos --namespaces`: every process in a network namespace, with a clock of its own; disks and a
metadata store of the run.

`enter` puts the run into namespaces of the system for processes, mounts and network. The kernel ends and removes all of
it with the first process in there: however a run ends, no process, mount, loop device or namespace outlives it.

    directory/disks/<bookie>-journal.img, -ledgers.img    file systems of a bookie, mounted on its directories
    directory/clocks/<node>                               the error of its clock (`chaos_clock`)
    directory/store, store.log, switch.log                the metadata store; the network (`chaos_switch`)
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from bookies.admin.cluster.local_cluster import LocalBookie
from bookies.admin.shared import UsageError
from bookies.errors import BookKeeperError
from bookies.lab.chaos.chaos_clock import set_clock
from bookies.lab.chaos.chaos_plan import LONG_S, SHORT_S, Hit, duration_s
from bookies.lab.chaos.chaos_processes import APACHE, CLIENT, OrderedProcess, Program
from bookies.lab.chaos.chaos_switch import HUB

STORE = "store"
PROGRAMS = ("ip", "nsenter", "mount", "umount", "mkfs.ext4", "e2fsck")
NETWORK = "10.77.0"
DISK_SIZE = 1 << 30  # of each sparse image
DISKS = ("journal", "ledgers")
SETTINGS = {"disk_check_interval_ms": 500}  # full disks are noticed, and noticed to be free again, in time
WEIGHTS = {
    "partition": 1.0,
    "bridge": 0.6,
    "isolated writer": 1.5,
    "isolated store": 0.6,
    "one-way cut": 2.0,
    "bad link": 4.0,
    "kill store": 0.4,
    "stop store": 0.4,
    "full disk": 1.5,
    "read-only disk": 1.5,
    "step clock": 4.0,
}
CLOCK_STEPS_S = (-86_400, -3_600, -30, -2, 0, 2, 30, 3_600, 86_400)
IMPAIRMENTS_MAX = 2  # of the network at a time, so that work goes on between them
ISOLATION_S = (8.0, 20.0)  # longer than a lease and the lost-bookie delay
STORE_START_S, POLL_S = 60.0, 0.1
APACHE_PORT = 3181
APACHE_SETTINGS = {
    "bookiePort": APACHE_PORT,
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.SortedLedgerStorage",
    "zkTimeout": 4_000,
    "journalPreAllocSizeMB": 1,
    "journalMaxSizeMB": 4,
    "logSizeLimit": 4 << 20,
    "skipListSizeLimit": 1 << 20,
    "minUsableSizeForIndexFileCreation": 1 << 20,
    "minUsableSizeForEntryLogCreation": 1 << 20,
    "diskCheckInterval": 500,
    "gcWaitTime": 3_600_000,
}
OPENED = ("java.base/java.nio", "java.base/jdk.internal.misc")
JAVA = ["java", "-Xmx256m", "-XX:MaxDirectMemorySize=256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
JAVA += ["-Dio.netty.tryReflectionSetAccessible=true"]
JAVA += [word for name in OPENED for word in ("--add-opens", f"{name}=ALL-UNNAMED")]
_NEW_NAMESPACES = 0x20000 | 0x20000000 | 0x40000000  # CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET
_PR_SET_PDEATHSIG = 1


def enter() -> None:
    """Continue in a child process in namespaces of its own; this process only waits for it. Raises `UsageError`."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if not os.path.exists("/dev/net/tun"):
        missing.append("/dev/net/tun")
    if missing:
        raise UsageError(
            f"--namespaces needs {', '.join(missing)}, which this machine lacks; install iproute2, util-linux, "
            "e2fsprogs, and load the kernel module tun"
        )
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(_NEW_NAMESPACES):
        reason = os.strerror(ctypes.get_errno()).lower()
        raise UsageError(f"--namespaces cannot create namespaces: {reason}; run the command as root")
    child = os.fork()
    if child:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, frame: os.kill(child, number))
        _, status = os.waitpid(child, 0)
        raise SystemExit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))
    library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.makedirs("/run/netns", exist_ok=True)
    _run("mount", "--make-rprivate", "/")
    _run("mount", "-t", "proc", "proc", "/proc")
    _run("mount", "-t", "tmpfs", "tmpfs", "/run/netns")


def _run(*command: str, accepted: Sequence[int] = (0,)) -> None:
    """Run a program. Raises `BookKeeperError` with its output."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in accepted:
        raise BookKeeperError(f"{' '.join(command)} failed: {(done.stderr or done.stdout).strip()}")


class Store:
    """Metadata store in a process: ZooKeeper from Apache's jars, or etcd. `uri`: for clients."""

    def __init__(self, directory: pathlib.Path, address: str, jars: str | None, prefix: Sequence[str]) -> None:
        self._directory, self._prefix = directory, prefix
        self._log = directory.with_name("store.log")
        directory.mkdir()
        port = 2181 if jars else 2379
        self._endpoint = (address, port)
        if jars:
            self.uri = f"zk+hierarchical://{address}:{port}/ledgers"
            settings = directory / "zoo.cfg"
            settings.write_text(
                f"tickTime=500\ndataDir={directory}/data\nclientPort={port}\nclientPortAddress={address}\n"
                "admin.enableServer=false\nmaxClientCnxns=0\n"
            )
            main = "org.apache.zookeeper.server.ZooKeeperServerMain"
            self._command = [*JAVA, "-cp", f"{jars}/*", main, str(settings)]
        elif etcd := shutil.which("etcd"):
            self.uri = f"etcd://{address}:{port}/bookies"
            url = f"http://{address}:{port}"
            self._command = [etcd, "--data-dir", str(directory / "data"), "--listen-client-urls", url]
            self._command += ["--advertise-client-urls", url, "--listen-peer-urls", "http://127.0.0.1:2380"]
        else:
            raise UsageError("--namespaces needs a metadata store: install etcd, or name Apache's jars with --jars DIR")
        self.is_healthy = True  # no fault of the run is in progress
        self._process: Program | None = None

    def start(self) -> None:
        self._process = Program([*self._prefix, *self._command], self._log)

    def wait(self) -> None:
        """Wait until it accepts connections. Raises `BookKeeperError`."""
        assert self._process is not None
        deadline = time.monotonic() + STORE_START_S
        while True:
            try:
                return socket.create_connection(self._endpoint, timeout=1).close()
            except OSError as error:
                if self._process.has_ended() or time.monotonic() > deadline:
                    raise BookKeeperError(f"the metadata store does not serve: {self._process.last_words()}") from error
            time.sleep(POLL_S)

    def send(self, number: int) -> None:
        assert self._process is not None
        self._process.send(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()


class Namespaces:
    """See `Surroundings`. `others`: names of the nodes besides the bookies. `apache`: number of Apache's bookies."""

    gap_s = 1.0
    weights: Mapping[str, float] = WEIGHTS

    def __init__(
        self,
        directory: pathlib.Path,
        seed: int,
        bookies: int,
        others: Sequence[str],
        jars: str | None,
        apache: int = 0,
    ) -> None:
        self._directory, self._seed, self._jars = directory, seed, jars
        self._apache = [f"a{number}" for number in range(1, apache + 1)]
        self._bookies = [*(f"b{number}" for number in range(1, bookies + 1)), *self._apache]
        self._writers = [name for name in others if "writer" in name]
        self._foreign = {*self._apache, *(name for name in others if name.startswith(APACHE))}
        self._nodes = [*self._bookies, *others]
        names = [HUB, STORE, *self._nodes]
        self._addresses = {name: f"{NETWORK}.{number}" for number, name in enumerate(names, 1)}
        self._store = Store(directory / STORE, self._addresses[STORE], jars, self._network(STORE))
        self.metadata_uri: str | None = self._store.uri
        self._switch: OrderedProcess | None = None
        self._faults = 0
        self._impairments = 0

    # -- life ----------------------------------------------------------------------------------------------------
    def start(self, bookies: Sequence[LocalBookie]) -> None:
        for folder in ("disks", "clocks"):
            (self._directory / folder).mkdir()
        if self._foreign - set(self._apache):
            source = pathlib.Path(__file__).with_name("ApacheClient.java")
            _run("javac", "-nowarn", "-d", str(self._directory / "classes"), "-cp", f"{self._jars}/*", str(source))
        self._set_clocks(0)
        parameters = {"nodes": self._addresses, "seed": self._seed}
        self._switch = OrderedProcess("bookies.lab.chaos.chaos_switch", self._directory / "switch.log", parameters)
        self._store.start()
        self._store.wait()
        for bookie in bookies:
            bookie.prefix = tuple(self.prefix(bookie.id))
            bookie.settings |= {"host": self._addresses[bookie.id], **SETTINGS}
            self._make_disks(bookie.id)

    def _make_disks(self, bookie: str) -> None:
        for disk in DISKS:
            image = str(self._image(bookie, disk))
            with open(image, "wb") as file:
                file.truncate(DISK_SIZE)
            _run("mkfs.ext4", "-q", "-F", "-m", "0", image)
            self._mount(bookie, disk)

    def further_bookies(self, directory: pathlib.Path) -> list[LocalBookie]:
        bookies = []
        for name in self._apache:
            self._make_disks(name)
            settings = APACHE_SETTINGS | {
                "metadataServiceUri": self.metadata_uri,
                "bookieId": name,
                "advertisedAddress": self._addresses[name],
                "journalDirectories": self._mounted(name, "journal"),
                "ledgerDirectories": self._mounted(name, "ledgers"),
            }
            conf = directory / name / "bookie.conf"
            conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
            main = ["org.apache.bookkeeper.server.Main", "--conf", str(conf)]
            bookie = LocalBookie(name, conf.parent, host=self._addresses[name], port=APACHE_PORT)
            bookie.prefix = tuple(self._network(name))
            bookie.program = ("sh", "-c", 'exec "$@" >&2', "sh", *JAVA, "-cp", f"{self._jars}/*", *main)
            bookies.append(bookie)
        return bookies

    def _network(self, node: str) -> list[str]:
        return ["nsenter", f"--net=/run/netns/bk-{node}", "--"]

    def prefix(self, node: str) -> list[str]:
        return [*self._network(node), sys.executable, "-P", "-m", "bookies.lab.chaos.chaos_clock", self._clock(node)]

    def client(self, node: str) -> list[str]:
        if node in self._foreign:
            classes = f"{self._directory / 'classes'}:{self._jars}/*"
            return [*self._network(node), *JAVA, "-cp", classes, "ApacheClient"]
        return [*self.prefix(node), *CLIENT]

    def serves(self, bookie: LocalBookie) -> None:
        """Clients reach the bookie's own address."""

    def stopped(self, pid: int) -> None:
        """The kernel ends stopped processes with the run."""

    continued = stopped

    def heal(self) -> None:
        self._order("heal")
        self._set_clocks(0)

    def finish(self) -> dict[str, int]:
        assert self._switch is not None
        return self._switch.finish()

    def kill(self) -> None:
        self._store.kill()
        if self._switch is not None:
            self._switch.kill()
        for name in self._bookies:
            for disk in DISKS:
                with contextlib.suppress(BookKeeperError):
                    _run("umount", str(self._mounted(name, disk)))

    # -- faults --------------------------------------------------------------------------------------------------
    def hit(self, fault: str, choices: random.Random) -> Hit | None:
        if fault.endswith(" store") and not fault.startswith("isolated"):
            return self._hit_store(fault, choices)
        if fault == "step clock":
            ours = [node for node in self._nodes if node not in self._foreign]
            name, step_s = choices.choice(ours), choices.choice(CLOCK_STEPS_S)
            set_clock(pathlib.Path(self._clock(name)), step_s)
            return Hit(f"{name} {step_s:+,} s")
        if self._impairments >= IMPAIRMENTS_MAX:
            return None
        seconds = choices.uniform(*choices.choice((SHORT_S, LONG_S, ISOLATION_S)))
        match fault:
            case "partition" | "bridge":
                sides = self._sides(fault == "bridge", choices)
                return self._impair(sides, seconds, is_cut=True)
            case "isolated writer":
                peers = choices.choice(([STORE, *self._bookies], [STORE], _some(self._bookies, choices)))
                return self._impair(([choices.choice(self._writers)], peers), seconds, is_cut=True)
            case "isolated store":
                peers = choices.choice((self._nodes, self._bookies, _some(self._nodes, choices)))
                return self._impair(([STORE], peers), seconds, is_cut=True)
            case "one-way cut":
                return self._impair(self._pair(choices), seconds, is_both=False, is_cut=True)
            case _:
                assert fault == "bad link", fault
                quality: dict[str, object] = {
                    "delay_s": choices.choice((0.0, 0.002, 0.02, 0.1, 0.4)),
                    "loss": choices.choice((0.0, 0.01, 0.05, 0.3)),
                    "reordered": choices.choice((0.0, 0.05, 0.5)),
                    "duplicated": choices.choice((0.0, 0.05)),
                }
                return self._impair(self._pair(choices), seconds, is_both=choices.random() < 0.5, **quality)

    def _sides(self, has_bridge: bool, choices: random.Random) -> tuple[list[str], list[str]]:
        """Divide bookies, clients and the store. With a bridge, one bookie is on neither side."""
        bookies = choices.sample(self._bookies, len(self._bookies))[has_bridge:]
        count = choices.randrange(1, max(2, len(bookies)))
        sides = (bookies[:count], bookies[count:])
        for name in (STORE, *self._nodes):
            if name not in self._bookies:
                sides[choices.random() < 0.5].append(name)
        return sides

    def _pair(self, choices: random.Random) -> tuple[list[str], list[str]]:
        """Return two disjoint groups of nodes. One has bookies only, so most pairs exchange packets."""
        bookies = _some(self._bookies, choices)
        groups = [bookies, _some([name for name in (STORE, *self._nodes) if name not in bookies], choices)]
        choices.shuffle(groups)
        return groups[0], groups[1]

    def _impair(
        self, groups: tuple[list[str], list[str]], seconds: float, is_both: bool = True, **quality: object
    ) -> Hit:
        ways = [groups, groups[::-1]] if is_both else [groups]
        numbers = []
        for sources, targets in ways:
            self._faults += 1
            numbers.append(self._faults)
            self._order("begin", fault=self._faults, sources=sources, targets=targets, **quality)
        self._impairments += 1

        def end() -> None:
            self._impairments -= 1
            for number in numbers:
                self._order("end", fault=number)

        arrow = " <-> " if is_both else " -> "
        facts = " ".join(f"{name}={value}" for name, value in quality.items() if value)
        return Hit(f"{arrow.join(map(' '.join, groups))}  {facts}", seconds, end)

    def _hit_store(self, fault: str, choices: random.Random) -> Hit | None:
        if not self._store.is_healthy:
            return None
        self._store.is_healthy = False
        self._store.send(signal.SIGSTOP) if fault == "stop store" else self._store.kill()

        def end() -> None:
            self._store.send(signal.SIGCONT) if fault == "stop store" else self._store.start()
            self._store.is_healthy = True

        return Hit("", duration_s(choices), end)

    def break_disk(self, fault: str, bookie: str, choices: random.Random) -> Hit:
        disk = choices.choice(DISKS)
        seconds = choices.uniform(*choices.choice((SHORT_S, LONG_S, ISOLATION_S)))
        place = self._mounted(bookie, disk)
        if fault == "read-only disk":  # as ext4 does after an error of the device
            _run("mount", "-o", "remount,abort", str(place))
            return Hit(f"{bookie} {disk}", seconds, lambda: self._remount(bookie, disk))
        free_share = choices.choice((0.0, 0.0, 0.04))  # with 4 % only ordinary adds are refused
        filler = place / "filler"
        state = os.statvfs(place)
        size = state.f_bavail * state.f_frsize - int(free_share * DISK_SIZE)
        with filler.open("wb") as file:
            while size > 0:
                try:
                    os.posix_fallocate(file.fileno(), 0, size)
                    break
                except OSError:
                    size -= 1 << 20
        return Hit(f"{bookie} {disk}, {free_share:.0%} free", seconds, _remover(filler))

    def _remount(self, bookie: str, disk: str) -> None:
        _run("umount", str(self._mounted(bookie, disk)))
        _run("e2fsck", "-p", str(self._image(bookie, disk)), accepted=(0, 1))
        self._mount(bookie, disk)

    def _mount(self, bookie: str, disk: str) -> None:
        place = self._mounted(bookie, disk)
        place.mkdir(parents=True, exist_ok=True)
        _run("mount", "-o", "loop", str(self._image(bookie, disk)), str(place))
        with contextlib.suppress(FileNotFoundError):
            (place / "lost+found").rmdir()

    def _mounted(self, bookie: str, disk: str) -> pathlib.Path:
        return self._directory / "bk-data" / bookie / disk

    def _image(self, bookie: str, disk: str) -> pathlib.Path:
        return self._directory / "disks" / f"{bookie}-{disk}.img"

    def _clock(self, node: str) -> str:
        return str(self._directory / "clocks" / node)

    def _set_clocks(self, seconds: int) -> None:
        for node in self._nodes:
            set_clock(pathlib.Path(self._clock(node)), seconds)

    def _order(self, action: str, **parameters: object) -> None:
        assert self._switch is not None
        self._switch.order(action, **parameters)


def _some(names: Sequence[str], choices: random.Random) -> list[str]:
    """Return at least one of the names, and rarely all."""
    return choices.sample(names, choices.randint(1, max(1, len(names) - 1)))


def _remover(file: pathlib.Path) -> Callable[[], None]:
    return lambda: file.unlink(missing_ok=True)
