"""An asyncio event loop on virtual time that belongs to several participants at once.

Nothing waits: when no callback is ready, the clock jumps to the next timer. With no timer left and the main task not
done, nothing can ever happen again, and `Deadlock` says what each task waits for.

Every callback belongs to the `Participant` (a bookie, a client) in whose context it was scheduled, or to the world
(the network's deliveries, the faults). The callbacks of a killed participant are dropped, so it stops at whatever
`await` it had reached, and no `finally` of it runs while the simulation lives; those of a paused one are kept until it
resumes, as if its process had been stopped.

Determinism: callbacks run in the order in which they became due; futures and tasks hash by their number instead of
their address, so sets of them iterate alike in every process; automatic garbage collection is off during a run, so no
finalizer runs at a moment that depends on anything else. No threads, no sockets, no real clock.
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
STEP_COUNT_MAX = 500_000  # callbacks at one instant; more is a loop that never waits

_PARTICIPANT: contextvars.ContextVar[Participant | None] = contextvars.ContextVar("participant", default=None)


class SimulationError(AssertionError):
    """The simulated program misbehaved in a way that no checker had to look for."""


class Deadlock(SimulationError):
    """The main task is not done and nothing is scheduled."""


class Livelock(SimulationError):
    """Callbacks follow each other for ever without the clock advancing."""


class Overdue(SimulationError):
    """The main task was not done by its deadline in virtual time."""


class Halted(SimulationError):
    """Somebody called `SimLoop.halt`."""


class Crashed(BaseException):
    """Unwinds the code of a participant that is dead. Nobody sees it: nothing of that participant runs afterwards."""


class Participant:
    """Something that can be killed or paused as a whole."""

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
        """Run a coroutine as this participant; so does everything it schedules."""
        return self._loop.create_task(coroutine, name=name, context=self.context.copy())

    def call(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a function now, as this participant."""
        return self.context.copy().run(function, *arguments)

    def on_kill(self, callback: Callable[[], None]) -> None:
        """`callback()` runs when the participant dies, as the world; in the order of registration."""
        self._on_kill.append(callback)

    def kill(self) -> None:
        """Stop everything this participant does, at once and for ever. Idempotent."""
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
        """Whether a callback of this participant may run now. Keeps it for later while paused."""
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
    """Whose code is running; None: the world's."""
    return _PARTICIPANT.get()


class _Timer(asyncio.TimerHandle):
    """A callback that is ready or will be at `when()`. Cancelled ones are skipped when their turn comes."""

    __slots__ = ("participant", "run_in")

    def __init__(
        self, when: float, callback: Callable[..., object], args: Any, loop: SimLoop, context: Context
    ) -> None:
        asyncio.Handle.__init__(self, callback, args, loop, context)  # past `TimerHandle`: many are made
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
    """The loop. Make one, `run` one main coroutine on it, `close` it.

    `errors`: exceptions that escaped from callbacks or from tasks nobody waited for, as text.
    """

    def __init__(self) -> None:
        self.ready: deque[_Timer] = deque()
        self.errors: list[str] = []
        self.steps = 0
        self._now = 0.0
        self._timers: list[tuple[float, int, _Timer]] = []  # a heap
        self._number = 0
        self._tasks: dict[asyncio.Task[Any], Participant | None] = {}  # all there ever were
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
            if handle.cancelled():
                continue
            owner = handle.participant
            if owner is not None and not owner.admits(handle):
                continue
            steps_here += 1
            self.steps += 1
            if steps_here > STEP_COUNT_MAX:
                raise Livelock(f"{STEP_COUNT_MAX:,} callbacks at {self._now:.6f} s; the last: {handle!r}")
            try:
                handle.run_in.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
            except (KeyboardInterrupt, SystemExit, SimulationError):
                raise
            except Crashed:
                assert owner is not None
                assert not owner.is_alive
            except BaseException as error:  # noqa: BLE001
                # Kept and reported: a checker decides, and the run goes on as asyncio's would.
                self._report(f"callback of {owner.name if owner else 'the world'}", error)

    def _advance(self, deadline: float) -> None:
        """Move the clock to the next timer and make all that are due ready."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
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
        """Let `run` raise `Halted` before the next callback: what was looked for has been found."""
        self._is_halted = True

    def describe_tasks(self) -> str:
        """One line for each task of a living participant that is not done: who, what, where it waits."""
        lines = [
            f"  {owner.name if owner else 'world'}: {task.get_name()}: {_where(task.get_coro())}"
            for task, owner in self._tasks.items()
            if not task.done() and (owner is None or owner.is_alive)
        ]
        return "\n".join(lines) or "  no task at all"

    def leftover_tasks(self, participant: Participant) -> list[str]:
        """Names and places of the participant's tasks that are not done."""
        return [
            f"{task.get_name()}: {_where(task.get_coro())}"
            for task, owner in self._tasks.items()
            if owner is participant and not task.done()
        ]

    def note_unread_errors(self) -> None:
        """Add to `errors` what tasks of the living ended with and nobody looked at. Once, after `run`."""
        for task, owner in self._tasks.items():
            if (owner is None or owner.is_alive) and task.done() and task._log_traceback:
                error = task.exception()
                assert error is not None
                self._report(f"task {task.get_name()} of {owner.name if owner else 'the world'}", error)

    def close(self) -> None:
        """Give up all that is still suspended, without anything of it taking effect."""
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
        self.call_soon(self.create_task, generator.aclose())

    def _report(self, where: str, error: BaseException) -> None:
        text = "".join(traceback.format_exception(error)).rstrip()
        self.errors.append(f"{self._now:.6f} s, {where}: {text}")

    # -- what asyncio asks of a loop -----------------------------------------------------------------------------
    def time(self) -> float:
        """Virtual seconds since the loop was made."""
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
            coro.close()  # Somebody's clean-up, after the end.
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


def _give_up(coroutine: Any) -> None:
    """Close a suspended coroutine, also one that awaits again while it is being closed."""
    for _ in range(20):
        try:
            coroutine.close()
            return
        except RuntimeError:
            continue  # "coroutine ignored GeneratorExit": it is at another await now.
        except BaseException:  # noqa: BLE001
            return  # Its clean-up failed, in a world that is gone; it is finished either way.


def _where(coroutine: Any) -> str:
    """The chain of awaits of a suspended coroutine: functions with line numbers, then what is awaited."""
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
