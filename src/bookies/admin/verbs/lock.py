"""`bk lock`: run a command while this process has a lock, as `flock` does on one machine."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from bookies.admin.shared import UsageError
from bookies.admin.shared.command_line import Option, verb
from bookies.admin.shared.common import on_client
from bookies.admin.verbs.lock_guard import guarding

if TYPE_CHECKING:
    from collections.abc import Callable

    from bookies.client.client import Client
    from bookies.client.turns.lease import Lease

POLL_S = 0.02  # between two looks whether a child of the command is left
LOOKS = 12  # within a ttl, at the time that is left
TOKEN = "BK_LEASE_TOKEN"  # variable of the command, with the fencing token
NOT_HELD, LOST, NOT_EXECUTABLE, NOT_FOUND, SIGNALLED = 75, 124, 126, 127, 128  # exit statuses


async def _lock(client: Client, arguments: argparse.Namespace) -> int:
    from bookies.errors import LeaseHeld
    from bookies.protocol.log.lease import check_ttl

    waits, timeout = not arguments.no_wait, arguments.timeout
    name, ttl = arguments.lock, check_ttl(arguments.ttl)
    grace_s = ttl / 4 if arguments.grace is None else arguments.grace
    if not 0 <= grace_s <= ttl / 2:
        raise UsageError(f"--grace {grace_s:g}: must be 0 to {ttl / 2:g} seconds, half of --ttl")
    try:
        if arguments.election:
            lease = await client.election(name).lead(ttl=ttl, wait=waits, timeout=timeout)
        else:
            lease = await client.lock(name, ttl=ttl, wait=waits, timeout=timeout)
    except (LeaseHeld, TimeoutError) as error:
        return _failed(f"the command was not started: {error}", NOT_HELD)
    try:
        async with guarding() as extend:
            return await _run(lease, extend, arguments.command, ttl, grace_s)
    finally:
        await lease.release()


def _failed(text: str, status: int) -> int:
    print(f"bk lock: {text}", file=sys.stderr)
    return status


async def _run(
    lease: Lease, extend: Callable[[int, float], None], command: list[str], ttl_s: float, grace_s: float
) -> int:
    """Run the command until it ends or the lease is lost; return the exit status.

    Another process can have the lease a `ttl` after the last renewal. SIGKILL is sent a twentieth of the `ttl` earlier,
    and SIGTERM `grace_s` before it. The guard sends SIGKILL at the same time if this process is dead or suspended;
    `extend`: tells it how long the command may run.
    """
    from bookies.protocol.log.lease import MARGIN

    environment = os.environ | {TOKEN: str(lease.token)}
    after_s = ttl_s * MARGIN / 2  # from the end of the lease until SIGKILL

    async def end(pid: int, ending: asyncio.Future[int]) -> None:
        await _end(pid, ending, min(grace_s, lease.left_s + after_s))

    def go_on(pid: int) -> None:
        extend(pid, lease.left_s + after_s)

    # A session of its own, so that the command ends with its children; a terminal can still be read. The guard knows it
    # before it runs: this process may be killed at any moment.
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *command, env=environment, start_new_session=True, preexec_fn=lambda: go_on(os.getpid())
        )
    )
    try:
        await asyncio.wait((starting,))
    except asyncio.CancelledError:  # by a signal to this process; the command may run already
        await _until_done(starting)
        if starting.exception() is None:
            await end(starting.result().pid, asyncio.ensure_future(starting.result().wait()))
        raise
    try:
        process = starting.result()
    except FileNotFoundError:
        return _failed(f"{command[0]}: not found", NOT_FOUND)
    except OSError as error:
        return _failed(f"{command[0]}: {error.strerror}", NOT_EXECUTABLE)
    ending = asyncio.ensure_future(process.wait())
    losing = asyncio.ensure_future(_losing(lease, grace_s - after_s, ttl_s / LOOKS, partial(go_on, process.pid)))
    try:
        await asyncio.wait((ending, losing), return_when=asyncio.FIRST_COMPLETED)
        is_killed = ending.done() and ending.result() < 0 and not lease.is_held  # by the guard
        if not ending.done() or is_killed:
            await end(process.pid, ending)
            text = "was not renewed in time, so another process may have it: the command was ended"
            return _failed(f"the lease {text}", LOST)
    except asyncio.CancelledError:  # by a signal to this process
        await end(process.pid, ending)
        raise
    finally:
        losing.cancel()
    status = ending.result()
    return status if status >= 0 else SIGNALLED - status


async def _losing(lease: Lease, early_s: float, pause_s: float, go_on: Callable[[], None]) -> None:
    """Wait until the lease is lost, or will be in `early_s` unless it is renewed. Call `go_on` until then."""
    lost = asyncio.Event()
    lease.on_lost(lost.set)
    while lease.is_held and (left_s := lease.left_s - early_s) > 0:
        go_on()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(left_s, pause_s)):
                await lost.wait()
                return


async def _end(pid: int, ending: asyncio.Future[int], grace_s: float) -> None:
    """End the command and its children, with SIGKILL after `grace_s` or a cancellation."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # None is left, or another user's, as of `sudo`.
        os.killpg(pid, signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await asyncio.wait((ending,))
                while True:  # A child can outlive the command. The group has its id until the last one has ended.
                    os.killpg(pid, 0)
                    await asyncio.sleep(POLL_S)
        except (TimeoutError, asyncio.CancelledError):
            os.killpg(pid, signal.SIGKILL)
    await _until_done(ending)  # Until then the lock must not be released.


async def _until_done(future: asyncio.Future[Any]) -> None:
    """Wait in spite of cancellations."""
    while not future.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait((future,))


VERBS = (
    verb(
        "lock",
        "run a command while this process has a lock",
        "bk lock nightly -- ./backup.sh",
        on_client(_lock),
        Option("lock NAME", "name of the lock"),
        Option("command COMMAND", "the command and its arguments, after --", values="+"),
        Option("--election", "lead the election of that name instead", bool),
        Option("--no-wait", "do not start the command if another process has the lock", bool),
        Option("--timeout SECONDS", "wait at most this long for the lock (default: without end)", float),
        Option("--ttl SECONDS", "seconds after which a silent holder loses the lock (default 10)", float, default=10.0),
        Option("--grace SECONDS", "seconds between SIGTERM and SIGKILL (default: a quarter of the ttl)", float),
        description=f"The variable {TOKEN} holds the fencing token, which grows with every holder. The command and "
        "its children get SIGTERM, then SIGKILL, before the lock is lost.\n\n"
        f"Exit status: that of the command; {SIGNALLED} + N if signal N ended it; {NOT_HELD} if the lock is held or "
        f"the time is over; {LOST} if the lock was lost; {NOT_EXECUTABLE} or {NOT_FOUND} if the command cannot be "
        "executed or is not found.",
    ),
)
