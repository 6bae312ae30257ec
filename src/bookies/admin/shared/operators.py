"""What operators' commands share: who runs them, which bookie they name, news of a metadata store that does not answer."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from bookies.admin.shared.common import Progress, visible
from bookies.admin.shared.usage import UsageError

if TYPE_CHECKING:
    from bookies.admin.shared.common import Session
    from bookies.model import BookieId

KNOWN_SHOWN = 20  # bookies


def who() -> str:
    """Of locks and notes, for people."""
    user = visible(os.environ.get("USER") or str(os.getuid()))
    return f"{user}@{socket.gethostname()}:{os.getpid()}"


async def check_known(session: Session, name: str) -> BookieId:
    """The bookie of that name. Raises `UsageError` if it has no cookie, is not registered, and no ledger names it."""
    import difflib

    from bookies.metadata.formats.serde import is_bookie_id
    from bookies.model import BookieId

    known = dict.fromkeys((await session.driver.all_bookies()).bookies) | dict.fromkeys(await session.driver.modes())
    bookie = BookieId(name)
    if bookie in known:
        return bookie
    if is_bookie_id(name) and await session.client.administration().ledgers_on([bookie]):
        return bookie
    near = difflib.get_close_matches(name, known, 3)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    more = f" and {len(known) - KNOWN_SHOWN:,} more" if len(known) > KNOWN_SHOWN else ""
    has = ", ".join(sorted(known)[:KNOWN_SHOWN]) or "none"
    raise UsageError(f"there is no bookie {name}, and no ledger names it: the cluster has {has}{more}{meant}")


def store_line(error: object) -> str:
    """For people who wait."""
    return f"the metadata store does not answer, and is asked again: {error}"


def store_news(progress: Progress) -> Callable[[str | None], None]:
    """To be told the trouble with the store again and again, None: it answers. Each outage is a line, once."""
    was_away = False

    def told(trouble: str | None) -> None:
        nonlocal was_away
        if trouble is not None and not was_away:
            progress.note(store_line(trouble))
        was_away = trouble is not None

    return told
