"""The update loop: conflicts, lost replies, lagging reads, and that it never writes blindly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from bookies.client.base.metadata_loop import FAILURES_MAX, PATIENCE_S, MetadataLoop, repeated
from bookies.errors import BookKeeperError, LedgerNotFound, MetadataCorrupt, MetadataError, VersionConflict
from bookies.lab.sim.world.loop import SimLoop
from bookies.metadata.interface.driver import Versioned
from bookies.model import BookieId, LedgerMetadata, LedgerState
from bookies.protocol.ledger.ledger import (
    announcement_needed,
    change_needed,
    close_needed,
    closed,
    in_recovery,
    with_ensemble,
)


def ensemble(*names: str) -> tuple[BookieId, ...]:
    return tuple(map(BookieId, names))


FRESH = LedgerMetadata(7, 3, 3, 2, ((0, ensemble("a", "b", "c")),))


class ScriptedStore:
    """One record. `reads` and `writes` script the next calls: a function to run first, which may raise."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        self.now = Versioned(metadata, 5)
        self.before_write: list[Callable[[], None] | None] = []
        self.after_write: list[BookKeeperError | None] = []
        self.reads: list[Versioned | BookKeeperError | None] = []
        self.writes: list[tuple[LedgerMetadata, int]] = []

    def set(self, metadata: LedgerMetadata) -> None:
        self.now = Versioned(metadata, self.now.version + 1)

    async def read_ledger(self, ledger_id: int) -> Versioned:
        await asyncio.sleep(0)
        answer = self.reads.pop(0) if self.reads else None
        if isinstance(answer, BookKeeperError):
            raise answer
        return answer or self.now

    async def write_ledger(self, metadata: LedgerMetadata, expected_version: int, lock: object = None) -> Versioned:
        await asyncio.sleep(0)
        self.writes.append((metadata, expected_version))
        if self.before_write and (act := self.before_write.pop(0)):
            act()
        if expected_version != self.now.version:
            raise VersionConflict()
        self.set(metadata)
        if self.after_write and (error := self.after_write.pop(0)):
            raise error
        return self.now


def play(act: Callable[[ScriptedStore, MetadataLoop], Coroutine[Any, Any, None]]) -> float:
    """Run on virtual time; how long it took."""
    loop = SimLoop()

    async def main() -> None:
        store = ScriptedStore(FRESH)
        runtime: Any = type("Runtime", (), {"random": Random(3)})
        driver: Any = store
        await act(store, MetadataLoop(runtime, driver, store.now))

    try:
        loop.run(main())
        return loop.time()
    finally:
        loop.close()


def replace_c(record: LedgerMetadata) -> LedgerMetadata:
    members = record.last_ensemble
    return with_ensemble(record, 10, (*members[:2], BookieId("d")))


def c_failed(record: LedgerMetadata) -> bool:
    return change_needed(record, [(2, BookieId("c"))])


def test_writes_once_when_nobody_interferes() -> None:
    async def act(store: ScriptedStore, loop: MetadataLoop) -> None:
        written = await loop.update(c_failed, replace_c)
        assert written.metadata.ensembles[-1] == (10, ensemble("a", "b", "d"))
        assert loop.current == written == store.now
        assert store.writes == [(written.metadata, 5)]

    assert play(act) == 0


def test_nothing_needed_nothing_written() -> None:
    async def act(store: ScriptedStore, loop: MetadataLoop) -> None:
        assert await loop.update(lambda record: False, replace_c) == store.now
        assert store.writes == []

    play(act)


def test_conflict_keeps_what_the_other_did() -> None:
    """X-34: re-replication changed an older fragment meanwhile; both changes are in the record. A mutant that writes
    without looking (blind overwrite) would lose the other's.
    """

    async def act(store: ScriptedStore, loop: MetadataLoop) -> None:
        foreign = FRESH.replace(ensembles=((0, ensemble("x", "b", "c")), (5, ensemble("a", "b", "c"))))
        store.before_write = [lambda: store.set(foreign)]
        written = await loop.update(c_failed, replace_c)
        assert written.metadata.ensembles == (
            (0, ensemble("x", "b", "c")),
            (5, ensemble("a", "b", "c")),
            (10, ensemble("a", "b", "d")),
        )

    play(act)


