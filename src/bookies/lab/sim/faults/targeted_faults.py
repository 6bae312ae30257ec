"""Targeted faults at critical moments: before a change of a ledger's record, after a first answer, during a checkpoint.

Most schedules that break a wrong protocol need one paused participant or one late answer exactly while a
compare-and-swap is in flight, or while some bookies have answered and others have not. Random faults seldom hit such a
moment. Here a fault happens at each with a given probability. Source: client-protocol 8.4.

A fence or an explicit LAC may arrive between the moment when a bookie decides what to write to its index files and the
end of the write. The journal must then keep it. To provoke this, recoveries begin and the write is slow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from msgspec import Struct

from bookies.lab.sim.faults.fault_schedule import Injected
from bookies.lab.sim.world import SimCluster
from bookies.lab.sim.world.cluster import SimBookie


class TargetedFaultPlan(Struct, frozen=True):
    """Probabilities of a fault at each critical moment. `durations_s`: chosen with equal probability."""

    update_probability: float = 0.5
    answer_probability: float = 0.15
    durations_s: tuple[float, ...] = (0.001, 0.005, 0.02, 0.1)
    index_probability: float = 0.0  # of a slow write of index files


class TargetedFaults:
    """Source of a run's targeted faults, until `stop`. `recover()`: begins the planned recoveries."""

    def __init__(
        self, cluster: SimCluster, seed: str, plan: TargetedFaultPlan, injected: Injected, recover: Callable[[], None]
    ) -> None:
        self._cluster = cluster
        self._seed = seed
        self._plan = plan
        self._injected = injected
        self._recover = recover
        self._counts: dict[str, int] = {}
        self._is_waiting: dict[str, bool] = {}  # client -> no answer has arrived since its last request

    def start(self) -> None:
        self._cluster.store.on_update = self._before_update
        self._cluster.network.on_delivery = self._delivered
        if self._plan.index_probability:
            self._cluster.on_index_write = self._before_index_write

    def stop(self) -> None:
        self._cluster.store.on_update = self._cluster.network.on_delivery = self._cluster.on_index_write = None

    def _delivered(self, source: str, target: str) -> None:
        if source in self._cluster.clients:
            self._is_waiting[source] = True
        elif self._is_waiting.get(target):
            self._is_waiting[target] = False
            self._after_answer(target, source)

    def _begin(self, host: str, moment: str, probability: float) -> tuple[str, Random] | None:
        """Return the name of the fault at this moment and its random generator; None: no fault."""
        count = self._counts[f"{host} {moment}"] = self._counts.get(f"{host} {moment}", 0) + 1
        name = f"{host} {moment} {count}"
        random = Random(f"{self._seed}/{name}")
        return (name, random) if host in self._cluster.clients and random.random() < probability else None

    def _duration_s(self, random: Random) -> float:
        return random.choice(self._plan.durations_s) * random.uniform(0.5, 2)

    def _before_update(self, host: str) -> tuple[float, float]:
        """Return the extra delays of request and reply of a record's change, seconds."""
        if (begun := self._begin(host, "update", self._plan.update_probability)) is None:
            return 0.0, 0.0
        name, random = begun
        delays = self._duration_s(random), self._duration_s(random)
        fault = random.choice(("late request", "late reply", "both late", "other"))
        if fault == "other":
            self._disturb(name, host, random)
        elif self._injected.admits(name, fault):
            request_s = 0.0 if fault == "late reply" else delays[0]
            reply_s = 0.0 if fault == "late request" else delays[1]
            # Answers of the old bookies arrive just before or after the reply, those of new ones later.
            self._hold_some(host, random, request_s + reply_s + random.uniform(0, 0.005))
            if random.random() < 0.5:
                self._cluster.network.hold_new(host, request_s + reply_s + self._duration_s(random))
            return request_s, reply_s
        return 0.0, 0.0

    def _after_answer(self, host: str, bookie: str) -> None:
        if (begun := self._begin(host, "answer", self._plan.answer_probability)) is not None:
            self._disturb(begun[0], host, begun[1], bookie)

    def _before_index_write(self, bookie: SimBookie) -> None:
        """Slow a bookie's disk calls that begin in this callback: the index write, but not the journal."""
        count = self._counts[bookie.name] = self._counts.get(bookie.name, 0) + 1
        name = f"{bookie.name} index {count}"
        random = Random(f"{self._seed}/{name}")
        slowness = random.choice((20.0, 100.0, 400.0))
        if random.random() < self._plan.index_probability and self._injected.admits(name, "slow index"):
            usual, bookie.workers.slowness = bookie.workers.slowness, slowness

            def end() -> None:
                bookie.workers.slowness = usual

            asyncio.get_running_loop().call_soon(end)
            self._recover()

    def _disturb(self, name: str, host: str, random: Random, bookie: str = "") -> None:
        fault = random.choices(("hold", "break", "pause", "recover", "kill"), (12, 18, 4, 3, 1))[0]
        duration_s = self._duration_s(random)
        is_at_once = random.random() < 0.5
        if not self._injected.admits(name, fault):
            return
        participant = self._cluster.clients[host].participant
        loop = asyncio.get_running_loop()
        if fault == "hold":
            self._hold_some(host, random, duration_s)
        elif fault == "break":
            self._break_one(host, random, duration_s, bookie)
        elif fault == "pause":
            loop.call_soon(participant.pause) if not is_at_once else participant.pause()
            loop.call_later(duration_s, participant.resume)
        elif fault == "recover":
            self._recover()
        else:
            loop.call_soon(self._kill, host)  # Deferred: the victim's code may be running now.

    def _hold_some(self, host: str, random: Random, duration_s: float) -> None:
        """Delay the requests, the answers or both on some or all connections of a client."""
        network = self._cluster.network
        share = random.choice((0.4, 0.7, 1.0))
        directions = random.choice((("incoming",), ("outgoing",), ("incoming", "outgoing")))
        for transport in network.connections(host):
            if random.random() < share:
                for direction in directions:
                    network.hold(getattr(transport, direction), duration_s)

    def _break_one(self, host: str, random: Random, duration_s: float, bookie: str) -> None:
        """Break a client's connection soon, with the data sent meanwhile; mostly that to the bookie that just answered.

        Delay others, so that entries acknowledged by the disconnected bookie still wait for their quorum.
        """
        network = self._cluster.network
        transports = network.connections(host)
        answered = [transport for transport in transports if transport.outgoing.target.host == bookie]
        candidates = answered if answered and random.random() < 0.8 else transports
        self._hold_some(host, random, duration_s)
        if candidates:
            chosen = random.choice(candidates)
            network.hold(chosen.outgoing, 1.0)
            when_s = random.choice((0.0, 0.001, 0.003, 0.01))
            asyncio.get_running_loop().call_later(when_s, lambda: network.cut(chosen, news_s=0.0005))

    def _kill(self, host: str) -> None:
        if host in self._cluster.clients:
            self._cluster.kill_client(host)
