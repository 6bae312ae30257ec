"""What auto-recovery beside a bookie takes from that bookie."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bookies.bookie.server import BookieServer
from bookies.config import BookieConfig, ClientConfig, RecoveryConfig
from bookies.metadata.interface import MetadataDriver
from bookies.replication.daemon.process import BesideBookie, RecoveryProcess
from bookies.runtime import aio
from bookies.storage.index.limbo import Limbo


@pytest.mark.parametrize(("own", "used"), [("", "/east/r1"), ("/west/r1", "/west/r1")])
def test_it_is_where_the_bookie_is_unless_its_client_has_a_place(
    own: str, used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(process: RecoveryProcess) -> None:
        begun.set_result(process._participant)

    async def main() -> Any:
        nonlocal begun
        begun = asyncio.get_running_loop().create_future()
        store = SimpleNamespace(limbo=Limbo())
        server = SimpleNamespace(
            config=config,
            bookie_id="b1",
            store=store,
            extend_control=lambda verbs: None,
            on_add_latency=lambda call: None,
        )
        running = asyncio.create_task(beside.run(cast(BookieServer, server), aio.runtime()))
        try:
            return await begun
        finally:
            running.cancel()

    begun: asyncio.Future[Any]
    monkeypatch.setattr(RecoveryProcess, "run", run)
    config = BookieConfig(journal_directories=("j",), ledger_directories=("l",), location="/east/r1", host="10.0.0.1")
    beside = BesideBookie(RecoveryConfig(), ClientConfig(location=own), lambda: cast(MetadataDriver, None))
    participant = asyncio.run(main())
    assert (participant.client_config.location, participant.owner, participant.bookie) == (used, "10.0.0.1", "b1")