def test_paused_writer_meets_closed() -> None:
    """X-17: the ledger was closed while the writer slept; its change is no longer needed and nothing is written."""

    async def act(store: ScriptedStore, loop: MetadataLoop) -> None:
        end = closed(in_recovery(FRESH), 9, 90)
        store.before_write = [lambda: store.set(end)]
        assert (await loop.update(c_failed, replace_c)).metadata == end
        assert store.now.metadata == end
        assert len(store.writes) == 1

    play(act)


@pytest.mark.parametrize("error", [MetadataError("connection lost"), VersionConflict()])
def test_lost_reply_of_a_write_that_took_effect(error: BookKeeperError) -> None:
    """X-35: the write happened, its reply did not arrive, or the store's client repeated it and met itself."""

    async def act(store: ScriptedStore, loop: MetadataLoop) -> None:
        store.after_write = [error]
        written = await loop.update(c_failed, replace_c)
        assert len(written.metadata.ensembles) == 2
        assert store.writes == [(written.metadata, 5)]

    play(act)


def test_lagging_read_is_not_installed() -> None:
    """X-36: after the conflict a lagging replica answers with an older record, then with the one that failed."""

    async def act(store: ScriptedStore, loop: MetadataLoop) -> None:
        foreign = FRESH.replace(ensembles=((0, ensemble("x", "b", "c")), (5, ensemble("a", "b", "c"))))
        store.before_write = [lambda: store.set(foreign)]
        store.reads = [Versioned(FRESH.replace(ensembles=((0, ensemble("z", "b", "c")),)), 3), Versioned(FRESH, 5)]
        written = await loop.update(c_failed, replace_c)
        assert written.metadata.ensembles[0] == (0, ensemble("x", "b", "c"))
        assert [version for _, version in store.writes] == [5, 5, 5, 6]

    play(act)


def test_backs_off_after_a_few_conflicts() -> None:
    async def act(store: ScriptedStore, loop: MetadataLoop) -> None:
        store.before_write = [lambda: store.set(store.now.metadata)] * 8
        await loop.update(c_failed, replace_c)
        assert len(store.writes) == 9

    assert 0.3 < play(act) < 2


def test_store_that_stays_away() -> None:
    """X-42: patience, then the store's own error; each attempt was conditional."""

    async def act(store: ScriptedStore, loop: MetadataLoop) -> None:
        def away() -> None:
            raise MetadataError("gone")

        store.before_write = [away] * 20
        store.reads = [MetadataError("gone")] * 20
        with pytest.raises(MetadataError, match="gone"):
            await loop.update(c_failed, replace_c)
        assert len(store.writes) <= FAILURES_MAX

    assert play(act) > 0.5


class SlowStore(ScriptedStore):
    """Each call fails, after ten seconds, until it is back."""

    is_away = True
    tries = 0

    async def read_ledger(self, ledger_id: int) -> Versioned:
        await self.wait()
        return await super().read_ledger(ledger_id)

    async def write_ledger(self, metadata: LedgerMetadata, expected_version: int, lock: object = None) -> Versioned:
        await self.wait()
        return await super().write_ledger(metadata, expected_version)

    async def wait(self) -> None:
        self.tries += 1
        if self.is_away:
            await asyncio.sleep(10)
            raise MetadataError("no server has answered for 10 s")


def slow(act: Callable[[SlowStore, Any], Coroutine[Any, Any, None]]) -> float:
    return play(lambda store, _: act(SlowStore(FRESH), _._runtime))


def test_a_store_that_answers_late_is_given_up_after_so_long_and_not_after_so_many_tries() -> None:
    """At least two of them, and whoever can say so to people is told at the first."""

    async def act(store: SlowStore, runtime: Any) -> None:
        told: list[float] = []
        clock = asyncio.get_running_loop().time
        driver: Any = store
        loop = MetadataLoop(runtime, driver, store.now, on_trouble=lambda error: told.append(clock()))
        first, second = (asyncio.create_task(loop.update(c_failed, replace_c)) for _ in range(2))
        await asyncio.wait([first, second])
        for each in (first, second):
            with pytest.raises(MetadataError, match="10 s"):
                each.result()
        assert PATIENCE_S <= clock() < PATIENCE_S + 2, "and who waited behind it does not begin anew"
        assert (told, store.tries) == ([10], 2)
        store.is_away = False
        await loop.update(c_failed, replace_c)
        assert not c_failed(store.now.metadata)
        store.is_away = True
        with pytest.raises(MetadataError):
            await repeated(runtime, lambda: store.read_ledger(7))
        assert clock() < 2 * (PATIENCE_S + 2)

    slow(act)


