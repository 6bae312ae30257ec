"""Cursors of a log in the metadata store: read, move, delete, and the guard of truncations. See
`protocol/log/cursors.py`.

Every change is one transaction with a check of the list of ledgers, and every truncation one with a check of the
cursors; if the other side has changed meanwhile, the operation decides again. Source: pains H 67, 71.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from bookies.client.base.arguments import named
from bookies.client.base.metadata_loop import back_off, repeated
from bookies.client.turns.lease import CONSUMERS, LEADERS
from bookies.client.write.manifest import ManifestLoop
from bookies.errors import CursorBehind, LogNotFound, LogTruncated, RecordExists, RecordNotFound, VersionConflict
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import RecordAt, RecordWrite, Step
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.cursors import (
    Cursor,
    carried,
    check_at,
    check_token,
    moved,
    pack_cursors,
    parse_cursors,
    passed,
)
from bookies.protocol.log.log_model import Address, LedgerEnd
from bookies.protocol.log.sequences import CURSOR
from bookies.runtime.ports import Runtime

CURSORS = "cursors/"  # prefix of the names of their records
TIMES = "log-times/"  # prefix of the records of points in time: see `time_index.py`
HISTORY = "log-history/"  # prefix of the records of what retentions removed: see `retaining.py`
MIRRORS = "mirrors/"  # prefix of the records of a mirror's progress: see `client/mirror.py`
SEQUENCES = "sequences/"  # prefix of the records of numbered entries, which move with a cursor: see `sequenced.py`


class LogCursors:
    """The cursors of one log, whose list `records` reads and changes."""

    def __init__(self, runtime: Runtime, driver: MetadataDriver, records: ManifestLoop) -> None:
        self._runtime = runtime
        self._driver = driver
        self._records = records
        self._record = CURSORS + records.name

    async def read(self) -> tuple[dict[str, Cursor], int]:
        """Return the cursors by name, and the version of their record; 0: there is none."""
        try:
            data, version = await self._driver.read_record(self._record)
        except RecordNotFound:
            return {}, 0
        return parse_cursors(self._records.name, self._records.current.token, data), version

    async def move(
        self,
        name: str,
        position: Position | Address,
        expected: Position | None = None,
        *,
        token: int = 0,
        may_create: bool = True,
    ) -> None:
        """Move a cursor, or create it; an `Address` may be inside a record set.

        `expected`: its present position; None: any. `token`: of a consumer.

        Raises `LogTruncated`, `LogNotFound`, `CursorMoved` (it is not at the expected position, or belongs to a later
        consumer).
        """
        now_ms = self._runtime.clock.wall_ms()
        at = position if isinstance(position, Address) else Address(*position)

        def change(cursors: Mapping[str, Cursor], manifest: Manifest) -> dict[str, Cursor] | None:
            present = cursors.get(name)
            if token:
                check_token(name, present, token, may_create=may_create)
            newest = max(token, 0 if present is None else present.token)
            cursor = Cursor(name, at.position, now_ms, newest, at.slot)
            if expected is not None and present != cursor:  # equal: this call has moved it, and the reply was lost
                check_at(name, present, expected)
            return moved(cursors, manifest, cursor)

        await self._change(change)

    async def claim(self, name: str, token: int, start: Position | None) -> Address | None:
        """Give a cursor to a consumer, which earlier ones cannot move any more, and return its address.

        It counts as moved: its consumer is there, so retention does not pass it as an old one.
        `start`: where to create it if there is none; None: at the beginning of the log. Returns None if that has no
        ledger yet: then there is no cursor. Raises as `move`.
        """
        now_ms = self._runtime.clock.wall_ms()
        claimed: Cursor | None = None

        def change(cursors: Mapping[str, Cursor], manifest: Manifest) -> dict[str, Cursor] | None:
            nonlocal claimed
            present = cursors.get(name)
            check_token(name, present, token, may_create=True)
            if present is not None:
                claimed = Cursor(name, present.position, now_ms, token, present.slot)
            elif (at := start or beginning_of(manifest)) is not None:
                claimed = Cursor(name, at, now_ms, token)
            return None if claimed is None else moved(cursors, manifest, claimed)

        await self._change(change)
        return None if claimed is None else claimed.address

    async def delete(self, name: str, ending: Callable[[], Awaitable[Sequence[Step]]]) -> None:
        """Delete a cursor. One that does not exist counts as deleted.

        `ending`: returns what ends its consumer, in the same transaction.
        """
        await self._change(
            lambda cursors, _: {key: at for key, at in cursors.items() if key != name} if name in cursors else None,
            ending,
        )

    async def move_with(
        self,
        name: str,
        decide: Callable[[Cursor | None, Manifest], tuple[Position | None, RecordWrite]],
        token: int = 0,
    ) -> int:
        """Move a cursor and write another record of the log in one transaction; return that record's version.

        `decide`: returns the position from the present cursor (None: it stays as it is), and the other record. `token`:
        of a consumer. Raises `VersionConflict` if a record has changed meanwhile, `LogTruncated`, `LogNotFound`.
        """
        manifest, basis = await self._records.refresh(), self._records.version
        if manifest.is_deleting:
            raise LogNotFound(f"log {self._records.name} was deleted")
        cursors, version = await self.read()
        present = cursors.get(name)
        position, other = decide(present, manifest)
        changed, refusal = None, None
        if position is not None:
            token = max(token, 0 if present is None else present.token)
            try:
                with named(self._records.name):
                    changed = moved(cursors, manifest, Cursor(name, position, self._runtime.clock.wall_ms(), token))
            except LogTruncated as error:
                refusal = error  # A server of the store that lags behind may lack the position's ledger: make sure.
        steps: list[Step] = [RecordAt(self._records.record, basis)]
        if refusal is None:
            steps.append(other)
        if changed is None:
            steps.append(RecordAt(self._record, version))
        else:
            steps.append(RecordWrite(self._record, pack_cursors(manifest.token, changed), version))
        try:
            version = await self._driver.transact(steps)
        except (RecordNotFound, RecordExists) as error:
            raise VersionConflict(f"the cursors of log {self._records.name} have changed meanwhile") from error
        if refusal is not None:
            raise refusal
        return version

    async def _change(
        self,
        change: Callable[[Mapping[str, Cursor], Manifest], dict[str, Cursor] | None],
        more: Callable[[], Awaitable[Sequence[Step]]] | None = None,
    ) -> None:
        async def attempt() -> bool:
            manifest, basis = await self._records.refresh(), self._records.version
            if manifest.is_deleting:
                raise LogNotFound(f"log {self._records.name} was deleted")
            cursors, version = await self.read()
            refusal: LogTruncated | None = None
            steps: list[Step] = [RecordAt(self._records.record, basis)]
            try:
                if (changed := change(cursors, manifest)) is None:
                    return True
                steps.append(RecordWrite(self._record, pack_cursors(manifest.token, changed), version))
                steps += [] if more is None else await more()
            except LogTruncated as error:
                refusal = error  # A server of the store that lags behind may lack the position's ledger: make sure.
            try:
                await self._driver.transact(steps)
            except (VersionConflict, RecordNotFound, RecordExists):
                return False  # One of the two has changed: decide again.
            if refusal is not None:
                raise refusal
            return True

        conflicts = 0
        with named(self._records.name):
            while not await repeated(self._runtime, attempt):
                conflicts += 1
                await back_off(self._runtime, conflicts)

    def guard(
        self, before: Position, ends: Mapping[int, LedgerEnd], *, is_forced: bool, stale: Sequence[Cursor] = ()
    ) -> Callable[[Manifest], Awaitable[Sequence[Step]]]:
        """Return the conditions for a truncation to `before`, checked with the swap; it carries cursors along.

        `stale`: cursors that may be passed, as they are, without force. Raises `CursorBehind` unless it `is_forced`;
        then unread cursors stay where they are, and others are carried.
        """

        async def check(manifest: Manifest) -> Sequence[Step]:
            cursors, version = await self.read()
            behind = passed(cursors, manifest, before, ends)
            refused = [] if is_forced else [cursor for cursor in behind if cursor not in stale]
            if refused:
                names = ", ".join(f"{cursor.name} (at {cursor.position})" for cursor in refused)
                way_out = "truncate to the first of them, delete or move it, or force the truncation"
                if any(cursor.name == CURSOR for cursor in refused):
                    way_out = (
                        f"truncate to the first of them, or call `save` of `log.sequenced`, which moves {CURSOR}; "
                        "a truncation past that appends repeats of numbered entries again"
                    )
                raise CursorBehind(
                    f"log {self._records.name} cannot be truncated to {before}, because of its cursors {names}: "
                    f"{way_out}"
                )
            left = {cursor.name: cursor for cursor in behind}
            moved_along = {**carried(cursors, manifest, before), **left}
            if moved_along != cursors:
                return [RecordWrite(self._record, pack_cursors(manifest.token, moved_along), version)]
            return [] if is_forced else [RecordAt(self._record, version)]

        return check

    async def delete_all(self) -> None:
        """Delete all cursors, and the log's other records, with a log that is being deleted."""

        async def attempt(record: str) -> None:
            try:
                _, version = await self._driver.read_record(record)
                await self._driver.delete_record(record, version)
            except RecordNotFound:
                pass  # None is left.

        name = self._records.name
        consumers = await repeated(self._runtime, partial(self._driver.record_names, f"{CONSUMERS}{name}/"))
        own = [prefix + name for prefix in (CURSORS, SEQUENCES, TIMES, HISTORY, MIRRORS, LEADERS)]
        for record in (*own, *consumers):
            await repeated(self._runtime, partial(attempt, record))


def beginning_of(manifest: Manifest) -> Position | None:
    """Return the position of the first entry; None: the log has no ledger."""
    first = manifest.beginning
    return None if first is None else Position(first.ledger_id, first.first)
