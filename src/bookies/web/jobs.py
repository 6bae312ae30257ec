"""Work of an operator that outlasts its request, such as copying the replicas of a lost bookie."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from bookies.errors import BookKeeperError
from bookies.protocol.rights import Role
from bookies.runtime.events import Events
from bookies.runtime.ports import Clock
from bookies.web.messages import Problem

RUNNING_MAX = 4
KEPT_MAX = 100  # jobs that are listed, running and ended
CANCEL_S = 20.0  # that a request waits for a job to end
STOP_S = 10.0  # for jobs to end, when the process does


class Jobs:
    """The jobs of one process; they end with it."""

    def __init__(self, clock: Clock) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self._clock = clock
        self._events = Events("http", clock)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._count = 0

    def check(self) -> None:
        """Raise `Problem` if no other job may start now."""
        if len(self._tasks) >= RUNNING_MAX:
            raise Problem(429, f"{RUNNING_MAX} jobs run; /api/v1/jobs lists them", headers={"Retry-After": "60"})

    def is_running(self, job_id: str) -> bool:
        """Report whether a job has not ended."""
        return job_id in self._tasks

    def start(
        self,
        name: str,
        by: str,
        work: Coroutine[Any, Any, object],
        role: Role = Role.ADMINISTRATOR,
        facts: dict[str, Any] | None = None,
    ) -> str:
        """Start a job after `check`, and return its id. `role`: the lowest that may cancel it. `facts`: see `row`."""
        self._count += 1
        job_id = str(self._count)
        if len(self.rows) >= KEPT_MAX:
            del self.rows[next(old for old in self.rows if old not in self._tasks)]
        row = {"id": job_id, "job": name, "by": by, "state": "running", "began_ms": self._clock.wall_ms()}
        self.rows[job_id] = facts if facts is not None else {}
        self.rows[job_id] |= {**row, "role": role.word}
        self._tasks[job_id] = asyncio.get_running_loop().create_task(self._run(job_id, work), name=f"job {name}")
        return job_id

    async def _run(self, job_id: str, work: Coroutine[Any, Any, object]) -> None:
        row = self.rows[job_id]
        try:
            row["result"] = await work
            row["state"] = "done"
        except asyncio.CancelledError:
            row["state"] = "cancelled"
            raise
        except (BookKeeperError, OSError) as error:
            row |= {"state": "failed", "error": str(error)}
        except Exception as error:  # noqa: BLE001  (our mistake: the process goes on)
            row |= {"state": "failed", "error": f"{type(error).__name__}: {error}"}
            self._events.error("http.broken", path=row["job"], error=error)
        finally:
            row["ended_ms"] = self._clock.wall_ms()
            self._tasks.pop(job_id, None)
            self._events.info("http.job_ended", job=row["job"], by=row["by"], state=row["state"])

    def row(self, job_id: str) -> dict[str, Any]:
        """Return the facts of a job; its work may change those that `start` was given. Raises `Problem`."""
        if job_id not in self.rows:
            raise Problem(404, f"there is no job {job_id}; /api/v1/jobs lists them")
        return self.rows[job_id]

    async def cancel(self, job_id: str) -> dict[str, Any]:
        """Cancel a job, and wait a while until it has ended. Return its facts. Raises `Problem` if it does not run."""
        row = self.row(job_id)
        task = self._tasks.get(job_id)
        if task is None:
            raise Problem(409, f"job {job_id} does not run: it is {row['state']}")
        await asyncio.sleep(0)  # A task that has not begun would be cancelled without noting that.
        if row["state"] == "running":
            row["state"] = "cancelling"
            task.cancel()
        await asyncio.wait([task], timeout=CANCEL_S)
        return row

    async def stop(self) -> None:
        """Cancel the jobs. Those that have not ended after a while are cancelled again: they end at once."""
        await asyncio.sleep(0)  # as in `cancel`
        tasks = list(self._tasks.values())
        for timeout in (STOP_S, None):
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=timeout)
            tasks = [task for task in tasks if not task.done()]
