"""Request of an operator to the elected auditor: check now, without the delay for lost bookies."""

from __future__ import annotations

from bookies.config import RecoveryConfig
from bookies.errors import InvalidArgument
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.recovery_store import AuditKind


async def request_audit(driver: MetadataDriver, *, with_checks: bool = False) -> str:
    """Request an audit, `with_checks` also the periodic checks. Return the auditor's name.

    Raises `InvalidArgument` if no auditor would do it.
    """
    store = driver.recovery
    if not await store.is_enabled():
        raise InvalidArgument("auto-recovery is disabled, and with it the auditor: enable it with `bk recovery enable`")
    auditor = await store.auditor()
    if auditor is None:
        raise InvalidArgument("there is no auditor: start bookies with auto_recovery=true, or `bk recovery run`")
    if with_checks:
        for kind in AuditKind:
            await store.set_checked_at_ms(kind, 0)
    # A store without a delay gets the one that an auditor would set: 0 would end the protection of restarts.
    delay_s = await store.init_lost_bookie_delay_s(RecoveryConfig().lost_bookie_delay_s)
    await store.set_lost_bookie_delay_s(delay_s)
    return auditor
