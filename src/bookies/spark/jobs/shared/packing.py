"""From items to tasks: by bytes, the largest first, so that tasks that run at the same time begin on different bookies.

Spark has no way to run a task beside its data, so what can be planned is fairness over bookies: a task's items are
put in the order of the bookies they begin with, and each task begins that round at another one. Source: spark 5.0.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

TASK_SIZE = 256 << 20  # bytes that a task reads or writes: seconds of work
TASKS_MAX = 10_000
ITEM_OVERHEAD = 64 << 10  # bytes that an item costs beside its own: requests, the ledger's record


@dataclass(frozen=True, slots=True)
class Item:
    """One piece of work. `name` is the same in every run of a job; `size`: bytes to be read or written, of all copies.

    `bookies`: whom it asks, the first one first. `arguments`: what the job itself needs, as it likes it.
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
    """Tasks of about `task_size` bytes, none of them empty; the largest items are dealt out first.

    At least `tasks_min` tasks, if there are items enough: a machine with several cores is to use all of them.
    """
    ordered = sorted(items, key=lambda each: (-each.cost, each.name))
    total = sum(each.cost for each in ordered)
    count = min(len(ordered), tasks_max, max(tasks_min, -(-total // task_size)))
    tasks: list[list[Item]] = [[] for _ in range(count)]
    loads = [(0, index) for index in range(count)]
    for item in ordered:
        load, index = loads[0]
        tasks[index].append(item)
        heapq.heapreplace(loads, (load + item.cost, index))
    bookies = sorted({bookie for item in ordered for bookie in item.bookies[:1]})
    return [_rotated(task, bookies, index) for index, task in enumerate(tasks)]


def _rotated(task: list[Item], bookies: Sequence[str], turn: int) -> list[Item]:
    """The items by turns over the bookies they begin with, the first turn at bookie number `turn`."""
    queues: dict[str, list[Item]] = {}
    for index in range(len(bookies)):
        queues[bookies[(index + turn) % len(bookies)]] = []
    for item in task:
        queues.setdefault(item.bookies[0] if item.bookies else "", []).append(item)
    longest = max(map(len, queues.values()), default=0)
    return [queue[at] for at in range(longest) for queue in queues.values() if at < len(queue)]


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a plan comes to. `seconds`: at the rates given; the largest of what the bookies and the cores take."""

    items: int
    tasks: int
    size: int
    by_bookie: dict[str, int]
    seconds: float


CORE_RATE = 120e6  # bytes a second that a core reads and verifies in entries of 1 KiB: measured, see docs/reference/spark-jobs.md
BOOKIE_RATE = 100e6  # bytes a second that a bookie gives a job when nothing else is said


def estimate(tasks: Sequence[Sequence[Item]], *, cores: int, bytes_per_s: float | None) -> Estimate:
    """`bytes_per_s`: what each bookie is asked for at most; None: no limit was set."""
    by_bookie: dict[str, int] = {}
    size = count = 0
    for task in tasks:
        for item in task:
            count += 1
            size += item.size
            for bookie in item.bookies:
                by_bookie[bookie] = by_bookie.get(bookie, 0) + item.size // len(item.bookies)
    slowest = max(by_bookie.values(), default=0) / (bytes_per_s or BOOKIE_RATE)
    seconds = max(slowest, size / (CORE_RATE * max(1, cores)))
    return Estimate(count, len(tasks), size, dict(sorted(by_bookie.items())), seconds)
