"""Outcomes of appends: who waits gets the position of its own record, or the error."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bookies.distributedlog import DlogAppend, Dlsn
from bookies.distributedlog.dlog_append import EntryOutcome
from bookies.errors import LogError
from bookies.kernels import EntryBuilder


def appends_of(outcome: EntryOutcome) -> list[DlogAppend]:
    builder = EntryBuilder(DlogAppend, 1000, -1)
    builder.begin(outcome)
    return [builder.add_next(b"x", None) for _ in range(3)]  # type: ignore[misc]


def test_each_record_has_its_position() -> None:
    async def act() -> None:
        outcome = EntryOutcome()
        appends = appends_of(outcome)
        called: list[DlogAppend] = []
        appends[1].add_done_callback(called.append)
        waiting = [asyncio.ensure_future(each) for each in (*appends, appends[0], appends[2])]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        assert not appends[0].done()
        with pytest.raises(asyncio.InvalidStateError, match="not known yet"):
            appends[0].result()
        outcome.settle((5, 9))
        assert called == []
        assert await asyncio.gather(*waiting[1:]) == [Dlsn(5, 9, slot) for slot in (1, 2, 0, 2)]
        assert waiting[0].cancelled()
        assert called == [appends[1]]
        assert (appends[0].done(), appends[0].result(), await appends[0]) == (True, Dlsn(5, 9, 0), Dlsn(5, 9, 0))
        for append in appends:
            append.add_done_callback(called.append)
        assert len(called) == 1
        await asyncio.sleep(0)
        assert called == [appends[1], *appends]

    asyncio.run(act())


def test_a_failure_is_that_of_all_records() -> None:
    async def act() -> None:
        outcome = EntryOutcome()
        appends = appends_of(outcome)
        task = asyncio.ensure_future(appends[0])  # type: ignore[type-var]
        await asyncio.sleep(0)
        outcome.settle(LogError("lost"))
        for waiting in (task, appends[0], appends[2]):
            with pytest.raises(LogError, match="lost"):
                await waiting
        with pytest.raises(LogError, match="lost"):
            appends[1].result()

    asyncio.run(act())


def test_a_callback_that_fails_keeps_no_other_from_its_call() -> None:
    async def act() -> None:
        problems: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        outcome, called = EntryOutcome(), list[DlogAppend]()
        appends = appends_of(outcome)
        cancelled = asyncio.get_running_loop().create_future()
        cancelled.cancel()
        callbacks = (lambda _: 1 / 0, lambda _: cancelled.result(), called.append)
        for append, callback in zip(appends, callbacks, strict=True):
            append.add_done_callback(callback)
        outcome.settle((1, 0))
        await asyncio.sleep(0)
        assert called == appends[2:]
        assert [type(problem["exception"]) for problem in problems] == [ZeroDivisionError, asyncio.CancelledError]

    asyncio.run(act())


def test_the_first_outcome_holds() -> None:
    async def act() -> None:
        outcome = EntryOutcome()
        append = appends_of(outcome)[0]
        outcome.settle(LogError("may or may not be in the log"))
        outcome.settle((5, 9))  # It was stored after all.
        with pytest.raises(LogError, match="may or may not"):
            append.result()

    asyncio.run(act())
