"""Items become tasks: nothing is lost, bytes are shared, tasks begin on different bookies."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookies.spark.jobs.shared.packing import (
    CORE_RATE,
    CORE_RATES,
    ITEM_OVERHEAD,
    START_S,
    Item,
    estimate,
    pack,
    seconds_of,
)

ITEMS = st.lists(
    st.tuples(st.integers(0, 1 << 30), st.lists(st.sampled_from("abcd"), max_size=3, unique=True)), max_size=60
).map(lambda rows: [Item(f"i{at}", size, tuple(bookies)) for at, (size, bookies) in enumerate(rows)])


@given(ITEMS, st.integers(1, 1 << 31), st.integers(1, 20), st.integers(1, 8))
def test_every_item_is_in_one_task(items: list[Item], task_size: int, tasks_max: int, tasks_min: int) -> None:
    tasks = pack(items, task_size=task_size, tasks_max=tasks_max, tasks_min=tasks_min)
    assert sorted(item.name for task in tasks for item in task) == sorted(item.name for item in items)
    assert len(tasks) <= tasks_max
    assert all(tasks)
    if tasks:
        loads = [sum(item.cost for item in task) for task in tasks]
        assert max(loads) - min(loads) <= max(item.cost for item in items)


def test_the_plan_does_not_depend_on_the_order_of_the_items() -> None:
    items = [Item(f"i{at}", at * 1000, ("a", "b")) for at in range(50)]
    assert pack(items, task_size=200_000) == pack(items[::-1], task_size=200_000)


def test_small_work_is_shared_by_the_cores_and_large_work_by_bytes() -> None:
    items = [Item(f"i{at}", 10) for at in range(100)]
    assert len(pack(items)) == 1
    assert len(pack(items, tasks_min=4)) == 4
    assert len(pack(items[:2], tasks_min=4)) == 2
    assert len(pack([Item(f"i{at}", 1 << 28) for at in range(10)])) == 10
    assert pack([]) == []


def test_tasks_that_run_at_once_begin_on_different_bookies() -> None:
    items = [Item(f"i{at}", 100, ("abc"[at % 3], "d")) for at in range(90)]
    tasks = pack(items, tasks_min=3)
    assert [task[0].bookies[0] for task in tasks] == ["a", "b", "c"]
    for task in tasks:
        turns = [item.bookies[0] for item in task]
        assert turns[:3] != turns[:1] * 3


def test_an_estimate_is_that_of_the_slowest() -> None:
    tasks = [[Item("x", 600, ("a", "b", "c")), Item("y", 100, ("a",))]]
    plan = estimate("scrub", tasks, cores=1, bytes_per_s=100.0)
    assert (plan.items, plan.tasks, plan.size) == (2, 1, 700)
    assert plan.by_bookie == {"a": 300, "b": 200, "c": 200}
    assert plan.seconds == START_S + 3.0
    assert tasks[0][0].cost == 600 + ITEM_OVERHEAD


def test_an_estimate_counts_the_start_the_cores_that_work_and_what_the_job_does() -> None:
    tasks = [[Item(f"i{at}", int(CORE_RATE))] for at in range(2)]
    assert estimate("scrub", tasks, cores=8, bytes_per_s=None).seconds == START_S + 1.0
    assert estimate("scrub", tasks, cores=1, bytes_per_s=None).seconds == START_S + 2.0
    assert estimate("scrub", [], cores=8, bytes_per_s=None).seconds == 0.0
    for job, rate in CORE_RATES.items():
        assert rate < CORE_RATE
        assert seconds_of(job, int(rate), 1, 8) == START_S + 1.0
