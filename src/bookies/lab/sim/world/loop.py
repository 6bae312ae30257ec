"""An asyncio event loop on virtual time, shared by several participants.

The loop never sleeps: when no callback is ready, the clock jumps to the next timer. If no timer is left and the main
task is not done, the run cannot continue, and `Deadlock` reports what each task waits for.

Every callback belongs to the `Participant` (a bookie, a client) in whose context it was scheduled, or to the world
(the network's deliveries, the faults). The loop drops the callbacks of a killed participant, so the participant stops
at the `await` it had reached, and none of its `finally` blocks runs during the simulation. The loop keeps the callbacks
of a paused participant until it resumes, as if its process had been stopped.

Determinism: callbacks run in the order in which they became due. Futures and tasks hash by their number instead of
their address, so sets of them iterate alike in every process. Automatic garbage collection is off during a run, so the
moment of a finalizer depends only on the run. The loop has no threads, no sockets and no real clock.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import sys
import traceback
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
STEP_COUNT_MAX = 500_000  # callbacks at one instant; more indicates a loop that never waits

_PARTICIPANT: contextvars.ContextVar[Participant | None] = contextvars.ContextVar("participant", default=None)


class SimulationError(AssertionError):
    """Misbehaviour of the simulated program that the loop itself detects, without a checker."""


class Deadlock(SimulationError):
    """The main task is not done, and no callback or timer is scheduled."""


class Livelock(SimulationError):
    """Endless callbacks at one instant: the clock does not advance."""


class Overdue(SimulationError):
    """The main task was not done by its deadline in virtual time."""


class Halted(SimulationError):
    """End of a run by `SimLoop.halt`."""


class Crashed(BaseException):
    """Unwinds the code of a dead participant. No code catches it: no callback of that participant runs afterwards."""


class Participant:
    """A simulated process: code that can be killed or paused as a whole."""

    def __init__(self, loop: SimLoop, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.is_paused = False
        self.steps = 0
        self._loop = loop
        self._backlog: list[_Timer] = []
        self._on_kill: list[Callable[[], None]] = []
        self._fuse: int | None = None
        self._on_fuse: Callable[[], None] | None = None
        self.context = contextvars.copy_context()
        self.context.run(_PARTICIPANT.set, self)

    def __repr__(self) -> str:
        state = "dead" if not self.is_alive else "paused" if self.is_paused else "alive"
        return f"<Participant {self.name} {state}>"

    def create_task(self, coroutine: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """Run a coroutine as this participant. Everything that it schedules also belongs to the participant."""
        return self._loop.create_task(coroutine, name=name, context=self.context.copy())

    def call(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a function now, as this participant."""
        return self.context.copy().run(function, *arguments)

    def on_kill(self, callback: Callable[[], None]) -> None:
        """Register a callback to run (as the world) when the participant dies, in the order of registration."""
        self._on_kill.append(callback)

    def kill(self) -> None:
        """Stop this participant at once and permanently. Idempotent."""
        if self.is_alive:
            self.is_alive = False
            self._backlog.clear()
            self._fuse = None
            for callback in self._on_kill:
                self._loop.world.copy().run(callback)

    def light_fuse(self, steps: int, blow: Callable[[], None]) -> None:
        """Call `blow` (as the world) before this participant's callback number `steps` from now."""
        self._fuse, self._on_fuse = steps, blow

    def defuse(self) -> None:
        self._fuse = None

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        self._loop.ready.extend(self._backlog)
        self._backlog.clear()

    def admits(self, handle: _Timer) -> bool:
        """Report whether a callback of this participant may run now. Queue it while the participant is paused."""
        if not self.is_alive:
            return False
        if self.is_paused:
            self._backlog.append(handle)
            return False
        self.steps += 1
        if self._fuse is not None:
            self._fuse -= 1
            if self._fuse <= 0:
                self._fuse = None
                assert self._on_fuse is not None
                self._loop.world.copy().run(self._on_fuse)
                return self.admits(handle)
        return True


def current_participant() -> Participant | None:
    """Return the participant whose code is running; None: the world."""
    return _PARTICIPANT.get()


