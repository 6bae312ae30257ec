"""Query an ensemble for a ledger's last add confirmed. Source: client-protocol 3.5."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from bookies.client.base.keys import Keys
from bookies.client.transport import BookiePool
from bookies.client.transport.unanswered import Outcome
from bookies.errors import BookKeeperError, ClientClosed, RecoveryFailed, RemoteProtocolError, Unauthorized
from bookies.model import LAST_ENTRY, BookieId, LedgerMetadata
from bookies.protocol.ledger.lac import LacRead, TryLacRead
from bookies.wire import digest
from bookies.wire.messages import ReadLacResponse, ReadResponse


async def read_last_add_confirmed(pool: BookiePool, keys: Keys, record: LedgerMetadata) -> LacRead:
    """Ask all bookies of the last fragment until the answers cover the ensemble; the result is in the `LacRead`.

    The value is the maximum of the explicit last add confirmed, where a bookie has one, and the one in its last entry.
    Raises the last error if all have answered without coverage; `Unauthorized` at once.
    """
    core = LacRead(record)
    answers = [pool.start_read_lac(bookie, record.ledger_id) for bookie in record.last_ensemble]

    def verified(bookie: BookieId, outcome: Outcome) -> tuple[int, int]:
        return _from_read_lac(keys, pool.check_lac(bookie, outcome, record.ledger_id))

    await _collect(core, record, answers, verified)
    if not core.is_covered:
        raise core.failure()
    return core


async def try_last_add_confirmed(pool: BookiePool, keys: Keys, record: LedgerMetadata, known: int) -> TryLacRead:
    """Ask all bookies for their last entry, until one reports more than `known` or all have answered.

    Raises `RecoveryFailed` if none answered, `Unauthorized` at once.
    """
    core = TryLacRead(record, known)
    answers = [pool.start_read_entry(bookie, record.ledger_id, LAST_ENTRY) for bookie in record.last_ensemble]

    def verified(bookie: BookieId, outcome: Outcome) -> tuple[int, int]:
        response = pool.check(bookie, outcome, ReadResponse, record.ledger_id)
        header = digest.verify_entry(keys.digest_type, keys.mac_key, bytes(response.body or b""), keys.ledger_id, None)
        return header.last_add_confirmed, header.length

    await _collect(core, record, answers, verified)
    if not core.is_covered:
        error = core.failure()
        if isinstance(error, Unauthorized):
            raise error
        causes = "; ".join(f"{bookie}: {cause.message}" for bookie, cause in core.causes.items())
        raise RecoveryFailed(
            f"no bookie reported its last add confirmed: {causes}. Try again when one answers",
            ledger_id=record.ledger_id,
        ) from error
    return core


async def _collect(
    core: LacRead,
    record: LedgerMetadata,
    answers: Sequence[asyncio.Future[Outcome]],
    verified: Callable[[BookieId, Outcome], tuple[int, int]],
) -> None:
    """Feed the core with answers until it is done; cancel the rest. `verified`: (last add confirmed, length)."""
    waiting = dict(enumerate(answers))
    try:
        while not core.is_done:
            await asyncio.wait(waiting.values(), return_when=asyncio.FIRST_COMPLETED)
            for position in [position for position, answer in waiting.items() if answer.done()]:
                try:
                    result = verified(record.last_ensemble[position], waiting.pop(position).result())
                    core.answered(position, *result)
                except ClientClosed:
                    raise
                except BookKeeperError as error:
                    core.failed(position, error)
    finally:
        for answer in waiting.values():
            answer.cancel()


def _from_read_lac(keys: Keys, response: ReadLacResponse) -> tuple[int, int]:
    """Return (last add confirmed, ledger length so far) of one answer; -1 and 0 if it contains neither."""
    last_add_confirmed, length = -1, 0
    if response.ledger_id != keys.ledger_id:
        raise RemoteProtocolError(f"answer about ledger {response.ledger_id}", ledger_id=keys.ledger_id)
    if response.lac_body:
        last_add_confirmed = digest.verify_lac(keys.digest_type, keys.mac_key, response.lac_body, keys.ledger_id)
    if response.last_entry_body:
        body = bytes(response.last_entry_body)
        header = digest.verify_entry(keys.digest_type, keys.mac_key, body, keys.ledger_id, None)
        last_add_confirmed, length = max(last_add_confirmed, header.last_add_confirmed), header.length
    return last_add_confirmed, length
