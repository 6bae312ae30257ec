"""`LogLock`: DistributedLog's lock, which Java's writers and locked readers take as well. Source: distributedlog 2.8.

A lock avoids duels; the safety of a log does not depend on it. Members are ephemeral, so they end with the session.
Then the lock is taken again in the background, unless another process was faster.
"""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import quote_plus

from bookies.client.base.metadata_loop import back_off, repeated
from bookies.distributedlog.store.tree import Tree
from bookies.errors import BookKeeperError, LogFenced, LogInUse, LogNotFound, MetadataError, SessionExpired
from bookies.metadata.zookeeper.zookeeper_port import Acl, NodeMissing
from bookies.runtime.ports import Runtime
from bookies.runtime.tasks import Tasks


class LogLock:
    """One member of the lock at `path`. `owner`: the client id that others see."""

    def __init__(self, runtime: Runtime, tree: Tree, path: str, owner: str) -> None:
        self._runtime = runtime
        self._tree = tree
        self._path = path
        self._owner = owner
        self._member: str | None = None
        self._changed = asyncio.Event()
        self._error: BookKeeperError | None = None
        self._tasks = Tasks(self._died)
        self._was_held = False
        self.is_released = False

    async def acquire(self, timeout: float) -> None:
        """Wait until every earlier member has left. `timeout`: seconds; 0: do not wait.

        Raises `LogInUse`, which names the owner, and `LogNotFound`.
        """
        try:
            await self._acquire(timeout)
            self._was_held = True
        except NodeMissing:
            raise LogNotFound(f"there is no lock {self._path}: the log does not exist") from None

    async def _acquire(self, timeout: float) -> None:
        if timeout == 0 and (owner := await self._present_owner()) is not None:
            raise self._in_use(owner)
        self._member = await repeated(self._runtime, self._create_member)
        try:
            async with asyncio.timeout(timeout or None):
                while (ahead := await self._member_ahead()) is not None:
                    if timeout == 0:
                        raise TimeoutError
                    self._changed.clear()
                    if await self._tree.exists(f"{self._path}/{ahead}", watch=self._changed.set) is not None:
                        await self._changed.wait()
        except TimeoutError:
            owner = await self._present_owner()
            await self._leave()
            raise self._in_use(owner or "another process") from None
        except BaseException:
            await self._leave()
            raise
        finally:
            self._tree.unwatch(self._changed.set)

    async def _create_member(self) -> str:
        """Create our member. If the answer is lost, the member is deleted: no process would leave it."""
        prefix = f"member_{quote_plus(self._owner)}_s{self._tree.session_id or 0:10d}_"
        before = await self._members()
        try:
            path, _ = await self._tree.create(
                f"{self._path}/{prefix}", self._owner.encode(), Acl.OPEN, is_ephemeral=True, is_sequential=True
            )
        except MetadataError:
            for name in await self._members():
                if name.startswith(prefix) and name not in before:
                    await self._tree.delete(f"{self._path}/{name}")
            raise
        return path

    async def _members(self) -> list[str]:
        names, _ = await self._tree.children(self._path, sync=True)
        members = [name for name in names if name.startswith("member_")]
        return sorted(members, key=lambda name: int(name.rpartition("_")[2]))

    async def _member_ahead(self) -> str | None:
        """Return the member just before ours. Raises `SessionExpired` if ours has gone."""
        assert self._member is not None
        members, own = await self._members(), self._member.rpartition("/")[2]
        if own not in members:
            raise SessionExpired(f"the member {self._member} of the lock was lost")
        index = members.index(own)
        return members[index - 1] if index else None

    async def _present_owner(self) -> str | None:
        for name in (await self._members())[:1]:
            try:
                data, _ = await self._tree.get(f"{self._path}/{name}")
            except NodeMissing:
                return None
            return data.decode("utf-8", "replace")
        return None

    def _in_use(self, owner: str) -> LogInUse:
        return LogInUse(f"{owner} has the lock {self._path}: end it, wait longer, or take over with lock=False")

    def session_lost(self) -> None:
        """Take the lock again. Called after the session's end."""
        if not self._was_held or self._member is None or self.is_released:
            return
        self._member = None
        self._tasks.start(self._reacquire(), f"take the lock {self._path} again")

    async def _reacquire(self) -> None:
        count = 0
        while not self.is_released:
            try:
                await self._acquire(0)
                return
            except (LogInUse, NodeMissing) as error:
                self._error = LogFenced(f"the lock was lost with the session: {error}")
                return
            except MetadataError:
                count += 1
                await back_off(self._runtime, count)

    def _died(self, cause: BaseException) -> None:
        self._error = LogFenced(f"the lock {self._path} was lost: {cause!r}")

    def check(self) -> None:
        """Raise `LogFenced` if another process has the lock. While it is being taken again, writes go on."""
        if self._error is not None:
            raise self._error

    def check_strictly(self) -> None:
        """Raise `LogFenced` unless the lock is held: for readers, which no fencing stops."""
        self.check()
        if self._member is None:
            raise LogFenced(f"the lock {self._path} was lost with the session: open the log again")

    async def release(self) -> None:
        """Leave the lock. Idempotent."""
        self.is_released = True
        await self._tasks.stop()
        await self._leave()

    async def _leave(self) -> None:
        member, self._member = self._member, None
        if member is not None:
            with contextlib.suppress(NodeMissing, MetadataError):  # Without us it ends with the session.
                await self._tree.delete(member)
