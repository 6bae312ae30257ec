"""Journal files prepared in advance: taken, recycled, lost in a crash at every disk call, and never read too far."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable
from typing import Any

import pytest

from bookies.errors import DiskFull
from bookies.lab.sim.world.disk import LOSSES, Loss
from bookies.storage.journal import journal, preallocated_journal
from bookies.storage.store import LedgerStore

STEP = 4096  # size of a prepared file in these tests
GROUPS = 40
Script = Callable[[LedgerStore, Any], Any]


@pytest.fixture
def small_groups(body: Callable[..., bytes]) -> Script:
    """Adds that wait for each other, so that every group is small; two checkpoints in between retire files."""

    async def script(store: LedgerStore, promises: Any) -> None:
        for entry_id in range(GROUPS):
            await promises.add(store, 1, {entry_id: body(1, entry_id, size=200)})
            await asyncio.sleep(0.02)  # virtual: time for the next slice of zeros
            if entry_id in (GROUPS // 3, 2 * GROUPS // 3):
                await store.checkpoint()

    return script


class Renames:
    """What was renamed, and what the source held durably then."""

    def __init__(self, machine: Any) -> None:
        self.adopted: list[bytes] = []
        self.retired = 0
        rename = machine.disk.rename

        def watching(source: str, target: str) -> None:
            if source.endswith(preallocated_journal.SUFFIX):
                inode = machine.disk._inode(source)
                assert not inode.dirty or set(inode.dirty) == {0}, "adopted before it was synced"
                self.adopted.append(bytes(inode.data))
            self.retired += source.endswith(".txn")
            rename(source, target)

        machine.disk.rename = watching


def test_the_journal_goes_on_in_prepared_files_and_recycles_retired_ones(machine: Any, small_groups: Script) -> None:
    """Whatever is adopted reads as zeros, durably, behind its header: nothing of an earlier life is left (F-10)."""
    subject = machine(journal_backups_max=0)
    renames = Renames(subject)
    assert subject.live(small_groups)
    assert len(renames.adopted) >= 3
    assert renames.retired >= 1, "no retired file was used again"
    for content in renames.adopted:
        assert len(content) == STEP
        assert content[512:] == bytes(STEP - 512)
    assert subject.live(lambda store, promises: promises.check(store))
    left = [path for path in subject.disk.files("/journal0") if path.endswith(preallocated_journal.SUFFIX)]
    assert not left, "what an earlier process prepared stays behind"


def test_a_retired_file_is_overwritten_only_after_its_new_name_is_durable(
    machine: Any, body: Callable[..., bytes]
) -> None:
    """Otherwise a power failure could leave zeros under the name of a journal, which a start takes for damage."""
    subject = machine(journal_backups_max=0, is_logging=True)

    async def script(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 1, {0: body(1, 0, size=200)})
        await store.checkpoint()  # retires the journal of the life before
        for entry_id in range(1, GROUPS):
            await promises.add(store, 1, {entry_id: body(1, entry_id, size=200)})
            await asyncio.sleep(0.02)

    assert subject.live(script)
    assert subject.live(script)
    renamed: set[str] = set()
    overwritten = 0
    for call in subject.disk.log:
        if call.operation == "rename" and call.path.endswith(".txn"):
            renamed.add(call.target)
        elif call.operation == "sync_directory":
            renamed = {path for path in renamed if posixpath.dirname(path) != call.path}
        elif call.operation == "pwrite" and call.path.endswith(preallocated_journal.SUFFIX):
            assert call.path not in renamed
            overwritten += 1
    assert overwritten


def test_a_file_is_prepared_in_time_for_groups_that_are_mostly_padding(
    machine: Any, body: Callable[..., bytes]
) -> None:
    """A journal that grows its own file syncs it by a thread, which costs a lone add much processor time."""
    subject = machine(journal_backups_max=10)

    async def script(store: LedgerStore, promises: Any) -> None:
        for entry_id in range(GROUPS):
            await promises.add(store, 1, {entry_id: body(1, entry_id, size=1)})
            await asyncio.sleep(0.02)

    assert subject.live(script)
    sizes = [len(subject.disk.read_bytes(path)) for path in subject.disk.files("/journal0") if path.endswith(".txn")]
    assert len(sizes) > 3
    assert set(sizes) == {STEP}


@pytest.mark.parametrize("every", [1, 5])
def test_nothing_is_prepared_for_a_small_group_now_and_then(
    machine: Any, body: Callable[..., bytes], every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`every`: so many groups with a small one among them; 1: all are small."""
    monkeypatch.setattr(journal, "SMALL_GROUP", 2000)
    monkeypatch.setattr(journal, "SHARE_SIZE", 10_000)
    subject = machine(is_logging=True)

    async def script(store: LedgerStore, promises: Any) -> None:
        for entry_id in range(60):
            size = 200 if entry_id % every == every - 1 else 4000
            await promises.add(store, 1, {entry_id: body(1, entry_id, size=size)})
            await asyncio.sleep(0.02)

    assert subject.live(script)
    is_prepared = any(call.path.endswith("/1.spare") for call in subject.disk.log)
    assert is_prepared == (every == 1)
    assert subject.live(lambda store, promises: promises.check(store))


@pytest.mark.parametrize("loss", LOSSES, ids=["nothing survives", "half", "everything", "garbage"])
def test_a_crash_at_any_call_loses_nothing_acknowledged(loss: Loss, machine: Any, small_groups: Script) -> None:
    first = machine(journal_backups_max=0)
    assert first.live(small_groups)
    for crash_at in range(1, first.disk.call_count, 7):
        victim = machine(crash_at, journal_backups_max=0)
        if not victim.live(small_groups, crash_at=crash_at):
            victim.crash(loss)
        victim.check()


def test_failing_to_prepare_hurts_nobody(machine: Any, small_groups: Script) -> None:
    subject = machine()
    subject.disk.fail("pwrite", "1.spare", lambda: DiskFull("no room"), count=1000)
    assert subject.live(small_groups)
    assert not subject.failures
    subject.check()
