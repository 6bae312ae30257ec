"""Checker of auto-recovery's locks and marks, from their changes in the metadata store.

    lock        a process that replaces bookies in a sealed ledger has its lock, or had it until its session expired
    mark        a mark is deleted only if the ledger names no bookie that was lost for good before the lock was taken
    forgotten   a bookie's cookie is deleted only if no sealed ledger needs the bookie
    storm       no process sends the store `REQUESTS_MAX` requests within `WINDOW_S`

Source: client-protocol 7, metadata 8.5 to 8.7, 8.11.
"""

from __future__ import annotations

from collections.abc import Callable

from bookies.lab.sim.world import SimCluster
from bookies.lab.sim.world.sim_metadata import Commit
from bookies.metadata.shared.nodes import LOCKS, MARKS
from bookies.model import BookieId
from bookies.protocol.repair.fragments import is_named, is_stored_on

WINDOW_S = 10.0
REQUESTS_MAX = 3_000
SETTLED_S = 5.0  # an operator's check before deleting a cookie has seen records that are older than this


class Locking:
    """Checker of locks, marks, cookies and request rates.

    `report(invariant, text)` receives broken promises. `roles`: name prefixes of the processes to check.
    """

    def __init__(self, cluster: SimCluster, report: Callable[[str, str], None], roles: tuple[str, ...]) -> None:
        self._cluster = cluster
        self._store = cluster.store
        self._report = report
        self._roles = roles
        self._taken: dict[tuple[str, int], float] = {}  # host, ledger -> since when it has the lock, or assumes so
        self.marked: dict[int, float] = {}  # marked ledgers, and since when
        self._requests: dict[tuple[str, int], int] = {}  # host, window -> requests
        self.most_requests = 0
        cluster.store.on_recovery = self._noted
        cluster.store.on_request = self._asked
        cluster.store.on_cookie_deleted = self._forgotten

    def held_since(self, host: str, ledger_id: int) -> float:
        """Return when a host took the ledger's lock that it has; the present time if it has none."""
        return self._taken.get((host, ledger_id), self._store.loop.time())

    def _asked(self, host: str) -> None:
        if host.startswith(self._roles):
            window = int(self._store.loop.time() / WINDOW_S)
            count = self._requests[host, window] = self._requests.get((host, window), 0) + 1
            self.most_requests = max(self.most_requests, count)
            if count == REQUESTS_MAX:
                self._report("storm", f"{host} has asked the store {count:,} times within {WINDOW_S:g} s")

    def _noted(self, host: str, operation: str, place: str) -> None:
        """Record an operation of auto-recovery that has taken effect in the store."""
        if place.startswith(LOCKS):
            key = host, int(place.removeprefix(LOCKS), 16)
            if operation == "hold":
                self._taken[key] = self._store.loop.time()
            elif operation == "release":
                self._taken.pop(key, None)
        elif place.startswith(MARKS):
            ledger_id = int(place.removeprefix(MARKS), 16)
            if operation == "delete":
                self.marked.pop(ledger_id, None)
                self._unmarked(host, ledger_id)
            else:
                self.marked.setdefault(ledger_id, self._store.loop.time())

    def _unmarked(self, host: str, ledger_id: int) -> None:
        since = self._taken.get((host, ledger_id))
        if since is None:
            self._report("lock", f"{host} deletes the mark of ledger {ledger_id}, whose lock it does not have")
            return
        record = self._store.record(ledger_id)
        if record is None or not record.is_closed:
            return
        for name, bookie in self._cluster.bookies.items():
            # A bookie without entries is not asked. Until its registration ends it is taken to be there.
            patience_s = 0.0 if is_stored_on(record, BookieId(name)) else self._cluster.lease_s
            is_gone = bookie.gone_s is not None and bookie.gone_s < since - patience_s
            if is_gone and is_named(record, BookieId(name)):
                self._report("mark", f"{host} deletes the mark of ledger {ledger_id}, which needs {name}, gone before")

    def committed(self, commit: Commit) -> None:
        """Check a record at the moment of its commit: only the lock's owner replaces bookies."""
        before, after = commit.before, commit.after
        if before is None or after is None or not commit.author.startswith(self._roles):
            return
        is_swap = before.state is after.state and before.ensembles != after.ensembles
        if is_swap and (commit.author, after.ledger_id) not in self._taken:
            self._report(
                "lock", f"{commit.author} replaces bookies in ledger {after.ledger_id}, whose lock it does not have"
            )

    def _forgotten(self, host: str, name: str) -> None:
        now = self._store.loop.time()
        for ledger_id, commits in self._store.commits.items():
            record = commits[-1].after
            is_settled = record is not None and record.is_closed and now - commits[-1].at_s > SETTLED_S
            if is_settled and record is not None and is_named(record, BookieId(name)):
                self._report("forgotten", f"{host} deletes the cookie of {name}, which ledger {ledger_id} needs")
