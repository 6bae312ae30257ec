"""Replicas that no client of a run has written, as another implementation's client may leave them."""

from __future__ import annotations

import struct
from functools import partial

from bookies.kernels import Adds, Records, digest
from bookies.lab.sim.checkers import Story
from bookies.lab.sim.world.cluster import SimBookie
from bookies.model import DigestType, LedgerMetadata
from bookies.wire.digest import mac_key, master_key


def plant(bookie: SimBookie, record: LedgerMetadata, story: Story, entry_id: int, last_add_confirmed: int) -> bool:
    """Let a bookie store an entry with this last add confirmed in its header. False: the bookie is down or refuses."""
    if bookie.server is None or bookie.participant is None:
        return False
    add = partial(
        bookie.server.storage.add, is_recovery=True, is_deferred_sync=False, accepted=lambda size: None, done=_ignore
    )
    records = Records.of([package(record, story, entry_id, last_add_confirmed)])
    adds = Adds.of(story.ledger_id, range(entry_id, entry_id + 1), records, last_add_confirmed)
    return not bookie.participant.call(add, adds, master_key(story.password))


def package(record: LedgerMetadata, story: Story, entry_id: int, last_add_confirmed: int) -> bytes:
    """Return an entry of the ledger as its writer would have packaged it."""
    payload = story.payload(entry_id)
    head = struct.pack(">qqqq", story.ledger_id, entry_id, last_add_confirmed, story.length_up_to(entry_id))
    digest_type = record.digest_type or DigestType.CRC32C
    return b"".join((head, digest(digest_type, mac_key(story.password), head, payload), payload))


def _ignore(part: Adds, error: BaseException | None) -> None:
    """Ignore the outcome: the checks that read the replica detect whether it was stored."""
