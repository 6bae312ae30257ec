"""What commands say of ledgers that bookies were allowed to forget."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from tests.fakes.offloaded import GIVEN_UP, URI, give_up, named
from tests.fakes.world import World, play
from tests.unit.admin.verbs.test_explain import standing_of
from tests.unit.client.repair.test_administration import remove, written

from bookies.admin.metadata.metadata_check import check
from bookies.admin.verbs.explain import _verdict
from bookies.admin.verbs.replication import verify_ledgers
from bookies.model import LedgerMetadata

State = Callable[[LedgerMetadata], LedgerMetadata]


@pytest.mark.parametrize("state", GIVEN_UP)
def test_verify_says_where_the_entries_are(state: State, capsys: pytest.CaptureFixture[str]) -> None:
    async def act(world: World) -> None:
        store = await world.client()
        ledger_id, other = await written(store, 30), await written(store, 30)
        record = await give_up(store.administration(), ledger_id, state)
        for bookie in record.bookies:
            del world.bookies[bookie].ledgers[ledger_id]
        assert await verify_ledgers(store, [ledger_id], 100, as_json=False) == 0
        said = capsys.readouterr().out
        assert f"ledger {ledger_id}  offloaded: its entries are in {URI}\n" in said
        assert "good replicas" not in said
        assert await verify_ledgers(store, [], 100, as_json=False) == 0
        said = capsys.readouterr().out
        assert "2 ledgers checked, 0 with problems, 1 offloaded: no bookie needs their entries\n" in said
        assert "fewest good replicas of an entry: 3" in said
        assert await verify_ledgers(store, [], 100, as_json=True) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        found = {row["ledger"]: (row["ok"], row["fewest_replicas"], row["offloaded"]) for row in rows}
        assert found == {ledger_id: (True, None, URI), other: (True, 3, None)}

    play(act)


def test_a_copy_that_bookies_have_too_excuses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    async def act(world: World) -> None:
        store = await world.client()
        ledger_id = await written(store, 30)
        record = await give_up(store.administration(), ledger_id, named)
        await remove(world, record.bookies[0])
        assert await verify_ledgers(store, [ledger_id], 100, as_json=False) == 1
        assert "offloaded" not in capsys.readouterr().out

    play(act)


@pytest.mark.parametrize("state", GIVEN_UP)
def test_an_explanation_does_not_say_that_it_cannot_be_read(state: State) -> None:
    standing = standing_of()
    away = replace(standing, record=state(standing.record))
    for good in (None, 0, 3):
        assert _verdict(away, good) == f"offloaded: its entries are in {URI}, and no bookie needs them"


@pytest.mark.parametrize("state", GIVEN_UP)
def test_a_bookie_that_has_gone_is_not_missed_by_the_check_of_the_metadata(state: State) -> None:
    async def act(world: World) -> None:
        store = await world.client()
        ledger_id = await written(store, 30)

        async def strangers() -> list[str]:
            found = (await check(store._driver)).findings
            return sorted(each.subject for each in found if each.name == "ledger-bookie-unknown")

        gone = (await store.metadata(ledger_id)).bookies[0]
        await remove(world, gone)
        _, version = await store._driver.read_cookie(gone)
        await store._driver.delete_cookie(gone, version)
        assert await strangers() == [gone]
        await give_up(store.administration(), ledger_id, state)
        assert await strangers() == []

    play(act)
