"""Conditions of a bookie's health, for probes and metrics: each with a reason and the next step.

A probe asks for local conditions alone: readiness that depended on the cluster would cut off every bookie at once. A
lost session with the metadata store does not make a bookie unready, because its clients know its address. A condition
that flaps is reported as it was until the change has lasted `STEADY_S`.

No IO. Source: operations 5.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from bookies.bookie.server import BookieServer
from bookies.bookie.state import Phase
from bookies.model import BookieMode

if TYPE_CHECKING:
    from bookies.replication.daemon.process import RecoveryProcess
    from bookies.storage.scrub import Scrubber

DISKS = "disks_below_warning"  # name of a condition
SYNC_S = 60.0  # a journal that has not completed a group for this time, while records wait, is stuck
NAMED_LEDGERS_MAX = 3  # damaged ledgers that a reason names
STEADY_S = 3.0  # a change of a condition is reported after this time


class Condition(Struct, frozen=True):
    """One condition. `reason`, `next_step`: empty while it holds. `for_readiness`: an unmet one makes it unready."""

    name: str
    holds: bool
    reason: str = ""
    next_step: str = ""
    for_readiness: bool = False


class Steady:
    """Delays the report of changes. `now_s`: the monotonic clock."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._reported: dict[str, Condition] = {}
        self._differs_since_s: dict[str, float] = {}

    def settle(self, condition: Condition) -> Condition:
        """Return the condition, or the one reported before while the change is younger than `STEADY_S`."""
        before = self._reported.get(condition.name)
        if before is None or before.holds is condition.holds:
            self._differs_since_s.pop(condition.name, None)
        elif self._now_s() - self._differs_since_s.setdefault(condition.name, self._now_s()) < STEADY_S:
            return before
        else:
            del self._differs_since_s[condition.name]
        self._reported[condition.name] = condition
        return condition


class BookieHealth:
    """Health of one bookie."""

    def __init__(self, server: BookieServer, now_s: Callable[[], float]) -> None:
        self._server = server
        self._steady = Steady(now_s)

    @property
    def is_started(self) -> bool:
        """Report whether the journal is replayed and the bookie was registered once."""
        return self._server.has_started

    @property
    def phase(self) -> str:
        """Name what the bookie does: replay, registration, serving, stopping."""
        phase = self._server.state.phase
        if phase is Phase.STARTING:
            return "replay"
        return "registration" if phase is Phase.SERVING and not self.is_started else phase.value

    def conditions(self) -> list[Condition]:
        """Return every condition. Those for readiness come first."""
        server = self._server
        state = server.state
        conditions = [
            Condition(
                "started",
                self.is_started,
                "the bookie replays its journal, or waits for its registration",
                "wait; `/startupz` reports the phase",
                for_readiness=True,
            ),
            Condition(
                "running",
                state.phase is not Phase.STOPPING,
                "the bookie is stopping or has failed",
                "read its log",
                for_readiness=True,
            ),
        ]
        if server.store.parts is not None and self.is_started:
            conditions += self._settled(server)
        conditions += [
            Condition(
                "registered",
                state.registered_as is not None,
                "the session with the metadata store is lost; connected clients are served, new ones do not find it",
                "check the metadata store: `bk status`",
            ),
            Condition(
                "writable",
                state.mode is BookieMode.WRITABLE,
                "; ".join(server.reasons()),
                _writable_step(server),
            ),
        ]
        return [condition if not condition.holds else _met(condition) for condition in conditions]

    def _settled(self, server: BookieServer) -> list[Condition]:
        """Return the conditions of the storage as they are reported."""
        conditions = [self._steady.settle(condition) for condition in self._storage_conditions(server)]
        if server.store.parts is None or not server.store.parts.disks.space.is_full:
            return conditions
        full = server.store.read_only_reason  # One reason for two conditions: callers show it once.
        return [replace(row, reason=full) if row.name == DISKS else row for row in conditions]

    @staticmethod
    def _storage_conditions(server: BookieServer) -> list[Condition]:
        store, bookie = server.store, server.bookie_id
        parts = store.parts
        assert parts is not None
        stuck = [journal.directory for journal in parts.journals if journal.waiting_s() > SYNC_S]
        crowded = [path for path, space in parts.disks.space.spaces.items() if space.is_almost_full or space.is_full]
        almost_full = f"{', '.join(crowded)} {'is' if len(crowded) == 1 else 'are'} almost full"
        failed = parts.health.failed
        damage, repair = _damage(store.scrubber)
        alarm = store.collector.alarm if store.collector is not None else None
        return [
            Condition(
                "journal",
                not stuck,
                f"adds have waited more than {SYNC_S:.0f} s for a sync of {', '.join(stuck)}",
                f"check the disk; `bk bookie state --bookie {bookie}`",
                for_readiness=True,
            ),
            Condition(
                "directories",
                len(parts.health.healthy(parts.directories.ledgers)) > 0,
                "every ledger directory has failed",
                "replace the disks, and restart the bookie",
                for_readiness=True,
            ),
            Condition(
                "disks_usable",
                not failed,
                "; ".join(f"{path}: {reason}" for path, reason in failed.items()),
                "docs/howto/replace-a-disk.md",
            ),
            Condition(
                DISKS,
                not crowded,
                almost_full,
                f"docs/howto/free-a-full-disk.md; `bk bookie disks --bookie {bookie}`",
            ),
            Condition(
                "scrub_clean",
                not damage,
                damage,
                f"{repair}`bk bookie scrub --bookie {bookie}` lists them; docs/howto/check-for-damage.md",
            ),
            Condition(
                "collection_free",
                alarm is None,
                str(alarm),
                f"`bk bookie space --bookie {bookie}`; `bk bookie gc --force` if the deletions are intended",
            ),
        ]


