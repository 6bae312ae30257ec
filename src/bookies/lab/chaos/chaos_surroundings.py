"""Network, disks and metadata store of the processes of `bk chaos`: with a proxy here, else in `chaos_namespaces`."""

from __future__ import annotations

import pathlib
import random
from collections.abc import Mapping, Sequence
from typing import Protocol

from bookies.admin.cluster.local_cluster import LocalBookie
from bookies.lab.chaos.chaos_plan import Hit, duration_s
from bookies.lab.chaos.chaos_processes import CLIENT, OrderedProcess

# Faults during which a bookie may count as lost.
LONG_FAULTS = (
    "partition",
    "bridge",
    "one-way cut",
    "isolated store",
    "kill store",
    "stop store",
    "full disk",
    "read-only disk",
)


class Surroundings(Protocol):
    """`gap_s`: mean time between faults. `weights`: fault -> frequency. `metadata_uri`: None for the embedded store."""

    gap_s: float
    weights: Mapping[str, float]
    metadata_uri: str | None

    def start(self, bookies: Sequence[LocalBookie]) -> None:
        """Start before the bookies start, and add to their settings. Raises `BookKeeperError`."""

    def further_bookies(self, directory: pathlib.Path) -> list[LocalBookie]:
        """Return Apache's bookies, to be started in `directory` once the others serve."""

    def prefix(self, node: str) -> list[str]:
        """Return the words before the command of a node's process."""

    def client(self, node: str) -> list[str]:
        """Return the command of a client's process, without its parameters."""

    def serves(self, bookie: LocalBookie) -> None:
        """Note that a bookie listens on a new port."""

    def hit(self, fault: str, choices: random.Random) -> Hit | None:
        """Begin a fault of `weights`, unless nothing is left to hit."""

    def break_disk(self, fault: str, bookie: str, choices: random.Random) -> Hit:
        """Begin a fault of a bookie's disk."""

    def stopped(self, pid: int) -> None: ...

    def continued(self, pid: int) -> None: ...

    def heal(self) -> None: ...

    def finish(self) -> dict[str, int]:
        """End, and return statistics."""

    def kill(self) -> None: ...


class Proxied:
    """All processes on the machine's own network, with a proxy between clients and bookies (`chaos_proxy`)."""

    gap_s = 0.5
    weights: Mapping[str, float] = {
        "cut": 5.0,
        "cut in a frame": 4.0,
        "half-open": 3.0,
        "stall": 4.0,
        "slow": 2.0,
        "refuse": 2.0,
    }
    metadata_uri: str | None = None

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        self._proxy: OrderedProcess | None = None
        self._healthy: dict[str, None] = {}  # bookies without a fault of their connections

    def _order(self, action: str, **parameters: object) -> None:
        assert self._proxy is not None
        self._proxy.order(action, **parameters)

    def start(self, bookies: Sequence[LocalBookie]) -> None:
        self._healthy = dict.fromkeys(bookie.id for bookie in bookies)
        parameters = {"bookies": list(self._healthy)}
        self._proxy = OrderedProcess("bookies.lab.chaos.chaos_proxy", self._directory / "proxy.log", parameters)
        for bookie in bookies:
            bookie.settings["advertised_port"] = self._proxy.first["ports"][bookie.id]

    def further_bookies(self, directory: pathlib.Path) -> list[LocalBookie]:
        return []

    def prefix(self, node: str) -> list[str]:
        return []

    def client(self, node: str) -> list[str]:
        return [*CLIENT]

    def serves(self, bookie: LocalBookie) -> None:
        self._order("backend", bookie=bookie.id, port=bookie.port)

    def hit(self, fault: str, choices: random.Random) -> Hit | None:
        if not self._healthy:
            return None
        name = choices.choice(list(self._healthy))
        if fault in ("cut", "cut in a frame"):
            self._order("cut", bookie=name, torn=fault != "cut")
            return Hit(name)
        match fault:
            case "half-open":
                parameters: dict[str, object] = {"side": choices.choice(("client", "bookie"))}
            case "stall":
                parameters = {"ways": choices.choice((["requests"], ["answers"], ["requests", "answers"]))}
            case "slow":
                parameters = {"delay_s": choices.choice((0.01, 0.1, 0.5))}
            case _:
                parameters = {}
        self._order(fault, bookie=name, **parameters)
        del self._healthy[name]

        def heal() -> None:
            self._order("heal", bookie=name)
            self._healthy[name] = None

        return Hit(" ".join([name, *map(str, parameters.values())]), duration_s(choices), heal)

    def break_disk(self, fault: str, bookie: str, choices: random.Random) -> Hit:
        raise AssertionError(f"disk faults need --namespaces: {fault}, {bookie}, {choices}")

    def stopped(self, pid: int) -> None:
        self._order("stopped", pid=pid)

    def continued(self, pid: int) -> None:
        self._order("continued", pid=pid)

    def heal(self) -> None:
        """Every fault has a call that ends it."""

    def finish(self) -> dict[str, int]:
        assert self._proxy is not None
        return {f"connections {name}": count for name, count in self._proxy.finish().items()}

    def kill(self) -> None:
        if self._proxy is not None:
            self._proxy.kill()
