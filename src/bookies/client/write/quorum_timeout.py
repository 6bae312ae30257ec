"""What a writer does besides appending: notice that it stands still, force bookies to sync, read its settings.

Source: client-protocol 2.17, 2.18.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from bookies.client.base.arguments import seconds
from bookies.client.write.adds import AddChannel, AddPool
from bookies.config import ClientConfig
from bookies.errors import AckQuorumTimeout
from bookies.model import BookieId
from bookies.protocol.ledger import AddPipeline
from bookies.protocol.ledger.add import AddRules
from bookies.protocol.placement.topology import parse_fault_domains
from bookies.runtime.tasks import all_of

TICKS = 4  # looks at a writer that makes no progress before it is given up


class QuorumTimeout:
    """Ends a writer whose oldest entry gets no quorum for `limit_s` seconds (at most a quarter more); 0: never.

    Looks at progress, not at entries: while the first pending entry stays the same, it is the one that waits.
    """

    def __init__(self, limit_s: float, pipeline: AddPipeline, channel: AddChannel) -> None:
        self._limit_s = limit_s
        self._pipeline = pipeline
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._head = -1
        self._ticks = 0

    def watch(self) -> None:
        """Something was sent. Costs next to nothing while a look is due anyway."""
        if self._timer is None and self._limit_s and self._pipeline.has_undelivered:
            self._look_later(0)

    def stop(self) -> None:
        """Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self, ticks: int) -> None:
        self._head, self._ticks = self._pipeline.head, ticks
        self._timer = self._loop.call_later(self._limit_s / TICKS, self._look)

    def _look(self) -> None:
        self._timer = None
        pipeline = self._pipeline
        if not pipeline.is_open or not pipeline.has_undelivered:
            return
        if self._head != pipeline.head:
            self._look_later(0)
        elif self._ticks + 1 < TICKS:
            self._look_later(self._ticks + 1)
        else:
            error = AckQuorumTimeout(
                f"no ack quorum for {self._limit_s:g} s (add_quorum_timeout_ms), so the writer has ended",
                ledger_id=pipeline.metadata.ledger_id,
                entry_id=pipeline.head + 1,
            )
            self._channel.carry_out(pipeline.fail(error))


def deadline_of(timeout: float) -> float:
    """When a call that may take `timeout` seconds from now has to end. Raises `InvalidArgument` for what is no time."""
    seconds(timeout)
    return asyncio.get_running_loop().time() + timeout


async def force_everywhere(pool: AddPool, ledger_id: int, bookies: Sequence[BookieId]) -> None:
    """Have every one of these bookies sync. The first error counts and the others are given up."""
    await all_of(pool.force(bookie, ledger_id) for bookie in bookies)


def rules_of(
    config: ClientConfig, domains: Mapping[BookieId, str] | None = None, *, is_deferred_sync: bool = False
) -> AddRules:
    """What the settings say. `domains`: the fault domain of each bookie, as far as it is known; None: as in
    `fault_domains`. Raises `ConfigError` when that cannot be read."""
    return AddRules(
        changes_max=config.ensemble_changes_max,
        delays_changes=config.delay_ensemble_change,
        is_deferred_sync=is_deferred_sync,
        domains=_of_bookies(config.fault_domains) if domains is None else domains,
        domains_min=config.fault_domains_min,
    )


def _of_bookies(pairs: str) -> dict[BookieId, str]:
    return {BookieId(name): location for name, location in parse_fault_domains(pairs).items()}
