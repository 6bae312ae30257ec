"""Clients without a ledger's password: all their requests are refused and have no effect.

    password   no client gets a handle without the password; no bookie that holds entries of a ledger accepts adds, an
               explicit LAC or a fence with a wrong key

Some requests use the public client, which checks the password with the ledger's record. The others go directly to
bookies, which must check the key themselves. A bookie without entries of the ledger does not know its key and is not
tested.

Source: client-protocol 3.1; storage F-23.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bookies.client.transport import BookiePool
from bookies.errors import BookKeeperError, EntryNotFound, LedgerFenced, Unauthorized
from bookies.kernels import pack_add_frames
from bookies.lab.sim.checkers import Story
from bookies.lab.sim.clients.roles import Roles
from bookies.lab.sim.world import SimClient
from bookies.lab.sim.world.cluster import resolve
from bookies.model import BookieId, DigestType
from bookies.wire.digest import mac_key, master_key, package_lac
from bookies.wire.v2 import add_head

WRONG = (b"", b"s3cret", b"S3cret", b"s3cret ")
ACCEPTED = (EntryNotFound, LedgerFenced)  # errors that a bookie returns only for the right key


class _Outcome:
    """`AddSink` that stores the outcome of one add in a future."""

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_acknowledged(self, bookie: BookieId, entry_ids: Sequence[int]) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def on_failed(self, bookie: BookieId, entry_ids: Sequence[int], error: BookKeeperError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Intruders:
    """The acts of all intruders of a workload."""

    def __init__(self, roles: Roles) -> None:
        self._history = roles.history
        self._random = roles.random
        self._bookies = [BookieId(name) for name in roles.cluster.bookies]

    async def intrude(self, client: SimClient, story: Story) -> None:
        """Try one operation with a wrong password."""
        password = self._random.choice([password for password in WRONG if password != story.password])
        operation = self._random.choice(("open", "recover", "fence", "fence", "add", "write back", "announce"))
        try:
            if operation == "open":
                await client.client.open(story.ledger_id, password=password)
            elif operation == "recover":
                await client.client.recover(story.ledger_id, password=password)
            elif not await self._ask(client, story, password, operation):
                return
        except Unauthorized:
            self._history.count("intrusions refused")
            return
        except ACCEPTED as error:
            self._accepted(client, story, operation, f"is told {type(error).__name__}")
            return
        except BookKeeperError as error:
            self._history.failed(client.name, f"intrusion into {story.ledger_id}", error)
            return
        self._accepted(client, story, operation, "succeeds")

    def _accepted(self, client: SimClient, story: Story, operation: str, outcome: str) -> None:
        text = f"{client.name} has a wrong password for ledger {story.ledger_id}, wants to {operation}, and {outcome}"
        self._history.violated("password", text)

    async def _ask(self, client: SimClient, story: Story, password: bytes, operation: str) -> bool:
        """Send a request to a bookie that knows the key; False: there is none. Raises the bookie's error."""
        witness = self._history.witness
        assert witness is not None
        holders = [bookie for bookie in self._bookies if witness.has_any(bookie, story.ledger_id)]
        if not holders:
            return False
        bookie, ledger_id = self._random.choice(holders), story.ledger_id
        entry_id = self._random.randint(0, story.started + 1)
        pool = BookiePool(client.runtime, client.client.config, resolve)
        try:
            if operation == "fence":
                read_id = self._random.choice((-1, entry_id))
                await pool.read_entry(bookie, ledger_id, read_id, key=master_key(password))
            elif operation == "announce":
                body = package_lac(DigestType.CRC32C, mac_key(password), ledger_id, entry_id)
                await pool.write_lac(bookie, ledger_id, entry_id, master_key(password), body)
            else:
                head = add_head(master_key(password), is_recovery=operation == "write back")
                given = (head, ledger_id, entry_id, -1, 0, [b"intruder"], DigestType.CRC32C, mac_key(password))
                outcome = _Outcome()
                pool.send_adds(bookie, ledger_id, range(entry_id, entry_id + 1), pack_add_frames(*given)[0], outcome)
                await outcome.future
        finally:
            await pool.close()
        return True