def _writable_step(server: BookieServer) -> str:
    """Return what ends the read-only mode of a bookie."""
    store, bookie = server.store, server.bookie_id
    if store.is_writable:
        return f"`bk bookie read-write --bookie {bookie}`"
    if store.parts is not None and store.parts.disks.space.is_full:
        return f"docs/howto/free-a-full-disk.md; `bk bookie disks --bookie {bookie}`"
    return f"read its log; `bk bookie state --bookie {bookie}`"


def _damage(scrubber: Scrubber | None) -> tuple[str, str]:
    """Return the damaged entries that the scrub found with their first ledgers, and the command that copies them.

    Both are empty without damage; the command is empty if no ledger is known.
    """
    count = 0 if scrubber is None else scrubber.gauges()["scrub_damaged_entries"]
    if scrubber is None or not count:
        return "", ""
    ledgers = [str(ledger_id) for ledger_id in scrubber.damaged_ledgers()]
    text = f"the scrub found {count:,} damaged {'entry' if count == 1 else 'entries'}"
    if not ledgers:
        return text, ""
    more = f" and {len(ledgers) - NAMED_LEDGERS_MAX:,} more" if len(ledgers) > NAMED_LEDGERS_MAX else ""
    named = ledgers[:NAMED_LEDGERS_MAX]
    return (
        f"{text} of {'ledger' if len(ledgers) == 1 else 'ledgers'} {', '.join(named)}{more}",
        f"`bk ledger repair {' '.join(named)}` copies them from other replicas; ",
    )


class RecoveryHealth:
    """Health of a process of auto-recovery."""

    def __init__(self, process: RecoveryProcess) -> None:
        self._process = process
        self._was_running = False

    @property
    def is_started(self) -> bool:
        """Report whether auto-recovery has reached the metadata store once."""
        self._was_running = self._was_running or self._process.current is not None
        return self._was_running

    @property
    def phase(self) -> str:
        return "serving" if self.is_started else "connecting to the metadata store"

    def conditions(self) -> list[Condition]:
        started = Condition(
            "started",
            self.is_started,
            "auto-recovery has not reached the metadata store yet",
            "check the metadata store: `bk status`",
            for_readiness=True,
        )
        connected = Condition(
            "connected",
            self._process.current is not None,
            "auto-recovery is not running: its last attempt has failed",
            "read its log, and check the metadata store: `bk status`",
        )
        return [condition if not condition.holds else _met(condition) for condition in (started, connected)]


class GatewayHealth:
    """Health of a gateway. `is_connected`: it has reached the metadata store. `is_stopping`: it ends."""

    def __init__(self, is_connected: Callable[[], bool], is_stopping: Callable[[], bool]) -> None:
        self._is_connected = is_connected
        self._is_stopping = is_stopping

    @property
    def is_started(self) -> bool:
        """Report whether requests can be served."""
        return self._is_connected()

    @property
    def phase(self) -> str:
        if self._is_stopping():
            return "stopping"
        return "serving" if self.is_started else "connecting to the metadata store"

    def conditions(self) -> list[Condition]:
        started = Condition(
            "started",
            self.is_started,
            "the gateway has not reached the metadata store yet",
            "check the metadata store: `bk status`",
            for_readiness=True,
        )
        running = Condition(
            "running",
            not self._is_stopping(),
            "the gateway is stopping: it ends the requests in progress",
            "use another gateway",
            for_readiness=True,
        )
        return [condition if not condition.holds else _met(condition) for condition in (started, running)]


Health = BookieHealth | RecoveryHealth | GatewayHealth


def _met(condition: Condition) -> Condition:
    return Condition(condition.name, True, for_readiness=condition.for_readiness)