def test_a_single_failure_is_never_enough_however_long_it_took() -> None:
    async def act(store: SlowStore, runtime: Any) -> None:
        driver: Any = store
        asyncio.get_running_loop().call_later(10.001, setattr, store, "is_away", False)
        await MetadataLoop(runtime, driver, store.now).update(c_failed, replace_c)
        assert not c_failed(store.now.metadata)

    slow(act)


def test_store_that_comes_back() -> None:
    async def act(store: ScriptedStore, loop: MetadataLoop) -> None:
        def away() -> None:
            raise MetadataError("gone")

        store.before_write = [away]
        store.reads = [MetadataError("gone")]
        assert len((await loop.update(c_failed, replace_c)).metadata.ensembles) == 2

    play(act)


@pytest.mark.parametrize("error", [LedgerNotFound(), MetadataCorrupt()])
def test_errors_that_patience_does_not_help(error: BookKeeperError) -> None:
    async def act(store: ScriptedStore, loop: MetadataLoop) -> None:
        def fail() -> None:
            raise error

        store.before_write = [fail]
        with pytest.raises(type(error)):
            await loop.update(c_failed, replace_c)
        assert len(store.writes) == 1

    play(act)


def test_deleted_while_conflicting() -> None:
    async def act(store: ScriptedStore, loop: MetadataLoop) -> None:
        store.before_write = [lambda: store.set(FRESH)]
        store.reads = [LedgerNotFound()]
        with pytest.raises(LedgerNotFound):
            await loop.update(c_failed, replace_c)

    play(act)


def test_predicate_may_refuse_the_newer_record() -> None:
    """Closing meets another end: the mutant that ignores an existing CLOSED would overwrite it (X-25)."""

    async def act(store: ScriptedStore, loop: MetadataLoop) -> None:
        store.before_write = [lambda: store.set(closed(FRESH, 11, 110))]
        with pytest.raises(VersionConflict, match="closed by another client at entry 11"):
            await loop.update(
                lambda record: close_needed(record, 9, 90, is_implicit=False), lambda record: closed(record, 9, 90)
            )
        assert store.now.metadata.last_entry_id == 11

    play(act)


def test_updates_of_one_handle_follow_each_other() -> None:
    """A close that comes while a change is under way sees the change's record."""

    async def act(store: ScriptedStore, loop: MetadataLoop) -> None:
        change = asyncio.create_task(loop.update(c_failed, replace_c))
        await asyncio.sleep(0)
        end = await loop.update(
            lambda record: close_needed(record, 9, 90, is_implicit=False), lambda record: closed(record, 9, 90)
        )
        await change
        assert len(end.metadata.ensembles) == 2
        assert end.metadata.state is LedgerState.CLOSED
        assert [version for _, version in store.writes] == [5, 6]

    play(act)


def test_many_contenders_converge() -> None:
    async def act(store: ScriptedStore, first: MetadataLoop) -> None:
        runtime: Any = type("Runtime", (), {"random": Random(9)})
        driver: Any = store
        loops = [MetadataLoop(runtime, driver, store.now) for _ in range(20)]

        async def extend(index: int) -> None:
            key = f"k{index}"
            await loops[index].update(
                lambda record: key not in record.custom_metadata,
                lambda record: record.replace(custom_metadata={**record.custom_metadata, key: b""}),
            )

        await asyncio.gather(*[extend(index) for index in range(20)])
        assert len(store.now.metadata.custom_metadata) == 20

    play(act)


def test_cancelled_update_leaves_the_loop_usable() -> None:
    async def act(store: ScriptedStore, loop: MetadataLoop) -> None:
        task = asyncio.create_task(loop.update(c_failed, replace_c))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await loop.update(announcement_needed, in_recovery)).metadata.state is LedgerState.IN_RECOVERY

    play(act)
