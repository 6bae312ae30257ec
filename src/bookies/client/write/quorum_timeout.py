"""A writer's duties besides appending: detect that it makes no progress, have bookies sync, read its settings.

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

TICKS = 4  # checks without progress before the writer ends


class QuorumTimeout:
    """Ends a writer whose oldest entry gets no quorum for `limit_s` seconds (at most a quarter more); 0: never.

    It checks progress, not entries: while the first pending entry stays the same, that entry is waiting.
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
        """Start checking after entries were sent. Almost free while a check is already scheduled."""
        if self._timer is None and self._limit_s and self._pipeline.has_undelivered:
            self._schedule_check(0)

    def stop(self) -> None:
        """Stop checking. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule_check(self, ticks: int) -> None:
        self._head, self._ticks = self._pipeline.head, ticks
        self._timer = self._loop.call_later(self._limit_s / TICKS, self._check)

    def _check(self) -> None:
        self._timer = None
        pipeline = self._pipeline
        if not pipeline.is_open or not pipeline.has_undelivered:
            return
        if self._head != pipeline.head:
            self._schedule_check(0)
        elif self._ticks + 1 < TICKS:
            self._schedule_check(self._ticks + 1)
        else:
            error = AckQuorumTimeout(
                f"no ack quorum for {self._limit_s:g} s (add_quorum_timeout_ms), so the writer has ended",
                ledger_id=pipeline.metadata.ledger_id,
                entry_id=pipeline.head + 1,
            )
            self._channel.carry_out(pipeline.fail(error))


def deadline_of(timeout: float) -> float:
    """Return the loop time at which a call with this timeout in seconds has to end. Raises `InvalidArgument`."""
    seconds(timeout)
    return asyncio.get_running_loop().time() + timeout


async def force_everywhere(pool: AddPool, ledger_id: int, bookies: Sequence[BookieId]) -> None:
    """Have every one of these bookies sync. The first error is raised and cancels the others."""
    await all_of(pool.force(bookie, ledger_id) for bookie in bookies)


def rules_of(
    config: ClientConfig, domains: Mapping[BookieId, str] | None = None, *, is_deferred_sync: bool = False
) -> AddRules:
    """Return the rules of adds that the settings ask for.

    `domains`: the fault domain of each bookie, if known; None: as in the setting `fault_domains`. Raises
    `ConfigError` if that cannot be parsed.
    """
    return AddRules(
        changes_max=config.ensemble_changes_max,
        delays_changes=config.delay_ensemble_change,
        is_deferred_sync=is_deferred_sync,
        domains=_of_bookies(config.fault_domains) if domains is None else domains,
        domains_min=config.fault_domains_min,
    )


def _of_bookies(pairs: str) -> dict[BookieId, str]:
    return {BookieId(name): location for name, location in parse_fault_domains(pairs).items()}
