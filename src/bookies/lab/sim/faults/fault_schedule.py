"""Fault schedules: a seeded sequence of faults for the cluster.

All faults but rot and lost disks leave durable replicas intact: a power failure loses only unsynced data. So the
number of simultaneous faults needs no limit for safety, and every promise must hold in every run (`hit(l, e)` of
client-protocol 8.1 is 0). Rot damages durable data, on only one bookie of a run: the checks excuse one replica of each
entry there. Lost disks take durable replicas, of a single bookie until it has fetched them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from random import Random

from msgspec import Struct, field

from bookies.lab.sim.clients.healing import LAST_HEALER
from bookies.lab.sim.world import SimCluster
from bookies.lab.sim.world.disk import LOSSES, PROCESS_DIES, Loss
from bookies.lab.sim.world.sim_metadata import STORE_HOST, StoreFaults

# Each is a method of `Faults`. A seed chooses by their order.
FAULTS = (
    """
crash bookie, crash bookie in a disk call, crash bookie at an await, crash all bookies, lose bookie, flap, kill auditor,
kill busy worker, kill worker in a copy, pause worker in a copy, pause bookie, cut connection, partition, isolate,
slow host, repeat messages, isolate from the store, fail disk calls, fill disk, rot, refuse adds, limbo, slow disk,
metadata trouble, expire session, kill client, kill client at an await, pause client, turn a clock, turn a client clock,
lose disk
""".replace("\n", " ")
    .strip()
    .split(", ")
)
LOG_HEADER_SIZE = 1024  # bytes; a bookie refuses an entry log whose header is damaged


class FaultPlan(Struct, frozen=True):
    """The faults of a run.

    `gap_ms`: mean time between faults. `count_max`: maximum number of faults. `durations_s`: each fault lasts for one
    of these, chosen with equal probability. `weights`: fault name -> relative frequency.
    """

    gap_ms: float = 300.0
    count_max: int = 1_000_000
    durations_s: tuple[float, ...] = (0.02, 0.2, 1.0, 5.0)  # mostly below time-outs, sometimes above all of them
    weights: Mapping[str, float] = field(default_factory=dict)


class Injected(Struct):
    """The faults of a run that happen. `only`: names of those that may; None: all. `happened`: name -> description.

    The seed alone determines a fault's name and all its details, so a run can be repeated without some of its faults.
    """

    only: frozenset[str] | None = None
    happened: dict[str, str] = field(default_factory=dict)

    def admits(self, name: str, description: str) -> bool:
        """Decide and record whether a fault happens now. Called once per fault."""
        if self.only is not None and name not in self.only:
            return False
        self.happened[name] = description
        return True


class Faults:
    """Source of a run's random faults. Each fault includes its end, for example a restart or a healed partition."""

    def __init__(self, cluster: SimCluster, seed: str, plan: FaultPlan, injected: Injected) -> None:
        self._cluster = cluster
        self._seed = seed
        self._random = Random(seed)  # of the current fault: each has its own
        self._plan = plan
        self._injected = injected
        self._is_stopped = False
        for name in plan.weights:
            assert name in FAULTS, f"unknown fault {name}"

    async def run(self) -> None:
        faults = [fault for fault in FAULTS if self._plan.weights.get(fault, 0) > 0]
        weights = [self._plan.weights[fault] for fault in faults]
        number = 0
        while faults and not self._is_stopped and number < self._plan.count_max:
            number += 1
            self._random = Random(f"{self._seed}/{number}")
            await asyncio.sleep(self._random.expovariate(1 / self._plan.gap_ms) / 1000)
            fault = self._random.choices(faults, weights)[0]
            if not self._is_stopped and self._injected.admits(f"fault {number}", fault):
                getattr(self, "_" + fault.replace(" ", "_"))()

    def stop(self) -> None:
        """Start no new faults. `SimCluster.heal` ends the current ones."""
        self._is_stopped = True

    # -- choices -------------------------------------------------------------------------------------------------
    def _bookie(self) -> str:
        return self._random.choice(list(self._cluster.bookies))

    def _client(self) -> str | None:
        names = list(self._cluster.clients)
        return self._random.choice(names) if names else None

    def _hosts(self) -> list[str]:
        return [*self._cluster.bookies, *self._cluster.clients, STORE_HOST]

    def _loss(self) -> Loss:
        return PROCESS_DIES if self._random.random() < 0.4 else self._random.choice(LOSSES)

    def _duration_s(self) -> float:
        return self._random.choice(self._plan.durations_s) * self._random.uniform(0.5, 2)

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(delay_s, action)

    # -- bookies -------------------------------------------------------------------------------------------------
    def _crash_bookie(self) -> None:
        self._cluster.crash_bookie(
            self._bookie(), self._loss(), is_silent=self._random.random() < 0.3, restart_after_s=self._duration_s()
        )

    def _crash_bookie_in_a_disk_call(self) -> None:
        self._cluster.crash_in_disk_call(
            self._bookie(),
            self._random.randint(1, 60),
            self._loss(),
            is_silent=self._random.random() < 0.3,
            restart_after_s=self._duration_s(),
        )

    def _crash_bookie_at_an_await(self) -> None:
        name = self._bookie()
        participant = self._cluster.bookies[name].participant
        loss, delay_s = self._loss(), self._duration_s()
        if participant is not None and participant.is_alive:
            participant.light_fuse(
                self._random.randint(1, 200),
                lambda: self._cluster.crash_bookie(name, loss, restart_after_s=delay_s),
            )

    def _lose_bookie(self) -> None:
        """Lose a bookie for good, with all its data. Once per run: some entries have only one other replica."""
        if not any(bookie.is_gone for bookie in self._cluster.bookies.values()):
            self._cluster.lose_bookie(self._bookie(), self._loss())

    def _lose_disk(self) -> None:
        """Lose one directory of a bookie, or all, with all files. While a bookie owes entries only this one may lose
        more: each loss takes one replica of an entry."""
        owing = self._cluster.owing
        name = owing[0] if owing else self._bookie()
        server = self._cluster.bookies[name].server
        if len(owing) > 1 or server is None:
            return
        config = server.config
        paths: list[str] = [*config.journal_directories, *config.ledger_directories]
        if self._random.random() < 0.85:
            paths = [self._random.choice([*config.ledger_directories, *paths])]
        is_needed = paths[0] in config.journal_directories or bool(server.store.left_out)
        is_empty = self._random.random() < 0.5 or is_needed
        restart_s = self._duration_s()
        self._cluster.lose_directories(name, paths, self._loss(), is_empty=is_empty, restart_s=restart_s)

    def _flap(self) -> None:
        """Expire a bookie's registration several times, although it serves all the time."""
        name = self._bookie()
        mean_s = self._random.choice((0.01, 0.05, 0.25))
        for number in range(self._random.choice((10, 30, 100))):
            self._later(number * mean_s * self._random.uniform(0.5, 1.5), partial(self._cluster.expire_session, name))

    def _crash_all_bookies(self) -> None:
        loss = self._loss()
        for name in self._cluster.bookies:
            self._cluster.crash_bookie(name, loss, is_silent=True, restart_after_s=self._duration_s())

    def _pause_bookie(self) -> None:
        bookie = self._cluster.bookies[self._bookie()]
        participant = bookie.participant
        if participant is not None and participant.is_alive:
            self._cluster.trace.note(bookie.name, "is paused")
            participant.pause()
            self._later(self._duration_s(), participant.resume)

    def _slow_disk(self) -> None:
        workers = self._cluster.bookies[self._bookie()].workers
        workers.slowness = self._random.choice((5.0, 50.0, 500.0))
        self._later(self._duration_s(), partial(setattr, workers, "slowness", 1.0))

    def _fail_disk_calls(self) -> None:
        """Fail a bookie's next disk calls of one type. A write may fail half done."""
        bookie = self._cluster.bookies[self._bookie()]
        operation = self._random.choice(
            ("pread", "pwrite", "pwritev", "fdatasync", "fdatasync", "truncate", "open", "")
        )
        self._cluster.trace.note(bookie.name, f"disk fails: {operation or 'anything'}")
        bookie.disk.fail(
            operation,
            self._random.choice(("/journal", "/ledgers", "")),
            lambda: OSError(5, "Input/output error"),
            count=self._random.choice((1, 1, 3)),
            skip=self._random.randrange(5),
            is_partial=self._random.random() < 0.5,
        )

    def _fill_disk(self) -> None:
        """Leave a bookie's disk with at most 64 KiB of free space for the fault's duration."""
        disk = self._cluster.bookies[self._bookie()].disk
        capacity, disk.capacity = disk.capacity, disk.used() + self._random.choice((0, 4 << 10, 64 << 10))
        self._later(self._duration_s(), lambda: disk.grow(capacity))

    def _rot(self) -> None:
        """Flip a bit of an entry log. All rot of a run hits the same bookie."""
        cluster = self._cluster
        if not cluster.rotten:
            cluster.rotten[self._bookie()] = None
        (name,) = cluster.rotten
        disk = cluster.bookies[name].disk
        logs = [(path, data) for path, data in disk.files(f"/{name}/ledgers").items() if path.endswith(".log")]
        logs = [(path, data) for path, data in logs if len(data) > LOG_HEADER_SIZE]
        if logs:
            path, data = self._random.choice(logs)
            disk.flip_bit(path, self._random.randrange(LOG_HEADER_SIZE, len(data)), self._random.randrange(8))
            cluster.trace.note(name, f"a bit of {path} rots")

    def _refuse_adds(self) -> None:
        """Let one bookie or two fail their next adds."""
        for name in self._random.sample(list(self._cluster.bookies), self._random.choice((1, 1, 2))):
            faults = self._cluster.bookies[name].storage_faults
            faults.refusals = self._random.choice((1, 1, 2, 5))
            self._cluster.trace.note(name, f"refuses {faults.refusals} adds")

    def _limbo(self) -> None:
        """Put a bookie into limbo: its contents are unknown. Never two at once, so that recoveries can end."""
        if any(bookie.storage_faults.is_in_limbo for bookie in self._cluster.bookies.values()):
            return
        name = self._bookie()
        faults = self._cluster.bookies[name].storage_faults
        self._cluster.trace.note(name, "cannot say what it holds")
        faults.is_in_limbo = True
        self._later(2 * self._duration_s(), partial(setattr, faults, "is_in_limbo", False))

    def _turn_a_clock(self) -> None:
        bookie = self._cluster.bookies[self._bookie()]
        bookie.clock.skew_ms += self._random.choice((-86_400_000, -5_000, 5_000, 86_400_000))

    def _turn_a_client_clock(self) -> None:
        if (name := self._client()) is not None:
            clock = self._cluster.clients[name].clock
            clock.skew_ms += self._random.choice((-5_000, -500, 500, 5_000))
            self._cluster.skews_ms.add(clock.skew_ms)
            self._cluster.trace.note(name, f"has a clock that is {clock.skew_ms} ms ahead")

    # -- network -------------------------------------------------------------------------------------------------
    def _cut_connection(self) -> None:
        network = self._cluster.network
        if transports := network.connections():
            network.cut(self._random.choice(transports), is_half_open=self._random.random() < 0.3)

    def _block(self, pairs: list[tuple[str, str]]) -> None:
        network = self._cluster.network
        for source, target in pairs:
            network.block(source, target)

        def end() -> None:
            for source, target in pairs:
                network.unblock(source, target)

        self._later(self._duration_s(), end)

    def _partition(self) -> None:
        """Partition two hosts, in one direction or both."""
        source, target = self._random.sample(self._hosts(), 2)
        pairs = [(source, target)]
        if self._random.random() < 0.6:
            pairs.append((target, source))
        self._cluster.trace.note("network", f"loses {source} -> {target}{' and back' if len(pairs) > 1 else ''}")
        self._block(pairs)

    def _isolate(self) -> None:
        """Isolate one host from all others, or from all but the store."""
        lonely = self._random.choice(self._hosts())
        others = [host for host in self._hosts() if host != lonely]
        if self._random.random() < 0.5 and STORE_HOST in others:
            others.remove(STORE_HOST)
        self._cluster.trace.note("network", f"isolates {lonely} from {', '.join(others)}")
        self._block([pair for other in others for pair in ((lonely, other), (other, lonely))])

    def _slow_host(self) -> None:
        host = self._random.choice(self._hosts())
        self._cluster.trace.note("network", f"slows {host} down")
        self._cluster.network.slow_down(host, self._random.choice((10.0, 100.0, 2_000.0)))
        self._later(self._duration_s(), lambda: self._cluster.network.slow_down(host, 1))

    def _isolate_from_the_store(self) -> None:
        """Isolate one client or bookie from the store, in one direction or both."""
        host = self._random.choice(self._hosts()[:-1])
        there, back = (host, STORE_HOST), (STORE_HOST, host)
        pairs = self._random.choice([[there], [back], [there, back]])
        self._cluster.trace.note("network", f"isolates {host} from the metadata store")
        self._block(pairs)

    def _repeat_messages(self) -> None:
        conditions = self._cluster.network.conditions
        conditions.repeat_probability = self._random.choice((0.05, 0.3))
        self._later(self._duration_s(), partial(setattr, conditions, "repeat_probability", 0.0))

    # -- metadata ------------------------------------------------------------------------------------------------
    def _metadata_trouble(self) -> None:
        store = self._cluster.store
        store.faults = StoreFaults(
            lost_request=self._random.choice((0.0, 0.3)),
            lost_reply=self._random.choice((0.0, 0.3, 0.6)),
            stale_read=self._random.choice((0.0, 0.5)),
            news_delay_s=self._random.choice((0.0, 0.0, self._duration_s())),
        )
        self._cluster.trace.note("metadata", "loses requests and replies, answers with old records, news is late")
        self._later(self._duration_s(), store.heal)

    def _expire_session(self) -> None:
        self._cluster.expire_session(self._random.choice(self._hosts()[:-1]))

    # -- clients -------------------------------------------------------------------------------------------------
    def _kill_client(self) -> None:
        if (name := self._client()) is not None:
            self._cluster.kill_client(name)

    def _kill_client_at_an_await(self) -> None:
        if (name := self._client()) is not None:
            self._kill_soon(name, steps_max=60)

    # -- auto-recovery -------------------------------------------------------------------------------------------
    def _recovering(self, *, is_auditor: bool) -> str | None:
        """Choose a process whose auditor is elected, or whose worker is repairing a ledger now."""
        names = [
            name
            for name, client in self._cluster.clients.items()
            if client.recovery is not None
            and (client.recovery.auditor.is_at_work if is_auditor else client.recovery.worker.busy)
        ]
        return self._random.choice(names) if names else None

    def _kill_auditor(self, *, is_auditor: bool = True) -> None:
        if (name := self._recovering(is_auditor=is_auditor)) is not None:
            self._kill_soon(name)

    def _kill_busy_worker(self) -> None:
        self._kill_auditor(is_auditor=False)

    def _kill_worker_in_a_copy(self) -> None:
        self._hit_at_copy(partial(self._kill_soon, steps_max=8))

    def _pause_worker_in_a_copy(self) -> None:
        self._hit_at_copy(self._stun)

    def _kill_soon(self, name: str, steps_max: int = 40) -> None:
        """Kill a client within `steps_max` of its callbacks."""

        def kill() -> None:
            if name in self._cluster.clients:
                self._cluster.kill_client(name)

        if name in self._cluster.clients:
            self._cluster.clients[name].participant.light_fuse(self._random.randint(1, steps_max), kill)

    def _hit_at_copy(self, hit: Callable[[str], None]) -> None:
        """Call `hit` with the next process that copies entries, after one to three copies.

        This may be only after the healing, when most lost data is copied. The last healer is spared, so that one
        process continues.
        """
        copies = self._random.choice((1, 1, 2, 3))

        def on_copy(name: str) -> None:
            nonlocal copies
            copies -= name != LAST_HEALER
            if copies == 0 and name in self._cluster.clients:
                self._cluster.on_copy = None
                self._cluster.trace.note(name, "has copied something")
                asyncio.get_running_loop().call_soon(hit, name, context=self._cluster.loop.world.copy())

        self._cluster.on_copy = on_copy

    def _stun(self, name: str) -> None:
        """Pause a process and mostly expire its session, so that others get its locks without its knowledge."""
        if name not in self._cluster.clients:
            return
        participant = self._cluster.clients[name].participant
        self._cluster.trace.note(name, "is paused")
        participant.pause()
        if self._random.random() < 0.6:
            self._later(self._random.uniform(0, 1), partial(self._cluster.expire_session, name))
        self._later(self._duration_s(), participant.resume)

    def _pause_client(self) -> None:
        if (name := self._client()) is not None:
            participant = self._cluster.clients[name].participant
            self._cluster.trace.note(name, "is paused")
            participant.pause()
            self._later(3 * self._duration_s(), participant.resume)
