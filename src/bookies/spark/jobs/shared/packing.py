"""Packing of items into tasks: by bytes, the largest first. Tasks that run at the same time begin on different bookies.

Spark cannot run a task beside its data, so the plan only spreads load over bookies: a task's items are ordered
round-robin by the bookie they begin with, and each task begins the round at another bookie. Source: spark 5.0.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

TASK_SIZE = 256 << 20  # bytes that a task reads or writes: seconds of work
TASKS_MAX = 10_000
ITEM_OVERHEAD = 64 << 10  # bytes that an item costs in addition: requests, the ledger's record


class Item(Struct, frozen=True):
    """One piece of work. `name` is the same in every run of a job. `size`: bytes to read or write, of all copies.

    `bookies`: those it sends requests to, in order. `arguments`: of the job, in its own format.
    """

    name: str
    size: int
    bookies: tuple[str, ...] = ()
    arguments: str = ""

    @property
    def cost(self) -> int:
        return self.size + ITEM_OVERHEAD


def pack(
    items: Iterable[Item], *, task_size: int = TASK_SIZE, tasks_max: int = TASKS_MAX, tasks_min: int = 1
) -> list[list[Item]]:
    """Pack items into tasks of about `task_size` bytes, none of them empty. The largest items are assigned first.

    Returns at least `tasks_min` tasks if there are enough items, so that all cores are used.
    """
    ordered = sorted(items, key=lambda candidate: (-candidate.cost, candidate.name))
    total = sum(candidate.cost for candidate in ordered)
    count = min(len(ordered), tasks_max, max(tasks_min, -(-total // task_size)))
    tasks: list[list[Item]] = [[] for _ in range(count)]
    loads = [(0, index) for index in range(count)]
    for item in ordered:
        load, index = loads[0]
        tasks[index].append(item)
        heapq.heapreplace(loads, (load + item.cost, index))
    bookies = sorted({bookie for item in ordered for bookie in item.bookies[:1]})
    return [_rotated(task, bookies, index) for index, task in enumerate(tasks)]


def _rotated(task: list[Item], bookies: Sequence[str], start: int) -> list[Item]:
    """Order the items round-robin over the bookies they begin with, starting at bookie number `turn`."""
    queues: dict[str, list[Item]] = {}
    for index in range(len(bookies)):
        queues[bookies[(index + start) % len(bookies)]] = []
    for item in task:
        queues.setdefault(item.bookies[0] if item.bookies else "", []).append(item)
    longest = max(map(len, queues.values()), default=0)
    return [queue[at] for at in range(longest) for queue in queues.values() if at < len(queue)]


class Estimate(Struct, frozen=True):
    """Estimate of a plan. `seconds`: see `seconds_of`."""

    items: int
    tasks: int
    size: int
    by_bookie: dict[str, int]
    seconds: float


# Bytes a second that a core reads and verifies in entries of 1 KiB: measured, see docs/internals/benchmarks.md.
CORE_RATE = 120e6
# Of jobs that do more with a byte: they write Parquet, or replicas, and read them back. Measured with two cores.
CORE_RATES: Mapping[str, float] = {"export": 40e6, "import": 25e6, "migrate": 60e6}
START_S = 4.0  # until Spark has started its workers
BOOKIE_RATE = 100e6  # default of bytes a second from a bookie to a job


def seconds_of(job: str, size: int, tasks: int, cores: int) -> float:
    """Return how long a job takes for `size` bytes: the start, and the cores' time. 0.0: it has nothing to do."""
    return START_S + size / (CORE_RATES.get(job, CORE_RATE) * min(cores, tasks)) if tasks else 0.0


def estimate(job: str, tasks: Sequence[Sequence[Item]], *, cores: int, bytes_per_s: float | None) -> Estimate:
    """Return the estimate of a job's plan: the larger of the bookies' and the cores' time.

    `bytes_per_s`: limit for each bookie; None: no limit.
    """
    by_bookie: dict[str, int] = {}
    size = count = 0
    for task in tasks:
        for item in task:
            count += 1
            size += item.size
            for bookie in item.bookies:
                by_bookie[bookie] = by_bookie.get(bookie, 0) + item.size // len(item.bookies)
    slowest = max(by_bookie.values(), default=0) / (bytes_per_s or BOOKIE_RATE)
    seconds = max(START_S + slowest if tasks else 0.0, seconds_of(job, size, len(tasks), max(1, cores)))
    return Estimate(count, len(tasks), size, dict(sorted(by_bookie.items())), seconds)
