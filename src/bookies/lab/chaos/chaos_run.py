"""Conductor of `bk chaos`: starts the processes, injects faults for the given time, heals all of them, checks.

Everything is real: bookie processes with their disks, client processes, sockets, signals. Unlike in the simulator, a
seed therefore determines the plan of faults and not the run. The checks are in `chaos_checker`, network and disks in
`chaos_surroundings`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import pathlib
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from bookies.admin.cluster import LocalCluster
from bookies.admin.cluster.local_cluster import START_S, LocalBookie
from bookies.admin.shared.common import run_async
from bookies.bookie.main import EXIT_METADATA
from bookies.config import ClientConfig
from bookies.errors import BookKeeperError
from bookies.lab.chaos.chaos_checker import SLACK_S, Checker, LastCheck
from bookies.lab.chaos.chaos_client import BOUND_S, LABEL
from bookies.lab.chaos.chaos_history import payload_of
from bookies.lab.chaos.chaos_plan import Hit, Schedule, duration_s, plan_faults
from bookies.lab.chaos.chaos_processes import APACHE, ChaosProcess, ClientProcess, Program, last_line
from bookies.lab.chaos.chaos_recovery import BOOKIE_SETTINGS as HEALING_SETTINGS
from bookies.lab.chaos.chaos_recovery import HealerProcesses, HealingCheck, check_healing
from bookies.lab.chaos.chaos_surroundings import LONG_FAULTS, Surroundings

if TYPE_CHECKING:
    from bookies.client.client import Client

LEASE_MS = 2_000
# Small, so that journals and entry logs roll and checkpoints happen between and during the crashes.
BOOKIE_SETTINGS = {
    "journal_preallocate_size": 1 << 20,
    "journal_size_max": 4 << 20,
    "write_cache_size": 1 << 20,
    "entry_log_size_max": 4 << 20,
    "index_cache_size": 1 << 20,
    "checkpoint_interval_ms": 500,
    "checkpoint_journal_size": 2 << 20,
}
ROLES = (("writer", 3), ("recoverer", 2), ("reader", 2), ("tailer", 2))
APACHE_ROLES = tuple(f"{APACHE}{role}" for role in ("writer", "reader", "recoverer"))
CLIENTS = tuple(f"{role}{number}" for role, count in ROLES for number in range(1, count + 1))
# fault -> relative frequency
WEIGHTS = {
    "kill bookie": 5,
    "stop bookie": 4,
    "kill all bookies": 0.4,
    "kill client": 4,
    "stop client": 4,
}
# Further faults with auto-recovery.
HEALING_WEIGHTS = {"lose bookie": 1.2, "flap bookie": 0.6, "kill healer": 2, "stop healer": 2}
ABSENCE_S = (12.0, 25.0)  # of a bookie that counts as lost meanwhile
FLAPS = (3, 10, 25)  # consecutive stops of a flapping bookie
FLAP_STOP_S, FLAP_GO_S = (2.1, 3.0), (0.2, 1.5)  # longer than a lease, shorter than the lost-bookie delay
SETTLE_S = 3.0  # in which a bookie that a full disk has stopped ends
# Of the last check's requests: bookies repair at the same time, on processors and a network that all share, so an
# answer within the clients' 1.5 s is not what "none lost" promises.
PATIENCE_MS = 15_000
DISK_FAULTS = ("full disk", "read-only disk")
TICK_S = 0.05
PAUSE_S = 1.0  # before a process that ended unexpectedly is restarted
HEAL_S = 180.0  # time for all bookies to start again; after it the run continues without the others
REGISTER_S = 60.0  # then for all bookies to be registered and writable
CALM_S = 2.0  # between the healing and the end of the clients


class Report(Struct):
    """Result of a run. Empty `violations`: every promise held. `counts`: numbers of faults and their consequences."""

    seconds: float
    violations: list[str]
    operations: dict[str, dict[str, Any]]
    counts: dict[str, int]


@dataclasses.dataclass
class Chaos:
    """One run in `directory`, which exists and is empty. `progress` is called with a line every `progress_s`.

    `is_hostile`: one more bookie runs, which is hostile; every acknowledgement then needs a good bookie too.
    `heals`: the bookies run auto-recovery, and so do some processes of their own. `directory/faults.log` receives every
    fault with its time. `apache_roles`: a client of Apache's for each, see `APACHE_ROLES`.
    """

    directory: pathlib.Path
    seed: int
    bookies: int
    seconds: float
    progress: Callable[[str], None]
    surroundings: Surroundings
    is_hostile: bool = False
    heals: bool = True
    apache_roles: Sequence[str] = ()
    progress_s: float = 5.0
    checker: Checker = dataclasses.field(default_factory=Checker)
    counts: Counter[str] = dataclasses.field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        settings = BOOKIE_SETTINGS | (HEALING_SETTINGS if self.heals else {})
        self._cluster = LocalCluster(
            self.directory / "bk-data",
            self.bookies,
            lease_ms=LEASE_MS,
            metadata_uri=self.surroundings.metadata_uri,
            settings=settings,
        )
        uri, prefix = self._cluster.metadata_uri, self.surroundings.prefix
        self._healers = HealerProcesses(self.directory, uri, LEASE_MS, prefix)
        self._healing = HealingCheck(self.checker)
        self._clients: list[ClientProcess] = []
        self._hostile: list[ChaosProcess] = []
        self._ends = Schedule()  # calls that end a fault
        self._impaired: dict[str, None] = {}  # bookies that are dead or stopped
        self._starting: dict[str, float] = {}  # impaired bookies that are starting, and since when
        self._broken_disks: dict[str, None] = {}  # bookies whose disk has a fault
        self._begin = self._shown = time.monotonic()

    @property
    def _weights(self) -> dict[str, float]:
        return WEIGHTS | (HEALING_WEIGHTS if self.heals else {}) | dict(self.surroundings.weights)

    def run(self) -> Report:
        """Run to the end. No process is left, also after an error."""
        last_check = LastCheck(self.checker, (LABEL, "1"), counts_copies=not self.is_hostile)
        try:
            self._start()
            self._inject_faults()
            self._heal()
            self._conduct(time.monotonic() + CALM_S)
            deadline = time.monotonic() + BOUND_S
            while not self.checker.counts["entries acknowledged"] and time.monotonic() < deadline:
                self._conduct(time.monotonic() + TICK_S)  # A run of seconds on a busy machine proves nothing otherwise.
            self._end_clients()
            self._end_hostile()
            self.show(f"checking {len(self.checker.stories):,} ledgers")
            run_async(lambda: self._check(last_check))
            self._end_healers()
            self.counts.update(self.surroundings.finish())
        finally:
            self._stop()
        self.counts["recoveries"] = self.checker.outcomes.get("recover", Counter())["ok"]
        self.counts["ledgers"], self.counts["entries"] = last_check.ledgers, last_check.entries
        self.counts["ensemble changes"] = last_check.ensemble_changes
        counts = dict(sorted((self.counts + self.checker.counts).items()))
        return Report(time.monotonic() - self._begin, self.checker.violations, self._operations(), counts)

    def _operations(self) -> dict[str, dict[str, Any]]:
        operations: dict[str, dict[str, Any]] = {}
        for name, outcomes in self.checker.outcomes.items():
            latencies = self.checker.latencies.get(name)
            operations[name] = {"outcomes": dict(outcomes.most_common())} | (latencies.summary() if latencies else {})
        return operations

    # -- beginning and end ---------------------------------------------------------------------------------------
    def _start(self) -> None:
        (self.directory / "clients").mkdir()
        self.surroundings.start(self._cluster.bookies)
        self._cluster.start()
        for bookie in self._cluster.bookies:
            self.surroundings.serves(bookie)
        for bookie in self.surroundings.further_bookies(self.directory / "bk-data"):
            self._cluster.bookies.append(bookie)
            self._impaired[bookie.id] = None
            self._restart(bookie.id)
        if self.is_hostile:
            parameters = {"name": "hostile", "metadata": self._cluster.metadata_uri, "seed": str(self.seed)}
            log = self.directory / "hostile.log"
            self._hostile.append(
                ChaosProcess("bookies.lab.chaos.chaos_hostile", log, {**parameters, "lease_ms": LEASE_MS})
            )
        if self.heals:
            self._healers.start()
        for role, count in (*ROLES, *((role, 1) for role in self.apache_roles)):
            for number in range(1, count + 1):
                self._start_client(role, number, 1)
        self._begin = self._shown = time.monotonic()

    def _start_client(self, role: str, number: int, life: int) -> None:
        parameters = {"metadata": self._cluster.metadata_uri, "bookies": self.bookies}
        parameters["least_ack_quorum"] = 2 if self.is_hostile else 1
        command = self.surroundings.client(f"{role}{number}")
        self._clients.append(
            ClientProcess(role, number, life, self.directory / "clients", self.seed, command, **parameters)
        )

    def _heal(self) -> None:
        """End all faults now, and wait until every bookie serves again."""
        self.show("healing")
        self._ends.is_closing = True
        deadline = time.monotonic() + HEAL_S
        while (self._ends.calls or self._starting) and time.monotonic() < deadline:
            self._ends.run_until(float("inf"))
            self._conduct(time.monotonic() + TICK_S)
        self.surroundings.heal()

    def _end_clients(self) -> None:
        """End all clients. Every pending operation must end, and then its process."""
        for client in self._clients:
            client.end_input()
        deadline = time.monotonic() + BOUND_S + SLACK_S
        for client in list(self._clients):
            if not client.wait(deadline - time.monotonic()):
                client.print_tasks()
                client.wait(1.0)
                text = f"{client.name} does not end; its log {client.log} lists its tasks"
                self._client_failed(client, "in time", text)
            elif client.process.returncode:
                self._note_bad_end(client)
            client.kill()
            self.checker.take(client.name, client.read_new())
            client.close()
            self._clients.remove(client)
        self.checker.overdue()

    def _end_hostile(self) -> None:
        """End the hostile bookie. The last check does not need it: every entry is on a good bookie too."""
        for hostile in self._hostile:
            if hostile.has_ended():
                self.checker.violated("bookies live", f"the hostile bookie ended: {hostile.last_words()}")
            hostile.end_input()
            hostile.wait(SLACK_S)

    async def _check(self, last_check: LastCheck) -> None:
        from bookies.client.connect import connect

        config = ClientConfig(add_timeout_ms=PATIENCE_MS, read_timeout_ms=PATIENCE_MS)
        async with connect(self._cluster.metadata_uri, config=config, timeout=BOUND_S) as client:
            gone = await self._await_registrations(client)
            try:
                async with client.create(ensemble=min(3, self.bookies), timeout=BOUND_S) as ledger:
                    await ledger.append_many(
                        [payload_of(ledger.ledger_id, entry_id) for entry_id in range(100)], timeout=BOUND_S
                    )
            except (BookKeeperError, TimeoutError) as error:
                self.checker.violated("in time", f"all faults are healed, but an append fails: {error!r}")
            await last_check.run(client, gone)
            if self.heals:
                await self._check_healing(client)

    async def _await_registrations(self, client: Client) -> frozenset[str]:
        """Wait until every bookie is registered and writable: those that were cut off from the store return to it.

        Return those of Apache's that do not.
        """
        deadline = time.monotonic() + REGISTER_S
        while True:
            writable = {one.id for one in await client.bookies(timeout=BOUND_S) if one.mode == "writable"}
            missing = [bookie for bookie in self._cluster.bookies if bookie.id not in writable]
            if not missing or time.monotonic() > deadline:
                break
            await asyncio.sleep(TICK_S)
        for bookie in missing:
            self._bookie_ended(bookie, f"is not writable {REGISTER_S:g} s after all faults were healed")
        return frozenset(bookie.id for bookie in missing if bookie.program)

    async def _check_healing(self, client: Client) -> None:
        self.show("waiting until every ledger is fully replicated")
        records = [record async for record in client.ledgers(label=(LABEL, "1"))]
        await check_healing(self._healing, client, self._cluster.metadata_uri, records)
        self.counts["seconds until all was whole"] = round(self._healing.took_s)
        self.counts["ledgers not whole, with a reason"] = self._healing.explained

    def _end_healers(self) -> None:
        if self.heals:
            sums, problems = self._healers.finish(SLACK_S)
            self.counts.update(sums)
            for problem in problems:
                self.checker.violated("healers live", problem)
            self._healing.check_thrift(self.counts["bytes copied by repairs"], self._absences(), self.bookies)

    def _absences(self) -> int:
        """Return how often a bookie may have counted as lost: only `lose bookie`, or also what namespaces cut off."""
        isolating = [fault for fault in self.surroundings.weights if fault in LONG_FAULTS]
        return sum(self.counts[fault] for fault in ("lose bookie", *isolating))

    def _stop(self) -> None:
        for client in self._clients:
            client.kill()
            client.close()
        self._clients.clear()
        self._healers.kill()
        self._cluster.stop()
        for process in self._hostile:
            process.kill()
        self.surroundings.kill()

    # -- fault injection -----------------------------------------------------------------------------------------
    def _inject_faults(self) -> None:
        """Inject the faults of the plan, each at its time."""
        for at_s, fault, choices in plan_faults(self.seed, self.seconds, self.surroundings.gap_s, self._weights):
            self._conduct(self._begin + at_s)
            self._random = choices
            self._do(fault)
        self._conduct(self._begin + self.seconds)

    def _note(self, fault: str, text: str = "", seconds: float = 0.0) -> None:
        """Count a fault that begins, and write it down."""
        self.counts[fault] += 1
        line = f"{time.monotonic() - self._begin:7.1f} s  {fault}  {text}" + (
            f"  for {seconds:.1f} s" if seconds else ""
        )
        with (self.directory / "faults.log").open("a") as file:
            file.write(line.rstrip() + "\n")

    def _conduct(self, until: float) -> None:
        """End faults that are due, read histories and restart ended processes, until a time."""
        while True:
            now = time.monotonic()
            self._ends.run_until(now)
            self._check_clients()
            self._check_bookies()
            self._check_starts()
            self._check_healers()
            if now - self._shown >= self.progress_s:
                self.show("")
            if now >= until:
                return
            time.sleep(max(0.0, min(TICK_S, until - now)))

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        self._ends.add(time.monotonic() + delay_s, act)

    def _check_clients(self) -> None:
        for client in list(self._clients):
            has_ended = client.has_ended()
            self.checker.take(client.name, client.read_new())
            if has_ended:
                self._note_bad_end(client)
                self._remove(client)
                self._later(PAUSE_S, lambda old=client: self._start_client(old.role, old.number, old.life + 1))  # type: ignore[misc]
        for name in self.checker.overdue():
            for client in self._clients:
                if client.name == name and not client.has_ended():
                    client.print_tasks()

    def _note_bad_end(self, client: ClientProcess) -> None:
        text = f"{client.name} ended with status {client.process.returncode}: {client.last_words()}"
        self._client_failed(client, "clients live", text)

    def _client_failed(self, client: ClientProcess, promise: str, text: str) -> None:
        """Record that a client does not live or end: a violation of ours, a remark about Apache's."""
        if client.is_apache:
            self._note("Apache's client failed", text)
        else:
            self.checker.violated(promise, text)

    def _remove(self, client: ClientProcess) -> None:
        client.kill()
        self.checker.take(client.name, client.read_new())
        self.checker.killed(client.name)
        client.close()
        self._clients.remove(client)

    def _check_bookies(self) -> None:
        for bookie in self._cluster.bookies:
            if bookie.id in self._impaired or bookie.id in self._broken_disks:
                continue  # The disk outlasts a flap. The bookie may still end, and is started when the disk is whole.
            if bookie.process is not None and bookie.process.poll() is not None:
                text = f"ended unexpectedly, status {bookie.process.returncode}: {last_line(bookie.log)}"
                self._bookie_ended(bookie, text)
                self._impaired[bookie.id] = None
                self._restart(bookie.id)

    def _bookie_ended(self, bookie: LocalBookie, text: str) -> None:
        """Record that a bookie does not live: a violation of ours, a remark about Apache's."""
        if bookie.program:
            self._note("Apache's bookie ended", f"{bookie.id} {text}")
        else:
            self.checker.violated("bookies live", f"{bookie.id} {text}")

    def _check_healers(self) -> None:
        for number in self._healers.ended():
            text = f"healer{number + 1} ended unexpectedly: {self._healers.healers[number].last_words()}"
            self.checker.violated("healers live", text)
            self._healers.restart(number)

    def show(self, step: str) -> None:
        self._shown = time.monotonic()
        counts = self.checker.counts
        faults = sum(self.counts[fault] for fault in self._weights)
        self.progress(
            f"{self._shown - self._begin:5.0f} s  {counts['entries acknowledged']:>9,} entries acknowledged  "
            f"{len(self.checker.stories):>5,} ledgers  {faults:>4} faults  "
            f"{len(self._impaired)} of {len(self._cluster.bookies)} "
            f"bookies down or stopped  {len(self.checker.violations)} violations  {step}".rstrip()
        )

    # -- faults --------------------------------------------------------------------------------------------------
    def _duration_s(self) -> float:
        return duration_s(self._random)

    def _do(self, fault: str) -> None:
        if fault == "kill all bookies":
            self._kill_all_bookies()
        elif fault.endswith("healer"):
            self._hit_healer(fault)
        elif fault.endswith("client"):
            self._hit_client(fault)
        elif fault.endswith("bookie") or fault in DISK_FAULTS:
            self._hit_bookie(fault)
        elif hit := self.surroundings.hit(fault, self._random):
            self._note(fault, hit.text, hit.seconds)
            if hit.end is not None:
                self._later(hit.seconds, hit.end)

    def _hit_client(self, fault: str) -> None:
        able = [client for client in self._clients if not client.is_stopped and not client.has_ended()]
        if not able:
            return
        # Half of the time a writer, because an interrupted writer leaves the most state to recover.
        writers = [client for client in able if client.role.endswith("writer")]
        client = self._random.choice(writers if writers and self._random.random() < 0.5 else able)
        if fault == "kill client":
            self._note(fault, client.name)
            self._remove(client)
            self._start_client(client.role, client.number, client.life + 1)
            return
        self.checker.stopped(client.name)
        client.is_stopped = True
        self._stop_process(client)
        seconds = self._duration_s()
        self._note(fault, client.name, seconds)
        self._later(seconds, lambda: self._continue_client(client))

    def _continue_client(self, client: ClientProcess) -> None:
        self._continue_process(client)
        client.is_stopped = False
        self.checker.continued(client.name)

    @property
    def _impaired_max(self) -> int:
        return max(1, (len(self._cluster.bookies) - 1) // 2)

    def _hit_bookie(self, fault: str) -> None:
        able = [bookie for bookie in self._cluster.bookies if bookie.id not in self._impaired]
        if len(self._impaired) >= self._impaired_max or not able:
            return
        bookie = self._random.choice(able)
        self._impaired[bookie.id] = None
        if fault == "flap bookie":
            flaps = self._random.choice(FLAPS)
            self._note(fault, f"{bookie.id} {flaps} times")
            self._flap(bookie.id, flaps)
            return
        if fault in DISK_FAULTS:
            hit = self.surroundings.break_disk(fault, bookie.id, self._random)
            self._broken_disks[bookie.id] = None
            self._note(fault, hit.text, hit.seconds)
            self._later(hit.seconds, lambda: self._mend_disk(bookie.id, fault, hit))
            return
        seconds = self._random.uniform(*ABSENCE_S) if fault == "lose bookie" else self._duration_s()
        self._note(fault, bookie.id, seconds)
        if fault == "stop bookie":
            self._stop_process(bookie)
            self._later(seconds, lambda: self._continue_bookie(bookie.id))
        else:
            self._cluster.kill(bookie.id)
            self._later(seconds, lambda: self._restart(bookie.id))

    def _mend_disk(self, name: str, fault: str, hit: Hit) -> None:
        """End the fault of a bookie's disk. The bookie continues, or starts again if it has ended."""
        assert hit.end is not None
        if fault == "read-only disk":
            self._cluster.kill(name)
        hit.end()
        del self._broken_disks[name]
        self._later(SETTLE_S, lambda: self._continue_or_restart(name))

    def _continue_or_restart(self, name: str) -> None:
        if self._bookie(name).is_running():
            self._continue_bookie(name)
        else:
            self._restart(name)

    def _stop_process(self, process: LocalBookie | Program) -> None:
        assert process.pid is not None
        self.surroundings.stopped(process.pid)
        process.send(signal.SIGSTOP)

    def _continue_process(self, process: LocalBookie | Program) -> None:
        assert process.pid is not None
        process.send(signal.SIGCONT)
        self.surroundings.continued(process.pid)

    def _bookie(self, name: str) -> LocalBookie:
        return next(bookie for bookie in self._cluster.bookies if bookie.id == name)

    def _flap(self, name: str, count: int) -> None:
        """Let a bookie's registration end and return, `count` times."""
        bookie = self._bookie(name)
        if not bookie.is_running() or name in self._starting or self._ends.is_closing:
            return  # It was killed meanwhile.
        if name not in self._impaired and len(self._impaired) >= self._impaired_max:
            return  # Too many others are impaired meanwhile.
        self._impaired[name] = None
        self.counts["registrations that went and came"] += 1
        self._stop_process(bookie)

        def continue_bookie() -> None:
            self._continue_bookie(name)
            if count > 1:
                self._later(self._random.uniform(*FLAP_GO_S), lambda: self._flap(name, count - 1))

        self._later(self._random.uniform(*FLAP_STOP_S), continue_bookie)

    def _hit_healer(self, fault: str) -> None:
        healers = self._healers
        able = [number for number in range(len(healers.healers)) if number not in healers.stopped]
        if not able:
            return
        number = self._random.choice(able)
        if fault == "kill healer":
            self._note(fault, f"healer{number + 1}")
            healers.restart(number)
            return
        seconds = self._duration_s()
        self._note(fault, f"healer{number + 1}", seconds)
        healers.stopped[number] = None
        self._stop_process(healers.healers[number])
        self._later(seconds, lambda: self._continue_healer(number))

    def _continue_healer(self, number: int) -> None:
        self._continue_process(self._healers.healers[number])
        self._healers.stopped.pop(number, None)

    def _continue_bookie(self, name: str) -> None:
        bookie = self._bookie(name)
        if not bookie.is_running() or name not in self._impaired or name in self._starting:
            return  # It was killed meanwhile; that fault restarts it.
        self._continue_process(bookie)
        del self._impaired[name]

    def _kill_all_bookies(self) -> None:
        self._note("kill all bookies")
        for bookie in self._cluster.bookies:
            self._impaired[bookie.id] = None
            self._starting.pop(bookie.id, None)
            bookie.send(signal.SIGKILL)
        for bookie in self._cluster.bookies:
            self._cluster.kill(bookie.id)
            self._later(self._duration_s(), lambda name=bookie.id: self._restart(name))  # type: ignore[misc]

    def _restart(self, name: str) -> None:
        bookie = self._bookie(name)
        if (bookie.process is not None and bookie.is_running()) or name in self._broken_disks:
            return
        self._cluster.begin_restart(name)
        self._starting[name] = time.monotonic()

    def _check_starts(self) -> None:
        """Check bookies that are starting: those that serve are registered with the proxy, others are violations."""
        for bookie in self._cluster.bookies:
            if bookie.id not in self._starting:
                continue
            assert bookie.process is not None
            if bookie.process.poll() is not None:
                del self._starting[bookie.id]
                if bookie.process.returncode == EXIT_METADATA:
                    # A process that is stopped during a change of the embedded store locks out all others.
                    self.counts["starts without metadata"] += 1
                else:
                    self._bookie_ended(bookie, f"does not restart: {last_line(bookie.log)}")
                self._later(PAUSE_S, lambda name=bookie.id: self._restart(name))  # type: ignore[misc]
            elif bookie.serves():
                del self._starting[bookie.id]
                self.surroundings.serves(bookie)
                self._impaired.pop(bookie.id, None)
            elif time.monotonic() - self._starting[bookie.id] > START_S:
                self._bookie_ended(bookie, f"does not serve {START_S:g} s after its start")
                self._starting[bookie.id] = time.monotonic()