class _Timer(asyncio.TimerHandle):
    """A callback that is ready, or becomes ready at `when()`. The loop skips cancelled ones when they are due."""

    __slots__ = ("participant", "run_in")

    def __init__(
        self, when: float, callback: Callable[..., object], args: Any, loop: SimLoop, context: Context
    ) -> None:
        # What `TimerHandle.__init__` and that of its base do, without their calls: there are millions of timers.
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self._when = when
        self.participant = context.get(_PARTICIPANT)
        self.run_in = context

    def cancel(self) -> None:
        asyncio.Handle.cancel(self)


class _Future(asyncio.Future[Any]):
    number = 0

    def __hash__(self) -> int:
        return self.number


class _Task(asyncio.Task[Any]):
    number = 0

    def __init__(self, number: int, coroutine: Coroutine[Any, Any, Any], **options: Any) -> None:
        self.number = number
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self.number


class SimLoop(asyncio.AbstractEventLoop):
    """The event loop of one simulation. Create it, `run` one main coroutine, `close` it.

    `errors`: exceptions that escaped from callbacks or from tasks that were never awaited, as text.
    """

    def __init__(self) -> None:
        self.ready: deque[_Timer] = deque()
        self.errors: list[str] = []
        self.steps = 0
        self._now = 0.0
        self._timers: list[tuple[float, int, _Timer]] = []  # a heap
        self._number = 0
        self._tasks: dict[asyncio.Task[Any], Participant | None] = {}  # every task since the start
        self._closed = False
        self._running = False
        self._is_halted = False
        self.world = contextvars.copy_context()
        self.world.run(_PARTICIPANT.set, None)

    # -- running -------------------------------------------------------------------------------------------------
    def run(self, main: Coroutine[Any, Any, T], *, deadline_s: float = 86_400.0) -> T:
        """Run `main` as the world, until it is done.

        Raises: what `main` raises, `Deadlock`, `Livelock`, `Overdue`.
        """
        task = self.create_task(main, name="main", context=self.world.copy())
        hooks = sys.get_asyncgen_hooks()
        collects = gc.isenabled()
        gc.disable()
        asyncio._set_running_loop(self)
        sys.set_asyncgen_hooks(finalizer=self._finalize_generator)
        self._running = True
        try:
            self._run_until(task, self._now + deadline_s)
        finally:
            self._running = False
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(None)
            if collects:
                gc.enable()
        return task.result()

    def _run_until(self, task: asyncio.Task[Any], deadline: float) -> None:
        ready = self.ready
        steps_here = 0
        while not task.done():
            if self._is_halted:
                raise Halted
            if not ready:
                self._advance(deadline)
                steps_here = 0
            handle = ready.popleft()
            if handle._cancelled:
                continue
            owner = handle.participant
            if owner is not None and not owner.admits(handle):
                continue
            steps_here += 1
            self.steps += 1
            if steps_here > STEP_COUNT_MAX:
                raise Livelock(f"{STEP_COUNT_MAX:,} callbacks at {self._now:.6f} s; the last: {handle!r}")
            try:
                handle.run_in.run(handle._callback, *handle._args)
            except (KeyboardInterrupt, SystemExit, SimulationError):
                raise
            except Crashed:
                assert owner is not None
                assert not owner.is_alive
            except BaseException as error:  # noqa: BLE001
                # The run continues, as asyncio does. A checker decides about the reported error.
                self._report(f"callback of {owner.name if owner else 'the world'}", error)

    def _advance(self, deadline: float) -> None:
        """Move the clock to the next timer and make all due timers ready."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not timers:
            raise Deadlock(f"nothing is scheduled at {self._now:.6f} s, and these wait:\n" + self.describe_tasks())
        now = timers[0][0]
        if now > deadline:
            raise Overdue(f"not done after {deadline:.3f} s; waiting:\n" + self.describe_tasks())
        self._now = now = max(self._now, now)
        while timers and timers[0][0] <= now:
            self.ready.append(heapq.heappop(timers)[2])

    def halt(self) -> None:
        """Make `run` raise `Halted` before the next callback, for example after the first violation."""
        self._is_halted = True

    def describe_tasks(self) -> str:
        """Return one line for each pending task of a living participant: owner, name, and where it waits."""
        lines = [
            f"  {owner.name if owner else 'world'}: {task.get_name()}: {_where(task.get_coro())}"
            for task, owner in self._tasks.items()
            if not task.done() and (owner is None or owner.is_alive)
        ]
        return "\n".join(lines) or "  no task at all"

    def leftover_tasks(self, participant: Participant) -> list[str]:
        """Return name and waiting place of each pending task of the participant."""
        return [
            f"{task.get_name()}: {_where(task.get_coro())}"
            for task, owner in self._tasks.items()
            if owner is participant and not task.done()
        ]

    def note_unread_errors(self) -> None:
        """Add unretrieved exceptions of living participants' tasks to `errors`. Call it once, after `run`."""
        for task, owner in self._tasks.items():
            if (owner is None or owner.is_alive) and task.done() and task._log_traceback:
                error = task.exception()
                assert error is not None
                self._report(f"task {task.get_name()} of {owner.name if owner else 'the world'}", error)

    def close(self) -> None:
        """Close all suspended coroutines. Their clean-up code has no effect on the simulation."""
        self._closed = True
        self.ready.clear()
        self._timers.clear()
        asyncio._set_running_loop(self)
        try:
            for task in [task for task in self._tasks if not task.done()]:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _give_up(task.get_coro())
        finally:
            asyncio._set_running_loop(None)
        self._tasks.clear()

    def _finalize_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        # The coroutine is made only when it can run: one that is never awaited is a warning.
        self.call_soon(lambda: self.create_task(generator.aclose()))

    def _report(self, where: str, error: BaseException) -> None:
        text = "".join(traceback.format_exception(error)).rstrip()
        self.errors.append(f"{self._now:.6f} s, {where}: {text}")

    # -- the interface of asyncio's loops ------------------------------------------------------------------------
    def time(self) -> float:
        """Return virtual seconds since the loop was created."""
        return self._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = _Timer(self._now, callback, args, self, context or contextvars.copy_context())
        if not self._closed:
            self.ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay if delay > 0 else self._now, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self._number += 1
        handle = _Timer(when, callback, args, self, context or contextvars.copy_context())
        if not self._closed:
            heapq.heappush(self._timers, (when, self._number, handle))
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_soon(callback, *args, context=context)  # there is only one thread

    def create_future(self) -> asyncio.Future[Any]:
        future = _Future(loop=self)
        self._number += 1
        future.number = self._number
        return future

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: object = None,
        context: Context | None = None,
        **options: Any,
    ) -> asyncio.Task[T]:
        self._number += 1
        context = context or contextvars.copy_context()
        if self._closed:
            coro.close()  # Clean-up code started a task after the end of the run.
        title = str(name) if name is not None else f"task {self._number}"
        task = _Task(self._number, coro, loop=self, name=title, context=context, **options)  # type: ignore[arg-type]
        self._tasks[task] = context.get(_PARTICIPANT)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if self._closed or isinstance(error, Crashed):
            return
        message = context.get("message", "error")
        if error is not None:
            self._report(message, error)
        else:
            self.errors.append(f"{self._now:.6f} s, {message}")

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        raise NotImplementedError("the simulator's loop has no debug mode")

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        raise SimulationError("threads are banned below the ports: use Runtime.workers")

    async def shutdown_asyncgens(self) -> None:
        return None


class _Ended(BaseException):
    """The simulation has ended. Unlike GeneratorExit it goes through asynchronous generators, too."""


def _give_up(coroutine: Any) -> None:
    """End a suspended coroutine, even if it awaits again while it is being ended."""
    for _ in range(20):
        try:
            coroutine.throw(_Ended())
        except BaseException:  # noqa: BLE001
            return  # The coroutine is finished, even if its clean-up failed because the simulation has ended.


def _where(coroutine: Any) -> str:
    """Return a suspended coroutine's chain of awaits: functions with line numbers, then the awaited object."""
    places = []
    current = coroutine
    while current is not None:
        frame = (
            getattr(current, "cr_frame", None)
            or getattr(current, "gi_frame", None)
            or getattr(current, "ag_frame", None)
        )
        if frame is None:
            places.append(type(current).__name__)
            break
        places.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        current = getattr(current, "cr_await", None) or getattr(current, "gi_yieldfrom", None)
    return " > ".join(places)
