"""A bookie that answers TOO_MANY_REQUESTS: it is asked again, within the time that an add may take."""

from __future__ import annotations

import asyncio

import pytest
from tests.fakes.pool import Stage, on_stage

from bookies import errors


@pytest.mark.parametrize("quorums", ["3/3/3", "3/3/2", "3/2/2"])
@on_stage(names="abc")
async def test_a_bookie_that_is_busy_for_a_while_ends_no_writer(stage: Stage, quorums: str) -> None:
    """Nobody could take its place. What was confirmed without it reaches it all the same."""
    ledger = await stage.create(quorums)
    before = ledger.metadata.ensembles
    stage.pool["a"].refuses_adds = errors.BookieBusy
    appending = [ledger.append_nowait(b"x") for _ in range(10)]
    await asyncio.sleep(2.0)
    appending.append(ledger.append_nowait(b"y"))
    assert quorums != "3/3/2" or [future.done() for future in appending] == [True] * 10 + [False]
    stage.pool["a"].refuses_adds = None
    assert await asyncio.gather(*appending) == list(range(11))
    await asyncio.sleep(5.0)
    copies = int(quorums[2])
    assert [len(stage.replicas(ledger.metadata, each)) for each in range(11)] == [copies] * 11
    asked = [ids for bookie, ids in stage.pool.asked("add") if bookie == "a"]
    assert asked[0] == asked[1] == asked[4]
    assert await ledger.append(b"z") == 11
    assert ledger.metadata.ensembles == before
    assert await ledger.seal() == 11
    await ledger.close()


@on_stage(add_timeout_ms=5000)
async def test_a_bookie_that_stays_busy_is_replaced(stage: Stage) -> None:
    ledger = await stage.create("3/3/3")
    stage.pool["b"].refuses_adds = errors.BookieBusy
    loop = asyncio.get_running_loop()
    begun = loop.time()
    assert await ledger.append(b"x") == 0
    assert 2.5 < loop.time() - begun < 5.0
    assert "b" not in ledger.metadata.last_ensemble
    await ledger.seal()
    await ledger.close()


@on_stage(names="abc")
async def test_a_writer_that_ends_meanwhile_lets_go_of_what_it_holds(stage: Stage) -> None:
    ledger = await stage.create("3/3/2")
    stage.pool["a"].refuses_adds = errors.BookieBusy
    assert await ledger.append(bytes(1000)) == 0
    assert ledger._budget.used > 1000, "a replica is missing, so it is still held"
    await ledger.close()
    await asyncio.sleep(1.0)
    assert ledger._budget.used == 0


@on_stage()
async def test_a_bookie_that_is_replaced_while_busy_is_not_asked_again(stage: Stage) -> None:
    ledger = await stage.create("3/3/3")
    stage.pool["a"].refuses_adds = errors.BookieBusy
    first = ledger.append_nowait(b"x")
    await asyncio.sleep(0.05)
    stage.pool["a"].refuses_adds = errors.BookieReadOnly
    assert await ledger.append(b"y") == 1
    assert await first == 0
    asked = len(stage.pool.asked("add"))
    await asyncio.sleep(10.0)
    assert len(stage.pool.asked("add")) == asked
    await ledger.seal()
    await ledger.close()
