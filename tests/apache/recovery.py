"""A cluster on ZooKeeper with processes of both kinds that keep it whole, and a look at what they have written."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.apache.apache import JAVA_OPTIONS, VERSION, jars, java_command
from tests.apache.zookeeper import zookeeper_server
from tests.interop.cells import User, check_read
from tests.interop.processes import JAVA_SETTINGS, PATIENCE_S, ROOT, Bookie, java_client, our_client, wait_until

from bookies.metadata.interface.recovery_store import AuditKind, Mark
from bookies.metadata.uri import connect
from bookies.model import BookieId
from bookies.protocol.repair.fragments import is_named
from bookies.runtime import aio

HERE = pathlib.Path(__file__).parent
WRITERS = ("ours-v2", "java-v2", "ours-v3", "java-v3")
SHAPES = ((3, 3, 2), (3, 2, 2), (2, 2, 1), (4, 3, 2))  # ensemble, write quorum, ack quorum
ENTRIES = 40
DELAY_S, GRACE_MS = 1, 3_000
OUR_SETTINGS = {
    "BK_LOST_BOOKIE_DELAY_S": str(DELAY_S),
    "BK_RECOVERY_OPEN_LEDGER_GRACE_MS": str(GRACE_MS),
    "BK_RECOVERY_BACKOFF_MS": "500",
    "BK_RECOVERY_BACKOFF_MAX_MS": "2000",
    "BK_RECOVERY_REPORT_INTERVAL_MS": "500",
}
JAVA_RECOVERY = {
    "lostBookieRecoveryDelay": DELAY_S,
    "openLedgerRereplicationGracePeriod": GRACE_MS,
    "rwRereplicateBackoffMs": 500,
    "lockReleaseOfFailedLedgerGracePeriod": 2_000,
}


class Participant:
    """A process of auto-recovery. `kind`: "ours" or "java"; `role`: "auditor", "worker", or "both", the real thing."""

    def __init__(self, kind: str, role: str, folder: pathlib.Path, uri: str) -> None:
        self.kind, self.role = kind, role
        self.name = f"{kind}-recovery"  # in votes; ours has a name of its own making
        self._log = folder / f"recovery-{kind}-{role}.log"
        environment = os.environ | OUR_SETTINGS | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                self._command(folder, uri), stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment
            )

    def _command(self, folder: pathlib.Path, uri: str) -> list[str]:
        if self.kind == "ours":
            alone = [sys.executable, str(HERE / "role.py"), self.role, uri]
            whole = [sys.executable, "-m", "bookies", "recovery", "run", "--metadata", uri]
            return whole if self.role == "both" else alone
        conf = folder / f"recovery-{self.role}.conf"
        settings = JAVA_SETTINGS | JAVA_RECOVERY | {"metadataServiceUri": uri, "bookieId": self.name}
        conf.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        if self.role == "both":
            return [*java_command(VERSION), "org.apache.bookkeeper.replication.AutoRecoveryMain", "--conf", str(conf)]
        return [*java_command(VERSION), str(HERE / "Role.java"), self.role, str(conf)]

    def is_named(self, auditor: str | None) -> bool:
        """Whether this is the auditor of that name."""
        return auditor is not None and auditor.startswith("java-") == (self.kind == "java")

    def check(self) -> None:
        """It runs."""
        assert self._process.poll() is None, f"{self._log}: {self._log.read_text()[-3000:]}"

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


@dataclass(frozen=True)
class Look:
    """What ZooKeeper holds of auto-recovery. `checked_ms`: when all ledgers were checked last; `naming`: ledgers whose
    records name a bookie."""

    auditor: str | None
    checked_ms: int | None
    marks: dict[int, Mark]
    locks: dict[int, str]
    naming: list[int]

    @property
    def is_whole(self) -> bool:
        return not (self.marks or self.locks or self.naming)


@dataclass
class Stage:
    """A cluster. `written`: ledgers to the number of their entries; `opened`: those among them that nobody closed."""

    folder: pathlib.Path
    uri: str
    users: dict[str, User]
    bookies: dict[str, Bookie]
    kinds: list[str]
    stack: contextlib.ExitStack
    written: dict[int, int] = field(default_factory=dict)
    opened: list[int] = field(default_factory=list)

    def look(self, bookie: str = "") -> Look:
        """`bookie`: of `naming`."""

        async def main() -> Look:
            driver = connect(self.uri, aio.runtime(), may_create=False)
            await driver.open()
            try:
                store = driver.recovery
                marks = {mark.ledger_id: mark async for page in store.marks() for mark in page}
                naming = [
                    ledger
                    for ledger in self.written
                    if bookie and is_named((await driver.read_ledger(ledger)).metadata, BookieId(bookie))
                ]
                checked_ms = await store.checked_at_ms(AuditKind.ALL_LEDGERS)
                return Look(await store.auditor(), checked_ms, marks, dict(await store.locks()), naming)
            finally:
                await driver.close()

        return aio.run(main())

    def participant(self, kind: str, role: str) -> Participant:
        made = Participant(kind, role, self.folder, self.uri)
        self.stack.callback(made.kill)
        return made

    def wait_auditor(self, participant: Participant) -> None:
        def is_elected() -> bool:
            participant.check()
            return participant.is_named(self.look().auditor)

        wait_until(is_elected, f"{participant.name} is the auditor")

    def wait_whole(self, lost: str) -> None:
        wait_until(lambda: self.look(lost).is_whole, f"nothing names {lost} or is marked: {self.look(lost)}", 180)

    def add_bookie(self) -> Bookie:
        """One more, of the next kind in turn; it serves."""
        kind = self.kinds[len(self.bookies) % len(self.kinds)]
        name = f"{kind}-{len(self.bookies)}"
        bookie = Bookie(kind, name, self.folder / name, self.uri, version=VERSION)
        self.bookies[name] = bookie
        self.stack.callback(bookie.kill)
        bookie.launch()
        return bookie

    def wait_writable(self) -> None:
        running = [name for name, bookie in self.bookies.items() if bookie.is_running]
        for name in running:
            self.bookies[name].wait_ready()

        def is_whole() -> bool:
            modes = self.users["ours-v2"].ask("bookies")
            return all(modes.get(name) == "writable" for name in running)

        wait_until(is_whole, f"{', '.join(running)} are writable")

    def fill(self, count: int) -> None:
        """Closed ledgers, by every client in turn, in every shape, each with one without entries; and one that each
        kind leaves open."""
        for number in range(count):
            for entries in (ENTRIES, 0):
                user, handle, _ = self._write(number, entries)
                user.ask("close", handle=handle)
        for number in (count, count + 1):
            _, _, ledger = self._write(number)
            self.opened.append(ledger)

    def _write(self, number: int, entries: int = ENTRIES) -> tuple[User, int, int]:
        """The writer of an open ledger, its handle there, the ledger."""
        user = self.users[WRITERS[number % len(WRITERS)]]
        ensemble, write_quorum, ack_quorum = SHAPES[(number // len(WRITERS)) % len(SHAPES)]
        made = user.ask("create", ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)
        if entries:
            answer = user.ask("append", handle=made["handle"], count=entries)
            assert answer["failure"] == "", answer
        self.written[made["ledger"]] = entries
        return user, made["handle"], made["ledger"]

    def named(self, bookie: str) -> list[int]:
        """Ledgers whose last ensemble has the bookie."""
        records = {ledger: self.users["ours-v2"].ask("metadata", ledger=ledger) for ledger in self.written}
        return [ledger for ledger, record in records.items() if bookie in list(record["fragments"].values())[-1]]

    def check_readable(self, sealed: list[int], sealer: User) -> None:
        """Everybody reads every entry and sees the same record, and every replica is good. `sealed`: left open by
        their writers, and not open any more, through somebody of that kind."""
        ours = self.users["ours-v2"]
        for ledger, count in self.written.items():
            is_sealed = ledger not in self.opened or ledger in sealed
            records = [user.ask("metadata", ledger=ledger) | {"id": 0} for user in self.users.values()]
            assert all(each == records[0] for each in records), records
            assert records[0]["state"] == ("CLOSED" if is_sealed else "OPEN"), records[0]
            if is_sealed:
                for user in self.users.values():
                    check_read(user, ledger, count, recoverer=sealer if ledger in sealed else None)
                found = ours.ask("check", ledger=ledger)
                assert found["is_ok"], (ledger, found)


@contextlib.contextmanager
def stage(folder: pathlib.Path, kinds: list[str], count: int) -> Iterator[Stage]:
    """A cluster of so many bookies of these kinds in turn, that serve."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(zookeeper_server(folder))
        uri = f"zk+hierarchical://{server.address}/ledgers"
        clients = {"java": java_client(VERSION, folder), "ours": our_client(folder)}
        for client in clients.values():
            stack.callback(client.kill)
        users = {name: User(name, clients[name.partition("-")[0]], uri) for name in WRITERS}
        users["java-v3" if kinds[0] == "java" else "ours-v2"].ask("init")
        made = Stage(folder, uri, users, {}, kinds, stack)
        for _ in range(count):
            made.add_bookie()
        made.wait_writable()
        yield made


def shell(stage: Stage, *words: str) -> tuple[int, str]:
    """Exit status and output of Apache's `bookkeeper shell`."""
    conf = stage.folder / "shell.conf"
    settings = JAVA_SETTINGS | {"metadataServiceUri": stage.uri}
    conf.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    # Without our settings of the log, in which it says what it has found.
    command = ["java", *JAVA_OPTIONS, "-cp", f"{jars(VERSION)}/*", "org.apache.bookkeeper.bookie.BookieShell"]
    command += ["-conf", str(conf), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S * 2)
    return done.returncode, done.stdout + done.stderr
