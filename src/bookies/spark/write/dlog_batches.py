"""The sink on logs of DistributedLog: what differs from our own logs. A task writes ledgers that the commit makes
segments; `distributedlog/batches.py` explains why that happens once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from bookies.errors import InvalidArgument, LogNotFound
from bookies.spark.base import runtime
from bookies.spark.write.reaping import reap_once
from bookies.spark.write.write_settings import Settings

if TYPE_CHECKING:
    from bookies.client.base import Opening
    from bookies.distributedlog import Namespace
    from bookies.distributedlog.batches import Batches, PartWriter
    from bookies.protocol.log.transaction import Origin, Transaction

T = TypeVar("T")


def open_namespace(settings: Settings) -> Opening[Namespace]:
    """Return the namespace of the sink, with a client of its own."""
    from bookies import distributedlog
    from bookies.config import ClientConfig

    config = ClientConfig(memory_limit=settings.in_flight_size)
    return distributedlog.open_namespace(settings.uri, password=settings.password, config=config)


def _with_batches(settings: Settings, act: Callable[[Batches], Awaitable[T]]) -> T:
    assert settings.log is not None
    log = settings.log

    async def main() -> T:
        async with open_namespace(settings) as namespace:
            return await act(namespace.batches(log))

    return runtime.worker().run(main())


def planned(settings: Settings, *, is_replacing: bool) -> Settings:
    """Return the settings with the transaction id of the batch, before any task starts.

    Raises `LogNotFound`, `LogEnded`, `InvalidArgument`.
    """
    if is_replacing:
        raise InvalidArgument(
            "mode overwrite, and output mode complete, replace what a log has: a log of DistributedLog can only be "
            "appended to; use mode append"
        )
    assert settings.log is not None
    log = settings.log

    async def main() -> int:
        async with open_namespace(settings) as namespace:
            target = namespace.log(log)
            if settings.creates_log:
                await target.create(exist_ok=True)
            elif not await target.exists():
                raise LogNotFound(f"there is no log {log} in {settings.uri}: set option createLog=true, or create it")
            return await namespace.batches(log).next_txid(is_fencing=settings.on_open_tail == "fence")

    return replace(settings, txid=runtime.worker().run(main()))


def begin_part(settings: Settings, namespace: Namespace, log: str, origin: Origin) -> PartWriter:
    """Begin the part of one task."""
    from bookies.client.base.arguments import quorums
    from bookies.distributedlog.batches import Quorums

    sizes = Quorums(*quorums(settings.ensemble or 3, settings.write_quorum, settings.ack_quorum))
    grace_ms = round(settings.orphan_grace * 1000)
    return namespace.batches(log).part(origin, settings.txid, sizes, settings.ledger_size, grace_ms)


def commit(settings: Settings, txn: Transaction) -> bool:
    """Append the batch to its log; False: that was done before."""

    async def act(batches: Batches) -> bool:
        is_new = await batches.commit(txn, is_fencing=settings.on_open_tail == "fence", timeout=settings.timeout)
        if txn.is_kept:
            await reap_once((txn.app, batches.name), _leftovers(batches, txn))
        return is_new

    return _with_batches(settings, act)


async def _leftovers(batches: Batches, txn: Transaction) -> AsyncIterator[tuple[str, int, str]]:
    """Delete leftovers of earlier runs of this application."""
    for ledger_id in await batches.reap(txn):
        yield batches.name, ledger_id, "deleted"


def abort(settings: Settings, txn: Transaction) -> None:
    """Delete what the batch wrote. Raises errors of the stores."""
    _with_batches(settings, lambda batches: batches.abort(txn, timeout=settings.timeout))
